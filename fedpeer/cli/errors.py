"""What the command line itself refuses."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class CommandError(Exception):
    """A command that cannot be carried out as it was given; the message says what to change."""


@contextmanager
def writable(out: Path) -> Iterator[None]:
    """Says in a sentence that the folder of --out cannot be written, or that the disk is full.

    Raises:
        CommandError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise CommandError(f"{out} cannot be written ({error}); name another folder with --out") from error
