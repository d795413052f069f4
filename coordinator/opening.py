"""From a task file to a task: terms with every number fixed, a secret root, and the model of round 1."""

import fnmatch
import hashlib
import json
import math
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile

from coordinator.acceptance import check_acceptable
from coordinator.config import DataSection, TaskConfig
from coordinator.derivation import chain_secret, initial_seed, task_root, validation_salt
from coordinator.errors import TaskError
from coordinator.storage.tasks import TaskRow
from fedpeer.audit.input_files import SourceError, opened
from fedpeer.extensions import PAYMENT_RULES as EXTENDED_RULES
from fedpeer.extensions import extension_names
from fedpeer.learning.datasets import LabelledData, load_splits
from fedpeer.learning.errors import DataError
from fedpeer.learning.labels import class_count, real_inputs, whole_labels
from fedpeer.protocol.limits import MAX_LABELS
from fedpeer.protocol.model_file import (
    ModelCheck,
    ModelFileError,
    check_header,
    contract_of,
    encode_model,
    header,
    model_specs,
)
from mechanism.canonical import MAX_INTEGER
from mechanism.degree import reference_distribution
from mechanism.errors import FieldError
from mechanism.lifecycle import State
from mechanism.payment import payment_function
from mechanism.peers import seed_commitment
from mechanism.records import MAX_DECIMAL_DIGITS
from mechanism.server_step import Aggregation, FedAvg, aggregation_rule
from mechanism.settlement import max_payment_micro, task_budget_micro
from mechanism.terms import (
    FLOAT_TYPES,
    ModelContract,
    Recipe,
    Rule,
    Schedule,
    TensorSpec,
    Terms,
    identifier,
)

#: Norm that any model may have, and how many times the initial one's it may have beyond that: training on
#: normalised data stays within a few times, an exploded model does not.
_LEAST_MAX_NORM = Decimal(1000)
_NORM_FACTOR = 100

#: A norm that bounds nothing, for a first look at a file.
_ANY_NORM = Decimal("9" * MAX_DECIMAL_DIGITS)

#: Bytes of an initial model, which is read as a whole.
_MAX_INITIAL_BYTES = 1 << 36

#: Bytes that a submitted file may have beyond the initial one's: other writers pad or order their header otherwise.
_HEADER_ALLOWANCE = 64 << 10


@dataclass(frozen=True)
class LearnerData:
    """The learner's own data: D_c, and held-out samples to report on where there are any."""

    validation: LabelledData
    test: LabelledData | None


@dataclass(frozen=True)
class PreparedTask:
    """A task that can be stored: its row, the first model's file, the learner's data, and what it can cost at most."""

    row: TaskRow
    initial_model: bytes
    data: LearnerData | None

    @property
    def bill_micro(self) -> int:
        """The most that the task can pay, micro-credits."""
        return task_budget_micro(self.row.terms)

    @property
    def head_micro(self) -> int:
        """The most that one participant can earn in one round, micro-credits."""
        terms = self.row.terms
        return max_payment_micro(terms.Q, terms.upsilon, terms.payment.exact)


def load_learner_data(section: DataSection) -> LearnerData:
    """The learner's data that a task file names.

    Raises:
        LearningError: no such data set, or it is not to be had.
        TaskError: a file that is no such .npz.
    """
    if section.dataset is not None:
        splits = load_splits(
            section.dataset,
            seed=section.seed,
            validation=section.validation,
            test=section.test,
            root=section.root,
        )
        return LearnerData(splits.validation, splits.test)
    test = None if section.test_file is None else _read_npz(section.test_file)
    assert section.file is not None, "the section has one source"
    return LearnerData(_read_npz(section.file), test)


def commit_validation(data: LabelledData | None, salt: bytes) -> bytes:
    """H(D_c): SHA-256 of the salt and of the digests of images and labels as stored, little-endian.

    Without D_c, of the salt alone.
    """
    outer = hashlib.sha256(b"fedpeer validation set v1" + salt)
    if data is not None:
        images = np.ascontiguousarray(data.images, dtype="<f4")
        labels = np.ascontiguousarray(data.labels, dtype="<i8")
        outer.update(repr(images.shape).encode())
        outer.update(hashlib.sha256(images.data).digest() + hashlib.sha256(labels.data).digest())
    return outer.digest()


