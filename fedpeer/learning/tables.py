"""Samples from a table: named columns of a Parquet or CSV file, or named arrays of an .npz.

    arrays = read_columns(path, ["hour", "carrier", "delay"])
    samples = samples_of(arrays, Columns(("hour", "carrier"), "delay", "named"))

Truth values and whole numbers become int64, other numbers keep their precision, texts become NumPy's. Columns that are
lists of one length (an embedding) become arrays of shape (n, k). Nothing may be missing: what an empty place means,
the table's author knows.

A CSV does not say what is a number and what a name that looks like one: "01" is both. Where the column is one of strata
it stays a text; where nobody has said, it is refused. Its dates and times stay texts, as they are written; those of
other files become such (`dates_as_texts`).
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib.npyio import NpzFile

from fedpeer.extras import missing
from fedpeer.learning.arrays import number_text
from fedpeer.learning.csv_faults import HEAD_BYTES, broken, first_line, lacking
from fedpeer.learning.errors import DataError
from fedpeer.learning.labels import Classes, class_names, real_inputs, whole_labels
from fedpeer.learning.numerals import advice, is_number, nearly_numbers
from fedpeer.learning.samples import Array, Inputs, Samples
from mechanism.workload import Columns

#: Whole numbers up to it are 64-bit floating-point numbers as they are.
WHOLE = 2**53

#: From it on whole numbers have more than int64's bits.
_LARGE = 2**63

#: Whole numbers as int64 writes them; another text that is read as the same number may be a name.
_PLAIN = re.compile(r"\s*-?(0|[1-9][0-9]*)\s*")

#: What to do with elements of NumPy's other kinds.
INSTEAD = {"S": ": decode them", "m": ": write lengths of time as numbers, of seconds or days"}

#: Suffixes that are read.
KINDS = (".npz", ".parquet", ".csv")


def read_columns(
    path: Path,
    names: Sequence[str],
    texts: Collection[str] = (),
    codes: Collection[str] = (),
    plain: Collection[str] = (),
) -> dict[str, Array]:
    """The columns `names` of a file, by name, all of one length.

    Args:
        texts: columns that hold names, and become texts: a whole number its digits, a truth value true or false.
        codes: columns whose whole numbers are names. Where all of a CSV's are written as numbers are, and are within
            int64, they become int64; else texts, as they are written: "01" is not "1".
        plain: columns whose whole numbers may be names or numbers, so that a CSV's must be written as numbers are.

    Raises:
        DataError: another kind of file, a damaged one, a column that is not there, or a place without a value.
    """
    kind = path.suffix.lower()
    if kind not in KINDS:
        raise DataError(f"{path} is no table; expected a file that ends with {', '.join(KINDS)}")
    names = tuple(dict.fromkeys(names))
    if kind == ".npz":
        arrays = _read_npz(path, names)
    elif kind == ".csv":
        arrays = _read_csv(path, names, texts, codes, plain)
    else:
        arrays = _read_table(path, names)
    try:
        made = {
            name: _clean(name, array, name in texts or (name in codes and _is_large(array)))
            for name, array in arrays.items()
        }
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
            f"{first_text(target)}"
        )
    return Samples(_inputs(arrays, form), target, {name: arrays[name] for name in beside})


def layout_of(arrays: Mapping[str, Array], inputs: Sequence[str]) -> str:
    """ "array" where the inputs are one array of numbers already, or columns of numbers; else "named".

    Raises:
        DataError: a text that is nearly a number.
    """
    parts = [arrays[name] for name in inputs]
    for name, part in zip(inputs, parts, strict=True):
        check_names(f"column {name}", part, 'layout = "named", where they are names')
    if any(part.dtype.kind == "U" for part in parts):
        return "named"
    return "array" if len(parts) == 1 or all(part.ndim == 1 for part in parts) else "named"


def check_names(what: str, texts: Array, otherwise: str) -> None:
    """Refuses texts that would be numbers but for a comma, a unit or a mark of what is missing.

    Args:
        what: they are, and otherwise: what makes them names, for the sentence.

    Raises:
        DataError: each is a number, or nearly.
    """
    if texts.dtype.kind != "U" or (place := nearly_numbers(texts.ravel().tolist())) is None:
        return
    text = str(texts.ravel()[place])
    row = np.unravel_index(place, texts.shape)[0]
    raise DataError(
        f"{what} is text, and would be numbers but for {text!r:.60} in row {row}: {advice(text)}; or write {otherwise}"
    )


def read_samples(
    path: Path,
    form: Columns,
    classes: Classes | None = None,
    beside: Sequence[str] = (),
    codes: Collection[str] = (),
    named: Collection[str] = (),
    texts: Collection[str] = (),
) -> Samples:
    """`samples_of` the columns of a file. Arguments and errors as of it and `read_for`."""
    arrays = read_for(path, form.inputs, form.target, classes, beside, codes, named, texts)
    try:
        return samples_of(arrays, form, classes, beside)
    except DataError as error:
        raise DataError(f"{path} cannot be used: {error}") from None


def read_for(
    path: Path,
    inputs: Sequence[str],
    target: str,
    classes: Classes | None = None,
    beside: Sequence[str] = (),
    codes: Collection[str] = (),
    named: Collection[str] = (),
    texts: Collection[str] = (),
) -> dict[str, Array]:
    """The columns that samples are made of, by name.

    Args:
        classes: the target's. Where they have names the target is read as text: 1 and 1.0 are different names.
        beside: columns that strata need.
        codes: those of them whose values are the strata.
        named: those of these whose strata have names: a file with some of them alone may have numbers, or truth
            values, in their place.
        texts: inputs that are texts in D_c, whatever they look like here.

    Raises:
        DataError: as `read_columns`.
    """
    texts = {*texts, *(() if classes is None or class_names(classes) is None else (target,))}
    both = {*inputs, target}
    plain = both.intersection([target, *codes]).difference(texts)
    texts |= set(named) - both
    return read_columns(path, (*inputs, target, *beside), texts, set(codes) - both - texts, plain)


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
                f'layout = "named"{first_text(part)}'
            )
        if part.dtype.kind == "i" and (large := np.flatnonzero((part > WHOLE) | (part < -WHOLE))).size:
            raise DataError(
                f"column {name} has whole numbers beyond 2^53, the first in row {large[0]}, which an array of numbers "
                'would round; expected smaller ones, or layout = "named"'
            )
    return real_inputs(np.stack(parts, axis=1), np.float64)


def _clean(name: str, array: Array, text: bool) -> Array:
    """A column in one of the types that workloads see; numbers as text where they are to be."""
    if array.ndim == 0:
        raise DataError(f"column {name} is a single value; expected one a sample")
    if array.dtype.kind == "f" and not (finite := np.isfinite(array)).all():
        bad = np.argwhere(~finite)
        raise DataError(
            f"column {name} has {len(bad)} values that are NaN or infinite, the first in row {bad[0][0]}; expected "
            "finite numbers: fill them in, or leave such rows out"
        )
    if text and array.dtype.kind in "biuf":
        return as_texts(array)
    if array.dtype.kind in "ui":
        if _is_large(array):
            raise _too_large(name, int(np.argwhere(array >= np.uint64(_LARGE))[0][0]))
        return array.astype(np.int64)
    if array.dtype.kind == "b":
        return array.astype(np.int64)
    if array.dtype.kind == "f":  # in this machine's order of bytes
        return array.astype(np.float32 if array.dtype == np.float16 else array.dtype.newbyteorder("="))
    if array.dtype.kind == "U":
        return array
    if array.dtype.kind == "M":
        return _dates(name, array)
    todo = INSTEAD.get(array.dtype.kind, "")
    raise DataError(f"column {name} is {_words(array)}; expected numbers, truth values or texts{todo}")


def _dates(name: str, array: Array, zone: str = "") -> Array:
    """`dates_as_texts` of a column. Raises DataError for a place without one."""
    if (absent := np.argwhere(np.isnat(array))).size:
        raise _absent_values(name, len(absent), int(absent[0][0]))
    return dates_as_texts(array, zone)


def dates_as_texts(array: Array, zone: str = "") -> Array:
    """Dates and times of NumPy's as texts in ISO 8601, such as 2026-11-30 or 2026-11-30T16:30:00.5: no time where it is
    midnight, and no more digits of a second than it has.

    Args:
        zone: "Z" where they are UTC and say so, which midnight then does, too.
    """
    if np.datetime_data(array.dtype)[0] in ("h", "m"):
        array = array.astype("datetime64[s]")
    texts = [_short(text) for text in np.datetime_as_string(array).ravel().tolist()]
    made = [text + zone if zone else text.removesuffix("T00:00:00") for text in texts]
    return np.array(made, dtype=np.str_).reshape(array.shape)


def _short(text: str) -> str:
    """A time without zeros behind the digits of its second."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def _is_large(array: Array) -> bool:
    """Whether whole numbers are beyond int64."""
    return array.dtype == np.uint64 and bool((array >= np.uint64(_LARGE)).any())


