"""From a task file to a task: terms with every number fixed, a secret root, and the model of round 1."""

import fnmatch
import hashlib
import json
import math
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.acceptance import check_acceptable
from coordinator.banking import priced
from coordinator.config import TaskConfig, public_key_of
from coordinator.derivation import chain_secret, initial_seed, task_root, validation_salt
from coordinator.errors import MarketTaskError
from coordinator.learner_data import Given, chosen_strata, commit_validation, load_learner_data, stratified
from coordinator.storage.tasks import TaskRow
from coordinator.workload import end, folders_of, workload_of
from fedpeer.audit.input_files import SourceError, opened
from fedpeer.extensions import PAYMENT_RULES as EXTENDED_RULES
from fedpeer.extensions import extension_names
from fedpeer.learning.errors import LearningError, WorkloadError
from fedpeer.learning.forms import forms_of
from fedpeer.learning.labels import class_count
from fedpeer.learning.learner_data import LearnerData
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
from mechanism.lifecycle import needs_evidence
from mechanism.payment import payment_function
from mechanism.peers import seed_commitment
from mechanism.price import grouped_credits
from mechanism.records import MAX_DECIMAL_DIGITS
from mechanism.server_step import Aggregation, FedAvg, aggregation_rule
from mechanism.settlement import least_fee_of, max_payment_micro, task_budget_micro
from mechanism.terms import FLOAT_TYPES, ModelContract, Recipe, Schedule, TensorSpec, Terms, identifier
from mechanism.workload import MAX_STRATA, Labels, Strata, check_factory, source_of

if TYPE_CHECKING:  # it imports torch, which most tasks do without
    from fedpeer.learning.workloads.protocol import Workload

#: Norm that any model may have, and how many times the initial one's it may have beyond that: training on
#: normalised data stays within a few times, an exploded model does not.
_LEAST_MAX_NORM = Decimal(1000)
_NORM_FACTOR = 100

#: Samples of D_c that a fresh model is judged on, to see whether it can be.
_JUDGED_FIRST = 64

#: A norm that bounds nothing, for a first look at a file.
_ANY_NORM = Decimal("9" * MAX_DECIMAL_DIGITS)

#: Bytes of an initial model, which is read as a whole.
_MAX_INITIAL_BYTES = 1 << 36

#: Bytes that a submitted file may have beyond the initial one's: other writers pad or order their header otherwise.
_HEADER_ALLOWANCE = 64 << 10


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


def prepare_task(config: TaskConfig, now: float) -> PreparedTask:
    """The task that `config` describes; nothing is stored.

    Raises:
        FieldError: a value out of its range.
        LearningError, MarketTaskError: data or an initial model that cannot be used.
    """
    # What needs no data comes first: those may take long.
    if config.rule.name in extension_names(EXTENDED_RULES):
        raise MarketTaskError(
            f"the payment rule {config.rule.name!r} is an extension that is installed here: those who verify the "
            "ledger lack it and could not recompute a payment. A market pays by a built-in rule; study yours with "
            "`fedpeer arena`"
        )
    identifier("id", config.id)
    if config.folder is not None and not config.folder.is_dir():
        raise FieldError(
            "folder", str(config.folder), "a folder that is there, in which modules are looked for"
        )
    price = None if config.price is None else priced(config.price)
    rule, schedule = config.rule.rule(config.schedule.capacity), Schedule(**config.schedule.model_dump())
    recipe = _recipe(config)
    payment = payment_function(config.payment.name, config.payment.parameters())
    if config.rule.name != "paper" and config.data is None:
        raise MarketTaskError(
            f"rule {config.rule.name!r} pays on evidence and needs the learner's data: "
            'add a [data] section, or choose rule.name = "paper"'
        )
    if config.rule.name != "paper" and recipe.model == "custom":
        raise FieldError(
            "recipe.model",
            "custom",
            f"an architecture, or the package.module:factory of a workload: rule {config.rule.name!r} pays on "
            'evidence, which trains models; or choose rule.name = "paper"',
        )
    root = task_root(config.id, config.seed)
    given = None
    if config.data is not None:
        given = load_learner_data(config.data, config.folder, config.strata)
    recipe, workload = _frozen(recipe, config)
    _check_privacy(recipe, workload)
    _check_followed(recipe, workload)
    strata, names = _strata(config, given, workload)
    data = None if given is None else stratified(given, strata, names, config.folder)
    if data is not None:
        _check_fits(recipe, data, workload, strata)
    initial_model = _initial_model(config, root, workload)
    contract = _contract(config, initial_model)
    if data is not None and workload is not None:
        _check_evaluates(config, contract, data, workload)
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
        strata=strata,
        classes=() if given is None else given.class_names,
        columns=None if given is None else given.columns,
        arrays=() if data is None else forms_of(data.validation),
        price=price,
        funder=config.funder,
        audit=None if config.audit is None else config.audit.audit(),
        pseudonyms=config.pseudonyms,
        auditor=b"" if config.auditor is None else public_key_of("auditor", config.auditor),
    )
    row = TaskRow.opened(_budgeted(terms, config), root, _settings(config), now)
    return PreparedTask(row, initial_model, data)


