"""The operator's two kinds of TOML file: how the service runs, and what a task offers.

    coordinator.toml   ServiceConfig, written by `fedpeer coordinator init`
    a task file        TaskConfig, read by `fedpeer coordinator open`

Unknown keys, missing keys and values out of range are refused with the key's path; relative paths are resolved
against the folder of the file that names them.
"""

import base64
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from coordinator.errors import ConfigError, MarketTaskError, ServeError
from fedpeer.protocol.limits import (
    MAX_BYTES_PER_HOUR,
    MAX_CONCURRENT_UPLOADS,
    MAX_PHASE_SECONDS,
    MAX_REQUESTS_PER_SECOND,
    MAX_ROUNDS,
    MAX_STREAMS_PER_IDENTITY,
)
from fedpeer.text_files import TextFileError, parse_toml, read_toml
from fedpeer.violations import Section, shaped, violations
from mechanism.audit import Audit
from mechanism.degree import rational
from mechanism.errors import FieldError
from mechanism.privacy import Privacy
from mechanism.terms import PEERS_DRAWN, Rule
from mechanism.variation import Allowed
from mechanism.workload import options_text

#: Name of the service's configuration file in the state folder.
SERVICE_FILE = "coordinator.toml"

#: Seconds that calls in progress get to finish after SIGTERM; container platforms kill after 30.
DRAIN_SECONDS = 20.0

#: Seconds without any sign of life after which a participant no longer holds up a round: longer than a restart
#: of either side with its back-off, far shorter than a training round.
ABSENCE_SECONDS = 60.0

#: Days that model files are kept after their task has ended; the ledger keeps their digests for ever.
RETENTION_DAYS = 30.0

ConfigModel = TypeVar("ConfigModel", bound=BaseModel)

#: Kinds of notices, by whom they are for: see `coordinator.notices`.
NOTICES_FOR_PARTICIPANTS = (
    "task.opened", "round.opened", "round.settled", "task.closed", "task.cancelled", "submission.refused",
)  # fmt: skip
NOTICES = (
    *NOTICES_FOR_PARTICIPANTS[:-1],
    "payout.due", "task.stalled", "disk.low", "certificate.expiring", "service.failing",
)  # fmt: skip


def secret_bytes(secret: str) -> bytes:
    """The key that a webhook's secret names.

    Raises:
        ValueError: it is none; the sentence does not repeat it.
    """
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        key = b""
    if not secret.startswith("whsec_") or not 24 <= len(key) <= 64:
        raise ValueError(
            'expected a secret, "whsec_" and base64 of 24 to 64 random bytes: openssl rand -base64 32'
        )
    return key


def _text_number(value: Any) -> Any:
    """TOML floats become decimals by their shortest text, so that 0.1 is one tenth."""
    if isinstance(value, bool):
        return value
    return str(value) if isinstance(value, int | float) else value


def _coefficient(value: Any) -> Any:
    if value == "best":
        return value
    try:
        number = Decimal("NaN" if isinstance(value, bool) else _text_number(value))
    except (ArithmeticError, TypeError, ValueError):
        number = Decimal("NaN")
    if not number.is_finite():
        raise ValueError('expected a number above 0, or "best" with a [plan] section')
    return number


def _peers(value: Any) -> Any:
    if value == "all" or (type(value) is int and value >= 1):
        return value
    raise ValueError('expected a whole number of at least 1, or "all"')


#: A number that money depends on.
Exact = Annotated[Decimal, BeforeValidator(_text_number)]

#: A probability, exact: a decimal, or a string such as "1/3".
Probability = Annotated[str, BeforeValidator(_text_number)]

#: The payment coefficient, or the word for the learner's own best.
Coefficient = Annotated[Decimal | Literal["best"], BeforeValidator(_coefficient)]


def _json_values(options: dict[str, Any]) -> dict[str, Any]:
    """What a task keeps of options, and calls the factory with again after a restart, is their JSON."""
    try:
        options_text(options)
    except FieldError as error:
        raise ValueError(f"expected {error.expected}") from None
    return options


#: Keyword arguments of a factory.
Options = Annotated[dict[str, Any], AfterValidator(_json_values)]