def prepare_task(config: TaskConfig, now: float) -> PreparedTask:
    """The task that `config` describes; nothing is stored.

    Raises:
        FieldError: a value out of its range.
        LearningError, TaskError: data or an initial model that cannot be used.
    """
    # What needs no data comes first: those may take long.
    if config.rule.name in extension_names(EXTENDED_RULES):
        raise TaskError(
            f"the payment rule {config.rule.name!r} is an extension that is installed here: those who verify the "
            "ledger lack it and could not recompute a payment. A market pays by a built-in rule; study yours with "
            "`fedpeer arena`"
        )
    identifier("id", config.id)
    rule, schedule = Rule(**config.rule.model_dump()), Schedule(**config.schedule.model_dump())
    recipe = Recipe(**config.recipe.model_dump())
    payment = payment_function(config.payment.name, config.payment.parameters())
    if recipe.model != "custom":
        _check_named(recipe)
    if config.rule.name != "paper" and config.data is None:
        raise TaskError(
            f"rule {config.rule.name!r} pays on evidence and needs the learner's data: "
            'add a [data] section, or choose rule.name = "paper"'
        )
    root = task_root(config.id, config.seed)
    data = None if config.data is None else load_learner_data(config.data)
    if data is not None:
        _check_fits(config.recipe.model, data)
    initial_model = _initial_model(config, root)
    contract = _contract(config, initial_model)
    if data is not None:
        _check_evaluates(config, contract)
    terms = Terms(
        task_id=config.id,
        reference=_reference(config, data),
        Q=coefficient(config),
        phi=config.phi,
        upsilon=config.upsilon,
        payment=payment,
        rule=rule,
        schedule=schedule,
        contract=contract,
        recipe=recipe,
        budget_micro=0,
        seed_commitment=seed_commitment(chain_secret(root), max(1, config.schedule.rounds)),
        validation_commitment=commit_validation(
            None if data is None else data.validation, validation_salt(root)
        ),
        initial_model=hashlib.sha256(initial_model).digest(),
        aggregation=_aggregation(config, contract),
    )
    bill = task_budget_micro(terms)
    if bill > MAX_INTEGER:
        raise _too_expensive(terms)
    if bill == 0:
        raise FieldError(
            "Q", terms.Q, f"more: at upsilon = {terms.upsilon} the payment function pays nobody anything"
        )
    budget = bill if config.budget_micro is None else config.budget_micro
    if budget < bill:
        raise FieldError("budget_micro", budget, f"at least {bill}, the most that the task can pay")
    terms = replace(terms, budget_micro=budget)
    check_acceptable(terms)
    row = TaskRow(
        id=config.id,
        terms=terms,
        root=root,
        settings=json.loads(config.model_dump_json(include={"data", "evidence"})),
        state=State.OPEN,
        round=0,
        deadline=None,
        version=1,
        model=terms.initial_model,
        opened_at=now,
        ended_at=None,
        reason=None,
    )
    return PreparedTask(row, initial_model, data)


def _too_expensive(terms: Terms) -> FieldError:
    """Which field makes the bill larger than the ledger's integers, and what it may be at most."""
    schedule = terms.schedule
    head = max_payment_micro(terms.Q, terms.upsilon, terms.payment.exact)
    most = f"the bill must stay below 2^53 micro-credits, and {head} may be paid per head and round"
    capacity = MAX_INTEGER // (schedule.rounds * head)
    if capacity >= schedule.quorum:
        return FieldError("schedule.capacity", schedule.capacity, f"at most {capacity}: {most}")
    rounds = MAX_INTEGER // (schedule.quorum * head)
    if rounds >= 1:
        return FieldError("schedule.rounds", schedule.rounds, f"at most {rounds}: {most}")
    return FieldError("Q", terms.Q, f"less: {most}")


def _check_named(recipe: Recipe) -> None:
    """Raises FieldError for an architecture that is unknown, or that cannot be trained by the recipe."""
    from fedpeer.learning.models import ARCHITECTURES  # imports torch

    if recipe.model not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise FieldError("recipe.model", recipe.model, f'one of {known}, or "custom" for a model of your own')
    for name in ("samples", "batch_size"):
        if getattr(recipe, name) == 1:
            raise FieldError(
                f"recipe.{name}", 1, "at least 2: batch normalisation has no variance over one sample"
            )


def _check_fits(model: str, data: LearnerData) -> None:
    """Raises TaskError where the named architecture cannot read the learner's images."""
    from fedpeer.learning.models import ARCHITECTURES  # imports torch

    if (known := ARCHITECTURES.get(model)) is None:
        return  # "custom": only its file knows
    shape, classes = data.validation.images.shape[1:], data.validation.classes
    if tuple(shape) != known.image or classes != known.classes:
        raise TaskError(
            f"recipe.model {model!r} reads images of {known.image} with {known.classes} labels, the learner's "
            f"data {data.validation.name!r} have {tuple(shape)} and {classes}; name the architecture of that data set"
        )


