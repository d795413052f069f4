"""What a credit is worth in money, and how many whole units of a currency credits are paid out as.

    units(m)  = floor(m * amount * 10^minor_unit / 10^6)       of m micro-credits
    micro(n)  = ceil(n * 10^6 / (amount * 10^minor_unit))      that n units take

micro(units(m)) <= m. Who is paid n units gives up the least whole micro-credits that are worth as much: the payer loses
nothing by rounding, the payee less than a micro-credit. What a unit does not divide stays.
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor
from typing import ClassVar

from mechanism.canonical import MAX_INTEGER
from mechanism.errors import FieldError
from mechanism.ranges import whole
from mechanism.records import Recorded, check_positive

#: Micro-credits of a credit.
_MICRO = 1_000_000

#: Decimal places of a currency's minor unit, at most: ISO 4217 has 0 to 4.
MAX_MINOR_UNIT = 4

#: A currency's code.
_CURRENCY = re.compile("[A-Z]{3}")


def credits_text(micro: int) -> str:
    """Micro-credits as credits, exact: six decimal places."""
    return _decimal(micro, "")


def grouped_credits(micro: int) -> str:
    """The same for people, with commas between thousands."""
    return _decimal(micro, ",")


def _decimal(micro: int, separator: str) -> str:
    whole_credits, rest = divmod(abs(micro), _MICRO)
    return f"{'-' if micro < 0 else ''}{whole_credits:{separator}}.{rest:06d}"


@dataclass(frozen=True)
class Price(Recorded):
    """The price of one credit.

    Attributes:
        amount: units of the currency a credit, > 0.
        currency: code of ISO 4217, three letters.
        minor_unit: decimal places of the currency's smallest unit, as ISO 4217 has them: 2 where that is a cent.
    """

    what: ClassVar[str] = "price"
    amount: Decimal
    currency: str
    minor_unit: int

    def __post_init__(self) -> None:
        check_positive("price.amount", self.amount)
        if not isinstance(self.currency, str) or not _CURRENCY.fullmatch(self.currency):
            raise FieldError(
                "price.currency", self.currency, "a code of ISO 4217: three capital letters, such as EUR"
            )
        whole("price.minor_unit", self.minor_unit, 0, MAX_MINOR_UNIT)

    def units(self, micro: int) -> int:
        """Whole units of the currency that `micro` micro-credits are worth; at most 2^53 - 1 of either count."""
        return min(MAX_INTEGER, floor(min(micro, MAX_INTEGER) * self._units_a_micro))

    def micro(self, units: int) -> int:
        """The least micro-credits that are worth `units`."""
        return ceil(units / self._units_a_micro)

    def text(self, units: int) -> str:
        """So many units as an amount of money, such as "12.30 EUR"."""
        return f"{self.number(units)} {self.currency}"

    def number(self, units: int) -> str:
        """The same without the currency."""
        return f"{Decimal(units).scaleb(-self.minor_unit):.{self.minor_unit}f}"

    def __str__(self) -> str:
        return f"{self.amount:f} {self.currency} a credit"

    @property
    def _units_a_micro(self) -> Fraction:
        return Fraction(self.amount) * Fraction(10**self.minor_unit, _MICRO)
