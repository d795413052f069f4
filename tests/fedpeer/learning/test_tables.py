"""Tables and folders of images: read as a workload sees them, or refused in one sentence."""

import codecs
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import csv, parquet

from fedpeer.learning.errors import DataError
from fedpeer.learning.images import class_folders, left_out, read_images
from fedpeer.learning.strata import column_of, named_of, strata_of, texts_of
from fedpeer.learning.tables import layout_of, read_columns, read_samples
from mechanism.workload import Column, Columns, Labels

HOURS, MILES = [7, 12, 19, 23], [90.5, 10.0, 3.25, 0.0]
CARRIERS, LATE = ["AA", "B6", "AA", "ü"], [True, False, False, True]
TABLE: dict[str, Any] = {"hour": HOURS, "miles": MILES, "carrier": CARRIERS, "late": LATE}


def stored(folder: Path, kind: str, **changes: Any) -> Path:
    """The table in a file of a kind, with other columns."""
    columns = {**TABLE, **changes}
    path = folder / f"table.{kind}"
    if kind == "npz":
        np.savez(path, **{name: np.array(values) for name, values in columns.items()})
    elif kind == "csv":
        csv.write_csv(pa.table(columns), path)
    else:
        parquet.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet"])
def test_every_kind_of_file_gives_the_same_samples(kind: str, tmp_path: Path) -> None:
    path = stored(tmp_path, kind)
    numbers = read_samples(path, Columns(("miles", "hour"), "late", "array"), 2, beside=("carrier",))
    assert numbers.inputs.dtype == np.float64  # type: ignore[union-attr]
    assert np.array_equal(np.asarray(numbers.inputs), np.stack([MILES, HOURS], axis=1))
    assert numbers.targets.tolist() == [1, 0, 0, 1]
    assert numbers.column("carrier").tolist() == CARRIERS
    named = read_samples(path, Columns(("carrier", "hour"), "miles", "named"))
    assert isinstance(named.inputs, dict)
    assert named.inputs["carrier"].tolist() == CARRIERS
    assert named.inputs["hour"].dtype == np.int64
    assert named.targets.tolist() == MILES
    classes = read_samples(path, Columns(("miles",), "carrier", "array"), ["B6", "AA", "ü"])
    assert classes.targets.tolist() == [1, 0, 1, 2]
    arrays = read_columns(path, ["hour", "miles", "carrier"])
    assert layout_of(arrays, ["hour", "miles"]) == "array"
    assert layout_of(arrays, ["hour", "carrier"]) == "named"


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_a_parquet_s_texts_are_texts_however_they_lie_in_memory(kind: pa.DataType, tmp_path: Path) -> None:
    path = stored(tmp_path, "parquet", carrier=pa.array(CARRIERS, kind))
    assert read_columns(path, ["carrier"])["carrier"].tolist() == CARRIERS


def test_lists_of_one_length_and_arrays_of_any_shape_are_inputs(tmp_path: Path) -> None:
    vectors = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]
    form = Columns(("vector",), "miles", "array")
    for path in (stored(tmp_path, "parquet", vector=vectors), stored(tmp_path, "npz", vector=vectors)):
        assert np.asarray(read_samples(path, form).inputs).tolist() == vectors
    coded = pa.array(CARRIERS).dictionary_encode()
    assert (
        read_columns(stored(tmp_path, "parquet", carrier=coded), ["carrier"])["carrier"].tolist() == CARRIERS
    )


FORM = Columns(("hour", "miles"), "late", "array")


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet"])
@pytest.mark.parametrize(
    ("late", "classes", "places"),
    [
        ([1, 2, 3, 2], ["1", "2", "3", "4"], [0, 1, 2, 1]),  # a name that is a number is a name
        (["1", "2", "3", "2"], ["3", "2", "1"], [2, 1, 0, 1]),
        ([2.0, 1.0, 1.0, 2.0], ["2", "1"], [0, 1, 1, 0]),
        (LATE, ["true", "false"], [0, 1, 1, 0]),
    ],
)
def test_numbers_and_truth_values_are_the_classes_that_bear_their_name(
    kind: str, late: list[Any], classes: list[str], places: list[int], tmp_path: Path
) -> None:
    path = stored(tmp_path, kind, late=late)
    assert read_samples(path, FORM, classes).targets.tolist() == places


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet"])
def test_a_number_that_is_no_class_name_is_refused(kind: str, tmp_path: Path) -> None:
    path = stored(tmp_path, kind, late=[0, 1, 2, 1])
    with pytest.raises(DataError, match=r"a label is '0'; expected one of the classes"):
        read_samples(path, FORM, ["1", "2", "3"])


