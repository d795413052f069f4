"""Values: dataclasses that are not changed once they are made."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(kind: type[T]) -> type[T]:
    """A dataclass with a hash. That no field is set again is for the type checker to see.

    A frozen one sees to it as the program runs, and takes 20 times as long to make: too long for what a ledger has
    millions of.
    """
    return dataclass(unsafe_hash=True)(kind)