def _too_large(name: str, row: int) -> DataError:
    return DataError(
        f"column {name} has whole numbers of more than 64 bits, the first in row {row}; expected numbers from -2^63 to "
        "2^63 - 1, or texts"
    )


def as_texts(array: Array) -> Array:
    """Numbers as texts: a whole number its digits, a truth value true or false."""
    return np.array([number_text(value) for value in array.ravel().tolist()], dtype=np.str_).reshape(
        array.shape
    )


def first_text(array: Array) -> str:
    """In words, the first place that keeps a column of texts from being numbers; empty where they all are some."""
    texts = array.ravel().tolist()
    if (place := next((place for place, text in enumerate(texts) if not is_number(str(text))), None)) is None:
        return ""
    row, do = np.unravel_index(place, array.shape)[0], advice(str(texts[place]))
    return f"; the first that is no number is {str(texts[place])!r:.60} in row {row}{do and f': {do}'}"


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
                raise DataError(f"{path} cannot be used: {_absent(absent, stored.files)}")
            return {name: stored[name] for name in names}
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except DataError:
        raise
    except Exception as error:  # a damaged file fails in as many ways as its formats have parts
        check_objects(path, error)
        raise DataError(f"{path} is no .npz file, or it is damaged: {reason(error)}") from None


def check_objects(path: Path, error: Exception) -> None:
    """Raises DataError where NumPy's `error` is of an array of Python's objects in an .npz."""
    if "Object arrays" in str(error):
        raise DataError(
            f"{path} has an array of Python's objects; expected numbers or texts: write it as "
            "np.array(values, dtype=str), or as a type of numbers"
        ) from None


