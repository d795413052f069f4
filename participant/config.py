"""participant.toml: one file for the service. `fedpeer participant init` writes one with comments.

Unknown keys, missing keys and values out of range are refused with the key's path. Relative paths are taken from
the folder of the file.
"""

from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from fedpeer.text_files import TextFileError, read_toml
from fedpeer.violations import Section, violations
from mechanism.errors import FieldError
from mechanism.privacy import Privacy
from mechanism.terms import identifier
from participant.accounting import PrivacyLimit
from participant.effort import BestResponse, EffortStrategy, Fixed
from participant.errors import ConfigurationError
from participant.policy import Policy
from participant.trainer_process import TaskSpec, check_options

#: Name of the file that `init` writes.
CONFIG_FILE = "participant.toml"

#: What trains on the samples that a file names.
WORKLOAD_TASK = "participant.adapters.workload:WorkloadTask"

#: Seconds that a training in progress gets to finish after SIGTERM; container platforms kill after 30.
GRACE_SECONDS = 20.0


class CoordinatorSection(Section):
    """Where the coordinator is.

    Attributes:
        market, public: host:port of its two ports.
        authority: PEM file of its certificate authority, from its operator.
        insecure: no TLS at all. For experiments on one machine.
    """

    market: str
    public: str = ""
    authority: Path | None = None
    insecure: bool = False


class EffortSection(Section):
    """How the effort is decided.

    Attributes:
        strategy: "best-response" or "fixed".
        effort: of "fixed", in [0, 1].
        cost: credits for one unit of degree improved.
        cost_exponent: a of cost * x^a.
        rate: of the effort curve delta(0) * exp(-rate * e).
        curve: instead of `rate`, points [[effort, degree], ...] from effort 0 to 1.
        peers: degrees believed of the others; left out: that they are like this participant.
        cara: weighs the risk of which peers are drawn, a credit: of a round that pays 1 more or less at even odds, 1
            takes 0.43 off; left out: risk is not weighed. Or, instead,
        crra, wealth: relative to the credits that this participant has whatever the round pays.
    """

    strategy: Literal["best-response", "fixed"] = "best-response"
    effort: float | None = Field(None, ge=0, le=1)
    cost: float = Field(1.0, gt=0)
    cost_exponent: float = Field(1.0, gt=0)
    rate: float = Field(1.0, gt=0)
    curve: list[tuple[float, float]] | None = None
    peers: list[float] | None = None
    cara: float | None = None
    crra: float | None = None
    wealth: float | None = None

    def build(self) -> EffortStrategy:
        """The strategy that the section describes."""
        from mechanism.cost import CostFunction, LinearCost, PowerCost
        from mechanism.effort import EffortCurve, ExponentialEffort, TabulatedEffort
        from mechanism.errors import MechanismError
        from mechanism.risk import attitude_of

        if self.strategy == "fixed":
            if self.effort is None:
                raise ConfigurationError("effort.effort is missing; a fixed strategy needs it")
            return Fixed(self.effort)
        try:
            attitude = attitude_of(self.cara, self.crra, self.wealth)
            cost: CostFunction = (
                LinearCost(self.cost) if self.cost_exponent == 1 else PowerCost(self.cost, self.cost_exponent)
            )
            if self.curve is not None:
                table = TabulatedEffort([e for e, _ in self.curve], [d for _, d in self.curve])
                return BestResponse(cost=cost, curve=table, peers=self.peers, attitude=attitude)
        except MechanismError as error:
            raise ConfigurationError(f"effort: {error}") from None

        def curve(start: float) -> EffortCurve:
            return ExponentialEffort(start, self.rate)

        return BestResponse(cost=cost, curve=curve, peers=self.peers, attitude=attitude)


def _exact(value: Any) -> Any:
    """A TOML number as the text that it was written as, near enough: floats print as short as they read."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


#: A number that is kept exactly.
Exact = Annotated[Decimal, BeforeValidator(_exact)]

#: A rational: a number, or a text such as "1/3".
Share = Annotated[str, BeforeValidator(_exact)]


class NoiseSection(Section):
    """Noise of the participant's own choice; `mechanism.privacy` says what each value does."""

    method: str
    clip: Exact
    noise_multiplier: Exact
    delta: Exact

    def build(self) -> Privacy:
        try:
            return Privacy(self.method, self.clip, self.noise_multiplier, self.delta)
        except FieldError as error:
            raise ConfigurationError(str(error)) from None


