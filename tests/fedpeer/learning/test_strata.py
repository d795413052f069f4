"""Strata: what terms say becomes a number for each sample."""

from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpeer.learning.errors import DataError, LearningError, WorkloadError
from fedpeer.learning.samples import Samples
from fedpeer.learning.strata import column_of, counts_over, quantiles_of, strata_of
from mechanism.workload import Coded, Column, Labels, Quantiles, source_of

SAMPLES = Samples(
    np.zeros((4, 1)),
    np.array([0, 2, 1, 1]),
    {
        "site": np.array(["b", "a", "b", "b"]),
        "year": np.array([9, 10, 9, 11]),
        "size": np.array([1.0, 2, 3, 4]),
    },
)


def test_labels_quantiles_and_columns_are_counted() -> None:
    assert strata_of(Labels(), ("x", "y", "z")).of(SAMPLES).tolist() == [0, 2, 1, 1]
    half = quantiles_of(SAMPLES.columns["size"], 2, "size")
    assert half == Quantiles("size", (Decimal("2.5"),))
    assert strata_of(half, half.names(2)).of(SAMPLES).tolist() == [0, 0, 1, 1]
    site, year = column_of("site", SAMPLES.column("site")), column_of("year", SAMPLES.column("year"))
    assert (site.values, year.values) == (("a", "b"), ("9", "10", "11"))
    assert strata_of(site, site.values).of(SAMPLES).tolist() == [1, 0, 1, 1]
    assert counts_over(strata_of(year, year.values).of(SAMPLES), 3) == (2, 1, 1)


@given(
    st.lists(st.integers(-(10**9), 10**9).map(lambda n: n / 1000), min_size=8, max_size=60, unique=True),
    st.integers(2, 4),
)
def test_published_edges_count_as_the_values_they_were_taken_from(
    values: list[float], quantiles: int
) -> None:
    targets = np.array(values)
    strata = quantiles_of(targets, quantiles)
    counts = counts_over(strata_of(strata, strata.names(quantiles)).of(Samples(targets, targets)), quantiles)
    assert sum(counts) == len(values)
    assert max(counts) - min(counts) <= 1 + len(values) % quantiles


@pytest.mark.parametrize(
    ("strata", "said"),
    [
        (Column("site", ("b", "c")), r"has the values \['a'\], which are no strata"),
        (Column("town", ("a", "b")), "have no column 'town'; they have site, year, size"),
        (Column("size", ("1", "2")), "expected a text or a whole number a sample"),
        (Quantiles("site", (Decimal(1),)), "one finite number a sample of site"),
    ],
)
def test_samples_that_belong_to_no_stratum_are_refused(strata: Column | Quantiles, said: str) -> None:
    with pytest.raises(DataError, match=said):
        strata_of(strata, strata.names(2)).of(SAMPLES)


def test_quantiles_that_are_none_are_refused() -> None:
    for values, quantiles, said in (
        (np.full(50, 3.5), 4, r"all 3\.5, which tells no strata apart"),
        (
            np.array(["a", "b"]),
            2,
            "one finite number a sample of target, which is texts; name the column itself",
        ),
        (np.r_[np.zeros(20), np.arange(30.0)], 3, "fewer strata"),  # nothing is below the first edge
        (np.arange(3.0), 4, "expected 2 to"),
    ):
        with pytest.raises(DataError, match=said):
            quantiles_of(values, quantiles)
    with pytest.raises(DataError, match="1 values; expected 2"):
        column_of("site", np.array(["a", "a"]))


def test_a_factory_s_function_gives_the_strata(tmp_path: Path) -> None:
    text = "import numpy as np\ndef parity(by=2):\n    return lambda samples: np.arange(len(samples)) % by\n"
    (file := tmp_path / "own_strata.py").write_text(text)

    def coded(by: int) -> Coded:
        import hashlib

        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        return Coded("own_strata:parity", source_of({"by": by}, {file.name: digest}), ("even", "odd"))

    good = coded(2)
    assert strata_of(good, good.strata, (str(tmp_path),)).of(SAMPLES).tolist() == [0, 1, 0, 1]
    with pytest.raises(DataError, match="gives strata up to 2; expected 0 to 1"):
        strata_of(coded(3), good.strata, (str(tmp_path),)).of(SAMPLES)
    for body, said in (
        ("7", "gives an int; expected a function that gives each of the samples a number"),
        (
            "lambda samples: None",
            "the function of own_strata:parity gives a NoneType; expected a whole number from 0",
        ),
        (
            "lambda samples: np.arange(len(samples)) - 1",
            "gives int64 of shape .* with -1 among them; expected a whole",
        ),
        (
            "lambda samples: samples.column('ward')",
            "own_strata:parity cannot count: the samples have no column 'ward'.*; it was given inputs.*; of a table it "
            "sees no other column: make what it needs an input",
        ),
        ("lambda samples: samples.inputs['ward']", "of a table it sees no other column.* failed: "),
    ):
        file.write_text(f"import numpy as np\ndef parity(by=2):\n    return {body}\n")
        with pytest.raises(LearningError, match=said):
            strata_of(coded(2), good.strata, (str(tmp_path),)).of(SAMPLES)
    file.write_text(text + "# another\n")
    with pytest.raises(WorkloadError, match=r"own_strata:parity is not the task's: own_strata.py is another"):
        strata_of(good, good.strata, (str(tmp_path),)).of(SAMPLES)
