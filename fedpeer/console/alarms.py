"""The alarms of docs/operations.md: each as a rule of Prometheus, and as it stands now.

`monitoring/alerts.yml` is made from this table: python -m fedpeer.console.alarms > monitoring/alerts.yml

The console asks the service for its metrics and says which alarms stand. What only a history shows (a jump, a figure
above its usual) is for Prometheus alone.
"""

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from fedpeer.protocol.limits import AUTHORITY_WARNING, SERVER_CERTIFICATE_WARNING


@dataclass(frozen=True)
class Sample:
    """One figure that the service exports."""

    name: str
    labels: Mapping[str, str]
    value: float

    @property
    def about(self) -> str:
        """Whom it is about: "task digits-1"."""
        return ", ".join(f"{name} {value}" for name, value in self.labels.items())


#: From the samples and the present time to a sentence for each thing that is wrong.
Find = Callable[[Sequence[Sample], float], list[str]]


@dataclass(frozen=True)
class AlarmRule:
    """One alarm.

    Attributes:
        expr: the rule, PromQL.
        lasting: for how long it must hold, as Prometheus writes it.
        grave: whether somebody should be woken.
        meaning: what it is, and what to do.
        find: what is wrong now; None where only a history shows it.
    """

    name: str
    expr: str
    lasting: str
    grave: bool
    meaning: str
    find: Find | None


def read_samples(text: str) -> list[Sample]:
    """The figures of a page for Prometheus.

    Raises:
        ValueError: it is none.
    """
    families = text_string_to_metric_families(text)
    return [Sample(s.name, s.labels, s.value) for family in families for s in family.samples]


def standing(samples: Sequence[Sample] | None, now: float) -> list[dict[str, Any]]:
    """Each alarm with its state: "quiet", "raised" with sentences, "history" or, without samples, "unknown".

    Args:
        samples: None where the service could not be asked.
        now: seconds since the epoch.
    """
    found = []
    for alarm in ALARMS:
        wrong = alarm.find(samples, now) if samples is not None and alarm.find is not None else []
        if alarm.find is None:
            state = "history"
        elif samples is None:
            state = "unknown"
        else:
            state = "raised" if wrong else "quiet"
        found.append(
            {
                "name": alarm.name,
                "words": re.sub("(?<=[a-z])(?=[A-Z])", " ", alarm.name).capitalize(),
                "state": state,
                "grave": alarm.grave,
                "found": wrong,
                "meaning": alarm.meaning,
                "rule": alarm.expr,
                "lasting": alarm.lasting,
            }
        )
    return found


def _of(samples: Iterable[Sample], name: str, **labels: str) -> list[Sample]:
    return [s for s in samples if s.name == name and labels.items() <= s.labels.items()]


def _set(name: str, **labels: str) -> Find:
    """Gauges that are above 0."""
    return lambda samples, now: [s.about for s in _of(samples, name, **labels) if s.value > 0]


def _counted(name: str, **labels: str) -> Find:
    """Counters that have ever counted since the service started."""
    return lambda samples, now: [
        f"{s.about}: {s.value:.0f} since the service started"
        for s in _of(samples, name, **labels)
        if s.value > 0
    ]


def _nothing(samples: Sequence[Sample], now: float) -> list[str]:
    """What has samples at all is well."""
    return []


def _overdue(samples: Sequence[Sample], now: float) -> list[str]:
    late = _of(samples, "fedpeer_task_deadline_seconds")
    return [f"{s.about}: over for {now - s.value:.0f} s" for s in late if now - s.value > 60]


def _absent(samples: Sequence[Sample], now: float) -> list[str]:
    found = []
    for gone in _of(samples, "fedpeer_task_participants", standing="absent"):
        task = gone.labels["task"]
        [selected] = _of(samples, "fedpeer_task_participants", standing="selected", task=task) or [gone]
        if 3 * gone.value > selected.value and gone.value > 0:
            found.append(f"task {task}: {gone.value:.0f} of {selected.value:.0f}")
    return found


