"""Evidence by one small class, so that the service need not know how a task is scored.

A scorer works on files and blocks; the service calls it from its own thread. Everything that it returns is a
function of the task's root, its terms, D_c and the submitted files: asked again after a restart, it says the
same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor
from pathlib import Path
from secrets import token_bytes
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.config import DataSection, EvidenceSection
from coordinator.derivation import evidence_seed, validation_salt
from coordinator.errors import MarketTaskError
from coordinator.learner_data import commit_validation, load_learner_data, stratified
from coordinator.shadow_workers import LocalWorkers
from coordinator.storage.tasks import TaskRow
from coordinator.workload import end, folder_of, workload_of
from fedpeer.learning.errors import DataError, WorkloadError
from fedpeer.learning.learner_data import LearnerData
from fedpeer.learning.samples import Samples
from fedpeer.protocol.model_file import open_model
from fedpeer.protocol.submission import Submission
from fedpeer.terminal import counted
from mechanism.canonical import Json
from mechanism.coverage import one_share
from mechanism.ledger import entries
from mechanism.ledger.entry import Entry
from mechanism.lifecycle import needs_evidence
from mechanism.settlement import MICRO, Assessment
from mechanism.statements import SALT_BYTES
from mechanism.terms import Terms
from mechanism.unmeasured import as_claimed
from mechanism.workload import Labels

if TYPE_CHECKING:  # evidence imports torch, which most commands do without
    from fedpeer.evidence import EvidenceTask, ShadowEnsemble, ShadowEvidence
    from fedpeer.evidence.measuring import Report
    from fedpeer.evidence.sent import Broadcast
    from fedpeer.learning.models import Weights
    from fedpeer.learning.workloads.protocol import Workload


#: Files of models that are merged, each with its samples, by participant id.
Parts = Mapping[str, tuple[Path, int]]


@dataclass(frozen=True)
class EarlierRound:
    """The model that a round sent out, and what came back and was merged into the next one."""

    model: Path
    merged: Parts = field(default_factory=dict)


@dataclass(frozen=True)
class RoundStart:
    """What a round starts from.

    Attributes:
        model: the file that was sent out; model_sha256: its digest.
        history: of the rounds before, the oldest first.
    """

    round: int
    model: Path
    model_sha256: bytes
    history: tuple[EarlierRound, ...]


@dataclass(frozen=True)
class Scored:
    """What the evidence says of a round: one assessment a submission, and the record that they rest on."""

    assessments: tuple[Assessment, ...]
    evidence: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class Quality:
    """How a global model does, decimals of six places.

    Attributes:
        loss: the mean of the samples' losses, as the workload has them.
        accuracy: in [0, 1], of a classifier.
        by_label: accuracy among the samples of each class, in the order of their numbers; None where there are none.
            The database has them, for people to look at; the ledger has not.
    """

    loss: str
    accuracy: str | None = None
    by_label: tuple[str | None, ...] = ()

    def figures(self) -> dict[str, str]:
        """Those that the ledger has, by name."""
        return {"loss": self.loss} | ({} if self.accuracy is None else {"accuracy": self.accuracy})


class Scorer:
    """Scores one task's rounds and judges its global model.

    As it stands it is the paper's own: every model counts, at the degree that was claimed.
    """

    def __init__(self, data: LearnerData | None, workload: "Workload | None") -> None:
        self._data = data
        self._workload = workload

    def prepare(self, start: RoundStart) -> None:
        """Work that needs only the round's start model; done while the participants train."""

    def score(self, start: RoundStart, submissions: Sequence[Submission]) -> Scored:
        """Assesses a closed round. Submissions come in participant-id order."""
        return Scored(
            tuple(as_claimed(s.participant_id, s.model_sha256, s.claimed_degree) for s in submissions)
        )

    def evaluate(self, model: Path) -> Quality | None:
        """Quality of a global model on held-out samples, or on D_c where there are none; None without either."""
        if self._data is None or self._workload is None:
            return None
        return quality_of(
            self._workload, open_model(model).weights(), self._data.test or self._data.validation
        )

    def close(self) -> None:
        """Ends what runs for the task; it starts again where it is needed."""
        end(self._workload)