def repriced(task: PreparedTask, config: TaskConfig) -> PreparedTask:
    """The task with what `config` pays, all else of which it has already. Raises FieldError, MarketTaskError."""
    terms = replace(
        task.row.terms,
        Q=coefficient(config),
        phi=config.phi,
        upsilon=config.upsilon,
        payment=payment_function(config.payment.name, config.payment.parameters()),
        rule=config.rule.rule(config.schedule.capacity),
        budget_micro=0,
    )
    return replace(task, row=replace(task.row, terms=_budgeted(terms, config)))


def _budgeted(terms: Terms, config: TaskConfig) -> Terms:
    """Terms without a budget, with it.

    Raises:
        FieldError, MarketTaskError: a budget that is too small or too large, or terms that nobody may accept.
    """
    _check_audits(config, terms)
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
    if (price := terms.price) is not None and price.units(budget) == 0:
        raise FieldError(
            "price.credit",
            config.price.credit if config.price else None,
            f"more: the whole budget of {grouped_credits(budget)} credits is less than the smallest amount that can be "
            f"paid out, {price.text(1)}",
        )
    rule = terms.rule
    if config.rule.fee is None and rule.name == "verified":
        rule = replace(rule, fee=least_fee_of(terms))
    terms = replace(terms, budget_micro=budget, rule=rule)
    check_acceptable(terms)
    return terms


def _settings(config: TaskConfig) -> dict[str, Any]:
    """What the coordinator keeps beside the terms; no more shadows than the task file's limit of trainings allows.

    Raises:
        MarketTaskError: a limit that is too low for any evidence.
    """
    evidence, limit = config.evidence, config.evidence.trainings
    if limit is not None and needs_evidence(config.rule.name):
        evidence = evidence.within(limit, f"evidence.trainings is {limit}", str)
    kept = config.model_copy(update={"evidence": evidence})
    names = {"data", "evidence", "folder", "leaderboard"}
    settings: dict[str, Any] = json.loads(kept.model_dump_json(include=names))
    return settings


def _check_audits(config: TaskConfig, terms: Terms) -> None:
    """Raises MarketTaskError where a round has too few shadows to tell an honest difference from another."""
    if terms.audit is None:
        return
    shadows = min(config.evidence.counts())
    if shadows < terms.audit.least_shadows:
        raise MarketTaskError(
            f"audits at a rate of {terms.audit.rate} need {terms.audit.least_shadows} shadow models in every round, "
            f"and [evidence] gives {shadows}; raise evidence.shadows and evidence.later, or audit.rate"
        )


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


