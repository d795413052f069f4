"""participant.toml: one file for the service. `fedpeer participant init` writes one with comments.

Unknown keys, missing keys and values out of range are refused with the key's path. Relative paths are taken from
the folder of the file.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedpeer.text_files import TextFileError, read_toml
from fedpeer.violations import violations
from mechanism.errors import FieldError
from mechanism.terms import identifier
from participant.effort import BestResponse, EffortStrategy, Fixed
from participant.errors import ConfigurationError
from participant.trainer_process import TaskSpec, check_options

#: Name of the file that `init` writes.
CONFIG_FILE = "participant.toml"

#: What trains on the samples that a file names.
WORKLOAD_TASK = "participant.adapters.workload:WorkloadTask"

#: Seconds that a training in progress gets to finish after SIGTERM; container platforms kill after 30.
GRACE_SECONDS = 20.0


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


class CoordinatorSection(_Section):
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


class EffortSection(_Section):
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


class TaskSection(_Section):
    """What is trained for which task.

    Attributes:
        id: of the coordinator's task; left out: any open task, one after another.
        data: a file or folder with the participant's samples, on which the workload of the task's terms is trained; or
        factory: "module:name" of a callable that returns a `participant.Task`.
        options: its keyword arguments; beside `data`, those of `participant.adapters.workload.WorkloadTask`.
        folders: beside `data`, where the files of the task's workload lie.
        effort: left out beside `data`: none, since the data stay as they are.
    """

    id: str | None = None
    data: Path | None = None
    factory: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    folders: list[Path] = Field(default_factory=list)
    effort: EffortSection = EffortSection()

    @model_validator(mode="after")
    def _one_source(self) -> "TaskSection":
        if (self.data is None) == (self.factory is None):
            raise ValueError("exactly one of data and factory is expected")
        if self.data is None and self.folders:
            raise ValueError("folders is expected beside data only: a factory has options")
        return self

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


class ServiceSection(_Section):
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


class ParticipantConfig(_Section):
    """The whole file.

    Attributes:
        id: participant id, as the invitation has it.
        state: folder of the key, the certificate and the journal.
    """

    id: str
    state: Path = Path("state")
    coordinator: CoordinatorSection
    service: ServiceSection = ServiceSection()
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
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: task.{number}.{error}") from None
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

[[task]]
# id = "cats-1"           # left out: any open task
# data = "mine.parquet"   # instead of a factory: trains the model that the task's terms name on this file
factory = "my_task:MyTask"     # a callable that returns a participant.Task; its folder must be on PYTHONPATH

[task.options]            # its keyword arguments

[task.effort]
strategy = "best-response"     # or "fixed", with effort = 0.3
cost = 1.0                # credits for one unit of degree improved
rate = 1.0                # effort e brings your data from degree d to d * exp(-rate * e)
"""
