"""Dataclasses as canonical JSON records, and back. A value has one record, and a record that is read is that one.

    int, str, bool        as they are
    bytes                 hexadecimal, lower case
    Decimal, Fraction     plain notation ("0.5"); lowest terms ("1/3", "2")
    tuple[T, ...]         a list
    T | None              T or null
    a dataclass           an object: a key for each field, and `kind` or `name` where the class has a constant of it

Of a field's metadata count `key`, its key where that is not its name; `most`, the longest list that is read; `kinds`,
the dataclasses that it may be of, distinguished by their names; and `optional`: the key is left out, always and only,
where the field has its default.
"""

import dataclasses
import hashlib
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cache, cached_property
from types import NoneType
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, get_args, get_origin, get_type_hints

from mechanism.canonical import Json, canonical_bytes, decimal_text, parse_canonical
from mechanism.degree import rational
from mechanism.errors import MISSING, FieldError

#: Characters of a decimal or rational: numerator and denominator of counts of 10^9 samples fit.
MAX_NUMBER_CHARACTERS = 128

#: Digits of a decimal after the point, and before it: far beyond any use, short enough to read.
MAX_DECIMAL_DIGITS = 30

Read: TypeAlias = Callable[[str, Any], Any]
Write: TypeAlias = Callable[[Any], Json]


class Recorded:
    """Base of what is signed, hashed or logged as one record.

    Attributes:
        what: what the record is called where it is refused as a whole.
    """

    what: ClassVar[str]

    def record(self) -> dict[str, Any]:
        """The record, which is not to be changed: where it was read it is the one that was read."""
        return self.__dict__.get("_record") or _write(self)

    @cached_property
    def canonical(self) -> bytes:
        """The canonical bytes of the record; FieldError where an integer is above 53 bits or a text no Unicode."""
        try:
            return canonical_bytes(self.record())
        except FieldError as error:
            raise self._named(error) from None

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the canonical bytes."""
        return hashlib.sha256(self.canonical).digest()

    @classmethod
    def from_record(cls, record: Any) -> Self:
        """The value that `record` writes down.

        Raises:
            FieldError: a key that is missing or unknown, a value of another type, in another notation than its one,
                or out of its range. The field is the path to it.
        """
        made: Self = _read(cls, "", record)
        made.__dict__["_record"] = record
        return made

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The value whose canonical bytes are `data`; FieldError as above, and where they are not canonical."""
        try:
            record = parse_canonical(data)
        except FieldError as error:
            raise cls._named(error) from None
        made = cls.from_record(record)
        made.__dict__["canonical"] = data
        return made

    @classmethod
    def known(cls, canonical: bytes, **fields: Any) -> Self:
        """The value of these fields, which the caller has read from the canonical bytes and seen to be in order."""
        made = cls.__new__(cls)
        made.__dict__.update(fields, canonical=canonical)
        return made

    @classmethod
    def _named(cls, error: FieldError) -> FieldError:
        """What canonical JSON refuses, by the names of this record."""
        field = cls.what if error.field in ("record", "$") else error.field.removeprefix("$.")
        return FieldError(field, error.value, error.expected)


def decimal(field: str, text: str | int | Decimal) -> Decimal:
    """The finite decimal that `text` writes down, of at most 30 digits on either side of the point."""
    try:
        value = Decimal(text)
    except (InvalidOperation, TypeError, ValueError):
        raise FieldError(field, text, "a decimal number") from None
    check_decimal(field, value)
    return value


def check_decimal(field: str, value: Decimal) -> None:
    """Raises FieldError for what is not a finite decimal of at most 30 digits on either side of the point."""
    if not isinstance(value, Decimal) or not value.is_finite():
        raise FieldError(field, value, "a finite decimal")
    if value.adjusted() >= MAX_DECIMAL_DIGITS or int(value.as_tuple().exponent) < -MAX_DECIMAL_DIGITS:
        raise FieldError(field, value, f"at most {MAX_DECIMAL_DIGITS} digits before and after the point")


def check_positive(field: str, value: Decimal) -> None:
    """The same for one that is not above 0."""
    check_decimal(field, value)
    if value <= 0:
        raise FieldError(field, value, "a decimal above 0")


def check_not_negative(field: str, value: Decimal) -> None:
    """The same for one below 0."""
    check_decimal(field, value)
    if value < 0:
        raise FieldError(field, value, "a decimal of at least 0")


def check_share(field: str, value: Decimal) -> None:
    """The same for one that is not in [0, 1)."""
    check_decimal(field, value)
    if not 0 <= value < 1:
        raise FieldError(field, value, "a decimal of at least 0 and below 1")


class _Field(NamedTuple):
    name: str
    key: str
    read: Read
    write: Write


class _Shape(NamedTuple):
    """Attributes:
    constants: keys with one value.
    fields: those whose key is always there.
    optional: those whose key is left out at the default, which comes with each.
    keys: of the constants and `fields`.
    """

    constants: dict[str, str]
    fields: tuple[_Field, ...]
    optional: tuple[tuple[_Field, Any], ...]
    keys: frozenset[str]