#: Seconds before its end at which a certificate is to be replaced.
_NOTICE = {
    "server": SERVER_CERTIFICATE_WARNING.total_seconds(),
    "authority": AUTHORITY_WARNING.total_seconds(),
    "old_authority": 0.0,
}


def _expiring(samples: Sequence[Sample], now: float) -> list[str]:
    found = []
    for each in _of(samples, "fedpeer_certificate_expiry_seconds"):
        if each.value - now < _NOTICE[each.labels["certificate"]]:
            found.append(f"{each.about}: {(each.value - now) / 86_400:.0f} days")
    return found


def quantile(samples: Sequence[Sample], name: str, q: float) -> float:
    """The q-quantile of a histogram since the service started, from its buckets as Prometheus does; NaN without any."""
    buckets = sorted((float(s.labels["le"]), s.value) for s in _of(samples, f"{name}_bucket"))
    if not buckets or not buckets[-1][1]:
        return math.nan
    rank, low, before = q * buckets[-1][1], 0.0, 0.0
    for high, count in buckets:
        if count >= rank:
            return low if math.isinf(high) else low + (high - low) * (rank - before) / (count - before)
        low, before = high, count
    return low


def _slow(samples: Sequence[Sample], now: float) -> list[str]:
    p99 = quantile(samples, "fedpeer_transaction_seconds", 0.99)
    return [f"99 % within {p99:.2f} s since the service started"] if p99 > 1 else []


def _refused(reason: str) -> str:
    return f'increase(fedpeer_refusals_total{{reason="{reason}"}}[15m]) > 0'


def _jump(reason: str) -> str:
    refusals = f'fedpeer_refusals_total{{reason=~"{reason}"}}'
    return (
        f"sum(rate({refusals}[15m])) > 4 * sum(rate({refusals}[1d])) and sum(increase({refusals}[15m])) > 20"
    )


def _p99(name: str, span: str, by: str = "le", only: str = "") -> str:
    return f"histogram_quantile(0.99, sum by ({by}) (rate({name}_bucket{only}[{span}])))"


#: Calls that last for as long as their caller likes are left out.
_CALLS = '{method!~".*(Watch|Model)"}'