class ServerSection(Section):
    """Addresses as host:port; port 0 takes a free one.

    Attributes:
        market: mutual TLS; Market, Ledger.
        public: TLS with the server's certificate alone; Enrolment, health, reflection, and Ledger if allowed.
        metrics: plain HTTP for Prometheus and nothing else; empty: off.
        hosts: DNS names and IP addresses that participants connect to; the server's certificate must be for them.
            Empty: for whatever it is.
        public_ledger: whether the ledger can be read without an account.
        insecure: no TLS at all, participants are believed their name. For experiments on one machine.
    """

    market: str = "0.0.0.0:7443"
    public: str = "0.0.0.0:7444"
    metrics: str = "127.0.0.1:9464"
    hosts: tuple[str, ...] = ()
    public_ledger: bool = True
    reflection: bool = True
    insecure: bool = False
    drain_seconds: float = Field(DRAIN_SECONDS, ge=0)
    absence_seconds: float = Field(ABSENCE_SECONDS, gt=0)
    concurrent_uploads: int = Field(MAX_CONCURRENT_UPLOADS, ge=1)
    requests_per_second: float = Field(MAX_REQUESTS_PER_SECOND, gt=0)
    streams_per_participant: int = Field(MAX_STREAMS_PER_IDENTITY, ge=2)
    bytes_per_hour: float = Field(MAX_BYTES_PER_HOUR, gt=0)


class StorageSection(Section):
    """Where state lives.

    Attributes:
        database: an SQLAlchemy URL; empty: SQLite in the state folder, from which relative paths are taken too.
        retention_days: how long model files outlive their task.
        keep_unfetched: whether the model that a task ended with is kept longer, until it was fetched.
    """

    database: str = ""
    retention_days: float = Field(RETENTION_DAYS, ge=0)
    keep_unfetched: bool = True


#: What object stores take as the name of a bucket; a part of a prefix; a store's URL.
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_IPV4 = re.compile(r"[0-9]+(\.[0-9]+){3}")
_SEGMENT = re.compile(r"[A-Za-z0-9._-]+")
_ENDPOINT = re.compile(r"https?://[^/@?#\s]+")


class S3Section(Section):
    """A bucket of an object store that speaks S3, for model files; needs the extra fedpeer[s3].

    Attributes:
        bucket: its name; empty: model files lie in the state folder.
        prefix: what names begin with in it; one market's alone.
        endpoint: the store's URL; empty: AWS's own of the region.
        credentials: a file in the form of AWS's, from the state folder; empty: the environment's AWS_ACCESS_KEY_ID and
            AWS_SECRET_ACCESS_KEY, or what the platform gives the machine.
        cache_bytes: copies in the state folder are about so many; those used within the hour stay.
    """

    bucket: str = ""
    prefix: str = ""
    endpoint: str = ""
    region: Annotated[str, shaped(r"[A-Za-z0-9-]+", "letters, digits and hyphens, such as us-east-1")] = (
        "us-east-1"
    )
    credentials: str = ""
    cache_bytes: float = Field(20 << 30, gt=0)

    @field_validator("bucket")
    @classmethod
    def _as_stores_take_it(cls, bucket: str) -> str:
        if bucket and (not _BUCKET.fullmatch(bucket) or ".." in bucket or _IPV4.fullmatch(bucket)):
            raise ValueError(
                "expected a bucket's name: 3 to 63 of a-z, 0-9, . and -, with a letter or digit at either end and no "
                "two dots together, and no IP address"
            )
        return bucket

    @field_validator("prefix")
    @classmethod
    def _as_names_begin(cls, prefix: str) -> str:
        if prefix and not all(_SEGMENT.fullmatch(part) and part.strip(".") for part in prefix.split("/")):
            raise ValueError(
                "expected what names begin with, of A-Z, a-z, 0-9, . _ - and / in between, such as market-a"
            )
        return prefix

    @field_validator("endpoint")
    @classmethod
    def _with_a_port(cls, endpoint: str) -> str:
        if not endpoint:
            return endpoint
        if not _ENDPOINT.fullmatch(endpoint):
            raise ValueError(
                "expected the store's URL, https://HOST or http://HOST:PORT, with no user, path or / behind it; keys "
                "stand in the file that credentials names"
            )
        _check_port(endpoint)
        return endpoint

    @model_validator(mode="after")
    def _of_a_bucket(self) -> "S3Section":
        given = [name for name in ("prefix", "endpoint", "credentials") if getattr(self, name)]
        if given and not self.bucket:
            raise ValueError(
                f"{given[0]} is given and no bucket, so that model files would lie in the folder; name it"
            )
        return self