def _recipe(config: TaskConfig) -> Recipe:
    """The recipe, with the files of its factory as they are now.

    Raises:
        FieldError: an architecture that is unknown, or that cannot be trained by the recipe, or options of what takes
            none.
        WorkloadError: a factory's file, or one of its sources, that is not there.
    """
    values = config.recipe.model_dump(exclude={"options", "privacy", "allowed"})
    allowed = None if config.recipe.allowed is None else config.recipe.allowed.allowed()
    privacy = None if config.recipe.privacy is None else config.recipe.privacy.privacy()
    model, options, source = config.recipe.model, config.recipe.options, None
    if ":" in model:
        from fedpeer.learning.workloads.loading import WorkloadSource  # imports torch

        check_factory("recipe.model", model)
        files = WorkloadSource(model, options, folders_of(config.folder)).files()
        source = source_of(options, files)
    elif options:
        raise FieldError("recipe.options", str(options), "none: only a factory takes options")
    recipe = Recipe(**values, source=source, privacy=privacy, allowed=allowed)
    if model == "custom" or source is not None:
        return recipe
    from fedpeer.learning.models import ARCHITECTURES  # imports torch

    if model not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise FieldError(
            "recipe.model",
            model,
            f'one of {known}, the package.module:factory of a workload, or "custom" for a model of your own',
        )
    for name in ("samples", "batch_size"):
        if getattr(recipe, name) == 1:
            raise FieldError(
                f"recipe.{name}", 1, "at least 2: batch normalisation has no variance over one sample"
            )
    return recipe


def _frozen(recipe: Recipe, config: TaskConfig) -> tuple[Recipe, "Workload | None"]:
    """The recipe with the digest of what its workload makes and does not send, and the workload."""
    workload = workload_of(recipe, config.folder)
    if workload is None or recipe.source is None:
        return recipe, workload
    from fedpeer.learning.workloads.protocol import frozen_of

    if not (frozen := frozen_of(workload)):
        return recipe, workload
    end(workload)  # the one that everybody has from now on is another, which expects this base
    recipe = replace(recipe, source=replace(recipe.source, frozen=bytes.fromhex(frozen)))
    return recipe, workload_of(recipe, config.folder)


def _strata(
    config: TaskConfig, given: Given | None, workload: "Workload | None"
) -> tuple[Strata, tuple[str, ...]]:
    """What a stratum is, and what the strata are called.

    Raises:
        FieldError: strata that are taken from D_c, where there is none.
        MarketTaskError: D_c cannot be cut so.
    """
    if given is None:
        if config.strata is not None:
            raise FieldError(
                "strata", "given", '"label", since there is no [data] to take edges and names from'
            )
        return Labels(), ()
    strata = chosen_strata(config.strata, given, config.folder)
    count = strata.count
    if count is None:
        if given.classes is not None:
            count = class_count(given.classes)
        elif workload is not None and workload.classes is not None:
            count = workload.classes
        elif config.reference is not None:
            count = len(config.reference)
        else:
            count = max(2, int(given.validation.targets.max()) + 1)
        if count > MAX_STRATA:
            raise MarketTaskError(
                f"each class would be a stratum, and there are {count}: at most {MAX_STRATA} are counted; write strata "
                '= { quantiles = 5, of = "target" }, or name a column or a factory'
            )
    return strata, strata.names(count, given.class_names)


def _check_privacy(recipe: Recipe, workload: "Workload | None") -> None:
    """Raises FieldError where shadow models could not be trained with the noise that participants add."""
    if recipe.privacy is None or recipe.privacy.method != "dp-sgd" or workload is None:
        return
    from fedpeer.learning.workloads.protocol import trains_dp_sgd

    if not trains_dp_sgd(workload):
        raise FieldError(
            "recipe.privacy.method",
            "dp-sgd",
            f'"update": the workload {recipe.model!r} does not train by DP-SGD; a TorchWorkload does',
        )


