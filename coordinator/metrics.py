"""What Prometheus scrapes. One registry for one coordinator, so that several can live in one process."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

#: Upper ends of the latency buckets, seconds: from a cached read to a slow upload.
_LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)


class Metrics:
    """The coordinator's instruments. docs/operations.md says what each alarm means."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.rpc_seconds = Histogram(
            "fedpeer_rpc_seconds",
            "Duration of calls by method and gRPC status.",
            ["method", "status"],
            buckets=_LATENCY,
            registry=registry,
        )
        self.refusals = Counter(
            "fedpeer_refusals_total",
            "Refused calls by method and reason.",
            ["method", "reason"],
            registry=registry,
        )
        self.received_bytes = Counter(
            "fedpeer_model_bytes_received_total", "Bytes of models received.", registry=registry
        )
        self.sent_bytes = Counter(
            "fedpeer_model_bytes_sent_total", "Bytes of models sent.", registry=registry
        )
        self.watchers = Gauge("fedpeer_watchers", "Open Watch streams.", registry=registry)
        self.uploads = Gauge("fedpeer_uploads", "Uploads in progress.", registry=registry)
        self.certificate_expiry = Gauge(
            "fedpeer_certificate_expiry_seconds",
            "When a certificate of the coordinator expires, seconds since the epoch: server, authority, old_authority.",
            ["certificate"],
            registry=registry,
        )
        self.participants = Gauge(
            "fedpeer_participants", "Enrolled participants by standing.", ["standing"], registry=registry
        )
        self.tasks = Gauge("fedpeer_tasks", "Tasks by state.", ["state"], registry=registry)
        self.task_round = Gauge("fedpeer_task_round", "Current round.", ["task"], registry=registry)
        self.phase_started = Gauge(
            "fedpeer_task_phase_start_seconds",
            "When the task's current phase began, seconds since the epoch.",
            ["task"],
            registry=registry,
        )
        self.task_participants = Gauge(
            "fedpeer_task_participants",
            "Participants of the current phase: claimed, selected, delivered, failed, absent.",
            ["task", "standing"],
            registry=registry,
        )
        self.stalled = Gauge(
            "fedpeer_task_stalled",
            "1 while a task's step fails and is tried again.",
            ["task"],
            registry=registry,
        )
        self.duty_restarts = Counter(
            "fedpeer_duty_restarts_total",
            "How often a background duty ended unplanned and began again.",
            ["duty"],
            registry=registry,
        )
        self.duties_failing = Gauge(
            "fedpeer_duty_failing",
            "1 while a duty has ended and done nothing since.",
            ["duty"],
            registry=registry,
        )
        self.paid = Counter("fedpeer_paid_micro_total", "Micro-credits paid.", ["task"], registry=registry)
        self.escrow = Gauge(
            "fedpeer_escrow_micro", "Micro-credits still reserved for a task.", ["task"], registry=registry
        )
        self.accuracy = Gauge(
            "fedpeer_model_accuracy", "Accuracy of the global model.", ["task"], registry=registry
        )
        self.ledger_size = Gauge("fedpeer_ledger_entries", "Entries of the ledger.", registry=registry)
        self.transaction_seconds = Histogram(
            "fedpeer_transaction_seconds",
            "Duration of database transactions, waiting included.",
            buckets=_LATENCY,
            registry=registry,
        )
        self.settlement_seconds = Histogram(
            "fedpeer_settlement_seconds",
            "From the close of a round to its settlement.",
            buckets=(0.1, 0.5, 1, 5, 15, 60, 300, 1800),
            registry=registry,
        )