def coefficient(config: TaskConfig) -> Decimal:
    """Q as the task file states it, or the learner's best for the population that it plans with.

    The best Q is rounded up to a millionth: with the logarithm it lies on the boundary of participation, and a
    hair below it someone stays away.

    Raises:
        FieldError: "best" without a plan, a plan with a number, or a plan with a value out of its range.
    """
    if config.Q != "best":
        if config.plan is not None:
            raise FieldError("plan", "given", 'no plan with a number for Q; write Q = "best" to use it')
        return config.Q
    if config.plan is None:
        raise FieldError(
            "plan", None, 'a [plan] section with participants and learner, as Q = "best" needs it'
        )
    # The solver is needed here alone.
    from mechanism.game import Game
    from mechanism.learner import best_offer
    from mechanism.population import plan_input

    given = plan_input(
        {
            "payment": {
                "name": config.payment.name,
                **{key: float(value) for key, value in config.payment.parameters().items()},
            },
            "phi": float(config.phi),
            "upsilon": float(config.upsilon),
            "participants": config.plan.participants,
            "learner": {**config.plan.learner, "rounds": config.schedule.rounds},
        }
    )
    assert given.learner is not None, "the section requires one"
    # Any Q starts the search; at upsilon the logarithm pays nothing yet.
    game = Game(
        given.payment,
        given.bound.upsilon,
        given.bound,
        given.population.effort,
        given.population.cost,
        given.rule,
    )
    best = best_offer(game, given.learner, config.plan.equilibrium)
    return Decimal(best.Q).quantize(Decimal("0.000001"), ROUND_CEILING)


def _reference(config: TaskConfig, data: LearnerData | None) -> tuple[Fraction, ...]:
    if config.reference is not None:
        reference = reference_distribution(config.reference)
        if data is not None and len(reference) != data.validation.classes:
            raise FieldError("reference", config.reference, f"{data.validation.classes} labels, as D_c has")
        return reference
    if data is None:
        raise FieldError("reference", None, "a distribution, since there is no [data] to take it from")
    counts = data.validation.counts()
    if not sum(counts):
        raise FieldError("data.validation", "0 samples", "at least one sample of each label")
    return reference_distribution([Fraction(count, sum(counts)) for count in counts])


def _initial_model(config: TaskConfig, root: bytes) -> bytes:
    """The file that round 1 starts from."""
    if config.initial_model is not None:
        try:
            with opened(config.initial_model, _MAX_INITIAL_BYTES) as file:
                return file.read()
        except SourceError as error:
            raise TaskError(f"initial_model: {error}") from None
    from fedpeer.learning.models import initial_weights  # imports torch, seconds

    return encode_model(initial_weights(config.recipe.model, initial_seed(root)))


def _contract(config: TaskConfig, initial_model: bytes) -> ModelContract:
    """What models of the task must look like: what the first one does, which is checked as theirs will be.

    Raises:
        FieldError: `max_norm` or `max_bytes` below what the first model has.
        TaskError: it is not a safetensors file, or no participant may send it.
    """
    try:
        specs = model_specs(initial_model)
        check = ModelCheck(ModelContract(specs, _ANY_NORM, len(initial_model)), len(initial_model))
        check.feed(initial_model)
        check.finish()
        # Participants write the same tensors in their own layout, and the mean has one as well.
        largest = len(header(specs)) + sum(spec.size_bytes for spec in specs)
        check_header(specs)
    except (FieldError, ModelFileError) as error:
        named = f"initial_model {config.initial_model}" if config.initial_model else "the initial model"
        raise TaskError(f"{named} cannot be used: {error}") from None
    norm = Decimal(math.ceil(check.norm))
    max_norm = config.contract.max_norm or max(_LEAST_MAX_NORM, norm * _NORM_FACTOR)
    if max_norm < Decimal(check.norm):
        raise FieldError("contract.max_norm", max_norm, f"at least {norm}, which covers the first model's")
    largest = max(largest, len(initial_model))
    max_bytes = config.contract.max_bytes or len(initial_model) + _HEADER_ALLOWANCE
    if max_bytes < largest:
        raise FieldError(
            "contract.max_bytes",
            max_bytes,
            f"at least {largest}, which the first model takes with its header",
        )
    return ModelContract(specs, max_norm, max_bytes)