def _check_port(url: str) -> None:
    """Raises ValueError where a URL has a port that there is not."""
    try:
        port = urlsplit(url).port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError("expected a port from 1 to 65535")


def split_address(key: str, address: str, example: str = "0.0.0.0:7443") -> tuple[str, int]:
    """Host and port of "host:port".

    Raises:
        ServeError: it is not of that form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ServeError(f"{key} is {address!r}; expected host:port such as {example}")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ServeError(f"{key} is {address!r}; write an IPv6 address in brackets: [{host}]:{port}")
    return host.strip("[]"), int(port)


#: A device of torch, on which models are trained together; empty: one after another on the CPU.
Device = Annotated[str, shaped(r"(cpu|cuda(:[0-9]{1,2})?)?", '"cuda", "cuda:1", "cpu", or nothing')]

_SCHEDULER = r"dask://[^/@\s]+:[0-9]{1,5}"


class WorkersSection(Section):
    """Who trains shadow models.

    Attributes:
        executor: "local", or "dask://host:port" of a scheduler; needs the extra fedpeer[dask].
        wait_seconds: how long nothing may come back from workers before this machine does their work, too.
        device: of torch, on which shadows train together: "cuda", "cuda:1", "cpu"; empty: one after another on the CPU.
    """

    executor: Annotated[
        str, shaped(rf"local|{_SCHEDULER}", '"local", or "dask://HOST:PORT" of a scheduler')
    ] = "local"
    wait_seconds: float = Field(300, gt=0)
    device: Device = ""

    @field_validator("executor")
    @classmethod
    def _with_a_port(cls, executor: str) -> str:
        if executor != "local":
            _check_port(executor)
        return executor


class TracingSection(Section):
    """OpenTelemetry; needs the extra fedpeer[tracing].

    Attributes:
        endpoint: an OTLP collector by gRPC, such as "http://localhost:4317"; empty: off.
        ratio: the part of traces that is kept, where the caller has not decided.
    """

    endpoint: str = ""
    ratio: float = Field(1.0, ge=0, le=1)


class ReceiverSection(Section):
    """One receiver of notices; see docs/notices.md.

    Attributes:
        url: http(s)://..., a webhook, or mailto:..., which `mail` delivers.
        secret: of a webhook, by which what it gets is signed: "whsec_" and base64 of 24 to 64 bytes.
        participant: whose service it is; empty: the operator's.
        types: what it gets; empty: all that is for it.
    """

    url: str = Field(max_length=2000)
    secret: str = ""
    participant: str = Field("", max_length=64)
    types: tuple[str, ...] = ()

    @field_validator("url")
    @classmethod
    def _reachable(cls, url: str) -> str:
        parts = urlsplit(url)
        there = "@" in parts.path if parts.scheme == "mailto" else bool(parts.hostname)
        if parts.scheme not in ("http", "https", "mailto") or not there:
            raise ValueError("expected https://HOST/PATH, http://HOST/PATH or mailto:NAME@HOST")
        return url

    @model_validator(mode="after")
    def _signed(self) -> "ReceiverSection":
        if not self.url.startswith("mailto:"):
            secret_bytes(self.secret)
        elif self.secret:
            raise ValueError("a mail is not signed; expected no secret")
        known = NOTICES_FOR_PARTICIPANTS if self.participant else NOTICES
        if unknown := [name for name in self.types if name not in known]:
            raise ValueError(f"there is no notice {unknown[0]!r} for it; expected some of {', '.join(known)}")
        return self


class MailSection(Section):
    """The operator's mail server, for receivers at mailto:...

    Attributes:
        server: host:port; empty: none.
        sender: whom mails are from.
        security: "starttls", "tls" from the first byte, or "none" on a line that nobody else reads.
        user, password: where the server asks for them.
    """

    server: str = ""
    sender: str = ""
    security: Literal["starttls", "tls", "none"] = "starttls"
    user: str = ""
    password: str = ""

    @model_validator(mode="after")
    def _whole(self) -> "MailSection":
        _, _, port = self.server.rpartition(":")
        if self.server and not (port.isdecimal() and "@" in self.sender):
            raise ValueError("expected server as host:port, and sender as name@host")
        return self


class OidcSection(Section):
    """A provider of OpenID Connect by which the console signs people in; see docs/console.md.

    Attributes:
        issuer: as the provider calls itself; empty: none.
        client_id, client_secret: what the provider has given the console.
        console: the console's own address, as browsers reach it.
        operators, auditors: whom, by `sub` or by a verified e-mail address.
        participants, learners: the id of each of those.
    """

    issuer: str = ""
    client_id: str = ""
    client_secret: str = ""
    console: str = ""
    operators: tuple[str, ...] = ()
    auditors: tuple[str, ...] = ()
    participants: dict[str, str] = Field(default_factory=dict)
    learners: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _whole(self) -> "OidcSection":
        places = (self.issuer, self.console)
        if self.issuer and not all(urlsplit(place).scheme in ("https", "http") for place in places):
            raise ValueError("expected issuer and console as https://HOST")
        if self.issuer and not self.client_id:
            raise ValueError("expected the client_id that the provider has given")
        return self


#: Characters of a holder's name that a message to a bank holds.
MAX_HOLDER = 70


class PayoutsSection(Section):
    """The operator's own account, from which participants are paid.

    Attributes:
        holder: name of its holder, as the bank has it.
        iban, bic: which account; without them a payout writes a CSV file alone.
    """

    holder: str = Field("", max_length=MAX_HOLDER)
    iban: str = ""
    bic: str = ""


class ServiceConfig(Section):
    """coordinator.toml.

    Attributes:
        name: origin of the ledger and subject of the authority, such as "market.example.org".
        notices: receivers by their name.
    """

    # What a signed note takes as a key's name, and an X.509 common name as well.
    name: Annotated[
        str, shaped(r"[A-Za-z0-9][A-Za-z0-9._/-]*", "letters, digits, ., _, - and /, a letter or digit first")
    ] = Field(max_length=48)
    server: ServerSection = ServerSection()
    storage: StorageSection = StorageSection()
    s3: S3Section = S3Section()
    workers: WorkersSection = WorkersSection()
    tracing: TracingSection = TracingSection()
    payouts: PayoutsSection = PayoutsSection()
    mail: MailSection = MailSection()
    oidc: OidcSection = OidcSection()
    notices: dict[
        Annotated[str, Field(max_length=64), shaped(r"[A-Za-z0-9_-]+", "a name of letters, digits, _ or -")],
        ReceiverSection,
    ] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _mail_leaves(self) -> "ServiceConfig":
        for name, receiver in self.notices.items():
            if receiver.url.startswith("mailto:") and not self.mail.server:
                raise ValueError(
                    f"notices.{name} is a mail; expected a section [mail] with server and sender"
                )
        return self


#: Name of a worker's configuration file in its folder.
WORKER_FILE = "worker.toml"


class WorkerConfig(Section):
    """worker.toml, which `fedpeer coordinator worker` writes.

    Attributes:
        scheduler: dask://host:port.
        models: the coordinator's folder of model files, as this machine sees it; not where [s3] names a bucket.
        device: as the coordinator's `workers.device`.
    """

    scheduler: Annotated[str, shaped(_SCHEDULER, '"dask://HOST:PORT"')]
    models: str = ""
    device: Device = ""
    s3: S3Section = S3Section()

    @field_validator("scheduler")
    @classmethod
    def _with_a_port(cls, scheduler: str) -> str:
        _check_port(scheduler)
        return scheduler

    @model_validator(mode="after")
    def _one_store(self) -> "WorkerConfig":
        if bool(self.models) == bool(self.s3.bucket):
            raise ValueError(
                "expected models, a folder that the coordinator shares, or a section [s3], not both"
            )
        return self


class PriceSection(Section):
    """What a credit is paid out as.

    Attributes:
        credit: units of the currency a credit.
        currency: code of ISO 4217, which says its minor unit.
    """

    credit: Exact = Field(gt=0)
    currency: str


class PaymentSection(Section):
    name: str = "log"
    scale: Exact | None = None
    exponent: Exact | None = None

    def parameters(self) -> dict[str, Decimal]:
        return self.model_dump(exclude={"name"}, exclude_none=True)


class AggregationSection(Section):
    """How the next start follows from a round's models; `mechanism.server_step` has the rules and their defaults."""

    name: str = "fedavg"
    rate: Exact | None = None
    momentum: Exact | None = None
    beta1: Exact | None = None
    beta2: Exact | None = None
    tau: Exact | None = None
    averaged: list[str] | None = None

    def parameters(self) -> dict[str, Any]:
        given = self.model_dump(exclude={"name"}, exclude_none=True)
        return given | ({} if self.averaged is None else {"averaged": tuple(sorted(set(self.averaged)))})