def quality_of(workload: "Workload", weights: "Weights", samples: Samples) -> Quality | None:
    """How a model does on samples; None where its losses are not finite."""
    from fedpeer.learning.workloads.protocol import accuracy_by_label, loss_and_accuracy  # imports torch

    judged = workload.judge(weights, samples)
    loss, accuracy = loss_and_accuracy(workload, judged, samples.targets)
    if not np.isfinite(loss):
        return None
    by_label = tuple(
        None if share is None else f"{share:.6f}"
        for share in accuracy_by_label(workload, judged, samples.targets)
    )
    return Quality(f"{loss:.6f}", None if accuracy is None else f"{accuracy:.6f}", by_label)


class ShadowModels(Scorer):
    """Degrees measured on D_c, against shadow models of known degree: `fedpeer.evidence`."""

    def __init__(
        self,
        data: LearnerData,
        row: TaskRow,
        workload: "Workload",
        report: "Report",
        workers: LocalWorkers | None = None,
    ) -> None:
        from fedpeer.evidence import EvidenceError

        super().__init__(data, workload)
        self._plain = row.terms.aggregation.name == "fedavg"
        try:
            self._evidence = shadow_evidence(data, row, workload, report, workers)
        except EvidenceError as error:
            raise MarketTaskError(f"task {row.id!r}: {error}") from None

    def prepare(self, start: RoundStart) -> None:
        self._ensemble(start)

    def score(self, start: RoundStart, submissions: Sequence[Submission]) -> Scored:
        found = self._evidence.assess(self._ensemble(start), submissions, self._broadcasts(start))
        return Scored(found.assessments, found.record)

    def remeasure(
        self, start: RoundStart, weights: Path
    ) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...], str]:
        """What an audit by re-training rests on (`ShadowEvidence.remeasure`), and the digest of the round's shadows."""
        ensemble = self._ensemble(start)
        found = self._evidence.remeasure(ensemble, open_model(weights).weights(), self._broadcasts(start))
        return (*found, ensemble.ensemble.shadows_sha256)

    def _ensemble(self, start: RoundStart) -> "ShadowEnsemble":
        return self._evidence.prepare(
            open_model(start.model).weights(), start.round, self._broadcasts(start), start.model_sha256.hex()
        )

    def _broadcasts(self, start: RoundStart) -> "list[Broadcast]":
        from fedpeer.evidence.sent import Broadcast

        return [
            Broadcast(f"round {number}", earlier.model, earlier.merged, self._plain)
            for number, earlier in enumerate(start.history, 1)
        ]


def shadow_evidence(
    data: LearnerData,
    row: TaskRow,
    workload: "Workload",
    report: "Report",
    workers: LocalWorkers | None = None,
) -> "ShadowEvidence":
    """The evidence of a task; the one place that knows how it is asked for.

    Raises:
        EvidenceError: no evidence can be had of such a workload, or from such data.
    """
    from fedpeer.evidence import ShadowEvidence

    terms = row.terms
    shadows, later = EvidenceSection(**row.settings["evidence"]).counts()
    workers = workers or LocalWorkers()
    return ShadowEvidence(
        evidence_task(data, row, workload, workers.device),
        evidence_seed(row.root),
        shadows=shadows,
        later=later,
        executor=workers.for_shadows(terms.recipe, data.validation, shadows),
        validation_sha256=terms.validation_commitment.hex(),
        scores=[terms.rule.name],
        report=report,
    )


def check_strata(data: LearnerData, terms: Terms) -> None:
    """Raises MarketTaskError where evidence has too few samples of a stratum: before anything is trained."""
    from fedpeer.evidence.measuring import MIN_STRATUM_SAMPLES  # imports torch

    counts = data.counts()
    if min(counts) < MIN_STRATUM_SAMPLES:
        least = counts.index(min(counts))
        raise MarketTaskError(
            f"D_c has {counted(counts[least], 'sample')} of stratum {terms.strata_names[least]}; expected at least "
            f"{MIN_STRATUM_SAMPLES} of each, since evidence trains on some and looks at others"
        )


