"""How results read: whole in `print`, in one line in a console, as a table in a notebook."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Table:
    """What a notebook shows: a title, a heading, rows of cells, and a sentence below."""

    title: str
    heading: Sequence[str]
    rows: Sequence[Sequence[Any]]
    below: str = ""

    def html(self) -> str:
        from html import escape  # only a notebook needs it

        head = "".join(f"<th>{escape(cell)}</th>" for cell in self.heading)
        rows = ("".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in self.rows)
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return (
            f"<p>{escape(self.title)}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            f"<p>{escape(self.below)}</p>"
        )


class Readable:
    """A result whose `str` is for people."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {str(self).partition(chr(10))[0]}>"

    def _repr_html_(self) -> str:
        from html import escape  # as above

        table = self._table()
        return f"<pre>{escape(str(self))}</pre>" if table is None else table.html()

    def _table(self) -> Table | None:
        """None: the text as it is."""
        return None