class RuleSection(Section):
    """How a score becomes a payment.

    Attributes:
        peers: drawn for each participant, or "all" for everybody; None: as many as the rule draws (`PEERS_DRAWN`).
        fee: None: the least at which no split of one's data gains.
    """

    name: str = "verified"
    peers: Annotated[int | Literal["all"] | None, BeforeValidator(_peers)] = None
    claim_penalty: Exact = Decimal(0)
    stake_micro: int = 0
    fee: Exact | None = None
    whole_from: Exact = Decimal("0.85")

    def rule(self, capacity: int) -> Rule:
        """The rule of a task with so many places.

        Raises:
            FieldError: a value out of its range.
        """
        others = max(1, capacity - 1)
        if isinstance(self.peers, int) and self.peers > others:
            raise FieldError(
                "rule.peers",
                self.peers,
                f'at most {others}, the others where capacity is {capacity}; or "all"',
            )
        drawn = PEERS_DRAWN.get(self.name, 1) if self.peers is None else self.peers
        peers = others if drawn == "all" else drawn
        fee = Decimal(0) if self.fee is None else self.fee
        return Rule(self.name, peers, self.claim_penalty, self.stake_micro, fee, self.whole_from)


class ScheduleSection(Section):
    rounds: int = Field(le=MAX_ROUNDS)
    quorum: int = 3
    capacity: int
    effort_seconds: int = Field(3600, le=MAX_PHASE_SECONDS)
    round_seconds: int = Field(3600, le=MAX_PHASE_SECONDS)
    dispute_seconds: int = Field(0, le=MAX_PHASE_SECONDS)
    identities_per_organisation: int = 1
    retention_seconds: int | None = Field(None, ge=0, le=MAX_PHASE_SECONDS)