def _check_followed(recipe: Recipe, workload: "Workload | None") -> None:
    """Raises FieldError where shadow models could not be trained as the recipe asks or allows."""
    if workload is None:
        return
    from fedpeer.learning.workloads.protocol import unfollowed

    if lacking := unfollowed(workload, recipe):
        raise FieldError(
            "recipe",
            ", ".join(lacking),
            f"none of these: the training of the workload {recipe.model!r} does not look at them, and shadow models "
            "would be trained otherwise than participants; a TorchWorkload follows them",
        )


def _check_fits(recipe: Recipe, data: LearnerData, workload: "Workload | None", strata: Strata) -> None:
    """Raises MarketTaskError where the workload cannot read the learner's data, or participants would refuse it."""
    if workload is None:
        return  # "custom": only its file knows
    from fedpeer.learning.models import ARCHITECTURES  # imports torch

    targets = data.validation.targets
    if (known := ARCHITECTURES.get(recipe.model)) is not None:
        images = data.validation.inputs
        shape = images.shape[1:] if isinstance(images, np.ndarray) else ()
        if tuple(shape) != known.image or data.strata != known.classes:
            raise MarketTaskError(
                f"recipe.model {recipe.model!r} reads images of {known.image} with {known.classes} labels, the "
                f"learner's data {data.name!r} have {tuple(shape)} and {data.strata}; name the architecture of that "
                "data set"
            )
        return
    if (classes := workload.classes) is None:
        return
    held = [] if data.test is None else [("the held-out samples of ", data.test.targets)]
    for of, labels in [("", targets), *held]:
        if not (labels.dtype.kind in "iu" and labels.min() >= 0 and labels.max() < classes):
            raise MarketTaskError(
                f"recipe.model {recipe.model!r} tells {classes} classes apart, and a target of {of}the learner's data "
                f"{data.name!r} is none of the numbers from 0 to {classes - 1}; expected a class, or a workload for "
                "measured targets"
            )
    if isinstance(strata, Labels) and data.strata != classes:
        raise MarketTaskError(
            f"recipe.model {recipe.model!r} tells {classes} classes apart, and the learner's data {data.name!r} have "
            f"{data.strata} labels; expected as many: change the workload's classes, or data.classes"
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
            "payment": {"name": config.payment.name}
            | {key: float(value) for key, value in config.payment.parameters().items()},
            "phi": float(config.phi),
            "upsilon": float(config.upsilon),
            "participants": config.plan.participants,
            "learner": {**config.plan.learner, "rounds": config.schedule.rounds},
        }
    )
    assert given.learner is not None, "the section requires one"
    # Any Q starts the search; at upsilon the logarithm pays nothing yet.
    people, bound = given.population, given.bound
    game = Game(given.payment, bound.upsilon, bound, people.effort, people.cost, given.rule)
    best = best_offer(game, given.learner, config.plan.equilibrium)
    return Decimal(best.Q).quantize(Decimal("0.000001"), ROUND_CEILING)


def _reference(config: TaskConfig, data: LearnerData | None) -> tuple[Fraction, ...]:
    if config.reference is not None:
        reference = reference_distribution(config.reference)
        if data is not None and len(reference) != data.strata:
            raise FieldError("reference", config.reference, f"{data.strata} strata, as D_c has")
        if 0 in reference and needs_evidence(config.rule.name):
            raise FieldError(
                "reference",
                config.reference,
                f"a share above 0 of each stratum: rule {config.rule.name!r} pays on evidence, which says nothing of a "
                "stratum that nobody is to have",
            )
        return reference
    if data is None:
        raise FieldError("reference", None, "a distribution, since there is no [data] to take it from")
    counts = data.counts()
    if not sum(counts):
        raise FieldError("data.validation", "0 samples", "at least one sample of each stratum")
    return reference_distribution([Fraction(count, sum(counts)) for count in counts])


def _initial_model(config: TaskConfig, root: bytes, workload: "Workload | None") -> bytes:
    """The file that round 1 starts from."""
    if config.initial_model is not None:
        try:
            with opened(config.initial_model, _MAX_INITIAL_BYTES) as file:
                return file.read()
        except SourceError as error:
            raise MarketTaskError(f"initial_model: {error}") from None
    if workload is None:
        raise FieldError(
            "initial_model", None, 'a safetensors file: nothing else says what a "custom" model looks like'
        )
    return encode_model(workload.build(initial_seed(root)))


