"""What is wrong with the settings in a file, in sentences for the person who wrote it."""

import re
from pathlib import Path
from typing import Any, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """A section of a TOML file of ours: no other keys, whole numbers written as such, all numbers finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _not_cast(cls, value: Any, info: ValidationInfo) -> Any:
        """3.0, "3" and true are no 3."""
        kind = cls.model_fields[str(info.field_name)].annotation
        whole = kind is int or set(get_args(kind)) == {int, type(None)}
        if whole and value is not None and type(value) is not int:
            raise PydanticCustomError("int_type", "a whole number")
        return value


def shaped(pattern: str, words: str) -> AfterValidator:
    """Of an annotated text: it is wholly of `pattern`; who wrote another one is told what was expected, in `words`."""

    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise PydanticCustomError(_SHAPE, words)
        return text

    return AfterValidator(check)


def violations(error: ValidationError, kind: type[BaseModel], path: Path) -> str:
    """One line for each key at fault in the file at `path`: key, value, what was expected."""
    lines = []
    for item in error.errors():
        location = tuple(part for part in item["loc"] if not _is_union_member(part))
        key = ".".join(str(part) for part in location) or "the file"
        match item["type"]:
            case "extra_forbidden":
                known = ", ".join(sorted(_section(kind, location[:-1]).model_fields))
                lines.append(f"unknown key {key}; known here: {known}")
            case "missing":
                lines.append(f"missing key {key}")
            case "value_error":
                words = str(item["ctx"]["error"])
                value = words.startswith("expected") and not isinstance(
                    item["input"], dict
                )  # of one key, not of several
                lines.append(f"{key} is {_found(item, location)}; {words}" if value else f"{key}: {words}")
            case _:
                lines.append(f"{key} is {_found(item, location)}; expected {_expected(item, kind, location)}")
    return "\n".join(f"{path}: {line}" for line in dict.fromkeys(lines))


def _found(item: Any, location: tuple[int | str, ...]) -> str:
    """The value that was given, in words."""
    value = item["input"]
    if isinstance(value, str):
        value = without_password(value)
    if location[:1] in _SECRET or (not isinstance(value, str) and "://" in repr(value)):
        return "not what it should be (its value may hold a password and is not shown)"
    return f"{value!r:.120}"


def without_password(address: str) -> str:
    """An address without what may be a password: who stands before its last @, and what stands behind its ? or #.

    Of a text that is no address nothing is left out.
    """
    scheme, parted, rest = address.partition("://")
    rest = rest if parted else address
    before, at, host = rest.rpartition("@")
    asked = min((rest.find(mark) for mark in "?#" if mark in rest), default=-1)
    named = bool(at) and (bool(parted) or ":" in before)
    if named:
        rest = "***" if asked >= 0 else f"***@{host}"
    elif parted and asked >= 0:
        rest = f"{rest[: asked + 1]}***"
    return f"{scheme}{parted}{rest}" if parted else rest


def _is_union_member(part: int | str) -> bool:
    """Whether a step of a location names an alternative of a union and no key: "list[dict[str,any]]", say."""
    return isinstance(part, str) and "[" in part


#: The type of error of a text that is not `shaped`.
_SHAPE = "shape"

#: What TOML has for a type that pydantic asks for, by the beginning of its error's name.
_FORMS = {
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "decimal": "a number",
    "bool": "true or false",
    "string_type": "a text in quotes",
    "list": "a list in square brackets",
    "dict": "a table",
    "path": "a path in quotes",
}

#: Sections whose values may hold a password.
_SECRET = (("storage",), ("mail",), ("notices",), ("oidc",))

_COMPARISONS = {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}


def _expected(item: Any, kind: type[BaseModel], location: tuple[int | str, ...]) -> str:
    """What a key takes, as words."""
    name = item["type"]
    if name in _COMPARISONS:
        return _range(_section(kind, location[:-1]).model_fields[str(location[-1])].metadata)
    if name == "model_type":
        keys = ", ".join(sorted(_section(kind, location).model_fields))
        return f"a table, [{'.'.join(map(str, location))}], with keys of {keys}"
    if name == "literal_error":
        return str(item["ctx"]["expected"])
    if name == _SHAPE:
        return str(item["msg"])
    if name == "string_too_long":
        return f"at most {item['ctx']['max_length']} characters"
    form = next((words for prefix, words in _FORMS.items() if name.startswith(prefix)), None)
    return form or f"something else: {item['msg']}"


def _range(metadata: list[Any]) -> str:
    """The bounds of a field: "at least 1 and at most 100"."""
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    return " and ".join(
        f"{word} {getattr(bound, name)}"
        for name, word in words.items()
        for bound in metadata
        if hasattr(bound, name)
    )


def _section(kind: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel]:
    """The section at a path of keys."""
    current: type[BaseModel] = kind
    for part in location:
        if (
            isinstance(part, int) or part not in current.model_fields
        ):  # a place among sections, or the name of one
            continue
        annotation = current.model_fields[part].annotation
        options = [annotation, *getattr(annotation, "__args__", ())]
        current = next(o for o in options if isinstance(o, type) and issubclass(o, BaseModel))
    return current
