"""An auditor measures an ended task again on D_c: what was measured honestly is confirmed, what was not deviates."""

import json
import shutil
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from coordinator.config import TaskConfig
from coordinator.errors import MarketTaskError
from coordinator.scoring import RoundStart, Scored, ShadowModels
from fedpeer.cli.audit import app
from fedpeer.cli.errors import CommandError
from fedpeer.evidence.assessing import replay
from fedpeer.learning.datasets import load_splits
from fedpeer.protocol.audit_folder import AuditFolderError, BroughtRemeasurement, read_brought
from fedpeer.testing.coordinator import LocalCoordinator
from mechanism.ledger.note import SigningKey
from mechanism.statements import DEVIATES
from participant import Fixed, Participant
from participant.adapters.workload import WorkloadTask
from tests.integration.market import verified
from tests.integration.test_audits import drawn

pytestmark = [pytest.mark.long, pytest.mark.arithmetic, pytest.mark.timeout(900)]

NAMES = ("ann", "bob", "cyd")


def played(
    coordinator: LocalCoordinator, members: Mapping[str, Participant], tmp_path: Path, name: str
) -> None:
    """A task of two rounds from its opening to its end; D_c is a file of the operator's."""
    splits = load_splits("digits", seed=1)
    own = tmp_path / "operators.npz"
    np.savez(own, images=splits.validation.images, labels=splits.validation.labels, classes=10)
    config = TaskConfig.model_validate(
        {
            "id": name, "Q": "24", "phi": "8", "upsilon": "1.2", "auditor": str(tmp_path / "auditor.pub.pem"),
            "schedule": {"rounds": 2, "capacity": 3, "effort_seconds": 100_000, "round_seconds": 100_000},
            "recipe": {"model": "digits-cnn", "samples": 100, "epochs": 2, "batch_size": 32},
            "data": {"file": str(own)},
            "evidence": {"shadows": 14, "later": 12},
        }
    )  # fmt: skip
    coordinator.open(config)
    threads = []
    for number, (each, member) in enumerate(members.items()):
        skewed = [12, 12, 12, 1, 1, 1, 1, 1, 1, 1]
        data = drawn(splits.train, skewed if each == "cyd" else [1.0] * 10, number)
        task = WorkloadTask(data.images, data.labels)
        options = {"effort": Fixed(Decimal(0))}
        threads.append(threading.Thread(target=member.run, args=(task, name), kwargs=options, daemon=True))
        threads[-1].start()
    coordinator.until(name, "CLOSED", patience=400)
    for thread in threads:
        thread.join(60)


def audited(folder: Path, out: Path, key: Path, *more: object) -> Result:
    words = ["task", str(folder), "--key", str(key), "--out", str(out), "--json", *map(str, more)]
    return CliRunner().invoke(app, words)


