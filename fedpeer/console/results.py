"""What the arena and the figures have measured, where the operator shows a folder of it."""

import re
from pathlib import Path
from typing import Any

from fedpeer.console.reading import NotThere

#: What is shown, by the end of its name; texts are texts, whatever they hold.
_KINDS = {
    ".png": "image/png",
    ".csv": "text/plain; charset=utf-8",
    ".json": "application/json",
    ".md": "text/plain; charset=utf-8",
}

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

#: Bytes of a file, and files: more than either command writes.
_BYTES, _FILES = 1 << 24, 500


class Results:
    """The files of one folder, none below it.

    Args:
        folder: None: there is none.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def record(self) -> dict[str, Any]:
        """Files by the name that they share, pictures apart."""
        found: dict[str, dict[str, Any]] = {}
        for path in self._files():
            entry = found.setdefault(path.stem, {"name": path.stem, "pictures": [], "files": []})
            entry["pictures" if path.suffix == ".png" else "files"].append(path.name)
        return {"results": list(found.values())}

    def file(self, name: str) -> tuple[bytes, str]:
        """One file and its kind.

        Raises:
            NotThere: there is none of that name.
        """
        path = next((path for path in self._files() if path.name == name), None)
        if path is None:
            raise NotThere(f"There is no result {name:.100}.")
        return path.read_bytes(), _KINDS[path.suffix]

    def _files(self) -> list[Path]:
        if self._folder is None:
            return []
        there = sorted(self._folder.iterdir())[:_FILES]
        return [
            path for path in there if _NAME.fullmatch(path.name) and path.suffix in _KINDS and _plain(path)
        ]


def _plain(path: Path) -> bool:
    """Whether it is a file of this folder, and no link out of it."""
    return path.is_file() and not path.is_symlink() and path.stat().st_size <= _BYTES
