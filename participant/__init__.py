"""The participant's SDK: decide an effort, improve the data, train, submit, be paid.

    from participant import Participant, Task

    class Cats(Task):
        def counts(self): ...
        def train(self, weights, round): ...

    with Participant("state", "market.example:7443") as me:
        report = me.run(Cats(), "cats-1")

Imports neither torch nor scipy; adapters for frameworks are in `participant.adapters`.
"""

from importlib import import_module

# Nothing of it is used here, where it would stand above: only whose it is.
if not hasattr(import_module("fedpeer"), "_HOMES"):
    raise ImportError(
        f"{import_module('fedpeer').__file__} hides the package 'fedpeer', since it stands before it on Python's "
        "path; run this from another folder, take that one out of PYTHONPATH, or rename it"
    )

from mechanism.privacy import Privacy
from participant.accounting import PrivacyLimit, PrivacySpent
from participant.aio import AsyncJoinedTask, AsyncParticipant, AsyncRound
from participant.audits import AuditStanding
from participant.backoff import Backoff
from participant.dispute import Dispute, DisputedRound
from participant.effort import BestResponse, Decision, EffortStrategy, Explanation, Fixed
from participant.errors import *  # noqa: F403 - the whole tree is public; its module lists it
from participant.errors import __all__ as _errors
from participant.policy import Policy
from participant.progress import Paused
from participant.records import read_earnings, read_reports
from participant.report import Receipt, RoundReport, Settlement, TaskReport
from participant.sync import JoinedTask, Participant, Round
from participant.task import Task, Trained, TrainingCancelled, TrainingRound, Weights
from participant.work import Activity

__all__ = [
    "Activity",
    "AsyncJoinedTask",
    "AsyncParticipant",
    "AsyncRound",
    "AuditStanding",
    "Backoff",
    "BestResponse",
    "Decision",
    "Dispute",
    "DisputedRound",
    "EffortStrategy",
    "Explanation",
    "Fixed",
    "JoinedTask",
    "Participant",
    "Paused",
    "Policy",
    "Privacy",
    "PrivacyLimit",
    "PrivacySpent",
    "Receipt",
    "Round",
    "RoundReport",
    "Settlement",
    "Task",
    "TaskReport",
    "Trained",
    "TrainingCancelled",
    "TrainingRound",
    "Weights",
    "read_earnings",
    "read_reports",
    *[name for name in _errors if name != "refused"],
]
