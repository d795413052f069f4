"""Markets for tests: a real coordinator and real participants in one process, with a clock that the test moves.

    with LocalMarket(MyTask, participants=3, weights=start) as market:
        market.participants["p2"].dies(round=2)
        reports = market.run()
        assert reports["p1"].paid_micro > 0
        market.verify()

LocalMarket        a coordinator, its task and its participants, from terms to payments
LocalParticipant   one of them, and the faults that it can be given
LocalCoordinator   the coordinator alone, for participants of your own, in this process or another

Everything goes the way that it goes in earnest: gRPC over mutual TLS on loopback, the coordinator's database, the real
settlement. The pytest fixture `fedpeer_market` makes markets (`fedpeer.pytest_plugin`).

Raises:
    ImportError: on import, where the extra fedpeer[testing] or a POSIX system is missing.
"""

import os

from fedpeer.extras import unmet

if (sentence := unmet("testing")) is not None:
    raise ImportError(sentence)
if os.name != "posix":
    raise ImportError(
        "`fedpeer.testing` needs a POSIX system, as the coordinator does; run these tests on Linux or macOS"
    )

from fedpeer.testing.coordinator import LocalCoordinator
from fedpeer.testing.errors import MarketTestError
from fedpeer.testing.market import LocalMarket
from fedpeer.testing.participant import LocalParticipant

__all__ = ["LocalCoordinator", "LocalMarket", "LocalParticipant", "MarketTestError"]
