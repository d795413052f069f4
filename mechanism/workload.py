"""What terms say of a task's workload and samples: where the code is that builds, trains and judges, which columns it
reads, of which types and shapes, and what the strata are that participants count.

    Labels     the classes of the target
    Quantiles  intervals of a measured column: stratum i has edges[i - 1] <= x < edges[i]
    Column     the values of a column
    Coded      what a factory gives for each sample

Code is named by the digest of its files and never sent: a participant has it already, and can see whether
it is the task's.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from typing import Any, ClassVar

from mechanism.errors import FieldError
from mechanism.ranges import sha256, whole
from mechanism.records import check_decimal

#: "package.module:factory".
FACTORY = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)

#: What a terminal might obey.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

#: Strata, and classes of a target: one entry of the log (64 KiB) must hold counts of all.
MAX_STRATA = 2_000

#: Characters of a factory, of the name of a file, a column, a class or a stratum, and of a factory's options.
MAX_NAME, MAX_OPTIONS = 256, 8_192

#: Files of a factory, and columns that a workload reads.
MAX_FILES, MAX_COLUMNS = 200, 5_000

#: What the elements of samples' arrays are: texts, or numbers by NumPy's names.
ELEMENTS = (
    "text", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
    "float64",
)  # fmt: skip

#: Dimensions of one sample's array, as NumPy has them at most.
MAX_DIMENSIONS = 63

#: Name of the inputs that are one array, what stands before the names of several, and the name of the targets.
INPUTS, INPUT, TARGETS = "inputs", "inputs.", "targets"


@dataclass(frozen=True)
class SourceFile:
    """A file by its path from the folder of the factory's own, and its SHA-256."""

    name: str
    sha256: bytes

    def __post_init__(self) -> None:
        _name("files.name", self.name)
        sha256(f"files[{self.name}].sha256", self.sha256)


@dataclass(frozen=True)
class Source:
    """What a factory is called with, and what it is made of.

    Attributes:
        options: its keyword arguments, as the one JSON text of them: `options_text`.
        files: of the factory, in the order of their names.
        frozen: SHA-256 over the tensors that the factory makes and that do not travel, which need not come from these
            files (`fedpeer.learning.workloads.protocol.HasFrozen`); empty: there are none.
    """

    options: str
    files: tuple[SourceFile, ...] = field(metadata={"most": MAX_FILES})
    frozen: bytes = field(default=b"", metadata={"optional": True})

    def __post_init__(self) -> None:
        if not isinstance(self.options, str) or len(self.options) > MAX_OPTIONS:
            raise FieldError("options", self.options, f"at most {MAX_OPTIONS} characters of JSON")
        try:
            same = options_text(json.loads(self.options)) == self.options
        except (ValueError, RecursionError, AttributeError):
            same = False
        if not same:
            raise FieldError("options", self.options, "the one JSON text of an object")
        names = [file.name for file in self.files]
        if not names or names != sorted(set(names)):
            raise FieldError("files", names, "at least one file, in the order of their names, each once")
        if self.frozen:
            sha256("frozen", self.frozen)

    @property
    def keywords(self) -> dict[str, Any]:
        """The options as keyword arguments."""
        made: dict[str, Any] = json.loads(self.options)
        return made

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of each file, hexadecimal, by its name."""
        return {file.name: file.sha256.hex() for file in self.files}


def options_text(options: Mapping[str, Any]) -> str:
    """JSON without white space, in ASCII, keys in order, a number with a fraction by its shortest text.

    Raises:
        FieldError: a value that JSON does not have.
    """
    try:
        return json.dumps(dict(options.items()), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise FieldError("options", f"{dict(options)!r:.120}", f"values that JSON has: {error}") from None


def source_of(options: Mapping[str, Any], files: Mapping[str, str]) -> Source:
    """A source from options and from hexadecimal digests by the names of files."""
    made = tuple(SourceFile(name, bytes.fromhex(files[name])) for name in sorted(files))
    return Source(options_text(options), made)


@dataclass(frozen=True)
class Columns:
    """Which columns of a table, or arrays of an .npz, are samples.

    Attributes:
        inputs: in the order in which the workload sees them.
        target: what it learns to give.
        layout: "array": the workload sees one array of numbers, a column for each input; "named": one array an input,
            by its name.
    """

    inputs: tuple[str, ...] = field(metadata={"most": MAX_COLUMNS})
    target: str
    layout: str

    def __post_init__(self) -> None:
        if not 1 <= len(self.inputs) <= MAX_COLUMNS or len(set(self.inputs)) != len(self.inputs):
            raise FieldError("columns.inputs", list(self.inputs), f"1 to {MAX_COLUMNS} columns, each once")
        for name in (*self.inputs, self.target):
            _name("columns", name)
        if self.target in self.inputs:
            raise FieldError("columns.target", self.target, "a column that is no input")
        if self.layout not in ("array", "named"):
            raise FieldError("columns.layout", self.layout, '"array" or "named"')


@dataclass(frozen=True)
class ArrayForm:
    """An array of samples: what each of them has of it.

    Attributes:
        name: "inputs" where these are one array, "inputs.NAME" where they are several, or "targets".
        dtype: of `ELEMENTS`.
        shape: of one sample's.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = field(metadata={"most": MAX_DIMENSIONS})

    def __post_init__(self) -> None:
        if self.name not in (INPUTS, TARGETS):
            if not isinstance(self.name, str) or not self.name.startswith(INPUT):
                raise FieldError("arrays.name", self.name, f'"{INPUTS}", "{INPUT}NAME" or "{TARGETS}"')
            _name("arrays.name", self.name.removeprefix(INPUT))
        if self.dtype not in ELEMENTS:
            raise FieldError(f"arrays[{self.name}].dtype", self.dtype, "one of " + ", ".join(ELEMENTS))
        for size in self.shape:
            whole(f"arrays[{self.name}].shape", size, 0)

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}" + (f" of shape {self.size}" if self.shape else "")

    @property
    def size(self) -> str:
        """The shape in words."""
        return " x ".join(map(str, self.shape)) or "a single value"