class LimitSection(Section):
    """How much may be revealed of the data, as (epsilon, delta)."""

    epsilon: Exact
    delta: Exact = Decimal("0.00001")

    def build(self) -> PrivacyLimit:
        return PrivacyLimit(self.epsilon, self.delta)


class PolicySection(Section):
    """Which terms are accepted; `participant.Policy` says what each value does."""

    coordinator_keys: list[str] = Field(default_factory=list)
    reference: list[Share] | dict[str, Share] | None = None
    models: list[str] = Field(default_factory=list)
    most_epochs: int | None = None
    most_samples: int | None = None
    most_bytes: int | None = None
    least_pay: Share | None = None
    privacy_required: bool = False
    most_epsilon: LimitSection | None = None
    retention_days: Exact | None = None

    def build(self) -> Policy:
        limit = None if self.most_epsilon is None else self.most_epsilon.build()
        return Policy(**{**dict(self), "most_epsilon": limit})


class TaskSection(Section):
    """What is trained for which task.

    Attributes:
        id: of the coordinator's task; left out: any open task, one after another.
        data: a file or folder with the participant's samples, on which the workload of the task's terms is trained; or
        factory: "module:name" of a callable that returns a `participant.Task`.
        options: its keyword arguments; beside `data`, those of `participant.adapters.workload.WorkloadTask`.
        folders: beside `data`, where the files of the task's workload lie.
        privacy: noise of one's own choice; left out: what the terms ask for.
        effort: left out beside `data`: none, since the data stay as they are.
    """

    id: str | None = None
    data: Path | None = None
    factory: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    folders: list[Path] = Field(default_factory=list)
    privacy: NoiseSection | None = None
    effort: EffortSection = EffortSection()

    @model_validator(mode="after")
    def _one_source(self) -> "TaskSection":
        if (self.data is None) == (self.factory is None):
            raise ValueError("exactly one of data and factory is expected")
        if self.data is None and self.folders:
            raise ValueError("folders is expected beside data only: a factory has options")
        return self

    @property
    def own_privacy(self) -> Privacy | None:
        return None if self.privacy is None else self.privacy.build()

    @property
    def spec(self) -> TaskSpec:
        if self.data is None:
            return TaskSpec(str(self.factory), self.options)
        return TaskSpec(
            WORKLOAD_TASK,
            {"samples": str(self.data), "folders": list(map(str, self.folders)), **self.options},
        )

    @property
    def strategy(self) -> EffortStrategy:
        """How the effort is decided."""
        chosen = self.data is None or "effort" in self.model_fields_set
        return self.effort.build() if chosen else Fixed(0.0)

    def within(self, folder: Path) -> "TaskSection":
        """The same with its relative paths taken from `folder`, where the code of a workload is looked for, too."""
        if self.data is None:
            return self
        folders = [folder / each for each in self.folders] or [folder]
        return self.model_copy(update={"data": folder / self.data, "folders": folders})


class ServiceSection(Section):
    """How the service runs.

    Attributes:
        trainers: trainings at the same time; the others wait.
        isolate: train in a process of its own, so that a crash costs one round and not the service.
        grace_seconds: what a training gets to finish after SIGTERM, before its round is handed back.
        patience_seconds: how long the coordinator may be away; 0: for ever.
        foreign_keys: what to do where the log holds a key for this name that is not its own: "refuse" (claim nothing
            more, bring claimed tasks to their end), "stop" (end at once) or "warn".
    """

    trainers: int = Field(1, ge=1)
    isolate: bool = True
    grace_seconds: float = Field(GRACE_SECONDS, ge=0)
    patience_seconds: float = Field(0.0, ge=0)
    foreign_keys: Literal["refuse", "stop", "warn"] = "refuse"


