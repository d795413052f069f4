"""Samples from a table: named columns of a Parquet or CSV file, or named arrays of an .npz.

    arrays = read_columns(path, ["hour", "carrier", "delay"])
    samples = samples_of(arrays, Columns(("hour", "carrier"), "delay", "named"))

Truth values and whole numbers become int64, other numbers keep their precision, texts become NumPy's. Columns that are
lists of one length (an embedding) become arrays of shape (n, k). Nothing may be missing: what an empty place means,
the table's author knows.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile

from fedpeer.extras import missing
from fedpeer.learning.errors import DataError
from fedpeer.learning.labels import Classes, class_names, real_inputs, whole_labels
from fedpeer.learning.samples import Array, Inputs, Samples
from mechanism.workload import Columns

#: Whole numbers up to it are floating-point numbers as they are.
_WHOLE = 2**53

#: Suffixes that are read.
KINDS = (".npz", ".parquet", ".csv")


def read_columns(path: Path, names: Sequence[str], texts: Collection[str] = ()) -> dict[str, Array]:
    """The columns `names` of a file, by name, all of one length.

    Args:
        texts: columns that hold names, and become texts: a whole number its digits, a truth value true or false.

    Raises:
        DataError: another kind of file, a damaged one, a column that is not there, or a place without a value.
    """
    kind = path.suffix.lower()
    if kind not in KINDS:
        raise DataError(f"{path} is no table; expected a file that ends with {', '.join(KINDS)}")
    names = tuple(dict.fromkeys(names))
    arrays = _read_npz(path, names) if kind == ".npz" else _read_table(path, names, texts)
    try:
        made = {name: _clean(name, array, name in texts) for name, array in arrays.items()}
        lengths = {name: len(array) for name, array in made.items()}
        if len(set(lengths.values())) != 1 or not min(lengths.values()):
            raise DataError(f"the columns have {lengths} rows; expected one number for all, at least 1")
    except DataError as error:
        raise DataError(f"{path} cannot be used: {error}") from None
    return made


def samples_of(
    arrays: Mapping[str, Array], form: Columns, classes: Classes | None = None, beside: Sequence[str] = ()
) -> Samples:
    """Samples of columns as the terms lay them out.

    Args:
        classes: the target's, whose names or numbers it holds; None for a measured one.
        beside: columns that strata need.

    Raises:
        DataError: a target that is no class or no number, or texts in what is to be one array of numbers.
    """
    target = arrays[form.target]
    if classes is not None:
        # Where classes have names, a number is a name as well: whose place it would be, nobody has said.
        named = class_names(classes) is not None
        target = whole_labels(target.astype(np.str_) if named else target, classes)
    elif target.dtype.kind == "U":
        raise DataError(
            f"the target {form.target} is a text and there are no classes; expected numbers, or classes"
        )
    return Samples(_inputs(arrays, form), target, {name: arrays[name] for name in beside})


def layout_of(arrays: Mapping[str, Array], inputs: Sequence[str]) -> str:
    """ "array" where the inputs are one array of numbers already, or columns of numbers; else "named"."""
    parts = [arrays[name] for name in inputs]
    if any(part.dtype.kind == "U" for part in parts):
        return "named"
    return "array" if len(parts) == 1 or all(part.ndim == 1 for part in parts) else "named"


def read_samples(
    path: Path, form: Columns, classes: Classes | None = None, beside: Sequence[str] = ()
) -> Samples:
    """`samples_of` the columns of a file. Raises DataError as it and `read_columns` do."""
    texts = named_target(form.target, classes)
    return samples_of(read_columns(path, (*form.inputs, form.target, *beside), texts), form, classes, beside)


def named_target(target: str, classes: Classes | None) -> tuple[str, ...]:
    """The target where its classes have names, which is read as text: 1 and 1.0 are different names."""
    return () if classes is None or class_names(classes) is None else (target,)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _inputs(arrays: Mapping[str, Array], form: Columns) -> Inputs:
    if form.layout == "named":
        return {name: arrays[name] for name in form.inputs}
    parts = [arrays[name] for name in form.inputs]
    if len(parts) == 1 and parts[0].ndim > 1:
        return parts[0]
    for name, part in zip(form.inputs, parts, strict=True):
        if part.ndim != 1 or part.dtype.kind == "U":
            raise DataError(
                f"column {name} is {_words(part)}, which is no column of an array of numbers; expected numbers, or "
                f'layout = "named"{_first_text(part)}'
            )
        if part.dtype.kind == "i" and (large := np.flatnonzero((part > _WHOLE) | (part < -_WHOLE))).size:
            raise DataError(
                f"column {name} has whole numbers beyond 2^53, the first in row {large[0]}, which an array of numbers "
                'would round; expected smaller ones, or layout = "named"'
            )
    return real_inputs(np.stack(parts, axis=1), np.float64)


def _clean(name: str, array: Array, text: bool) -> Array:
    """A column in one of the types that workloads see; numbers as text where they are to be."""
    if array.ndim == 0:
        raise DataError(f"column {name} is a single value; expected one a sample")
    if text and array.dtype.kind != "U":
        return _as_text(array)
    if array.dtype.kind in "ui":
        if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
            raise DataError(f"column {name} has whole numbers above 2^63; expected smaller ones")
        return array.astype(np.int64)
    if array.dtype.kind == "b":
        return array.astype(np.int64)
    if array.dtype.kind == "f":
        bad = ~np.isfinite(array)
        if bad.any():
            row = int(np.argwhere(bad)[0][0])
            raise DataError(
                f"column {name} has {int(bad.sum())} values that are NaN or infinite, the first in row {row}; expected "
                "finite numbers: fill them in, or leave such rows out"
            )
        return array.astype(np.float32 if array.dtype == np.float16 else array.dtype)
    if array.dtype.kind == "U":
        return array
    raise DataError(f"column {name} is {_words(array)}; expected numbers, truth values or texts")


def _as_text(array: Array) -> Array:
    if array.dtype.kind == "b":
        return np.where(array, "true", "false")
    values = array.tolist()
    return np.array([f"{v:.0f}" if isinstance(v, float) and v.is_integer() else str(v) for v in values])


def _first_text(array: Array) -> str:
    """In words, the first place that keeps a column of texts from being numbers."""
    row = next((row for row, text in enumerate(array.ravel().tolist()) if not _is_number(str(text))), None)
    return (
        ""
        if row is None
        else f"; the first that is no number is {str(array.ravel()[row])!r:.60} in row {row}"
    )


def _words(array: Array) -> str:
    return "text" if array.dtype.kind == "U" else f"{array.dtype} of shape {array.shape}"


def _read_npz(path: Path, names: Sequence[str]) -> dict[str, Array]:
    try:
        with path.open("rb") as file:
            stored = np.load(file, allow_pickle=False)
            if not isinstance(stored, NpzFile):
                raise DataError(f"{path} is one array; expected an .npz, as np.savez writes it")
            absent = [name for name in names if name not in stored]
            if absent:
                raise DataError(_absent(path, absent, stored.files))
            return {name: stored[name] for name in names}
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except DataError:
        raise
    except Exception as error:  # a damaged file fails in as many ways as its formats have parts
        if "Object arrays" in str(error):
            raise DataError(
                f"{path} has an array of Python's objects; expected numbers or texts: write it as "
                "np.array(values, dtype=str), or as a type of numbers"
            ) from None
        raise DataError(f"{path} is no .npz file, or it is damaged: {_reason(error)}") from None


def _read_table(path: Path, names: Sequence[str], texts: Collection[str]) -> dict[str, Array]:
    try:
        from pyarrow import csv, parquet, string
    except ImportError as error:
        raise DataError(f"{path} cannot be read: {missing(error) or error}") from None
    try:
        with path.open("rb") as file:  # for Python's own words of why it cannot be
            if path.suffix.lower() == ".csv":
                types = dict.fromkeys(texts, string())
                table = csv.read_csv(file, convert_options=csv.ConvertOptions(column_types=types))
                known = table.column_names
            else:
                stored = parquet.ParquetFile(file)
                known = stored.schema_arrow.names
                table = stored.read(columns=[name for name in known if name in names])
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or _reason(error)}") from None
    except Exception as error:  # pyarrow's own, which differ by version
        raise DataError(f"{path} is no table, or it is damaged: {_reason(error)}") from None
    if absent := [name for name in names if name not in known]:
        raise DataError(_absent(path, absent, known))
    if twice := [name for name in names if known.count(name) > 1]:
        raise DataError(f"{path} has more than one column {twice[0]}; expected one of each name")
    try:
        if not len(table):
            raise DataError("it has no rows; expected a row for each sample")
        arrays = {name: _array(name, table.column(name)) for name in names}
        if path.suffix.lower() == ".csv":  # which has no other way to say that there is nothing
            for name, array in arrays.items():
                _check_texts(name, array)
        return arrays
    except DataError as error:
        raise DataError(f"{path} cannot be used: {error}") from None


def _check_texts(name: str, array: Array) -> None:
    """Raises DataError where a text is empty."""
    if array.dtype.kind == "U" and (empty := np.flatnonzero(array == "")).size:
        raise _absent_values(name, empty.size, int(empty[0]))


def _absent_values(name: str, count: int, first: int) -> DataError:
    return DataError(
        f"column {name} has {count} places without a value, the first in row {first}; expected a value everywhere: "
        "fill them in, or leave such rows out"
    )


def _array(name: str, column: Any) -> Array:
    """A column of Arrow's as an array of NumPy's."""
    import pyarrow
    from pyarrow import types

    if column.null_count:
        raise _absent_values(name, column.null_count, column.is_null().to_pylist().index(True))
    kind = column.type
    if types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if types.is_string(kind) or types.is_large_string(kind):
        return np.array(column.to_pylist(), dtype=np.str_)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        lengths = {len(value) for value in column.to_pylist()}
        if len(lengths) > 1:
            raise DataError(
                f"column {name} has lists of {min(lengths)} to {max(lengths)} values; expected one length for all"
            )
        values = pyarrow.chunked_array([chunk.flatten() for chunk in column.chunks], kind.value_type)
        if values.null_count:
            absent = [row for row, value in enumerate(column.to_pylist()) if None in value]
            raise _absent_values(name, len(absent), absent[0])
        return _array(name, values).reshape(len(column), -1)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return np.asarray(column.to_numpy())
    if types.is_binary(kind):
        raise DataError(f"column {name} is bytes; expected numbers, truth values, or texts in UTF-8")
    raise DataError(f"column {name} is {kind}; expected numbers, truth values or texts")


def _absent(path: Path, absent: Sequence[str], known: Sequence[str]) -> str:
    return f"{path} has no {', no '.join(absent)}; it has {', '.join(known) or 'nothing'}"[:500]


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0].partition("If you trust")[0].strip() or type(error).__name__