def check_arrays(arrays: tuple[ArrayForm, ...], columns: Columns | None) -> None:
    """Raises FieldError for what are no inputs with their targets, or other inputs than the columns make."""
    names = [array.name for array in arrays]
    if not 2 <= len(names) <= MAX_COLUMNS + 1 or len(set(names)) != len(names) or names[-1] != TARGETS:
        raise FieldError(
            "arrays", names, f"1 to {MAX_COLUMNS} inputs, each once, and the targets behind them"
        )
    if INPUTS in names and len(names) > 2:
        raise FieldError("arrays", names, f'one array "{INPUTS}", or several by name')
    if columns is not None:
        named = columns.layout == "named"
        wanted = [INPUT + name for name in columns.inputs] if named else [INPUTS]
        if names[:-1] != wanted:
            raise FieldError(
                "arrays", names, f"the inputs {', '.join(wanted):.200}, as the columns have them"
            )


@dataclass(frozen=True)
class Labels:
    """Each class of the target is a stratum."""

    name: ClassVar[str] = "labels"

    @property
    def count(self) -> int | None:
        """Number of strata; None: as many as the reference has."""
        return None

    def names(self, strata: int, classes: tuple[str, ...] = ()) -> tuple[str, ...]:
        """What the strata of a task are called that has so many, and these classes."""
        return classes or tuple(map(str, range(strata)))


@dataclass(frozen=True)
class Quantiles:
    """Intervals between edges, compared as 64-bit floating-point numbers.

    Attributes:
        of: "target", or a column.
        edges: ascending.
    """

    name: ClassVar[str] = "quantiles"
    of: str
    edges: tuple[Decimal, ...] = field(metadata={"most": MAX_STRATA - 1})

    def __post_init__(self) -> None:
        _name("strata.of", self.of)
        for edge in self.edges:
            check_decimal("strata.edges", edge)
        if not 1 <= len(self.edges) < MAX_STRATA or list(self.edges) != sorted(set(self.edges)):
            raise FieldError("strata.edges", list(map(str, self.edges)), "ascending decimals, at least one")

    @property
    def count(self) -> int | None:
        return len(self.edges) + 1

    def names(self, strata: int, classes: tuple[str, ...] = ()) -> tuple[str, ...]:
        # As few digits as distinguish the edges, six at least; 17 distinguish any two floating-point numbers.
        for digits in range(6, 18):
            edges = [f"{float(edge):.{digits}g}" for edge in self.edges]
            if len(set(edges)) == len(edges):
                break
        inner = [f"[{low}, {high})" for low, high in pairwise(edges)]
        return (f"below {edges[0]}", *inner, f"from {edges[-1]}")


@dataclass(frozen=True)
class Column:
    """The values of a column of texts or whole numbers; a whole number is written in digits.

    Attributes:
        column: its name.
        values: each a stratum, in the order of the reference.
    """

    name: ClassVar[str] = "column"
    column: str
    values: tuple[str, ...] = field(metadata={"most": MAX_STRATA})

    def __post_init__(self) -> None:
        _name("strata.column", self.column)
        check_names("strata.values", self.values)

    @property
    def count(self) -> int | None:
        return len(self.values)

    def names(self, strata: int, classes: tuple[str, ...] = ()) -> tuple[str, ...]:
        return self.values


@dataclass(frozen=True)
class Coded:
    """What a factory gives: called with the options it gives a function of samples, which gives each its stratum.

    Attributes:
        factory: "package.module:factory".
        source: its options and files.
        strata: their names.
    """

    name: ClassVar[str] = "factory"
    factory: str
    source: Source
    strata: tuple[str, ...] = field(metadata={"most": MAX_STRATA, "key": "names"})

    def __post_init__(self) -> None:
        check_factory("strata.factory", self.factory)
        check_names("strata.names", self.strata)

    @property
    def count(self) -> int | None:
        return len(self.strata)

    def names(self, strata: int, classes: tuple[str, ...] = ()) -> tuple[str, ...]:
        return self.strata


#: Those that terms may name.
STRATA: tuple[Any, ...] = (Labels, Quantiles, Column, Coded)

Strata = Labels | Quantiles | Column | Coded


def check_factory(field: str, value: str) -> None:
    """Raises FieldError for what does not name a factory."""
    if not isinstance(value, str) or len(value) > MAX_NAME or not FACTORY.fullmatch(value):
        raise FieldError(field, value, f"package.module:factory in at most {MAX_NAME} characters")


def check_names(field: str, names: tuple[str, ...]) -> None:
    """Raises FieldError for what are not the names of classes or strata: at least two, each once."""
    for name in names:
        _name(field, name)
    if not 2 <= len(names) <= MAX_STRATA or len(set(names)) != len(names):
        raise FieldError(field, f"{list(names)!r:.120}", f"2 to {MAX_STRATA} names, each once")


def _name(field: str, value: str) -> None:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_NAME or _CONTROL.search(value):
        raise FieldError(field, value, f"1 to {MAX_NAME} characters without control characters")