class ParticipantConfig(Section):
    """The whole file.

    Attributes:
        id: participant id, as the invitation has it.
        state: folder of the key, the certificate and the journal.
        policy: terms that are accepted; left out: any.
        privacy: what all models of this state folder together may tell of the data; left out: there is no limit.
    """

    id: str
    state: Path = Path("state")
    coordinator: CoordinatorSection
    service: ServiceSection = ServiceSection()
    policy: PolicySection = PolicySection()
    privacy: LimitSection | None = None
    task: list[TaskSection] = Field(min_length=1)


def read_config(path: Path) -> ParticipantConfig:
    """The configuration in `path`, its relative paths resolved.

    Raises:
        ConfigurationError: unreadable, no TOML, an unknown or missing key, or a value out of range.
    """
    try:
        content = read_toml(path)
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read ({error.strerror}); make one with: fedpeer participant init"
        ) from None
    except TextFileError as error:
        raise ConfigurationError(f"{path} cannot be used: {error}") from None
    try:
        config = ParticipantConfig.model_validate(content)
    except ValidationError as error:
        raise ConfigurationError(violations(error, ParticipantConfig, path)) from None
    try:
        identifier("id", config.id)
    except FieldError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    _check_tasks(path, config)
    folder, coordinator = path.parent, config.coordinator
    if coordinator.authority is not None:
        coordinator = coordinator.model_copy(update={"authority": folder / coordinator.authority})
    tasks = [task.within(folder) for task in config.task]
    return config.model_copy(
        update={"state": folder / config.state, "coordinator": coordinator, "task": tasks}
    )


def _check_tasks(path: Path, config: ParticipantConfig) -> None:
    named = [task.id for task in config.task if task.id is not None]
    if len(set(named)) != len(named):
        raise ConfigurationError(f"{path}: a task id occurs twice; one [[task]] for each")
    for number, task in enumerate(config.task):
        try:
            check_options(task.options)
            task.effort.build()
            if task.privacy is not None:
                task.privacy.build()
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: task.{number}.{error}") from None
    try:
        config.policy.build()
        if config.privacy is not None:
            config.privacy.build()
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    if sum(task.id is None for task in config.task) > 1:
        raise ConfigurationError(f"{path}: two [[task]] without an id; only one can take any open task")


TEMPLATE = """\
# A participant of a fedpeer market. Paths are relative to this file.
id = "{id}"              # as in the invitation
state = "state"           # key, certificate, journal; back it up

[coordinator]
market = "{market}"
public = "{public}"
authority = "authority.pem"    # from the coordinator's operator

[service]
trainers = 1              # trainings at the same time
isolate = true            # train in a process of its own
grace_seconds = 20        # for a training in progress after SIGTERM

# [policy]                # terms that do not keep it are declined, before anything is trained or sent
# coordinator_keys = ["market.example+1234abcd+..."]   # the log's key, from the operator
# reference = {{ cat = "1/2", dog = "1/2" }}
# models = ["flights:make"]
# most_epochs = 10
# least_pay = "1.50 EUR"  # of a round; a number alone is credits
# privacy_required = true # models have noise: as the terms say, or [task.privacy]
# retention_days = 30     # submitted models are deleted after at most so many days

# [privacy]               # what all models together may tell of the data; a round beyond it is not trained
# epsilon = 8
# delta = 1e-5            # well below one over the number of samples

[[task]]
# id = "cats-1"           # left out: any open task
# data = "mine.parquet"   # instead of a factory: trains the model that the task's terms name on this file
factory = "my_task:MyTask"     # a callable that returns a participant.Task; its folder must be on PYTHONPATH

# [task.privacy]          # noise of your own choice, in the place of what the terms ask for
# method = "dp-sgd"       # or "update", with any factory
# clip = 1.0
# noise_multiplier = 1.1
# delta = 1e-5

[task.options]            # its keyword arguments

[task.effort]
strategy = "best-response"     # or "fixed", with effort = 0.3
cost = 1.0                # credits for one unit of degree improved
rate = 1.0                # effort e brings your data from degree d to d * exp(-rate * e)
"""
