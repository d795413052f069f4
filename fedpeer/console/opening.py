"""A task that is about to be opened: its bill and what the dry round finds, before anybody is asked to confirm."""

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from coordinator.config import TaskConfig, parse_config, resolve_paths
from coordinator.errors import CoordinatorError, MarketTaskError
from coordinator.operator import Operator
from fedpeer.audit.sql.errors import StorageError
from fedpeer.console.reading import Reader
from fedpeer.extras import unmet
from fedpeer.learning.errors import LearningError
from mechanism.errors import MechanismError

if TYPE_CHECKING:
    from coordinator.dry_round import Proof
    from coordinator.opening import PreparedTask

log = structlog.get_logger()

#: What the operator can put right in a task file.
_MISTAKES = (CoordinatorError, StorageError, MechanismError, LearningError)


@dataclass(frozen=True)
class _Offer:
    """A task that a dry round has proved."""

    prepared: "PreparedTask"
    proof: "Proof"

    def record(self) -> dict[str, Any]:
        terms = self.prepared.row.terms
        return {
            "task": terms.task_id,
            "terms_digest": terms.digest.hex(),
            "rounds": terms.schedule.rounds,
            "capacity": terms.schedule.capacity,
            "head_micro": self.prepared.head_micro,
            "bill_micro": self.prepared.bill_micro,
            "budget_micro": terms.budget_micro,
            "training_seconds": self.proof.training_seconds,
            "evidence_seconds": self.proof.evidence_seconds,
            "findings": self.proof.findings(),
            "doubts": list(self.proof.doubts),
        }


class Opening:
    """One dry round at a time, and the task that it has proved, until it is opened or another one is tried.

    Args:
        changed: called from the dry round's thread when it has moved on.
    """

    def __init__(self, reader: Reader, changed: Callable[[], None]) -> None:
        self._reader, self._changed = reader, changed
        self._lock = threading.Lock()
        self._running = False
        self._text = self._said = self._error = ""
        self._offer: _Offer | None = None

    def record(self) -> dict[str, Any]:
        """The task file, how far its dry round is, what is wrong with it, and what it would cost."""
        offer = self._offer
        return {
            "text": self._text,
            "running": self._running,
            "said": self._said,
            "error": self._error,
            "offer": None if offer is None else offer.record(),
        }

    def begin(self, text: str, *, accept_noise: bool) -> None:
        """Proves a task file.

        Args:
            text: TOML; relative paths in it are taken from the coordinator's state folder.
            accept_noise: as `coordinator.dry_round.prove`.

        Raises:
            MarketTaskError: a dry round runs already, or what it needs is not installed here.
        """
        if (sentence := unmet("coordinator")) is not None:
            raise MarketTaskError(f"no task can be proved here: {sentence}")
        with self._lock:
            if self._running:
                raise MarketTaskError("a dry round runs already; wait until it has ended")
            self._running, self._text, self._said, self._error, self._offer = True, text, "", "", None
        threading.Thread(target=self._prove, args=(text, accept_noise), name="dry round", daemon=True).start()

    def open(self, digest: str) -> Operator:
        """Publishes the task that was proved, whose terms have this digest; returns the operator, which says whether it
        is in force.

        Raises:
            MarketTaskError: another one was proved since, or the task cannot be opened.
        """
        with self._lock:
            offer = self._offer
            if offer is None or offer.prepared.row.terms.digest.hex() != digest:
                raise MarketTaskError(
                    "this is not the task that was proved last; look at the page again before you open it"
                )
            with closing(self._operator()) as operator:
                operator.open(offer.prepared)
            self._text, self._offer = "", None
        return operator

    def _operator(self) -> Operator:
        return Operator(self._reader.folder, self._reader.clock)

    def _prove(self, text: str, accept_noise: bool) -> None:
        try:
            self._offer = self._proved(text, accept_noise)
        except _MISTAKES as error:
            self._error = str(error)
        except Exception as error:
            log.exception("a dry round failed")
            self._error = (
                f"the dry round failed: {error or type(error).__name__}; the console's log says more"
            )
        finally:
            self._running = False
            self._changed()

    def _proved(self, text: str, accept_noise: bool) -> _Offer:
        from coordinator.calibration import check_calibration
        from coordinator.dry_round import prove  # imports the data sets
        from coordinator.opening import prepare_task

        config = parse_config(text, TaskConfig, Path("the task"))
        _check_no_code(config)
        with closing(self._operator()) as operator:
            operator.check_unused(config.id)
        prepared = prepare_task(
            resolve_paths(config, self._reader.folder.path.absolute()), self._reader.now()
        )
        doubts = check_calibration(prepared, config)
        proof = prove(prepared, self._say, accept_noise=accept_noise)
        return _Offer(proof.task, replace(proof, doubts=(*proof.doubts, *doubts)))

    def _say(self, text: str) -> None:
        self._said = text
        self._changed()


def _check_no_code(config: TaskConfig) -> None:
    """Raises MarketTaskError where a task names Python to be run: a page must be no way to run code on the machine."""
    places = {
        "recipe.model": config.recipe.model if ":" in config.recipe.model else None,
        "strata.factory": None if config.strata is None else config.strata.factory,
        "data.factory": None if config.data is None else config.data.factory,
    }
    for place, factory in places.items():
        if factory is not None:
            raise MarketTaskError(
                f"{place} is {factory!r}, Python that would run on the coordinator's machine; expected a task without. "
                "Open this one on the machine itself: fedpeer coordinator open FILE"
            )
