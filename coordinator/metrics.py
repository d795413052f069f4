"""What Prometheus scrapes. One registry for one coordinator, so that several can live in one process."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

#: Upper ends of the latency buckets, seconds: from a cached read to a slow upload.
_LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)

#: Upper ends of the buckets of a round's settlement, seconds.
_SETTLEMENT = (0.1, 0.5, 1, 5, 15, 60, 300, 1800)


class Metrics:
    """The coordinator's instruments. docs/operations.md says what each alarm means."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)

        # Calls
        self.rpc_seconds = histogram(
            "fedpeer_rpc_seconds",
            "Duration of calls by method and gRPC status.",
            ["method", "status"],
            buckets=_LATENCY,
        )
        self.refusals = counter(
            "fedpeer_refusals_total", "Refused calls by method and reason.", ["method", "reason"]
        )
        self.received_bytes = counter("fedpeer_model_bytes_received_total", "Bytes of models received.")
        self.sent_bytes = counter("fedpeer_model_bytes_sent_total", "Bytes of models sent.")
        self.watchers = gauge("fedpeer_watchers", "Open Watch streams.")
        self.uploads = gauge("fedpeer_uploads", "Uploads in progress.")

        # Who takes part
        self.certificate_expiry = gauge(
            "fedpeer_certificate_expiry_seconds",
            "When a certificate of the coordinator expires, seconds since the epoch: server, authority, old_authority.",
            ["certificate"],
        )
        self.participants = gauge("fedpeer_participants", "Enrolled participants by standing.", ["standing"])

        # Tasks
        self.tasks = gauge("fedpeer_tasks", "Tasks by state.", ["state"])
        self.task_round = gauge("fedpeer_task_round", "Current round.", ["task"])
        self.phase_started = gauge(
            "fedpeer_task_phase_start_seconds",
            "When the task's current phase began, seconds since the epoch.",
            ["task"],
        )
        self.task_deadline = gauge(
            "fedpeer_task_deadline_seconds",
            "When the task's current phase ends, seconds since the epoch; absent where nothing ends it but arrivals.",
            ["task"],
        )
        self.task_participants = gauge(
            "fedpeer_task_participants",
            "Participants of the current phase: claimed, selected, delivered, failed, absent.",
            ["task", "standing"],
        )
        self.stalled = gauge(
            "fedpeer_task_stalled", "1 while a task's step fails and is tried again.", ["task"]
        )
        self.paid = counter("fedpeer_paid_micro_total", "Micro-credits paid.", ["task"])
        self.escrow = gauge("fedpeer_escrow_micro", "Micro-credits still reserved for a task.", ["task"])
        self.accuracy = gauge(
            "fedpeer_model_accuracy", "Accuracy of the global model, of a classifier.", ["task"]
        )
        self.loss = gauge("fedpeer_model_loss", "Mean loss of the global model.", ["task"])
        self.settlement_seconds = histogram(
            "fedpeer_settlement_seconds", "From the close of a round to its settlement.", buckets=_SETTLEMENT
        )

        # The service
        self.duty_restarts = counter(
            "fedpeer_duty_restarts_total",
            "How often a background duty ended unplanned and began again.",
            ["duty"],
        )
        self.duties_failing = gauge(
            "fedpeer_duty_failing", "1 while a duty has ended and done nothing since.", ["duty"]
        )
        self.worker_calls = gauge(
            "fedpeer_worker_calls", "Pieces of shadow training that are waited for from workers elsewhere."
        )
        self.workers_waited_for = gauge(
            "fedpeer_workers_missing", "1 while a round waits for workers elsewhere that do not answer."
        )
        self.notices = counter(
            "fedpeer_notices_total",
            "Attempts to send a notice by receiver and outcome: sent, failed, given_up.",
            ["receiver", "outcome"],
        )
        self.notices_waiting = gauge(
            "fedpeer_notices_waiting", "Notices that a receiver has not had yet.", ["receiver"]
        )
        self.ledger_size = gauge("fedpeer_ledger_entries", "Entries of the ledger.")
        self.transaction_seconds = histogram(
            "fedpeer_transaction_seconds",
            "Duration of database transactions, waiting included.",
            buckets=_LATENCY,
        )