def evidence_task(data: LearnerData, row: TaskRow, workload: "Workload", device: str = "") -> "EvidenceTask":
    """What a task's evidence is taken of, with its shadows on a device. Raises MarketTaskError as `check_strata`."""
    from fedpeer.evidence import EvidenceTask

    terms = row.terms
    check_strata(data, terms)
    return EvidenceTask(
        workload,
        terms.recipe,
        data.validation,
        data.codes,
        data.strata,
        strata_are_classes=isinstance(terms.strata, Labels) and workload.classes == data.strata,
        reference=terms.reference,
        whole_from=Fraction(terms.rule.whole_from),
        device=device,
        tricked=EvidenceSection(**row.settings["evidence"]).tricked,
    )


def merged_parts(scored: Scored, submissions: Sequence[Submission], most: int) -> Parts:
    """What of a round is merged: the models that count.

    Samples that several have count once (`mechanism.coverage`), so that copies weigh no more than the original alone.

    Args:
        submissions: in files.
        most: samples of the recipe; one that overstates its own gets no more weight.
    """
    taken, parts = {a.participant_id: a.holders_micro for a in scored.assessments if a.scored}, {}
    for s in submissions:
        assert isinstance(s.model, Path), "models of a round are files"
        if s.participant_id in taken:
            own = min(s.samples, most) * one_share(Fraction(taken[s.participant_id], MICRO))
            parts[s.participant_id] = s.model, max(1, floor(own))
    return parts


def judgement(
    terms: Terms, round_: int, assessments: Sequence[Assessment], evidence: Mapping[str, Any]
) -> list[Entry]:
    """The entries of a round's evidence, where there is any, and verdicts, each with an opening of its own salt.

    Args:
        evidence: `{"model", "measurements"}` of `fedpeer.evidence`; empty without any.
    """
    measured = {item["participant_id"]: item for item in evidence.get("measurements", ())}
    made = []
    if evidence:
        salt = new_salt(entries.evidence_id(terms.task_id, round_))
        made.append(entries.evidence(terms.task_id, round_, evidence["model"], salt))
    for one in assessments:
        salt = new_salt(entries.verdict_id(terms.task_id, round_, one.participant_id))
        made.append(entries.verdict(terms, round_, one, measured.get(one.participant_id), salt))
    return made


def new_salt(entry_id: str) -> bytes:
    """The salt of what an entry commits to: random, so that it is gone where it is destroyed."""
    return token_bytes(SALT_BYTES)


def make_scorer(
    row: TaskRow,
    data: LearnerData | None = None,
    report: "Report" = lambda trained, of: None,
    workers: LocalWorkers | None = None,
) -> Scorer:
    """The scorer that a task's terms ask for.

    Args:
        data: those that its settings name, where they are loaded already.
        report: takes how many shadows of a round are trained, and of how many.
        workers: who trains them; left out: this machine.

    Raises:
        MarketTaskError: the data are not those that the terms commit to, or no evidence can be had from them.
        LearningError: they are not to be had.
    """
    terms, folder = row.terms, folder_of(row.settings)
    try:
        workload = workload_of(terms.recipe, folder)
        section = row.settings["data"]
        if data is None and section is not None:
            given = load_learner_data(DataSection(**section), folder, terms.strata)
            data = stratified(given, terms.strata, terms.strata_names, folder)
    except (DataError, WorkloadError) as error:
        raise MarketTaskError(f"task {row.id!r}: {error}") from None
    commitment = commit_validation(None if data is None else data.validation, validation_salt(row.root))
    if commitment != terms.validation_commitment:
        raise MarketTaskError(
            f"the data of task {row.id!r} are not those that its terms commit to; put the original ones back"
        )
    if not needs_evidence(terms.rule.name):
        return Scorer(data, workload)
    if data is None:
        raise MarketTaskError(
            f"the rule {terms.rule.name!r} of task {row.id!r} pays on evidence, which needs the learner's data: "
            'add a [data] section, or choose rule.name = "paper"'
        )
    if workload is None:
        raise MarketTaskError(
            f"the rule {terms.rule.name!r} of task {row.id!r} pays on evidence, which trains models, and recipe.model "
            'is "custom": name an architecture, or the package.module:factory of a workload; or choose '
            'rule.name = "paper"'
        )
    return ShadowModels(data, row, workload, report, workers)