def test_csv_files_without_rows_or_with_empty_texts_are_refused(tmp_path: Path) -> None:
    path = stored(tmp_path, "csv", carrier=["AA", "", "B6", ""])
    with pytest.raises(DataError, match=r"carrier has 2 places without a value, the first in row 1"):
        read_columns(path, ["carrier"])
    path.write_text("hour,miles\n")
    with pytest.raises(DataError, match="it has no rows"):
        read_columns(path, ["hour"])
    path.write_bytes("hour,carrier\n1,Zürich\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"carrier has a text that is not UTF-8, the first in row 0"):
        read_columns(path, ["carrier"])


def written(folder: Path, **columns: list[str]) -> Path:
    """A CSV with these texts."""
    path = folder / "table.csv"
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join(map(",".join, [tuple(columns), *rows])) + "\n")
    return path


WARD = {"hour": ["1", "2", "3"], "late": ["0", "1", "0"]}
WARD_FORM = Columns(("hour",), "late", "array")


@pytest.mark.parametrize(
    ("codes", "strata"),
    [
        (["01", "1", "10"], ("01", "1", "10")),
        (["0x1F", "31", "7"], ("0x1F", "31", "7")),
        (["7", "12", "-1"], ("-1", "7", "12")),  # plain whole numbers keep their order
        ([str(2**64), str(2**64 + 1), "1"], ("1", str(2**64), str(2**64 + 1))),
        ([str(2**63), "01", "1"], ("01", "1", str(2**63))),
        (["2024-02-01", "2024-01-02", "2024-01-02"], ("2024-01-02", "2024-02-01")),
        (
            ["2024-02-01 10:00:00", "2024-02-01T08:00:00Z", "1"],
            ("1", "2024-02-01 10:00:00", "2024-02-01T08:00:00Z"),
        ),
        (
            ["2024-02-01 10:00:00", "2024-02-01 08:00", "2024-02-01 08:00"],
            ("2024-02-01 08:00", "2024-02-01 10:00:00"),
        ),
        (["10:00", "08:00:00", "10:00"], ("08:00:00", "10:00")),
    ],
)
def test_the_strata_of_a_csv_s_column_are_its_values_as_they_are_written(
    codes: list[str], strata: tuple[str, ...], tmp_path: Path
) -> None:
    path = written(tmp_path, **WARD, code=codes)
    own = read_samples(path, WARD_FORM, 2, ("code",), ("code",)).column("code")
    assert column_of("code", own).values == strata
    assert texts_of(own, "code") == codes


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize(
    ("values", "own"),
    [
        (["false", "true", "unknown"], np.array([True, False, True, True])),
        (["1.5", "2.5", "more"], np.array([1.5, 2.5, 1.5, 1.5])),
        (["7", "12", "12A"], np.array([7, 12, 7, 12])),
    ],
    ids=str,
)
def test_who_has_a_few_of_the_strata_has_them_by_their_names(
    kind: str, values: list[str], own: np.ndarray, tmp_path: Path
) -> None:
    strata = Column("site", tuple(values))
    path = stored(tmp_path, kind, site=own)
    found = read_samples(path, FORM, 2, ("site",), ("site",), named_of(strata))
    assert strata_of(strata, values).of(found).tolist() == [
        values.index(str(v).lower()) for v in own.tolist()
    ]
    assert named_of(Column("site", ("-1", "7", "12"))) == named_of(Labels()) == ()


