"""What a state folder knows, read without the coordinator and while a participant may be at work."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from participant.accounting import PrivacySpent, kept_spending
from participant.identity import IdentityFolder
from participant.journal import Journal
from participant.report import TaskReport, report_of

if TYPE_CHECKING:
    from participant.earnings import Earned


def read_reports(state: Path | str) -> list[TaskReport]:
    """How each task went that was taken part in from a state folder; as `Participant.reports`.

    Raises:
        ConfigurationError: nobody is enrolled in the folder.
    """
    with reading(state) as (participant_id, journal):
        if journal is None:
            return []
        return [report_of(journal, task.task_id, participant_id) for task in journal.tasks()]


def read_earnings(state: Path | str) -> "list[Earned]":
    """Every settled round of a state folder with its receipt checked, by task and round.

    Raises:
        ConfigurationError: nobody is enrolled in the folder.
    """
    from participant.earnings import check_earnings  # the ledger's part takes its time to import

    with reading(state) as (participant_id, journal):
        return [] if journal is None else check_earnings(journal, participant_id)


def read_spending(state: Path | str) -> PrivacySpent | None:
    """What the models of a state folder so far tell of the data, as last noted; None before the first.

    Raises:
        ConfigurationError: nobody is enrolled in the folder.
    """
    with reading(state) as (_, journal):
        return None if journal is None else kept_spending(journal)


def read_declined(state: Path | str) -> list[tuple[str, str]]:
    """Tasks whose terms the owner's policy does not accept, with the reason, by id.

    Raises:
        ConfigurationError: nobody is enrolled in the folder.
    """
    with reading(state) as (_, journal):
        return [] if journal is None else journal.declined()


@contextmanager
def reading(state: Path | str) -> Iterator[tuple[str, Journal | None]]:
    """Who a state folder is of, and its journal to read from; None before the first task."""
    folder = IdentityFolder(state)
    participant_id = folder.credentials().participant_id
    journal = Journal(folder.journal, writer=False) if folder.journal.exists() else None
    try:
        yield participant_id, journal
    finally:
        if journal is not None:
            journal.close()