@pytest.mark.extended
def test_what_was_measured_honestly_is_confirmed_and_what_was_not_deviates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CliRunner().invoke(app, ["key", str(tmp_path / "auditor")]).exit_code == 0
    key = tmp_path / "auditor.pem"
    with ExitStack() as resources:
        coordinator = resources.enter_context(LocalCoordinator(tmp_path / "state"))
        with pytest.raises(MarketTaskError, match="there is no task"):
            coordinator.operator(lambda o: o.order_task_audit("honest", tmp_path / "none"))
        members = {name: resources.enter_context(coordinator.participant(name, tmp_path)) for name in NAMES}
        played(coordinator, members, tmp_path, "honest")

        # Honestly measured.
        given = tmp_path / "given"
        coordinator.operator(lambda o: o.order_task_audit("honest", given))
        assert given.stat().st_mode & 0o777 == 0o700
        with pytest.raises(AuditFolderError, match="name a new folder"):
            coordinator.operator(lambda o: o.order_task_audit("honest", given))
        here = tmp_path / "auditors.npz"
        shutil.copyfile(tmp_path / "operators.npz", here)
        log_key = coordinator.operator(lambda o: str(o.verification_key))
        done = audited(given, tmp_path / "brought", key, "--data", here, "--log-key", log_key)
        assert done.exit_code == 0, (done.stdout, done.exception)
        said = json.loads(done.stdout)
        assert said["outcome"] == "confirmed"
        assert (said["rounds"], said["submissions"]) == (2, 6)
        assert (said["identical"], said["merged"], said["turned"], said["degree_micro"]) == (2, 2, 0, 0)
        refused = audited(given, tmp_path / "refused", key, "--data", here, "--tolerance", 1)
        assert refused.exit_code == 2
        assert "0.05" in refused.output
        brought = read_brought(tmp_path / "brought")
        assert isinstance(brought, BroughtRemeasurement)
        first = coordinator.operator(lambda o: o.record_remeasurement(brought))
        assert coordinator.operator(lambda o: o.record_remeasurement(brought)) == first
        [logged] = coordinator.entries("remeasurement")
        assert logged["outcome"] == "confirmed"
        verified(coordinator.folder)

        # What cannot be right is refused before anything is trained.
        assert CliRunner().invoke(app, ["key", str(tmp_path / "other")]).exit_code == 0
        another = tmp_path / "another.npz"
        with np.load(here) as data:
            np.savez(another, **{**data, "labels": data["labels"][::-1]})
        elsewhere = SigningKey("test", 1, bytes(32)).verification_key
        for why, changed, words in (
            ("is not the key of the auditor", tmp_path / "other.pem", ("--data", here)),
            ("not those that its terms commit to", key, ("--data", another)),
            ("say with --data where it lies", key, ()),
            ("the trusted key is", key, ("--data", here, "--log-key", elsewhere)),
        ):
            refused = audited(given, tmp_path / "refused", changed, *words)
            assert isinstance(refused.exception, CommandError), (why, refused.exception)
            assert why in str(refused.exception), refused.exception
        kept = (given / "task.json").read_bytes()
        root = json.loads(kept)["root"].encode()
        (given / "task.json").write_bytes(kept.replace(root, root[::-1]))
        refused = audited(given, tmp_path / "refused", key, "--data", here)
        assert "is not the one that the terms" in str(refused.exception)
        for count, other in ((b'"shadows":14', b'"shadows":13'), (b'"later":12', b'"later":20')):
            assert kept.count(count) == 1
            (given / "task.json").write_bytes(kept.replace(count, other))
            refused = audited(given, tmp_path / "refused", key, "--data", here)
            assert "rests on" in str(refused.exception)
            assert "ask the operator for the folder again" in str(refused.exception)
        (given / "task.json").write_bytes(kept)
        [model, *_] = (given / "models").iterdir()
        model.write_bytes(b"another")
        refused = audited(given, tmp_path / "refused", key, "--data", here)
        assert "has the digest" in str(refused.exception)
        lines = (given / "openings.jsonl").read_bytes().splitlines()
        (given / "openings.jsonl").write_bytes(b"\n".join(lines[:-1]) + b"\n")
        refused = audited(given, tmp_path / "refused", key, "--data", here)
        assert "is not among the openings" in str(refused.exception)
        assert not (tmp_path / "refused").exists()
        forged = replace(brought, statement=replace(brought.statement, number=2))
        with pytest.raises(MarketTaskError, match="not signed by the auditor"):
            coordinator.operator(lambda o: o.record_remeasurement(forged))

        # Measured otherwise than the models are: the ledger verifies all the same, as an auditor too.
        honest = ShadowModels.score

        def lie(scorer: ShadowModels, start: RoundStart, submissions: Any) -> Scored:
            """Shows, and pays, the last participant as if it had sent the first one's model."""
            found = honest(scorer, start, submissions)
            record: Any = json.loads(json.dumps(found.evidence))
            first, *_, last = record["measurements"]
            last["features"] = first["features"]
            return Scored(replay(record), record)

        with monkeypatch.context() as lying:
            lying.setattr(ShadowModels, "score", lie)
            played(coordinator, members, tmp_path, "dishonest")
        coordinator.verify()
        given = tmp_path / "given too"
        coordinator.operator(lambda o: o.order_task_audit("dishonest", given))
        done = audited(
            given, tmp_path / "brought too", key, "--data", here, "--remark", "cyd is paid too much"
        )
        assert done.exit_code == 1
        said = json.loads(done.stdout)
        assert said["outcome"] == DEVIATES
        assert (said["identical"], said["merged"]) == (0, 2)
        assert said["degree_micro"] > 100_000
        found = read_brought(tmp_path / "brought too")
        assert isinstance(found, BroughtRemeasurement)
        coordinator.operator(lambda o: o.record_remeasurement(found))
        assert [body["outcome"] for body in coordinator.entries("remeasurement")] == ["confirmed", DEVIATES]
        verified(coordinator.folder)

        # Without what was erased nobody can.
        coordinator.operator(lambda o: o.revoke("cyd", "it wants to be forgotten"))
        coordinator.operator(lambda o: o.forget("cyd"))
        with pytest.raises(MarketTaskError, match=r"what dishonest/claim/cyd.* commits to is not among"):
            coordinator.operator(lambda o: o.order_task_audit("dishonest", tmp_path / "none"))