class PrivacySection(Section):
    """Noise that every participant adds; `mechanism.terms.Privacy` says what each value does."""

    method: str
    clip: Exact
    noise_multiplier: Exact
    delta: Exact

    def privacy(self) -> Privacy:
        """FieldError: a value out of its range."""
        return Privacy(**self.model_dump())


class AllowedSection(Section):
    """What participants, and so shadow models, may vary of the recipe; `mechanism.variation.Allowed` says what each
    value does. What is left out is fixed."""

    batch_factor: Exact = Decimal(1)
    epochs: int = 0
    learning_rate: Exact = Decimal(0)
    weight_decay: Exact = Decimal(0)
    label_smoothing: Exact = Decimal(0)
    proximal: Exact = Decimal(0)
    augmentation: bool = False
    precision: list[str] = Field(default_factory=list)

    def allowed(self) -> Allowed:
        """FieldError: a value out of its range."""
        values = self.model_dump(exclude={"precision"})
        return Allowed(**values, precision=tuple(sorted(set(self.precision))))


class RecipeSection(Section):
    """`mechanism.terms.Recipe` says what each value does.

    Attributes:
        model: an architecture's name, "package.module:factory" of a workload, or "custom".
        options: the factory's keyword arguments.
        privacy: noise that every participant adds; None: none is asked for.
        allowed: what may vary; None: nothing.
    """

    model: str
    epochs: int = 1
    batch_size: int = 64
    optimizer: str = "adam"
    learning_rate: Exact = Decimal("0.001")
    samples: int
    proximal: Exact = Decimal(0)
    options: Options = Field(default_factory=dict)
    privacy: PrivacySection | None = None
    momentum: Exact = Decimal("0.9")
    beta2: Exact = Decimal("0.999")
    epsilon: Exact = Decimal("0.00000001")
    weight_decay: Exact = Decimal(0)
    label_smoothing: Exact = Decimal(0)
    augmentation: str = "none"
    precision: str = "tensors"
    allowed: AllowedSection | None = None