def _read_table(path: Path, names: Sequence[str]) -> dict[str, Array]:
    """Columns of a Parquet file."""

    def read(file: BinaryIO) -> tuple[Any, list[str]]:
        from pyarrow import parquet

        stored = parquet.ParquetFile(file)
        known = stored.schema_arrow.names
        return stored.read(columns=[name for name in known if name in names]), known

    return _arrays(path, names, *_opened(path, read))


def _read_csv(
    path: Path, names: Sequence[str], texts: Collection[str], codes: Collection[str], plain: Collection[str]
) -> dict[str, Array]:
    """Columns of a CSV file, whose types Arrow guesses; what is said of `codes` and `plain` is looked at as written."""

    def reading(texts: Collection[str], only: Sequence[str] = ()) -> Any:
        def read(file: BinaryIO) -> tuple[Any, list[str]]:
            from pyarrow import binary, csv, string

            line = first_line(file.read(HEAD_BYTES))
            file.seek(0)

            def parsed(kind: Any) -> Any:
                types = dict.fromkeys(texts, kind)
                return csv.read_csv(
                    file, convert_options=csv.ConvertOptions(column_types=types, include_columns=list(only))
                )

            try:
                table = parsed(string())
            except Exception as error:
                if "invalid UTF8" in str(error):  # whose place is named where bytes are looked at
                    file.seek(0)
                    return (made := _decoded(parsed(binary()))), made.column_names
                if (said := _broken(file, str(error), line, names)) is None:
                    raise
                raise DataError(said) from None
            known = table.column_names
            if absent := [name for name in names if not only and name not in known]:
                raise DataError(_absent(absent, known) + lacking(line, names))
            return table, known

        return _opened(path, read)

    table, known = reading(texts)
    if dated := _dated(table, names):
        table, known = reading({*texts, *dated})
    arrays = _arrays(path, names, table, known)
    large = [
        name
        for name, array in arrays.items()
        if array.dtype.kind == "f" and bool((np.abs(array) >= _LARGE).any())
    ]
    whole = [
        name for name, array in arrays.items() if array.dtype.kind == "i" and (name in codes or name in plain)
    ]
    looked = [*large, *whole]
    written = _arrays(path, looked, *reading(looked, looked)) if looked else {}
    try:
        for name, array in arrays.items():  # a CSV has no other way to say that there is nothing
            _check_texts(name, array)
        for name in large:
            if all(_is_whole(text) for text in written[name].tolist()):
                if name not in codes:
                    raise _too_large(name, int(np.flatnonzero(np.abs(arrays[name]) >= _LARGE)[0]))
                arrays[name] = written[name]
        for name in whole:
            rows = (row for row, text in enumerate(written[name].tolist()) if not _PLAIN.fullmatch(text))
            if (row := next(rows, None)) is None:
                continue
            if name in plain:
                text, number = str(written[name][row]), arrays[name][row]
                raise DataError(
                    f"column {name} has {text!r:.60} in row {row}, a name other than {number}, and as a number "
                    f"{number}; expected plain numbers, or names: classes that the task file lists, or strata in a "
                    "column that is no input"
                )
            arrays[name] = written[name]
    except DataError as error:
        raise DataError(f"{path} cannot be used: {error}") from None
    return arrays


