"""The market's rows as one store, which is one open transaction: of tasks, submissions, rounds, identities, notices,
payouts and audits.
"""

from coordinator.storage.audits import Audits
from coordinator.storage.identities import Identities
from coordinator.storage.notices import Notices
from coordinator.storage.payouts import Payouts
from coordinator.storage.rounds import Rounds
from coordinator.storage.submissions import Submissions
from coordinator.storage.tasks import Tasks


class MarketStore(Tasks, Submissions, Rounds, Identities, Notices, Payouts, Audits):
    """The market's tables through one connection, inside the caller's transaction."""
