"""The alarms, their rules for Prometheus and the dashboard: held against what the service exports, and promtool."""

import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from coordinator.metrics import Metrics
from fedpeer.console.alarms import ALARMS, quantile, read_samples, rules, standing
from fedpeer.protocol.errors import Code

ROOT = Path(__file__).resolve().parents[3]
RULES, DASHBOARD = ROOT / "monitoring" / "alerts.yml", ROOT / "monitoring" / "dashboard.json"
PROMTOOL = shutil.which("promtool")

#: Labels that Prometheus adds, and series that it makes by itself.
OF_PROMETHEUS = {"alertstate", "alertname", "job", "instance", "le"}


def exported() -> dict[str, set[str]]:
    """The labels of each series that the service exports, by its name."""
    found: dict[str, set[str]] = {}
    metrics = Metrics()
    for held in vars(metrics).values():
        for family in getattr(held, "describe", list)():
            name = f"{family.name}_total" if family.type == "counter" else family.name
            names = (
                [f"{name}{end}" for end in ("_bucket", "_count", "_sum")]
                if family.type == "histogram"
                else [name]
            )
            found |= {each: set(held._labelnames) for each in names}
    return found


def expressions() -> dict[str, str]:
    """Every expression of the rules and the dashboard, by where it stands."""
    dashboard = json.loads(DASHBOARD.read_text())
    panels = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in dashboard["panels"]
        for target in panel["targets"]
    }
    return panels | {alarm.name: alarm.expr for alarm in ALARMS}


def test_what_every_front_exports_is_one_line_of_the_dashboard() -> None:
    each = r"fedpeer_(watchers|uploads|tasks|participants|ledger_entries|certificate_expiry_\w+|model_bytes_\w+)\b"
    found = {place: expr for place, expr in expressions().items() if re.search(each, expr)}
    panels = {place: expr for place, expr in found.items() if place not in {alarm.name for alarm in ALARMS}}
    assert len(panels) == 8
    for place, expr in panels.items():
        assert re.search(r"(sum|min|max)( by \(\w+\))? ?\((rate\()?" + each, expr), place


def test_every_series_and_label_that_is_named_is_exported() -> None:
    there = exported()
    assert len(there) > 20
    for place, expr in expressions().items():
        named = set(re.findall(r"\bfedpeer_[a-z_]+", expr))
        assert named <= there.keys(), (place, named - there.keys())
        labels = {label for name in named for label in there[name]} | OF_PROMETHEUS
        used = set(re.findall(r"([a-z]+)(?:=~|!~|=|!=)\"", expr))
        for group in re.findall(r"(?:by|ignoring|on) \(([^)]*)\)|ignoring\(([^)]*)\)", expr):
            used |= {label.strip() for part in group for label in part.split(",") if label.strip()}
        assert used <= labels, (place, used - labels)


def test_the_dashboard_shows_every_metric_and_names_what_it_draws() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    text = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    families = {re.sub("_(bucket|count|sum)$", "", name) for name in exported()}
    assert {name for name in families if name not in text} == set()
    for panel in dashboard["panels"]:
        assert panel["title"], panel
        for target in panel["targets"]:
            legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            [family, *_] = re.findall(r"\bfedpeer_[a-z_]+", target["expr"]) or ["fedpeer_tasks"]
            assert legend <= exported()[family], panel["title"]


def test_the_rules_are_those_of_the_table_and_their_reasons_exist() -> None:
    assert RULES.read_text() == rules(), "python -m fedpeer.console.alarms > monitoring/alerts.yml"
    for pattern in re.findall(r'reason=~?\\?"([^"\\]+)', RULES.read_text()):
        assert any(re.fullmatch(pattern, code.name) for code in Code), pattern


def test_every_alarm_of_the_page_has_a_rule() -> None:
    page = (
        (ROOT / "docs" / "operations.md").read_text().split("## Metrics and alarms")[1].split("## Tracing")[0]
    )
    alarmed = {
        name
        for row in page.splitlines()
        if row.startswith("| `") and row.split("|")[2].strip()
        for name in re.findall(r"\bfedpeer_[a-z_]+", row.split("|")[1])
    }
    ruled = {
        re.sub("_bucket$", "", n) for alarm in ALARMS for n in re.findall(r"\bfedpeer_[a-z_]+", alarm.expr)
    }
    assert alarmed <= ruled
    assert ruled - alarmed == set()


needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="needs promtool: apt-get install prometheus")


@needs_promtool
def test_promtool_takes_the_rules() -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{len(ALARMS)} rules found" in done.stdout


