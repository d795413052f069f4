"""What keeps a CSV file from being read, in words: its encoding, its separator, its first line, its rows.

A CSV says nothing of itself. What it seems to be is said, and never taken for granted: whoever wrote it knows.
"""

import csv
import re
from collections.abc import Sequence

from fedpeer.learning.errors import DataError
from fedpeer.learning.numerals import is_number
from fedpeer.text_files import TextFileError, unmarked

#: Bytes of a file that are looked at: a first line of thousands of names fits.
HEAD_BYTES = 1 << 20

#: First bytes of files that are no text, whatever their names end with.
_OTHERS = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "a ZIP archive or a workbook", b"PAR1": "Parquet"}

#: What may stand between values in the place of a comma.
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars (|)", " ": "spaces"}

#: In Arrow's words: a row of another length, where it counts the first line as row 1 and no empty ones.
_LENGTH = re.compile(r"(?:Row #([0-9]+): )?Expected ([0-9]+) columns, got ([0-9]+): ?(.*)", re.DOTALL)


def first_line(head: bytes) -> str:
    """The line of the columns' names of a CSV that begins with `head`.

    Raises:
        DataError: no CSV in UTF-8, or an empty one.
    """
    for mark, name in _OTHERS.items():
        if head.startswith(mark):
            raise DataError(f"it is {name}, no CSV; expected the CSV itself, unpacked or exported")
    try:
        head = unmarked(head)
    except TextFileError as error:
        raise DataError(str(error)) from None
    line = next((line for line in head.splitlines() if line), b"")
    if not line.strip():
        raise DataError("it is empty; expected a line with the columns' names, and one for each sample")
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise DataError("its first line is not UTF-8 text; save it as UTF-8") from None


def lacking(line: str, names: Sequence[str]) -> str:
    """What the first line of a CSV seems to be that has not all the columns `names`, as the end of a sentence."""
    if separator := _separator(line, names):
        return f"; {separator}"
    known = _cells(line, ",")
    folded = {cell.strip().strip("'").casefold(): cell for cell in known}
    near = [folded[name.casefold()] for name in names if name not in known and name.casefold() in folded]
    if near:
        return f"; expected the names letter by letter, with nothing around them, and not {near[0]!r:.60}"
    if values := [cell for cell in known if is_number(cell)]:
        return (
            f"; its first line has {values[0].strip()!r:.60}, as rows have: expected the columns' names in it"
        )
    if line.startswith(("#", "sep=")):
        return "; expected the columns' names in its first line, with nothing before it"
    return ""


def broken(said: str, line: str, names: Sequence[str]) -> str | None:
    """What Arrow says of a row of another length than the first line, in words; None of anything else."""
    if (found := _LENGTH.search(said)) is None:
        return None
    number, expected, got, text = found.groups()
    if separator := _separator(line, names):
        return separator
    where = f"row {int(number) - 2}" if number else "a row"
    words = f"{where} has {_values(int(got))} where the first line has {_values(int(expected))}: {text.strip()!r:.80}"
    if hint := lacking(line, names):
        return words + hint
    if not text.strip():
        do = "leave out lines of blanks"
    elif text.count('"') % 2:
        do = "close its quotation mark"
    elif int(got) > int(expected):
        do = "put a value with a comma in it in quotation marks, and write decimals with a point"
    else:
        do = "give a value to every column"
    return f"{words}; {do}"


def _values(count: int) -> str:
    return f"{count} value{'s' * (count != 1)}"


def _cells(line: str, separator: str) -> list[str]:
    return next(csv.reader([line], delimiter=separator), [])


def _separator(line: str, names: Sequence[str]) -> str:
    """In words, what the first line has between names where that seems to be no comma."""
    cells = {separator: _cells(line, separator) for separator in (",", *_SEPARATORS)}

    def fits(separator: str) -> tuple[int, int]:
        found = [cell for cell in cells[separator] if cell.strip() in names]
        return len(set(found)), len(cells[separator]) if separator != " " else 1

    best = max(_SEPARATORS, key=fits)
    if fits(best)[0] <= fits(",")[0] and (len(cells[","]) > 1 or fits(best)[1] < 2):
        return ""
    return (
        f"its values seem to be separated by {_SEPARATORS[best]}; expected commas, with a point before decimals: save "
        "it so"
    )
