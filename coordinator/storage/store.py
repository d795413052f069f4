"""The market's rows as one store, which is one open transaction: tasks, submissions, rounds, identities."""

from coordinator.storage.identities import Identities
from coordinator.storage.rounds import Rounds
from coordinator.storage.submissions import Submissions
from coordinator.storage.tasks import Tasks


class MarketStore(Tasks, Submissions, Rounds, Identities):
    """The market's tables through one connection, inside the caller's transaction."""