def _contract(config: TaskConfig, initial_model: bytes) -> ModelContract:
    """What models of the task must look like: what the first one does, which is checked as theirs will be.

    Raises:
        FieldError: `max_norm` or `max_bytes` below what the first model has.
        MarketTaskError: it is not a safetensors file, or no participant may send it.
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
        raise MarketTaskError(f"{named} cannot be used: {error}") from None
    norm = Decimal(math.ceil(check.norm))
    max_norm = config.contract.max_norm
    if max_norm is None:
        max_norm = max(_LEAST_MAX_NORM, norm * _NORM_FACTOR)
    if max_norm < Decimal(check.norm):
        raise FieldError("contract.max_norm", max_norm, f"at least {norm}, which covers the first model's")
    largest = max(largest, len(initial_model))
    max_bytes = config.contract.max_bytes
    if max_bytes is None:
        max_bytes = len(initial_model) + _HEADER_ALLOWANCE
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


def _check_evaluates(
    config: TaskConfig, contract: ModelContract, data: LearnerData, workload: "Workload"
) -> None:
    """That the first model can be read into the workload, and models of it be judged on D_c.

    Raises:
        MarketTaskError: it cannot.
    """
    fresh = workload.build(0)
    own = contract_of(fresh, contract.max_norm, contract.max_bytes)
    wanted = {spec.name: spec for spec in own.tensors}
    given = {spec.name: spec for spec in contract.tensors}
    model = config.recipe.model
    for name in sorted(wanted.keys() | given.keys()):
        if wanted.get(name) == given.get(name):
            continue
        if config.rule.name == "paper" and _reads(wanted.get(name), given.get(name)):
            continue
        if config.initial_model is None:
            raise MarketTaskError(
                f"recipe.model {model!r} builds other models from one call to the next: tensor {name!r} is "
                f"{_words(given.get(name))} once, {_words(wanted.get(name))} then; expected the same shapes and types "
                "whatever the seed"
            )
        raise MarketTaskError(
            f"initial_model {config.initial_model} does not fit the architecture {model!r} that "
            f"evaluates it: tensor {name!r} is {_words(given.get(name))}, expected {_words(wanted.get(name))}"
        )
    few = data.validation.select(np.arange(min(len(data.validation), _JUDGED_FIRST)))
    try:
        judged = workload.judge(fresh, few)
    except LearningError as error:
        texts = [name.removeprefix("inputs.") for name, part in few.parts() if part.dtype.kind == "U"]
        hint = f"; {', '.join(texts):.200} of D_c: these are texts, not numbers" if texts else ""
        if isinstance(error, WorkloadError):
            hint += f"; it was given {few.described()}"
        raise MarketTaskError(f"recipe.model {model!r} cannot read D_c: {error}{hint}") from None
    if judged.losses.shape != (len(few),):
        raise MarketTaskError(
            f"recipe.model {model!r} gives losses of shape {judged.losses.shape} for {len(few)} samples; expected one "
            "a sample"
        )
    if bad := int(np.count_nonzero(~np.isfinite(judged.losses))):
        raise MarketTaskError(
            f"recipe.model {model!r} gives losses that are NaN or infinite for {bad} of the first {len(few)} samples "
            "of D_c, at fresh weights; expected finite ones: look at the loss, and at inputs whose values are large"
        )


def _reads(wanted: TensorSpec | None, given: TensorSpec | None) -> bool:
    """Whether a stored tensor is one of the wanted type once it is read: BF16 is read as float32."""
    return wanted is not None and wanted.dtype == "F32" and given == replace(wanted, dtype="BF16")


def _words(spec: TensorSpec | None) -> str:
    return "absent" if spec is None else f"{spec.dtype} of shape {list(spec.shape)}"
