"""The market's rows as one store, which is one open transaction: of tasks, submissions, rounds, openings, identities,
notices, payouts, audits and presence.
"""

from coordinator.storage.audits import Audits
from coordinator.storage.identities import Identities
from coordinator.storage.notices import KeptNotices
from coordinator.storage.openings import KeptOpenings
from coordinator.storage.payouts import Payouts
from coordinator.storage.presence import Presences
from coordinator.storage.rounds import Rounds
from coordinator.storage.submissions import Submissions
from coordinator.storage.tasks import Tasks


class MarketStore(
    Tasks, Submissions, Rounds, KeptOpenings, Identities, KeptNotices, Payouts, Audits, Presences
):
    """The market's tables through one connection, inside the caller's transaction."""