def _broken(file: BinaryIO, said: str, line: str, names: Sequence[str]) -> str | None:
    """What keeps rows of a CSV from being read, where it is their length: with the row, which one thread counts."""
    from pyarrow import csv

    if broken(said, line, names) is None:
        return None
    file.seek(0)
    try:
        csv.read_csv(file, read_options=csv.ReadOptions(use_threads=False))
    except Exception as error:
        said = str(error)
    return broken(said, line, names)


def _dated(table: Any, names: Sequence[str]) -> list[str]:
    """Those of the columns `names` that Arrow takes for dates or times, and have a value everywhere."""
    from pyarrow import types

    return [
        field.name
        for field, column in zip(table.schema, table.columns, strict=True)
        if field.name in names and types.is_temporal(field.type) and not column.null_count
    ]


def _decoded(table: Any) -> Any:
    """A table whose columns of bytes are texts where all of them are UTF-8."""
    from pyarrow import ArrowInvalid, string, types

    for place, column in enumerate(table.columns):
        if types.is_binary(column.type):
            try:
                table = table.set_column(place, table.column_names[place], column.cast(string()))
            except ArrowInvalid:
                continue
    return table


def _is_whole(text: str) -> bool:
    return re.fullmatch(r"\s*[+-]?[0-9]+\s*", text) is not None


def _opened(path: Path, read: Callable[[BinaryIO], tuple[Any, list[str]]]) -> tuple[Any, list[str]]:
    """What `read` gives of a file: a table of Arrow's, and the names of all its columns."""
    try:
        import pyarrow  # noqa: F401 - it is an extra
    except ImportError as error:
        raise DataError(f"{path} cannot be read: {missing(error) or error}") from None
    try:
        with path.open("rb") as file:  # for Python's own words of why it cannot be
            return read(file)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or reason(error)}") from None
    except DataError as error:
        raise DataError(f"{path} cannot be used: {error}") from None
    except Exception as error:  # pyarrow's own, which differ by version
        raise DataError(f"{path} is no table, or it is damaged: {reason(error)}") from None


def _arrays(path: Path, names: Sequence[str], table: Any, known: Sequence[str]) -> dict[str, Array]:
    """The columns `names` of a table of Arrow's. Raises DataError where one is not there, or cannot be used."""
    if absent := [name for name in names if name not in known]:
        raise DataError(f"{path} cannot be used: {_absent(absent, known)}")
    if twice := [name for name in names if known.count(name) > 1]:
        raise DataError(f"{path} has more than one column {twice[0]}; expected one of each name")
    try:
        if not len(table):
            raise DataError("it has no rows; expected a row for each sample")
        return {name: _array(name, table.column(name)) for name in names}
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
    if str(kind) in ("string", "large_string", "string_view"):  # Arrow before 16 has no test of the last
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
    if types.is_date(kind) or types.is_timestamp(kind):
        return _dates(name, column.to_numpy(), "Z" if getattr(kind, "tz", None) else "")
    if types.is_time(kind):
        return np.array([_short(text) for text in column.cast("string").to_pylist()], dtype=np.str_)
    if types.is_binary(kind):
        rows = (row for row, value in enumerate(column.to_pylist()) if not _is_utf8(value))
        if (row := next(rows, None)) is not None:  # so is a CSV's column read
            raise DataError(
                f"column {name} has a text that is not UTF-8, the first in row {row}; save it as UTF-8"
            )
        raise DataError(f"column {name} is bytes; expected numbers, truth values, or texts in UTF-8")
    if types.is_decimal(kind):
        raise DataError(f"column {name} is {kind}; expected numbers of 64 bits or less: write it as float64")
    todo = INSTEAD["m"] if types.is_duration(kind) else ""
    raise DataError(f"column {name} is {kind}; expected numbers, truth values or texts{todo}")


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _absent(absent: Sequence[str], known: Sequence[str]) -> str:
    return f"it has no {', no '.join(absent)}; it has {', '.join(known) or 'nothing'}"[:500]


def reason(error: Exception) -> str:
    """The first line of what a library says."""
    return str(error).partition("\n")[0].partition("If you trust")[0].strip() or type(error).__name__
