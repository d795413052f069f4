"""The terms of a task: everything that a participant agrees to and that a payment is recomputed from.

Terms have one canonical record (`mechanism.records`), which travels and stands in the ledger, and whose digest names
them.
Decimals and rationals are exact; nothing here is a float.
"""

import re
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from math import lcm, prod
from typing import ClassVar

from mechanism.audit import Audit, auditor_key
from mechanism.coverage import check_whole_from
from mechanism.degree import reference_distribution
from mechanism.errors import FieldError
from mechanism.payment import PAYMENT_FUNCTIONS, ExactPaymentFunction
from mechanism.price import Price
from mechanism.privacy import Privacy
from mechanism.ranges import sha256, whole
from mechanism.readable import Readable
from mechanism.records import Recorded, check_decimal, check_not_negative, check_positive, check_share
from mechanism.server_step import AGGREGATIONS, Aggregation, FedAvg
from mechanism.variation import AUGMENTATIONS, PRECISIONS, Allowed
from mechanism.workload import (
    MAX_COLUMNS,
    MAX_NAME,
    MAX_STRATA,
    STRATA,
    ArrayForm,
    Columns,
    Labels,
    Source,
    Strata,
    check_arrays,
    check_factory,
    check_names,
)

#: Task and participant ids: what fits a file name, a certificate's common name and an account's name.
IDENTIFIER = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?")

#: With fewer the random peer is no longer hidden: two colluders would know each other as peers.
MIN_QUORUM = 3

#: Payment rules that settle a round (`mechanism.settlement`).
RULE_NAMES = ("verified", "paper", "leave_one_out", "shapley", "correlated_agreement", "dmi")

#: Peers that a rule draws for each participant where the operator does not say; every other rule draws one.
PEERS_DRAWN = {"verified": 3}

#: Bytes of one element, by safetensors name.
DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip

#: Those that are averaged and stepped as numbers; all others are counted exactly.
FLOAT_TYPES = ("F64", "F32", "F16", "BF16")

#: Strata of a reference distribution.
MAX_LABELS = MAX_STRATA

#: Least common denominator of a reference, at most: sums over all strata stay short. Counts give their total.
MAX_DENOMINATOR = 10**64

#: Arrays of samples that are said in words.
_ARRAYS_SAID = 8

#: Tensors of one model; large language models have some thousands.
MAX_TENSORS = 20_000


def identifier(field: str, value: str) -> str:
    """`value` where it is a well-formed id: 1 to 64 of a-z, 0-9, dot, hyphen, underscore, alphanumeric ends."""
    if not isinstance(value, str) or not IDENTIFIER.fullmatch(value):
        raise FieldError(
            field, value, "1 to 64 lower-case letters, digits, dots, hyphens or underscores, not at the ends"
        )
    return value