@needs_promtool
def test_promtool_takes_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    rows = {f"n{n}": expr.replace("$task", ".*") for n, expr in enumerate(expressions().values())}
    recorded = [{"record": f"fedpeer:{name}", "expr": expr} for name, expr in rows.items()]
    text = json.dumps({"groups": [{"name": "all", "rules": recorded}]})
    (tmp_path / "all.yml").write_text(text)
    done = subprocess.run(
        [PROMTOOL, "check", "rules", tmp_path / "all.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


EXPIRY = 'fedpeer_certificate_expiry_seconds{{certificate="{}"}}'

#: Alarm, series by what they hold at each minute, and the minute at which it has been raised.
HISTORIES: list[tuple[str, dict[str, str], int, list[dict[str, str]]]] = [
    ("TaskStalled", {'fedpeer_task_stalled{task="a"}': "1+0x20"}, 6, [{"task": "a"}]),
    ("TaskStalled", {'fedpeer_task_stalled{task="a"}': "1 1 1 0+0x20"}, 6, []),
    ("PhaseOverdue", {'fedpeer_task_deadline_seconds{task="a"}': "120+0x20"}, 5, [{"task": "a"}]),
    ("PhaseOverdue", {'fedpeer_task_deadline_seconds{task="a"}': "900+0x20"}, 5, []),
    (
        "ParticipantsAbsent",
        {
            'fedpeer_task_participants{task="a",standing="absent"}': "2+0x20",
            'fedpeer_task_participants{task="a",standing="selected"}': "5+0x20",
        },
        9,
        [{"task": "a"}],
    ),
    (
        "InternalFault",
        {'fedpeer_refusals_total{method="Market/SubmitModel",reason="INTERNAL"}': "0 0 1+0x20"},
        5,
        [{"method": "Market/SubmitModel", "reason": "INTERNAL"}],
    ),
    (
        "QuotaExceeded",
        {'fedpeer_refusals_total{method="m",reason="QUOTA_EXCEEDED"}': "0+0x1400 0+9x20"},
        1415,
        [{}],
    ),
    ("CertificateExpiring", {EXPIRY.format("server"): "86400+0x20"}, 5, [{"certificate": "server"}]),
    ("CertificateExpiring", {EXPIRY.format("old_authority"): "86400+0x20"}, 5, []),
    (
        "TransactionsSlow",
        {
            'fedpeer_transaction_seconds_bucket{le="1"}': "0+0x30",
            'fedpeer_transaction_seconds_bucket{le="2.5"}': "0+9x30",
            'fedpeer_transaction_seconds_bucket{le="+Inf"}': "0+9x30",
        },
        25,
        [{}],
    ),
]  # fmt: skip


@needs_promtool
def test_the_rules_raise_what_they_should_by_prometheus_own_engine(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    by_name = {alarm.name: alarm for alarm in ALARMS}
    tests: list[dict[str, Any]] = []
    for name, series, minute, raised in HISTORIES:
        alarm = by_name[name]
        severity = {"severity": "page" if alarm.grave else "ticket"}
        expected = [
            {"exp_labels": {**labels, **severity}, "exp_annotations": {"summary": alarm.meaning}}
            for labels in raised
        ]
        tests.append(
            {
                "interval": "1m",
                "input_series": [{"series": key, "values": values} for key, values in series.items()],
                "alert_rule_test": [{"eval_time": f"{minute}m", "alertname": name, "exp_alerts": expected}],
            }
        )
    (tmp_path / "test.yml").write_text(json.dumps({"rule_files": [str(RULES)], "tests": tests}))
    done = subprocess.run(
        [PROMTOOL, "test", "rules", tmp_path / "test.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_console_finds_what_is_wrong_now() -> None:
    metrics, now = Metrics(), 1_000_000.0
    for name in ("server", "authority"):
        metrics.certificate_expiry.labels(name).set(now + 400 * 86_400)
    metrics.task_participants.labels("t", "absent").set(1)
    metrics.task_participants.labels("t", "selected").set(3)
    metrics.stalled.labels("t").set(0)
    metrics.transaction_seconds.observe(0.01)

    def states() -> dict[str, dict[str, Any]]:
        samples = read_samples(generate_latest(metrics.registry).decode())
        return {row["name"]: row for row in standing(samples, now)}

    assert {row["state"] for row in states().values()} == {"quiet", "history"}
    metrics.stalled.labels("t").set(1)
    metrics.task_deadline.labels("t").set(now - 61)
    metrics.task_participants.labels("t", "absent").set(2)
    metrics.certificate_expiry.labels("server").set(now + 29 * 86_400)
    metrics.refusals.labels("Market/SubmitModel", "INTERNAL").inc(2)
    metrics.notices_waiting.labels("ops").set(4)
    metrics.notices.labels("ops", "sent").inc()
    for _ in range(30):
        metrics.transaction_seconds.observe(2.0)
    raised = {name: row["found"] for name, row in states().items() if row["state"] == "raised"}
    assert raised == {
        "TaskStalled": ["task t"],
        "PhaseOverdue": ["task t: over for 61 s"],
        "ParticipantsAbsent": ["task t: 2 of 3"],
        "CertificateExpiring": ["certificate server: 29 days"],
        "InternalFault": ["method Market/SubmitModel, reason INTERNAL: 2 since the service started"],
        "NoticesWaiting": ["receiver ops"],
        "TransactionsSlow": ["99 % within 2.48 s since the service started"],
    }
    assert {row["state"] for row in standing(None, now)} == {"unknown", "history"}


def test_a_quantile_is_interpolated_within_its_bucket() -> None:
    text = 'h_bucket{le="1"} 10\nh_bucket{le="2"} 20\nh_bucket{le="+Inf"} 20\n'
    samples = read_samples(f"# TYPE h histogram\n{text}h_count 20\nh_sum 1\n")
    assert quantile(samples, "h", 0.5) == 1.0
    assert quantile(samples, "h", 0.75) == 1.5
    assert math.isnan(quantile(samples, "other", 0.5))