@pytest.mark.parametrize("kind", ["npz", "parquet"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_dates_and_times_are_texts(kind: str, unit: str, tmp_path: Path) -> None:
    days = np.array(["2026-11-30", "2026-12-01", "2026-12-02", "2026-12-03"], "datetime64[D]")
    noon = days.astype(f"datetime64[{unit}]") + np.timedelta64(12, "h")
    path = stored(tmp_path, kind, hour=days, miles=noon, carrier=days.astype(noon.dtype))
    found = read_samples(path, Columns(("hour", "miles", "carrier"), "late", "named")).arrays
    assert found["hour"].tolist() == found["carrier"].tolist() == np.datetime_as_string(days).tolist()
    assert found["miles"].tolist() == [f"{day}T12:00:00" for day in days]


def test_times_with_a_zone_or_without_a_date_are_texts(tmp_path: Path) -> None:
    times = pa.array([0, 1_500, 60_000, 3_600_000])
    changes = {
        "hour": times.cast(pa.timestamp("ms", tz="Europe/Zurich")),
        "miles": times.cast(pa.int32()).cast(pa.time32("ms")),
    }
    path = stored(tmp_path, "parquet", **changes)
    found = read_samples(path, Columns(("hour", "miles"), "late", "named")).arrays
    clock = ["00:00:00", "00:00:01.5", "00:01:00", "01:00:00"]
    assert found["hour"].tolist() == [f"1970-01-01T{time}Z" for time in clock]
    assert found["miles"].tolist() == clock


def test_a_csv_s_dates_and_times_are_texts_and_lack_no_value(tmp_path: Path) -> None:
    days = ["2024-01-02", "2024-01-03", "2024-01-02"]
    path = written(tmp_path, day=days, at=["10:00", "11:00", "12:30"], **WARD)
    arrays = read_columns(path, ["day", "at"])
    assert (arrays["day"].tolist(), arrays["at"].tolist()) == (days, ["10:00", "11:00", "12:30"])
    with pytest.raises(
        DataError, match=r"day is text, .* the first that is no number is '2024-01-02' in row 0"
    ):
        read_samples(path, Columns(("hour", "day"), "late", "array"), 2)
    path = written(tmp_path, day=["2024-01-02", "", "NA"], **WARD)
    with pytest.raises(DataError, match="day has 2 places without a value, the first in row 1"):
        read_columns(path, ["day"])


@pytest.mark.parametrize("unit", ["D", "s", "ns"])
def test_dates_of_a_column_of_names_are_the_texts_that_they_are_elsewhere(unit: str, tmp_path: Path) -> None:
    days = np.array(["2026-11-30", "2026-12-01"], f"datetime64[{unit}]") + np.timedelta64(
        0 if unit == "D" else 1, unit
    )
    np.savez(path := tmp_path / "t.npz", day=days, kind=np.array(["a", "b"]))
    read = [read_columns(path, ["day", "kind"], texts=texts)["day"].tolist() for texts in ((), ("day",))]
    assert read[0] == read[1]
    assert read[0][0].startswith("2026-11-30")


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_what_has_no_value_becomes_no_name(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"t.{kind}"
    if kind == "npz":
        np.savez(path, code=np.array([1.0, np.nan]), day=np.array(["2026-11-30", "NaT"], "datetime64[s]"))
    else:
        least = pa.array([0, -(2**63)], pa.timestamp("us"))  # to NumPy the least is none
        parquet.write_table(pa.table({"code": [1.0, float("nan")], "day": least}), path)
    with pytest.raises(
        DataError, match="column code has 1 values that are NaN or infinite, the first in row 1"
    ):
        read_columns(path, ["code"], texts=["code"])
    for texts in ((), ("day",)):
        with pytest.raises(DataError, match="column day has 1 places without a value, the first in row 1"):
            read_columns(path, ["day"], texts=texts)


def test_bytes_are_no_names_and_numbers_are_in_this_machine_s_order_of_bytes(tmp_path: Path) -> None:
    np.savez(path := tmp_path / "t.npz", code=np.array([b"a", b"b"]), miles=np.array([1.5, 2], ">f4"))
    for texts in ((), ("code",)):
        with pytest.raises(DataError, match=r"column code is \|S1 .*; expected numbers, .*: decode them"):
            read_columns(path, ["code"], texts=texts)
    assert read_columns(path, ["miles"])["miles"].dtype == np.dtype("float32")


def test_a_csv_s_column_of_names_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("code,site,hour\na,b,1\nc,\u00e9,2\n".encode("latin-1"))
    for texts in ((), ("code", "site")):
        with pytest.raises(
            DataError, match="column site has a text that is not UTF-8, the first in row 1; save it as UTF-8"
        ):
            read_columns(path, ["hour", "code", "site"], texts=texts)


def test_whole_numbers_beyond_int64_are_names_of_strata_in_every_kind_of_file(tmp_path: Path) -> None:
    large = np.array([2**64 - 1, 2**63, 1, 1], np.uint64)
    for kind in ("npz", "csv", "parquet"):
        own = read_samples(stored(tmp_path, kind, site=large), FORM, 2, ("site",), ("site",)).column("site")
        assert own.tolist() == [str(n) for n in large.tolist()]


@pytest.mark.parametrize("classes", [None, 2])
def test_a_csv_s_target_that_may_be_a_name_or_a_number_is_refused(
    classes: int | None, tmp_path: Path
) -> None:
    path = written(tmp_path, hour=WARD["hour"], late=["1", "01", "0"])
    with pytest.raises(
        DataError, match="late has '01' in row 1, a name other than 1, and as a number 1; expected"
    ):
        read_samples(path, WARD_FORM, classes)
    assert read_samples(path, WARD_FORM, ["0", "1", "01"]).targets.tolist() == [1, 2, 0]


def test_a_csv_s_input_that_is_strata_too_is_a_number_or_refused(tmp_path: Path) -> None:
    named = ("hour",)
    plain = read_samples(written(tmp_path, **WARD), WARD_FORM, 2, named, named)
    assert plain.column("hour").tolist() == [1, 2, 3]
    path = written(tmp_path, hour=["01", "2", "3"], late=WARD["late"])
    assert np.asarray(read_samples(path, WARD_FORM, 2).inputs)[:, 0].tolist() == [1, 2, 3]
    of_quantiles = read_samples(path, WARD_FORM, 2, named)
    assert np.asarray(of_quantiles.inputs)[:, 0].tolist() == [1, 2, 3]
    with pytest.raises(DataError, match=r"hour has '01' in row 0, .* strata in a column that is no input"):
        read_samples(path, WARD_FORM, 2, named, named)


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**30])
def test_whole_numbers_beyond_int64_in_a_csv_are_refused_and_measured_ones_are_not(
    number: int, tmp_path: Path
) -> None:
    path = written(tmp_path, hour=["1", str(number), "3"], late=WARD["late"])
    with pytest.raises(
        DataError, match="hour has whole numbers of more than 64 bits, the first in row 1; expected"
    ):
        read_samples(path, WARD_FORM, 2)
    for other in ("0.5", "1e300"):  # a column of measured numbers, of which whole ones are some
        path = written(tmp_path, hour=["1", str(number), other], late=WARD["late"])
        assert np.asarray(read_samples(path, WARD_FORM, 2).inputs)[1, 0] == float(number)


def test_an_array_of_objects_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "table.npz"
    np.savez(path, hour=np.array(HOURS), carrier=np.array(CARRIERS, dtype=object))
    with pytest.raises(DataError, match=r"an array of Python's objects; .*dtype=str"):
        read_columns(path, ["carrier"])


#: Columns that cannot be used, the kinds of file that can hold them, and what is said.
BAD: dict[str, tuple[dict[str, Any], tuple[str, ...], str]] = {
    "missing value": ({"miles": [1.0, None, 2.0, None]}, ("csv", "parquet"), "miles has 2 places .* first in row 1"),
    "not a number": ({"miles": [1.0, 2.0, np.nan, 3.0]}, ("npz", "parquet"), "miles has 1 values that are NaN"),
    "infinite": ({"miles": [1.0, 2.0, np.inf, 3.0]}, ("npz", "parquet"), "the first in row 2"),
    "text": ({"miles": list("abcd")}, ("npz", "csv", "parquet"), 'the first that is no number is .a. in row 0'),
    "three classes": ({"late": [0, 1, 2, 0]}, ("npz", "csv", "parquet"), "labels run from 0 to 2"),
    "measured": ({"late": [0.5, 1, 2, 0]}, ("npz", "csv", "parquet"), "a label is 0.5"),
    "mixed lists": ({"miles": [[1.0], [1.0, 2.0], [1.0], [1.0]]}, ("parquet",), "lists of 1 to 2 values"),
    "a list with a hole": ({"miles": [[1, 2], [1, 2], [1, None], [1, 2]]}, ("parquet",), "1 places .* first in row 2"),
    "rounded": ({"miles": [1, 2**53 + 1, 2, 3]}, ("npz", "csv", "parquet"), r"beyond 2\^53, the first in row 1"),
    "rounded, unsigned": (
        {"miles": np.array([1, 2, 2**53 + 1, 3], np.uint64)}, ("npz", "parquet"), r"beyond 2\^53, the first in row 2"
    ),
    "beyond 64 bits": (
        {"miles": np.array([1, 2, 2**63, 3], np.uint64)}, ("npz", "csv", "parquet"), "of more than 64 bits, .* in row 2"
    ),
    "dates": (
        {"miles": np.array([1, 2, 3, 4], "datetime64[D]")}, ("npz", "csv", "parquet"),
        "is text.*; the first that is no number is '1970-01-02' in row 0"
    ),
    "no date": ({"miles": np.array([1, "NaT", 3, 4], "datetime64[D]")}, ("npz",), "miles has 1 places .* in row 1"),
    "lengths of time": (
        {"miles": np.array([1, 2, 3, 4], "timedelta64[s]")}, ("npz", "parquet"),
        "expected numbers, truth values or texts: write lengths of time as numbers"
    ),
    "complex": ({"miles": np.array([1j, 2, 3, 4])}, ("npz",), "complex128"),
    "one value": ({"miles": 1.0}, ("npz",), "a single value"),
    "shorter": ({"miles": [1.0, 2.0]}, ("npz",), "expected one number for all"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, case in BAD.items() for kind in case[1]])
def test_a_column_that_cannot_be_used_is_refused_in_one_sentence(
    name: str, kind: str, tmp_path: Path
) -> None:
    changes, _, said = BAD[name]
    with pytest.raises(DataError, match=said) as refused:
        read_samples(stored(tmp_path, kind, **changes), FORM, 2)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet"])
def test_a_file_that_is_none_is_refused_in_one_sentence(kind: str, tmp_path: Path) -> None:
    path = stored(tmp_path, kind)
    with pytest.raises(DataError, match=r"has no mile; it has hour, miles, carrier, late"):
        read_columns(path, ["mile"])
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_columns(tmp_path / f"absent.{kind}", ["hour"])
    path.write_bytes(path.read_bytes()[:20] + b"\x00\xff\n,,,,,\n")
    with pytest.raises(DataError, match=r"damaged|zero bytes"):
        read_columns(path, ["hour"])
    with pytest.raises(DataError, match=r"expected a file that ends with \.npz"):
        read_columns(tmp_path / "table.xlsx", ["hour"])


#: What a CSV may be that is none of ours, and what is said of it.
TEXTS: dict[str, tuple[bytes, str]] = {
    "semicolons": (b"hour;late\n1;0\n2;1\n", "it has hour;late; its values .* semicolons; .*commas"),
    "semicolons and decimal commas": (b"hour;late\n1,5;0\n2,5;1\n", "by semicolons; .*a point before decimals"),
    "tabs": (b"hour\tlate\n1\t0\n", "separated by tabs"),
    "bars": (b"hour|late\n1|0\n", r"separated by bars \(\|\)"),
    "spaces": (b"hour late\n1 0\n", "separated by spaces"),
    "semicolons in a name": (b"hour;late\n1;0\n".replace(b"late", b"a,b"), "separated by semicolons"),
    "UTF-16": ("hour,late\n1,0\n".encode("utf-16"), "it is UTF-16 text; save it as UTF-8"),
    "UTF-16 without its mark": ("hour,late\n1,0\n".encode("utf-16-le"), "it has zero bytes, as UTF-16"),
    "UTF-32": ("hour,late\n1,0\n".encode("utf-32"), "it is UTF-32 text"),
    "Latin-1 names": ("stünde,late\n1,0\n".encode("latin-1"), "its first line is not UTF-8 text; save it as UTF-8"),
    "Latin-1 values": ("hour,late\na,0\nü,1\n".encode("latin-1"), "hour has a text that is not UTF-8, .* row 1"),
    "compressed": (gzip.compress(b"hour,late\n1,0\n"), "it is gzip, no CSV"),
    "a workbook": (b"PK\x03\x04 and more", "it is a ZIP archive or a workbook, no CSV"),
    "nothing": (b"", "it is empty; expected a line with the columns' names"),
    "a mark alone": (codecs.BOM_UTF8, "it is empty"),
    "blank lines alone": (b"\n\n \n", "it is empty"),
    "names alone": (b"hour,late\n", "it has no rows"),
    "no names": (b"1,0\n2,1\n", "it has 1, 0; its first line has '1', as rows have: expected the columns' names"),
    "names with blanks": (b"hour, late\n1,0\n", "it has no late; .*letter by letter, .*not ' late'"),
    "names in capitals": (b"Hour,Late\n1,0\n", "letter by letter, .*not 'Hour'"),
    "a remark first": (b"# ours\nhour,late\n1,0\n", "names in its first line, with nothing before it"),
    "a name twice": (b"hour,late,late\n1,0,1\n", "more than one column late"),
    "a row that is longer": (b"hour,late\n1,0\n\n2,5,1\n", "row 1 has 3 values .* has 2 values: '2,5,1'; .*a point"),
    "a row that is shorter": (b"hour,late\n1,0\n2\n", "row 1 has 1 value where .* has 2 values: '2'; give a value"),
    "a line of blanks": (b"hour,late\n1,0\n  \n", "row 1 has 1 value .*leave out lines of blanks"),
    "an open quotation mark": (b'hour,late\n"1,0\n2,1\n', "row 0 has 1 value .*close its quotation mark"),
    "decimal commas": (b'hour,late\n"1,5",0\n2,1\n', "is no number is '1,5' in row 0: .* with a point"),
    "thousands": (b'hour,late\n7,0\n"1,000",1\n', "is '1,000' in row 1: .*nothing between thousands"),
    "thousands as the Swiss have them": (b"hour,late\n1'000,0\n2,1\n", "nothing between thousands"),
    "a unit": (b"hour,late\n5%,0\n2,1\n", "is '5%' in row 0: write numbers without a unit"),
    "a mark of what is missing": (b"hour,late\n5,0\n-,1\n", "is '-' in row 1: fill in what is missing"),
    "an empty cell": (b"hour,late\n5,0\n,1\n", "hour has 1 places without a value, the first in row 1"),
    "NaN": (b"hour,late\n5,0\nNaN,1\n", "hour has 1 places without a value, the first in row 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_what_a_csv_seems_to_be_is_said_and_never_taken_for_granted(name: str, tmp_path: Path) -> None:
    text, said = TEXTS[name]
    (path := tmp_path / "table.csv").write_bytes(text)
    with pytest.raises(DataError, match=said) as refused:
        read_samples(path, Columns(("hour",), "late", "array"), 2)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        b"hour,late\n1,0\n2,1\n",
        codecs.BOM_UTF8 + b"hour,late\n1,0\n2,1\n",
        b"\n\nhour,late\n1,0\n\n2,1\n\n",
        b'"hour","late"\r\n"1",0\r\n2,"1"\r\n',
        b"hour;x,late,hour\n9,0,1\n8,1,2\n",
    ],
)
def test_a_mark_blank_lines_and_quotation_marks_change_nothing(text: bytes, tmp_path: Path) -> None:
    (path := tmp_path / "table.csv").write_bytes(text)
    found = read_samples(path, Columns(("hour",), "late", "array"), 2)
    assert (np.asarray(found.inputs).tolist(), found.targets.tolist()) == ([[1], [2]], [0, 1])


@pytest.mark.parametrize(
    ("texts", "first"),
    [
        (["3,5", "4,5"], "3,5"),
        (["7", "1.234,5"], "1.234,5"),
        (["7", "NA"], "NA"),
        (["7", "n/a", "12 000"], "n/a"),
        (["€5", "7"], "€5"),
        (["7", "nan"], "nan"),
        (["7", "\u22125"], "\u22125"),
        (["0.7", "<0.5"], "<0.5"),
        ([">= 90", "7"], ">= 90"),
    ],
)
def test_texts_that_are_nearly_numbers_are_no_names_until_somebody_says_so(
    texts: list[str], first: str
) -> None:
    with pytest.raises(DataError, match=f"would be numbers but for {first!r} in row") as refused:
        layout_of({"hour": np.array(texts)}, ["hour"])
    assert 'layout = "named"' in str(refused.value)


@pytest.mark.parametrize(
    "texts",
    [
        ["AA", "7"],
        ["0-9", "80+"],
        ["10.0.0.1", "10.0.0.2"],
        ["01", "1"],
        ["NA", "-"],
        ["2020-01-01"],
        ["<18", "18-65"],
    ],
)
def test_other_texts_are_names(texts: list[str]) -> None:
    assert layout_of({"hour": np.array(texts)}, ["hour"]) == "named"


def image(path: Path, size: tuple[int, int] = (4, 3), mode: str = "L", value: int = 255) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


def test_a_folder_of_images_has_a_class_in_each_sub_folder(tmp_path: Path) -> None:
    image(tmp_path / "dog" / "b.png", value=0)
    image(tmp_path / "cat" / "sub" / "a.png")
    image(tmp_path / "cat" / "c.png", value=51)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    assert class_folders(tmp_path) == ("cat", "dog")
    samples = read_images(tmp_path, ("cat", "dog"))
    assert np.asarray(samples.inputs).shape == (3, 1, 3, 4)
    assert samples.targets.tolist() == [0, 0, 1]
    assert np.asarray(samples.inputs)[:, 0, 0, 0].tolist() == pytest.approx([0.2, 1, 0])
    image(tmp_path / "dog" / "colour.png", mode="RGB")
    assert np.asarray(read_images(tmp_path, ("cat", "dog")).inputs).shape == (4, 3, 3, 4)


def test_grey_images_stay_grey_however_they_are_stored(tmp_path: Path) -> None:
    image(tmp_path / "cat" / "a.png", value=51)
    image(tmp_path / "dog" / "alpha.png", mode="LA", value=(51, 255))  # type: ignore[arg-type]
    grey = Image.new("RGB", (4, 3), (51, 51, 51))
    grey.quantize(4).save(tmp_path / "dog" / "palette.png")
    inputs = np.asarray(read_images(tmp_path, ("cat", "dog")).inputs)
    assert inputs.shape == (3, 1, 3, 4)
    assert np.unique(inputs) == pytest.approx([0.2])
    Image.new("RGB", (4, 3), (51, 0, 0)).quantize(4).save(tmp_path / "dog" / "red.png")
    assert np.asarray(read_images(tmp_path, ("cat", "dog")).inputs)[-1, :, 0, 0].tolist() == pytest.approx(
        [0.2, 0, 0]
    )
    image(tmp_path / "dog" / "clear.png", mode="LA", value=(51, 128))  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"clear.png .*transparent in places"):
        read_images(tmp_path, ("cat", "dog"))