@dataclass(frozen=True)
class TensorSpec:
    """Name, safetensors element type and shape of one tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 1 <= len(self.name) <= 256:
            raise FieldError("contract.tensors.name", self.name, "1 to 256 characters")
        if self.dtype not in DTYPE_BYTES:
            raise FieldError(
                f"contract.tensors[{self.name}].dtype", self.dtype, "one of " + ", ".join(DTYPE_BYTES)
            )
        for size in self.shape:
            whole(f"contract.tensors[{self.name}].shape", size, 0)

    @property
    def size_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype] * prod(self.shape)


@dataclass(frozen=True)
class ModelContract:
    """What a submitted model must look like.

    Attributes:
        tensors: in name order, without repetition.
        max_norm: largest Euclidean norm of all floating-point tensors together.
        max_bytes: largest size of the safetensors file.
    """

    tensors: tuple[TensorSpec, ...] = field(metadata={"most": MAX_TENSORS})
    max_norm: Decimal
    max_bytes: int

    def __post_init__(self) -> None:
        names = [tensor.name for tensor in self.tensors]
        if not names or names != sorted(set(names)):
            raise FieldError("contract.tensors", names, "at least one tensor, in name order, each name once")
        check_positive("contract.max_norm", self.max_norm)
        payload = sum(tensor.size_bytes for tensor in self.tensors)
        whole("contract.max_bytes", self.max_bytes, 0)
        if self.max_bytes < payload:
            raise FieldError(
                "contract.max_bytes", self.max_bytes, f"at least the tensors' own {payload} bytes"
            )


@dataclass(frozen=True)
class Recipe:
    """How a participant is expected to train; shadow models follow the same recipe.

    Attributes:
        model: name of an architecture, "package.module:factory" of a workload, or "custom".
        epochs: local epochs, >= 1; each draws its order anew.
        batch_size: >= 1.
        optimizer: "adam" or "sgd"; it begins anew in every round.
        learning_rate: > 0, constant.
        samples: training samples in one round, >= 1.
        proximal: mu >= 0 of FedProx: mu/2 |w - start|^2 is added to each batch's loss. Source: Li et al. 2020.
        source: options and files of the factory; None where the model is none.
        privacy: noise that every participant adds, and so every shadow model has; None: none is asked for.
        momentum: Adam's beta1, or the momentum of SGD, in [0, 1).
        beta2: Adam's, in [0, 1).
        epsilon: Adam's, > 0.
        weight_decay: >= 0; each step first shrinks what is trained by learning_rate * weight_decay. Source: Loshchilov
            and Hutter 2019.
        label_smoothing: in [0, 1): of a classifier's cross-entropy, the part of a target that is spread evenly over the
            classes.
        augmentation: of `AUGMENTATIONS`: what is done to inputs.
        precision: of `PRECISIONS`: what is computed in.
        allowed: what participants, and so shadow models, may vary; None: nothing.
    """

    model: str
    epochs: int
    batch_size: int
    optimizer: str
    learning_rate: Decimal
    samples: int
    proximal: Decimal = Decimal(0)
    source: Source | None = field(default=None, metadata={"optional": True})
    privacy: Privacy | None = field(default=None, metadata={"optional": True})
    momentum: Decimal = field(default=Decimal("0.9"), metadata={"optional": True})
    beta2: Decimal = field(default=Decimal("0.999"), metadata={"optional": True})
    epsilon: Decimal = field(default=Decimal("0.00000001"), metadata={"optional": True})
    weight_decay: Decimal = field(default=Decimal(0), metadata={"optional": True})
    label_smoothing: Decimal = field(default=Decimal(0), metadata={"optional": True})
    augmentation: str = field(default="none", metadata={"optional": True})
    precision: str = field(default="tensors", metadata={"optional": True})
    allowed: Allowed | None = field(default=None, metadata={"optional": True})

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or len(self.model) > MAX_NAME:
            raise FieldError(
                "recipe.model",
                self.model,
                f'the name of an architecture, package.module:factory, or "custom", in at most {MAX_NAME} characters',
            )
        if ":" in self.model:
            check_factory("recipe.model", self.model)
        if (self.source is not None) != (":" in self.model):
            raise FieldError(
                "recipe.source", self.source, "options and files where the model is a factory, and only there"
            )
        for name in ("epochs", "batch_size", "samples"):
            whole(f"recipe.{name}", getattr(self, name), 1)
        if self.optimizer not in ("adam", "sgd"):
            raise FieldError("recipe.optimizer", self.optimizer, '"adam" or "sgd"')
        check_positive("recipe.learning_rate", self.learning_rate)
        for name in ("proximal", "weight_decay"):
            check_not_negative(f"recipe.{name}", getattr(self, name))
        for name in ("momentum", "beta2", "label_smoothing"):
            check_share(f"recipe.{name}", getattr(self, name))
        check_positive("recipe.epsilon", self.epsilon)
        for name in ("beta2", "epsilon"):
            if self.optimizer == "sgd" and getattr(self, name) != getattr(Recipe, name):
                raise FieldError(
                    f"recipe.{name}", getattr(self, name), "Adam beside it: SGD has no such number"
                )
        if self.augmentation not in AUGMENTATIONS:
            raise FieldError("recipe.augmentation", self.augmentation, "one of " + ", ".join(AUGMENTATIONS))
        if self.precision not in PRECISIONS:
            raise FieldError("recipe.precision", self.precision, "one of " + ", ".join(PRECISIONS))

    def __str__(self) -> str:
        """What is followed, without model, source and privacy."""
        second = f", beta2 {self.beta2:f}, epsilon {self.epsilon:f}" if self.optimizer == "adam" else ""
        first = "beta1" if self.optimizer == "adam" else "momentum"
        said = [
            f"epochs {self.epochs}, batch size {self.batch_size}, {self.optimizer}, learning rate "
            f"{self.learning_rate:f}, {first} {self.momentum:f}{second}, samples {self.samples}"
        ]
        for name in ("weight_decay", "label_smoothing"):
            if value := getattr(self, name):
                said.append(f"{name.replace('_', ' ')} {value:f}")
        if self.proximal:
            said.append(f"proximal term {self.proximal:f}")
        if self.augmentation != "none":
            said.append(f"{self.augmentation} augmentation")
        if self.precision != "tensors":
            said.append(f"precision {self.precision}")
        return ", ".join(said)


#: Rounds of a task. Each is a reservation in the log, and a verifier makes all of them.
MAX_ROUNDS = 10_000


@dataclass(frozen=True)
class Schedule:
    """Rounds, head counts and deadlines.

    Attributes:
        rounds: T >= 1.
        quorum: fewest participants with which a round counts, >= 3.
        capacity: claims close when this many are in, >= quorum.
        effort_seconds, round_seconds: how long claims, and the models of a round, are accepted.
        dispute_seconds: how long after the last settlement private counts may still be opened in a dispute;
            0: payments are final at once.
        identities_per_organisation: participants of one organisation that may claim, >= 1.
        retention_seconds: how long after the task's end submitted models are kept, and after which they are deleted;
            None: nothing is promised.
    """

    rounds: int
    quorum: int
    capacity: int
    effort_seconds: int
    round_seconds: int
    dispute_seconds: int = 0
    identities_per_organisation: int = field(default=1, metadata={"optional": True})
    retention_seconds: int | None = field(default=None, metadata={"optional": True})

    def __post_init__(self) -> None:
        for name in ("rounds", "effort_seconds", "round_seconds"):
            whole(f"schedule.{name}", getattr(self, name), 1)
        whole("schedule.dispute_seconds", self.dispute_seconds, 0)
        if self.retention_seconds is not None:
            whole("schedule.retention_seconds", self.retention_seconds, 0)
        whole("schedule.quorum", self.quorum, MIN_QUORUM)
        whole("schedule.identities_per_organisation", self.identities_per_organisation, 1)
        if self.capacity < self.quorum:
            raise FieldError("schedule.capacity", self.capacity, f"at least the quorum of {self.quorum}")


@dataclass(frozen=True)
class Rule:
    """How a score becomes a payment.

    Attributes:
        name: one of `RULE_NAMES`.
        peers: peers drawn for each participant; the payment is the mean over them. As many as the others, or more:
            everybody, so that nothing is drawn.
        claim_penalty: lambda of lambda * (claimed - verified)^2, credits, >= 0.
        stake_micro: held back from earnings and lost with a refuted claim, micro-credits, >= 0.
        fee: phi of fee * (1 - w), credits, >= 0: what a participant whose data others have too, or that has too few
            of its own, loses besides. `mechanism.settlement.least_fee_of` is what no split of one's data gains at.
        whole_from: c in (1/2, 1]: who has as many distinct samples, over those of the recipe, has a whole weight.
    """

    name: str = "verified"
    peers: int = 1
    claim_penalty: Decimal = Decimal(0)
    stake_micro: int = 0
    fee: Decimal = Decimal(0)
    whole_from: Decimal = Decimal("0.85")

    def __post_init__(self) -> None:
        if self.name not in RULE_NAMES:
            raise FieldError("rule.name", self.name, "one of " + ", ".join(RULE_NAMES))
        whole("rule.peers", self.peers, 1)
        check_not_negative("rule.claim_penalty", self.claim_penalty)
        whole("rule.stake_micro", self.stake_micro, 0)
        check_not_negative("rule.fee", self.fee)
        check_decimal("rule.whole_from", self.whole_from)
        check_whole_from(Fraction(self.whole_from))


@dataclass(frozen=True, repr=False)
class Terms(Recorded, Readable):
    """One task's terms, as its record has them.

    Attributes:
        task_id: names the task.
        reference: distribution p^(c) over strata, rationals that sum to 1.
        Q: payment coefficient, > 0.
        phi, upsilon: constants of the generalization-gap bound, > 0.
        payment, rule: how a score becomes a payment.
        schedule, contract, recipe: when, what and how is trained.
        budget_micro: bound of all that the task can pay, micro-credits, reserved when it opens.
        seed_commitment: SHA-256, as often as there are rounds, of the secret seed: head of the chain from which each
            round's seed is revealed.
        validation_commitment: salted SHA-256 of the validation set D_c.
        initial_model: SHA-256 of the model file that round 1 starts from.
        aggregation: how the next start follows from a round's models.
        strata: what participants count.
        classes: names of the target's classes, in the order of their numbers; empty where the target is numbers.
        columns: which columns of a table are samples; None where it is no table.
        arrays: of which types and shapes D_c's inputs and targets are, and so everybody's; empty where there is no D_c.
        price: what a credit is paid out as; None where that is not said. All tasks of a log that say it say the same.
        funder: the learner from whose account the budget is reserved; empty: the operator's treasury.
        audit: who re-trains, how often, and what is held for it; None: nobody.
        auditor: public key of who may measure the ended task again where nobody re-trains, SubjectPublicKeyInfo in DER;
            empty: nobody, or the one of `audit`.
        pseudonyms: whether participants take part under names and keys that are made for this task alone.

    Raises:
        FieldError: on construction, for any value out of its range.
    """

    what: ClassVar[str] = "terms"
    task_id: str
    reference: tuple[Fraction, ...] = field(metadata={"most": MAX_LABELS})
    Q: Decimal = field(metadata={"key": "q"})
    phi: Decimal
    upsilon: Decimal
    payment: ExactPaymentFunction = field(metadata={"kinds": PAYMENT_FUNCTIONS})
    rule: Rule
    schedule: Schedule
    contract: ModelContract
    recipe: Recipe
    budget_micro: int
    seed_commitment: bytes
    validation_commitment: bytes
    initial_model: bytes
    aggregation: Aggregation = field(default_factory=FedAvg, metadata={"kinds": AGGREGATIONS})
    strata: Strata = field(default_factory=Labels, metadata={"kinds": STRATA, "optional": True})
    classes: tuple[str, ...] = field(default=(), metadata={"most": MAX_STRATA, "optional": True})
    columns: Columns | None = field(default=None, metadata={"optional": True})
    arrays: tuple[ArrayForm, ...] = field(default=(), metadata={"most": MAX_COLUMNS + 1, "optional": True})
    price: Price | None = field(default=None, metadata={"optional": True})
    funder: str = field(default="", metadata={"optional": True})
    audit: Audit | None = field(default=None, metadata={"optional": True})
    auditor: bytes = field(default=b"", metadata={"optional": True})
    pseudonyms: bool = field(default=False, metadata={"optional": True})

    def __post_init__(self) -> None:
        identifier("task_id", self.task_id)
        if self.funder:
            identifier("funder", self.funder)
        reference_distribution(self.reference)
        if lcm(*(share.denominator for share in self.reference)) > MAX_DENOMINATOR:
            raise FieldError("reference", self.reference, "shares over a common denominator of at most 10^64")
        for name in ("Q", "phi", "upsilon"):
            check_positive(name, getattr(self, name))
        for name in ("seed_commitment", "validation_commitment", "initial_model"):
            sha256(name, getattr(self, name))
        whole("budget_micro", self.budget_micro, 0)
        if self.audit is not None and self.rule.name != "verified":
            raise FieldError(
                "audit", self.rule.name, 'rule.name = "verified": no other measures degrees to compare'
            )
        if self.auditor:
            auditor_key(self.auditor, "auditor")
            if self.audit is not None:
                raise FieldError(
                    "auditor", self.auditor.hex()[:80], "none beside `audit`, which names its own for both"
                )
            if self.rule.name == "paper":
                raise FieldError(
                    "auditor", self.rule.name, "a rule that pays on evidence: there is no other to measure"
                )
        if self.classes:
            check_names("classes", self.classes)
        if self.arrays:
            check_arrays(self.arrays, self.columns)
        labels = isinstance(self.strata, Labels)
        strata = len(self.classes) or None if labels else self.strata.count
        if strata not in (None, len(self.reference)):
            raise FieldError(
                "classes" if labels else "strata",
                strata,
                f"{len(self.reference)} of them, as the reference has",
            )

    @property
    def all_peers(self) -> bool:
        """Whether everybody is scored against everybody, so that no payment hangs on a draw."""
        return self.rule.peers >= self.schedule.capacity - 1

    @property
    def measured_by(self) -> bytes:
        """Key of who may measure the ended task again, DER; empty: nobody."""
        return self.auditor if self.audit is None else self.audit.auditor

    @property
    def strata_names(self) -> tuple[str, ...]:
        """What the strata are called, in the order of the reference."""
        return self.strata.names(len(self.reference), self.classes)

    def __str__(self) -> str:
        rule, schedule, recipe, contract = self.rule, self.schedule, self.recipe, self.contract
        lines = [
            f"task {self.task_id}: {schedule.rounds} x {schedule.round_seconds} s, rule {rule.name}",
            f"payment    {self.payment.name}{_values(self.payment)}, Q {self.Q:f}, phi {self.phi:f}, "
            f"upsilon {self.upsilon:f}",
            f"peers      {'all' if self.all_peers else rule.peers}; claim penalty {rule.claim_penalty:f}, "
            f"stake {rule.stake_micro} micro-credits",
            f"weight     fee {rule.fee:f}, whole from {rule.whole_from:f} of the recipe's samples",
            f"places     {schedule.capacity}, quorum {schedule.quorum}; claims for {schedule.effort_seconds} s; "
            f"{schedule.identities_per_organisation} of an organisation"
            + ("; under pseudonyms" if self.pseudonyms else ""),
            f"reference  {', '.join(map(str, self.reference))}",
            *self._strata_line(),
            *self._arrays_line(),
            f"model      {recipe.model}, tensors {len(contract.tensors)}, at most {contract.max_bytes} bytes",
            f"recipe     {recipe}",
            *([] if recipe.allowed is None else [f"may vary   {recipe.allowed}"]),
            *([] if recipe.privacy is None else [f"privacy    {recipe.privacy}"]),
            *(
                []
                if schedule.retention_seconds is None
                else [f"retention  models are deleted {schedule.retention_seconds} s after the end"]
            ),
            f"next start {self.aggregation.name}{_values(self.aggregation)}",
            f"budget     {self.budget_micro} micro-credits" + (f", of {self.funder}" if self.funder else ""),
            *([] if self.price is None else [f"price      {self.price}"]),
            *self._audit_line(),
        ]
        return "\n  ".join(lines)

    def _audit_line(self) -> list[str]:
        audit = self.audit
        if audit is None:
            return ["auditor    may measure the ended task again"] if self.auditor else []
        return [
            f"audits     of {audit.probability} of paid submissions, within {audit.seconds} s, else {audit.unaudited}; "
            f"appeals for {audit.appeal_seconds} s; rate {audit.rate}, {audit.held_back:f} of pay held back"
        ]

    def _strata_line(self) -> list[str]:
        if isinstance(self.strata, Labels) and not self.classes:
            return []
        return [f"strata     {self.strata.name}: {', '.join(self.strata_names)}"]

    def _arrays_line(self) -> list[str]:
        if not self.arrays:
            return []
        first, left = self.arrays[:_ARRAYS_SAID], self.arrays[_ARRAYS_SAID:]
        return ["samples    " + ", ".join(map(str, first)) + (f" and {len(left)} more" if left else "")]


def _values(rule: object) -> str:
    """The numbers of a payment function or an aggregation."""
    return "".join(f", {name} {value:f}" for name, value in vars(rule).items() if isinstance(value, Decimal))