class StrataSection(Section):
    """What a stratum is, one of three kinds; its edges or names are taken from D_c.

    Attributes:
        quantiles: strata of about equal size of the target, or of the column `of`.
        column: the values of a column of texts or whole numbers.
        factory: "package.module:factory" of a function of samples that gives each the number of its stratum; `options`
            are its keyword arguments, `names` the strata's, left out: their numbers.
    """

    quantiles: int | None = Field(None, ge=2)
    of: str = "target"
    column: str | None = None
    factory: str | None = None
    options: Options = Field(default_factory=dict)
    names: list[str] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> "StrataSection":
        if sum(kind is not None for kind in (self.quantiles, self.column, self.factory)) != 1:
            raise ValueError('expected one of quantiles, column and factory, or strata = "label"')
        if self.factory is None and (self.options or self.names):
            raise ValueError("options and names belong to a factory")
        return self


def public_key_of(field: str, path: Path) -> bytes:
    """The public key in a PEM file, SubjectPublicKeyInfo in DER. Raises MarketTaskError where it has none."""
    try:
        key = load_pem_public_key(path.read_bytes())
    except OSError as error:
        raise MarketTaskError(f"{field} {path} cannot be read: {error.strerror}") from None
    except (ValueError, UnsupportedAlgorithm):
        raise MarketTaskError(
            f"{field} {path} has no public key; expected the file that `fedpeer audit key` wrote"
        ) from None
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


class AuditSection(Section):
    """Audits by re-training, of submissions that were paid.

    Attributes:
        auditor: the PEM of its public key, as `fedpeer audit key` writes it.
        probability: with which a paid submission is audited.
        rate: of honest participants that an audit accuses by their degrees, at most.
        held_back: part of every round's pay that is held to the end of the task.
        seconds: for an audit, and for the second one after an appeal; appeal_seconds: for an appeal.
        unaudited: what becomes of a round's pay that nobody has audited in time: "paid", or "refunded" to who pays.
    """

    auditor: Path
    probability: Probability
    rate: Probability = "1/20"
    held_back: Exact = Decimal(0)
    seconds: int = Field(604_800, le=MAX_PHASE_SECONDS)
    appeal_seconds: int = Field(259_200, le=MAX_PHASE_SECONDS)
    unaudited: Literal["paid", "refunded"] = "paid"

    def audit(self) -> Audit:
        """As terms have it.

        Raises:
            MarketTaskError: no key on P-256 in that file.
            FieldError: a value out of its range.
        """
        return Audit(
            auditor=public_key_of("audit.auditor", self.auditor),
            probability=rational("audit.probability", self.probability),
            rate=rational("audit.rate", self.rate),
            **self.model_dump(include={"held_back", "seconds", "appeal_seconds", "unaudited"}),
        )


def _strata(value: Any) -> Any:
    if value == "label":
        return None
    if isinstance(value, str):
        raise ValueError('expected "label", or a table with quantiles, column or factory')
    return value


#: None: labels, which a task file writes as "label".
StrataChoice = Annotated[StrataSection | None, BeforeValidator(_strata)]


class ContractSection(Section):
    """Attributes:
    max_norm: largest Euclidean norm; empty: a hundred times the initial model's, at least 1,000.
    max_bytes: largest file; empty: the initial model's size and 64 KiB for another header.
    """

    max_norm: Exact | None = None
    max_bytes: int | None = None


