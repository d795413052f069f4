"""From a learner's deposit to a participant's bank account: a real market, its commands, both verifiers."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import coordinator.cli as operator_cli
import participant.cli as participant_cli
from coordinator.errors import PayoutError
from tests.coordinator.test_payouts import IBANS
from tests.integration.market import verified
from tests.integration.serving import served
from tests.integration.test_participant import NAMES, all_run

TASK = {"funder": "trust", "price": {"credit": "0.75", "currency": "EUR"}, "schedule": {"rounds": 1}}


def test_a_learners_deposit_becomes_a_participants_money(tmp_path: Path) -> None:
    with served(tmp_path / "coordinator") as market:

        def operate(*words: str) -> dict[str, object]:
            done = CliRunner().invoke(
                operator_cli.app,
                [*words, "--json", "--state", str(market.folder.path)],
                catch_exceptions=False,
            )
            assert done.exit_code == 0, done.output
            found: dict[str, object] = json.loads(done.stdout)
            return found

        def earnings(name: str) -> dict[str, int]:
            words = ["earnings", "--ask", "--json", "--state", str(tmp_path / name)]
            done = CliRunner().invoke(participant_cli.app, words, catch_exceptions=False)
            assert done.exit_code == 0, done.output
            found: dict[str, int] = json.loads(done.stdout)
            return found

        with pytest.raises(PayoutError, match=r"trust has 0\.000000 credits on deposit"):
            market.open(**TASK)
        for amount in ("1e3", "0", "0.0000001", "many", "NaN", "1_000"):
            with pytest.raises(PayoutError, match="no number of credits; expected digits"):
                operate("deposit", "trust", amount, "--reference", "trf-0")
        with pytest.raises(PayoutError, match="too many for one entry; expected at most"):
            operate("deposit", "trust", "9" * 16, "--reference", "trf-0")
        assert operate("deposit", "trust", "1000", "--reference", "trf-1")["new"]
        assert not operate("deposit", "trust", "1000.0", "--reference", "trf-1")["new"]
        market.open(**TASK)
        people = {name: market.participant(name, tmp_path) for name in NAMES}
        reports = all_run(people, effort=0.5)
        for one in people.values():
            one.close()
        paid = reports["ada"].paid_micro
        for name, iban in zip(NAMES, IBANS, strict=False):
            operate("payout", "account", name, "--holder", f"Clinic {name}", "--iban", iban)
        owed = earnings("ada")
        assert (owed["payable_micro"], owed["pending_micro"], owed["paid_out_micro"]) == (paid, 0, 0)
        first, again = operate("payout"), operate("payout")
        assert (first.pop("new"), again.pop("new")) == (True, False)
        assert {**first, "service": ""} == {**again, "service": ""}
        assert first["service"] == "confirmed"
        micro = paid * 75 // 10**6 * 10**6 / 75
        owed = earnings("ada")
        assert owed["pending_micro"] == int(micro) + (micro != int(micro))
        assert owed["payable_micro"] == paid - owed["pending_micro"]
        operate("payout", "confirm", "1")
        assert earnings("ada")["paid_out_micro"] == owed["pending_micro"]
        operate("payout", "return", "1", "ada", "--reason", "account closed")
        after = earnings("ada")
        assert (after["payable_micro"], after["paid_out_micro"]) == (paid, 0)
        [told] = operate("learners", "trust")["learners"]  # type: ignore[misc]
        spent = sum(task["spent_micro"] for task in told["tasks"])
        assert told["free_micro"] == 1000 * 10**6 - spent
        assert spent - sum(report.paid_micro for report in reports.values()) in (0, 1)
        verified(market.folder)
    text = b"".join(path.read_bytes() for path in (tmp_path / "coordinator" / "payouts").iterdir())
    assert IBANS[0].encode() in text
    assert (tmp_path / "coordinator" / "payouts").stat().st_mode & 0o777 == 0o700
