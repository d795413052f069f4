"""A task's report: one file, with the ledger's integers and the verifier's word."""

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedpeer.__main__ import main
from fedpeer.testing import LocalMarket


class Addresses(HTMLParser):
    """Everything that a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href")]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fedpeer", "report", *arguments])
    try:
        return main()
    except SystemExit as ended:
        return int(str(ended.code or 0))


def test_the_report_is_whole_and_has_the_ledgers_integers(
    market: LocalMarket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, out = str(market.coordinator.folder.path), tmp_path / "report.html"
    assert run(monkeypatch, "task", "--state", state, "--out", str(out)) == 0
    text = out.read_text()
    found = Addresses()
    found.feed(text)
    assert [address for address in found.found if not address.startswith("/ledger/")] == []
    assert "url(" not in text.replace("url(#tip)", "")
    assert "<script" not in text
    paid = re.findall(r'data-label="paid"[^>]*><span><data class="money" value="(\d+)"', text)
    assert [int(micro) for micro in paid] == list(market.paid_micro.values())
    expected = re.findall(r'data-label="expected"[^>]*><span><data class="money" value="(\d+)"', text)
    assert [int(micro) for micro in expected] == list(market.expected_micro.values())
    assert "ledger verified" in text
    assert market.verify().root in text


def test_its_record_is_printed_as_json(
    market: LocalMarket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "task", "--state", str(market.coordinator.folder.path), "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["ledger"]["verified"] is True
    assert record["paid_micro"] == sum(market.paid_micro.values())


def test_the_only_task_of_a_folder_needs_no_name(
    market: LocalMarket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # a demo's folder has its coordinator's below it, as this market's has
    assert run(monkeypatch, str(market.folder)) == 0
    assert (tmp_path / "task.html").is_file()


def test_a_task_that_is_not_there_is_a_sentence(
    market: LocalMarket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "none", "--state", str(market.coordinator.folder.path)) == 2
    assert "There is no task none. Known: task" in capsys.readouterr().err