ALARMS = (
    AlarmRule(
        "CoordinatorDown",
        'up{job="fedpeer"} == 0',
        "5m",
        True,
        "Nobody answers on the metrics' port: start it.",
        _nothing,
    ),
    AlarmRule(
        "TaskStalled",
        "fedpeer_task_stalled == 1",
        "5m",
        True,
        "A step fails and is tried again: disk full, data moved, database gone. Remove the cause; status says it.",
        _set("fedpeer_task_stalled"),
    ),
    AlarmRule(
        "PhaseOverdue",
        "time() - fedpeer_task_deadline_seconds > 60",
        "1m",
        True,
        "A phase is over and its runner does not close it. Look in the log.",
        _overdue,
    ),
    AlarmRule(
        "DutyFailing",
        "fedpeer_duty_failing == 1",
        "5m",
        True,
        "Background work ends again and again; status says why.",
        _set("fedpeer_duty_failing"),
    ),
    AlarmRule(
        "DutyRestarted",
        "increase(fedpeer_duty_restarts_total[1h]) > 0",
        "0m",
        False,
        "Background work ended unplanned and began again. Report it unless it was a disk or a database.",
        _counted("fedpeer_duty_restarts_total"),
    ),
    AlarmRule(
        "WorkersMissing",
        "fedpeer_workers_missing == 1",
        "5m",
        False,
        "A round waits for workers elsewhere, then goes on without them; status says what is missing.",
        _set("fedpeer_workers_missing"),
    ),
    AlarmRule(
        "ParticipantsAbsent",
        'fedpeer_task_participants{standing="absent"} > ignoring(standing) '
        'fedpeer_task_participants{standing="selected"} / 3',
        "5m",
        False,
        "More than a third of the selected are silent: their network or yours.",
        _absent,
    ),
    AlarmRule(
        "InternalFault",
        _refused("INTERNAL"),
        "0m",
        True,
        "A fault of the coordinator; the log has the request id.",
        _counted("fedpeer_refusals_total", reason="INTERNAL"),
    ),
    AlarmRule(
        "StorageFull",
        _refused("STORAGE_FULL"),
        "0m",
        True,
        "Make space; participants try again by themselves.",
        _counted("fedpeer_refusals_total", reason="STORAGE_FULL"),
    ),
    AlarmRule(
        "StorageUnavailable",
        _refused("STORAGE_UNAVAILABLE"),
        "0m",
        True,
        "A disk or a database could not be read or written. Where it goes on, look at the disk.",
        _counted("fedpeer_refusals_total", reason="STORAGE_UNAVAILABLE"),
    ),
    AlarmRule(
        "Overloaded",
        _refused("OVERLOADED"),
        "0m",
        False,
        "Too few open files, threads or memory: raise the limit that the log names.",
        _counted("fedpeer_refusals_total", reason="OVERLOADED"),
    ),
    AlarmRule(
        "CertificatesRefused",
        _jump("CERTIFICATE.*"),
        "0m",
        False,
        "Expired participants, or somebody tries.",
        None,
    ),
    AlarmRule(
        "SessionTakenOver",
        'increase(fedpeer_refusals_total{reason="SESSION_TAKEN_OVER"}[1h]) > 3',
        "0m",
        False,
        "Two processes run under one identity: its owner must stop one.",
        None,
    ),
    AlarmRule(
        "QuotaExceeded",
        _jump("QUOTA_EXCEEDED"),
        "0m",
        False,
        "A client in a loop, or slow links: raise concurrent_uploads.",
        None,
    ),
    AlarmRule(
        "CertificateExpiring",
        " or ".join(
            f'fedpeer_certificate_expiry_seconds{{certificate="{name}"}} - time() < {seconds:.0f}'
            for name, seconds in _NOTICE.items()
        ),
        "0m",
        False,
        "Renew or replace it: fedpeer coordinator certificate renew, authority rotate, authority end.",
        _expiring,
    ),
    AlarmRule(
        "TransactionsSlow",
        f"{_p99('fedpeer_transaction_seconds', '5m')} > 1",
        "10m",
        False,
        "A slow disk, or another program that writes for long.",
        _slow,
    ),
    AlarmRule(
        "CallsSlow",
        f"{_p99('fedpeer_rpc_seconds', '15m', 'le, method', _CALLS)} > 4 * "
        f"{_p99('fedpeer_rpc_seconds', '1d', 'le, method', _CALLS)} > 1",
        "15m",
        False,
        "Calls take longer than they did: the log and fedpeer_transaction_seconds say more.",
        None,
    ),
    AlarmRule(
        "NoticesWaiting",
        "fedpeer_notices_waiting > 0",
        "1h",
        False,
        "A receiver does not take its notices; status says why.",
        _set("fedpeer_notices_waiting"),
    ),
    AlarmRule(
        "NoticeGivenUp",
        'increase(fedpeer_notices_total{outcome="given_up"}[1h]) > 0',
        "0m",
        False,
        "A notice was refused, or nobody took it for three days; the log names it.",
        _counted("fedpeer_notices_total", outcome="given_up"),
    ),
)


def rules() -> str:
    """`monitoring/alerts.yml`."""
    lines = [
        "# Made by `python -m fedpeer.console.alarms`; docs/operations.md says what each means.",
        "groups:",
    ]
    lines += ["  - name: fedpeer", "    rules:"]
    for alarm in ALARMS:
        lines += [
            f"      - alert: {alarm.name}",
            f"        expr: {json.dumps(alarm.expr)}",
            f"        for: {alarm.lasting}",
            f"        labels: {{severity: {'page' if alarm.grave else 'ticket'}}}",
            f"        annotations: {{summary: {json.dumps(alarm.meaning)}}}",
        ]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.stdout.write(rules())