@cache
def _shape(kind: Any) -> _Shape:
    """How a dataclass is written."""
    hints, found, optional = get_type_hints(kind), [], []
    for field in dataclasses.fields(kind):
        more = field.metadata
        form = _tagged(more["kinds"]) if "kinds" in more else _form(hints[field.name], more.get("most"))
        made = _Field(field.name, more.get("key", field.name), *form)
        if more.get("optional"):
            factory = field.default_factory
            optional.append((made, field.default if factory is dataclasses.MISSING else factory()))
        else:
            found.append(made)
    names = {field.name for field in dataclasses.fields(kind)}
    constants = {
        key: value
        for key in ("kind", "name")
        if key not in names and isinstance(value := getattr(kind, key, None), str)
    }
    keys = frozenset({*constants, *(field.key for field in found)})
    return _Shape(constants, tuple(found), tuple(optional), keys)


def _read(kind: Any, path: str, record: Any) -> Any:
    shape, prefix = _shape(kind), f"{path}." if path else ""
    if type(record) is not dict:
        raise FieldError(path or kind.what, record, "an object")
    for key, value in shape.constants.items():
        if record.get(key) != value:
            raise FieldError(prefix + key, record.get(key, MISSING), repr(value))
    more: dict[str, Any] = {}
    if record.keys() != shape.keys:
        for key in sorted(shape.keys - record.keys()):
            raise FieldError(prefix + key, MISSING, f"the key {key}")
        known = shape.keys | {field.key for field, _ in shape.optional}
        for key in sorted(record.keys() - known):
            raise FieldError(prefix + key, record[key], f"no such key; known: {', '.join(sorted(known))}")
        for field, default in shape.optional:
            if field.key in record:
                more[field.name] = made = field.read(prefix + field.key, record[field.key])
                if made == default:
                    raise FieldError(prefix + field.key, record[field.key], "no key, as it is the default")
    return kind(**{name: read(prefix + key, record[key]) for name, key, read, _ in shape.fields}, **more)


def _write(value: Any) -> dict[str, Any]:
    shape = _shape(value.__class__)
    record = {**shape.constants, **{f.key: f.write(getattr(value, f.name)) for f in shape.fields}}
    for field, default in shape.optional:
        if (own := getattr(value, field.name)) != default:
            record[field.key] = field.write(own)
    return record


def _form(hint: Any, most: int | None) -> tuple[Read, Write]:
    """How a value of this type is read and written."""
    if hint in _SCALARS:
        return _SCALARS[hint]
    if dataclasses.is_dataclass(hint):
        return lambda path, value: _read(hint, path, value), _write
    if get_origin(hint) is tuple:
        return _list(*_form(get_args(hint)[0], None), most)
    (some,) = (one for one in get_args(hint) if one is not NoneType)
    read, write = _form(some, most)
    return (
        lambda path, value: None if value is None else read(path, value),
        lambda value: None if value is None else write(value),
    )


def _list(read: Read, write: Write, most: int | None) -> tuple[Read, Write]:
    def read_all(path: str, value: Any) -> Any:
        if type(value) is not list:
            raise FieldError(path, value, "a list")
        if most is not None and len(value) > most:
            raise FieldError(path, f"{len(value)} values", f"at most {most}")
        return tuple([read(f"{path}[{i}]", item) for i, item in enumerate(value)])

    return read_all, lambda value: [write(item) for item in value]


def _tagged(kinds: tuple[Any, ...]) -> tuple[Read, Write]:
    by_name = {kind.name: kind for kind in kinds}

    def read_one(path: str, value: Any) -> Any:
        if type(value) is not dict:
            raise FieldError(path, value, "an object")
        name = value.get("name", MISSING)
        if type(name) is not str or name not in by_name:
            raise FieldError(f"{path}.name", name, "one of " + ", ".join(by_name))
        return _read(by_name[name], path, value)

    return read_one, _write


def _plain(kind: type, words: str) -> tuple[Read, Write]:
    def read(path: str, value: Any) -> Any:
        if type(value) is not kind:
            raise FieldError(path, value, words)
        return value

    return read, lambda value: value


def _number(read: Callable[[str, str], Any], write: Callable[[Any], str], words: str) -> tuple[Read, Write]:
    """A number that is written as a string, in one notation."""

    def read_one(path: str, value: Any) -> Any:
        if type(value) is not str or len(value) > MAX_NUMBER_CHARACTERS:
            raise FieldError(
                path, value, f"{words} in a string of at most {MAX_NUMBER_CHARACTERS} characters"
            )
        made = read(path, value)
        if (text := write(made)) != value:
            raise FieldError(path, value, f"{text!r}, its one notation")
        return made

    return read_one, write


def _read_hex(path: str, value: Any) -> bytes:
    try:
        made = bytes.fromhex(value)
    except (TypeError, ValueError):
        made = None
    if made is None or made.hex() != value:
        raise FieldError(path, value, "pairs of hexadecimal digits, in lower case")
    return made


_SCALARS: dict[Any, tuple[Read, Write]] = {
    int: _plain(int, "an integer"),
    bool: _plain(bool, "true or false"),
    str: _plain(str, "a string"),
    bytes: (_read_hex, bytes.hex),
    Decimal: _number(decimal, decimal_text, "a decimal"),
    Fraction: _number(rational, str, "a rational"),
}