class DataSection(Section):
    """The learner's own data, from one of four sources: D_c, and a held-out test set where there is one.

    Attributes:
        dataset: a name that `fedpeer.learning.datasets` knows; split by `seed` into `validation` and `test` samples.
        root: the folder of the data sets.
        file: a .npz, .parquet or .csv. Without `inputs` an .npz with `images` (n, channels, height, width), `labels`
            (n,) and `classes`: how many, or their names, by which labels may then be written.
        inputs, target: columns of the file.
        layout: "array": the workload sees one array of numbers, a column for each input; "named": an array for each by
            its name. Left out: "array" where all inputs are numbers.
        folder: of images, one sub-folder a class.
        factory: "package.module:factory" of `Samples`, or of a data set of torch's, or of D_c and held-out samples as a
            pair; `options` are its keyword arguments.
        test_file, test_folder: the same for the test set.
        holdout: instead, the share of D_c that is held out, drawn by `seed`.
        classes: names of the target's classes in the order of their numbers. Left out: those of the file, the
            sub-folders in order, or the different texts of the target in order.
    """

    dataset: str | None = None
    seed: int = Field(0, ge=0)
    validation: int | None = Field(None, ge=1)
    test: int | None = Field(None, ge=1)
    root: Path | None = None
    file: Path | None = None
    test_file: Path | None = None
    inputs: list[str] = Field(default_factory=list)
    target: str | None = None
    layout: Literal["array", "named"] | None = None
    folder: Path | None = None
    test_folder: Path | None = None
    factory: str | None = None
    options: Options = Field(default_factory=dict)
    holdout: Exact | None = Field(None, gt=0, lt=1)
    classes: list[str] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> "DataSection":
        given = [name for name in ("dataset", "file", "folder", "factory") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("exactly one of dataset, file, folder and factory is expected")
        for name, source in _BELONGS.items():
            if getattr(self, name) not in (None, [], {}) and given != [source]:
                raise ValueError(f"{name} belongs to {source}, the data come from {given[0]}")
        if self.holdout is not None and self.dataset is not None:
            raise ValueError("holdout does not go with dataset, which has a test part; give its size as test")
        return self


#: Which source of data a key goes with.
_BELONGS = {
    "validation": "dataset", "test": "dataset", "root": "dataset", "test_file": "file", "inputs": "file",
    "target": "file", "layout": "file", "test_folder": "folder", "options": "factory",
}  # fmt: skip


#: Fewest sound shadows of a round: `fedpeer.evidence.fitting.MIN_SHADOWS`, which takes torch to import.
MIN_SHADOWS = 12


class EvidenceSection(Section):
    """How many shadow models are trained, and what limits them.

    Attributes:
        shadows: sound ones of the first round, at most; flawed ones and others come on top.
        later: of each round after it, which carries over those of the last three before it; left out: half as many, at
            least 12.
        trainings: no round trains more models than this, all kinds together.
        seconds: no round's evidence takes longer than this on the machine that opens the task, as its dry round finds.
        tricked: tricked shadow models for each sound one of a round, on top (`fedpeer.evidence.tricks`).
    """

    shadows: int = Field(100, ge=MIN_SHADOWS)
    later: int | None = Field(None, ge=MIN_SHADOWS)
    trainings: int | None = Field(None, ge=1)
    seconds: float | None = Field(None, gt=0)
    tricked: float = Field(0.0, ge=0, le=0.5)

    def counts(self) -> tuple[int, int]:
        """Sound shadows of the first round, and of each later one."""
        if self.later is not None:
            return self.shadows, min(self.shadows, self.later)
        from fedpeer.evidence.planning import later_shadows  # imports torch

        return self.shadows, later_shadows(self.shadows)

    def within(self, models: int, limit: str, least: Callable[[int], str]) -> "EvidenceSection":
        """The same with no more sound shadows than so many trained models allow.

        Args:
            limit: what allows so many, such as "evidence.trainings is 10"; least: what would have to be allowed for the
                fewest models that make evidence.

        Raises:
            MarketTaskError: too few for any evidence.
        """
        from fedpeer.evidence.planning import most_shadows, trainings  # imports torch

        most = [most_shadows(models, tricked=self.tricked, later=later) for later in (False, True)]
        if min(most) < MIN_SHADOWS:
            fewest = trainings(MIN_SHADOWS, tricked=self.tricked, later=True)
            raise MarketTaskError(
                f"{limit}, too little for {MIN_SHADOWS} sound shadow models, the fewest, and those beside them; "
                f"expected at least {least(fewest)}, or no limit"
            )
        shadows, later = (min(pair) for pair in zip(self.counts(), most, strict=True))
        return self.model_copy(update={"shadows": shadows, "later": min(shadows, later)})


class PlanSection(Section):
    """The expected participants and what a tighter bound is worth to the learner: they give the best Q.

    Attributes:
        participants: as in `mechanism.population`, a list of entries or one entry with a count.
        learner: omega, gamma, reward, as in `mechanism.population`; rounds are the schedule's.
        equilibrium: the one that Q must be best for where there are several: "least" degree, or "greatest".
    """

    participants: list[dict[str, Any]] | dict[str, Any]
    learner: dict[str, Any]
    equilibrium: Literal["least", "greatest"] = "least"


class CalibrationSection(Section):
    """What `fedpeer calibrate` measured, and of what (`coordinator.calibration`).

    Attributes:
        workload, recipe, data: digests of what it is of.
        phi, upsilon, kappa: the bound, with its conformal factor.
        shadows, pairs: models that were trained, and pairs that kappa is from.
        degree, costs, starts: what was wished and expected (`mechanism.proposal.Wishes`).
        sure_scale: payment.scale with which nobody is above `degree`, whatever population comes.
        reached: least and greatest degree that those who were expected end at, in any equilibrium.
    """

    workload: str
    recipe: str
    data: str
    phi: Exact
    upsilon: Exact
    kappa: Exact
    shadows: int
    pairs: int
    degree: Exact
    costs: tuple[Exact, Exact]
    starts: tuple[Exact, Exact]
    sure_scale: Exact
    reached: tuple[Exact, Exact]


class TaskConfig(Section):
    """A task file. Q, phi and upsilon are the paper's; amounts are in credits unless they end in _micro.

    Attributes:
        Q: a number, or "best": the learner's optimum for the population in `plan`.
        seed: makes the coordinator's part of the task reproducible: shadows, first model, nonces, its seeds of the
            draws. Leave it out in production, where these are to be secret.
        reference: p^(c); left out: the label distribution of D_c.
        budget_micro: left out: the most that the task can pay.
        initial_model: a safetensors file; left out: the workload's own initialisation.
        strata: what a stratum is; "label": each class of the target.
        funder: the learner from whose deposits the budget is reserved; left out: the operator's treasury.
        folder: where modules of factories are looked for; left out: the task file's own.
        audit: who re-trains; left out: nobody.
        auditor: the PEM of the public key of who may measure the ended task again; left out: of `audit`, or nobody.
        pseudonyms: whether participants take part under names and keys that are made for this task alone.
        leaderboard: whether the console shows everybody what was paid, under pseudonyms.
    """

    id: str
    Q: Coefficient
    phi: Exact
    upsilon: Exact
    seed: int | None = None
    reference: list[Probability] | None = None
    budget_micro: int | None = None
    initial_model: Path | None = None
    strata: StrataChoice = None
    funder: str = ""
    auditor: Path | None = None
    pseudonyms: bool = False
    folder: Path | None = None
    leaderboard: bool = False
    price: PriceSection | None = None
    payment: PaymentSection = PaymentSection()
    rule: RuleSection = RuleSection()
    schedule: ScheduleSection
    recipe: RecipeSection
    contract: ContractSection = ContractSection()
    aggregation: AggregationSection = AggregationSection()
    data: DataSection | None = None
    evidence: EvidenceSection = EvidenceSection()
    audit: AuditSection | None = None
    plan: PlanSection | None = None
    calibration: CalibrationSection | None = None


def read_config(path: Path, kind: type[ConfigModel]) -> ConfigModel:
    """The configuration that `path` holds.

    Raises:
        ConfigError: unreadable, no TOML, an unknown or missing key, or a value of the wrong type or range.
    """
    try:
        return validated_config(read_toml(path), kind, path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except TextFileError as error:
        raise ConfigError(f"{path} cannot be used: {error}") from None


def parse_config(text: str, kind: type[ConfigModel], path: Path) -> ConfigModel:
    """The configuration that `text` is, of the file at `path`. Raises ConfigError as above."""
    try:
        return validated_config(parse_toml(text), kind, path)
    except TextFileError as error:
        raise ConfigError(f"{path} cannot be used: {error}") from None


def validated_config(document: dict[str, Any], kind: type[ConfigModel], path: Path) -> ConfigModel:
    """The configuration that the parsed `document` is; `path` is what errors call it. Raises ConfigError as above."""
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise ConfigError(violations(error, kind, path)) from None


def config_text(config: BaseModel) -> str:
    """What `parse_config` reads as `config`: the keys that it was given."""
    import tomlkit  # it takes its time, which few commands need

    return tomlkit.dumps(config.model_dump(mode="json", exclude_unset=True))


def resolve_paths(config: TaskConfig, folder: Path) -> TaskConfig:
    """`config` with its relative paths taken from `folder`, which is its own where it names none."""
    folder = folder.absolute()
    return _resolved(config.model_copy(update={"folder": config.folder or folder}), folder)


def _resolved(section: ConfigModel, folder: Path) -> ConfigModel:
    changes: dict[str, Any] = {}
    for name, value in section:
        if isinstance(value, Path):
            changes[name] = folder / value
        elif isinstance(value, Section):
            changes[name] = _resolved(value, folder)
    return section.model_copy(update=changes)