def _aggregation(config: TaskConfig, contract: ModelContract) -> Aggregation:
    """The task's aggregation, whose patterns must match tensors and leave some to be stepped."""
    asked = config.aggregation
    rule = aggregation_rule(asked.name, asked.parameters())
    if isinstance(rule, FedAvg):
        return rule
    names = [tensor.name for tensor in contract.tensors if tensor.dtype in FLOAT_TYPES]
    for pattern in asked.averaged or ():
        if not fnmatch.filter(names, pattern):
            known = f"a pattern of these tensors: {', '.join(names):.200}"
            raise FieldError("aggregation.averaged", pattern, known)
    if not any(map(rule.steps, names)):
        raise FieldError(
            "aggregation.averaged", rule.averaged, f"patterns that leave {rule.name} a tensor to step"
        )
    return rule


def _check_evaluates(config: TaskConfig, contract: ModelContract) -> None:
    """That the first model of a named architecture can be read into it, and that evidence can be made of its like.

    Raises:
        TaskError: it cannot.
    """
    if config.initial_model is None:
        return
    from fedpeer.learning.models import ARCHITECTURES, initial_weights  # imports torch

    if config.recipe.model not in ARCHITECTURES:
        return  # "custom": nothing is evaluated
    own = contract_of(initial_weights(config.recipe.model, 0), contract.max_norm, contract.max_bytes)
    wanted = {spec.name: spec for spec in own.tensors}
    given = {spec.name: spec for spec in contract.tensors}
    for name in sorted(wanted.keys() | given.keys()):
        if wanted.get(name) == given.get(name):
            continue
        if config.rule.name == "paper" and _reads(wanted.get(name), given.get(name)):
            continue
        raise TaskError(
            f"initial_model {config.initial_model} does not fit the architecture {config.recipe.model!r} that "
            f"evaluates it: tensor {name!r} is {_words(given.get(name))}, expected {_words(wanted.get(name))}"
        )


def _reads(wanted: TensorSpec | None, given: TensorSpec | None) -> bool:
    """Whether a stored tensor is one of the wanted type once it is read: BF16 is read as float32."""
    return (
        wanted is not None
        and given is not None
        and given == replace(wanted, dtype="BF16")
        and (wanted.dtype == "F32")
    )


def _words(spec: TensorSpec | None) -> str:
    return "absent" if spec is None else f"{spec.dtype} of shape {list(spec.shape)}"


def _read_npz(path: Path) -> LabelledData:
    """Data from an .npz of `images`, `labels` and, where they are not 0 to the largest label, `classes`: their number,
    or their names, by which labels may then be written.

    Raises:
        TaskError: another file, a damaged one, or arrays that are not labelled images.
    """
    try:
        with path.open("rb") as file:
            stored = np.load(file, allow_pickle=False)
            if not isinstance(stored, NpzFile):
                raise TaskError(
                    f"{path} is not an .npz file with images, labels and classes but one array, as np.save writes "
                    "it; write it with np.savez"
                )
            arrays = {name: stored[name] for name in ("images", "labels", "classes") if name in stored}
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror or error}") from None
    except TaskError:
        raise
    except Exception as error:  # a damaged file fails in as many ways as its formats have parts
        why = str(error).partition("\n")[0].partition("If you trust")[0].strip() or type(error).__name__
        raise TaskError(
            f"{path} is not an .npz file with images, labels and classes, or it is damaged: {why}"
        ) from None
    if missing := {"images", "labels"} - arrays.keys():
        raise TaskError(
            f"{path} is not an .npz file with images, labels and classes: it has no {' and no '.join(sorted(missing))}"
        )
    try:
        labels = arrays["labels"]
        classes = _classes(arrays["classes"]) if "classes" in arrays else _largest(labels) + 1
        count = class_count(classes)
        if count > MAX_LABELS:
            raise DataError(f"there are {count} classes; expected at most {MAX_LABELS}")
        images = real_inputs(arrays["images"], np.float32)
        return LabelledData(path.stem, images, whole_labels(labels, classes), count)
    except DataError as error:
        raise TaskError(f"{path} cannot be used: {error}") from None


def _classes(stored: Any) -> Any:
    """The number of classes, or their names, as an .npz has them."""
    return stored.item() if stored.size == 1 else stored.tolist()


def _largest(labels: Any) -> int:
    if labels.dtype.kind not in "iufb" or labels.size == 0:
        raise DataError(
            f"its labels are {labels.size} of {labels.dtype}, and it has no classes; expected whole numbers, or "
            "`classes` as the list of their names"
        )
    largest = float(labels.max())
    return int(min(max(largest, 1.0), MAX_LABELS - 1.0)) if math.isfinite(largest) else 1