def test_images_that_do_not_agree_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has 0 sub-folders"):
        class_folders(tmp_path)
    (tmp_path / "cat").mkdir()
    (tmp_path / "dog").mkdir()
    with pytest.raises(DataError, match="has no image"):
        read_images(tmp_path, ("cat", "dog"))
    image(tmp_path / "cat" / "a.png")
    with pytest.raises(DataError, match=r"the sub-folders \['dog'\], which are no classes"):
        read_images(tmp_path, ("cat", "owl"))
    image(tmp_path / "dog" / "b.png", (5, 3))
    with pytest.raises(DataError, match=r"b.png is 5 x 3 pixels, .*a.png is 4 x 3"):
        read_images(tmp_path, ("cat", "dog"))
    Image.fromarray(np.full((3, 4), 40_000, np.uint16)).save(tmp_path / "dog" / "b.png")
    with pytest.raises(DataError, match=r"b.png .*more than 8 bits a value"):
        read_images(tmp_path, ("cat", "dog"))
    (tmp_path / "dog" / "b.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"b.png cannot be read as an image: it is none, or damaged"):
        read_images(tmp_path, ("cat", "dog"))


def test_hidden_folders_and_files_are_no_classes_and_no_images(tmp_path: Path) -> None:
    for name in ("cat/a.png", "dog/b.png", ".thumbnails/a.png", "cat/.thumbnails/sub/a.png"):
        image(tmp_path / name)
    (tmp_path / "dog" / "._b.png").write_bytes(b"a Mac's, of b.png")
    assert class_folders(tmp_path) == ("cat", "dog")
    assert read_images(tmp_path, ("cat", "dog")).targets.tolist() == [0, 1]
    hidden = tmp_path / ".data"  # which the task file names all the same
    image(hidden / "cat" / "a.png")
    image(hidden / "dog" / "a.png")
    assert read_images(hidden, class_folders(hidden)).targets.tolist() == [0, 1]


def test_what_is_left_out_of_a_folder_of_images_is_said(tmp_path: Path) -> None:
    for name in ("cat/a.png", "dog/b.PNG"):
        image(tmp_path / name)
    for name in ("cat/Thumbs.db", "dog/desktop.ini", "dog/.DS_Store", "dog/._b.png"):  # are nobody's images
        (tmp_path / name).write_bytes(b"")
    image(tmp_path / "__MACOSX" / "cat" / "._a.png")
    (tmp_path / "README.txt").write_text("ours")
    classes = class_folders(tmp_path)
    assert (classes, left_out(tmp_path, classes)) == (("cat", "dog"), ())
    for name in ("cat/a.gif", "cat/b.GIF", "dog/sub/c.heic", "dog/labels", "dog/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    image(tmp_path / "stray.jpg")
    others, beside = left_out(tmp_path, classes)
    assert (
        "has 5 files that are left out (2 .gif, 1 .txt, 1 without a suffix, 1 .heic; the first is cat/a.gif)"
        in others
    )
    assert "only what ends with .png, .jpg," in others
    assert "has 1 image in no sub-folder, left out as of no class; the first is stray.jpg" in beside
    assert read_images(tmp_path, classes).targets.tolist() == [0, 1]


def test_folders_of_parts_that_have_folders_of_classes_are_asked_about(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            image(tmp_path / part / name / "a.png")
    [said] = left_out(tmp_path, class_folders(tmp_path))
    assert (
        "from the sub-folders test, train, and no image right in them: all are deeper, in cat, dog." in said
    )
    image(tmp_path / "train" / "a.png")
    assert left_out(tmp_path, class_folders(tmp_path)) == ()


def test_who_has_one_class_alone_has_one_sub_folder(tmp_path: Path) -> None:
    image(tmp_path / "dog" / "b.png")
    assert read_images(tmp_path, ("cat", "dog")).targets.tolist() == [1]


def test_a_link_that_leads_nowhere_is_no_image(tmp_path: Path) -> None:
    image(tmp_path / "cat" / "a.png")
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "b.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(DataError, match=r"b.png cannot be read as an image: .*No such file"):
        read_images(tmp_path, ("cat", "dog"))


@pytest.mark.parametrize("suffix", ["jpg", "png", "tif", "webp"])
def test_an_image_is_turned_as_its_exif_says(suffix: str, tmp_path: Path) -> None:
    upright = np.zeros((16, 8), np.uint8)
    upright[:8] = 255
    told = Image.Exif()
    told[0x0112] = 6  # it is shown turned by 90 degrees clockwise
    lying = Image.fromarray(np.rot90(upright).copy())
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        lying.save(tmp_path / name / f"a.{suffix}", exif=told)
    found = np.asarray(read_images(tmp_path, ("cat", "dog")).inputs)
    assert found.shape[2:] == (16, 8)
    assert np.abs(found[0, 0] - upright / 255).max() < 0.1


@pytest.mark.parametrize("suffix", ["tif", "png", "webp"])
def test_an_image_of_several_pages_is_refused(suffix: str, tmp_path: Path) -> None:
    image(tmp_path / "dog" / "b.png")
    (tmp_path / "cat").mkdir()
    pages = [Image.new("L", (4, 3), value) for value in (0, 255)]
    pages[0].save(tmp_path / "cat" / f"a.{suffix}", save_all=True, append_images=pages[1:])
    with pytest.raises(DataError, match=rf"a\.{suffix} .* it has 2 pages; expected one: write each"):
        read_images(tmp_path, ("cat", "dog"))


def test_of_a_camera_s_jpeg_with_previews_the_picture_is_read(tmp_path: Path) -> None:
    picture, preview = (Image.new("RGB", (8, 8), value) for value in ((255, 0, 0), (0, 0, 255)))
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        with (tmp_path / name / "a.jpg").open("wb") as file:
            picture.save(file, format="MPO", save_all=True, append_images=[preview])
    found = np.asarray(read_images(tmp_path, ("cat", "dog")).inputs)
    assert found[0, :, 0, 0] == pytest.approx([1, 0, 0], abs=0.05)
