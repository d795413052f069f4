"""The console in a real browser: each role, a market that moves, forms, a phone, and those who do not see."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("selenium")
pytest.importorskip("axe_core_python")

from axe_core_python.selenium import Axe
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from coordinator.clock import SystemClock
from fedpeer.console.sessions import Role
from fedpeer.testing import LocalMarket
from tests.browser.browsing import CHROMIUM, DRIVER, TERMS, Browser, Held, held_market, some_results
from tests.fedpeer.console.providing import providing
from tests.fedpeer.console.visiting import Visited, visited
from tests.integration.serving import task_config

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER),
        reason="needs chromium and chromedriver: apt-get install chromium chromium-driver",
    ),
]

#: What a visitor of each kind begins with, and the pages of a market that was played.
PAGES = {
    "public": (
        "/",
        "/tasks/task/",
        "/tasks/task/leaderboard/",
        "/results/",
        "/ledger/",
        "/ledger/4/",
        "/ledger/receipt/",
        "/sign-in/",
        "/nowhere/",
    ),
    "participant": ("/participants/p1/", "/participants/p1/statement/", "/participants/p1/task/1/"),
    "learner": ("/learners/trust/", "/learners/trust/statement/"),
    "auditor": ("/audit/",),
    "operator": (
        "/operator/",
        "/operator/alarms/",
        "/operator/tasks/task/",
        "/operator/tasks/task/cancel/",
        "/operator/participants/",
        "/operator/open/",
        "/operator/payouts/",
        "/operator/payouts/1/",
        "/operator/learners/",
        "/operator/participants/p1/revoke/",
    ),
}


@pytest.fixture(scope="module")
def market() -> Iterator[LocalMarket]:
    with held_market() as played:
        Held.half.set()
        Held.go.set()
        played.finish()
        played.coordinator.operator(lambda o: o.set_bank_account("p1", "Clinic", "DE89370400440532013000"))
        played.coordinator.operator(lambda o: o.pay_out())
        yield played


@pytest.fixture(scope="module")
def console(market: LocalMarket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visited]:
    results = some_results(tmp_path_factory.mktemp("browser") / "results")
    with visited(market.coordinator.folder, market.coordinator.clock, results) as served:
        yield served


@pytest.fixture(params=PAGES)
def page(
    request: pytest.FixtureRequest, console: Visited, market: LocalMarket
) -> Iterator[tuple[Browser, str]]:
    with Browser(console) as opened:
        sign_in(opened, market, request.param)
        yield opened, request.param


def sign_in(opened: Browser, market: LocalMarket, kind: str) -> None:
    if kind == "participant":
        opened.sign_in_as(market, "p1")
    elif kind == "learner":
        opened.sign_in(Role.LEARNER, "trust")
    elif kind != "public":
        opened.sign_in(Role(kind))


def test_each_role_signs_in_by_a_link_and_sees_its_pages_on_a_phone_without_scrolling_sideways(
    page: tuple[Browser, str], console: Visited
) -> None:
    opened, kind = page
    for path in PAGES[kind]:
        opened.open(path)
        for width in (390, 1280):
            opened.resize(width)
            widest = opened.run("return document.documentElement.scrollWidth")
            assert widest <= width, (path, width, widest)
    asked = [
        message["params"]["request"]["url"]
        for line in opened.driver.get_log("performance")
        if (message := json.loads(line["message"])["message"])["method"] == "Network.requestWillBeSent"
    ]
    assert [url for url in asked if not url.startswith(("data:", "chrome:", console.url))] == []
    complaints = [
        line["message"] for line in opened.driver.get_log("browser") if "/nowhere/" not in line["message"]
    ]
    assert complaints == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_nothing_serious_keeps_anybody_from_reading(
    console: Visited, market: LocalMarket, dark: bool
) -> None:
    with Browser(console, dark=dark) as opened:
        assert opened.run("return matchMedia('(prefers-color-scheme: dark)').matches") is dark
        for kind, paths in PAGES.items():
            sign_in(opened, market, kind)
            for path in paths:
                opened.open(path)
                found: dict[str, Any] = Axe().run(opened.driver)
                serious = [
                    (v["id"], [node["html"] for node in v["nodes"]][:3])
                    for v in found["violations"]
                    if v["impact"] in ("serious", "critical")
                ]
                assert not serious, (path, serious)
            opened.driver.delete_all_cookies()


def test_a_payment_reads_as_the_same_integers_as_the_ledger(console: Visited, market: LocalMarket) -> None:
    with Browser(console) as opened:
        opened.sign_in_as(market, "p2")
        assert opened.driver.current_url.endswith("/participants/p2/")
        logged = [body for body in market.entries("payment") if body["participant_id"] == "p2"]
        paid = opened.values('td[data-label="paid"] data.money')
        assert [int(value) for value in reversed(paid)] == [body["paid_micro"] for body in logged]
        [payable] = opened.values("dd.big data.money")
        assert int(payable) == market.verify().balances["payable:p2"].holds
        opened.driver.find_element(By.PARTIAL_LINK_TEXT, "Why this amount").click()
        opened.until(lambda: "/task/2/" in opened.driver.current_url)
        assert int(opened.values("p.big data.money")[0]) == logged[-1]["paid_micro"]
        assert "the same amount" in opened.text()


def test_a_receipt_is_checked_by_dropping_its_file(console: Visited, tmp_path: Path) -> None:
    receipt = tmp_path / "entry-4.tlog-proof"
    receipt.write_text(console.public().get("/ledger/4/receipt").text)
    with Browser(console) as opened:
        opened.open("/ledger/receipt/")
        opened.driver.find_element(By.ID, "file").send_keys(str(receipt))
        opened.until(lambda: opened.values("#receipt") == [receipt.read_text()])
        opened.click("main button")
        opened.until(lambda: "It proves entry 4" in opened.text())
        # A drop, as the browser tells a page of it.
        opened.open("/ledger/receipt/")
        opened.run(
            "const files = new DataTransfer(); files.items.add(new File([arguments[0]], 'x.tlog-proof'));"
            "document.querySelector('[data-drop]').dispatchEvent("
            "new DragEvent('drop', {dataTransfer: files, bubbles: true, cancelable: true}));",
            receipt.read_text(),
        )
        opened.until(lambda: opened.values("#receipt") == [receipt.read_text()])


def test_a_provider_leads_back_to_a_session(market: LocalMarket) -> None:
    """Across sites: a strict cookie comes with a click of ours, not with what the provider leads to."""
    config = market.coordinator.folder.path / "coordinator.toml"
    before = config.read_text()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with providing("localhost") as provider:
        provider.claims = {"sub": "someone", "email": "op@example.org", "email_verified": True}
        config.write_text(
            f'{before}[oidc]\nissuer = "{provider.url}"\nclient_id = "fedpeer"\nclient_secret = "hush"\n'
            f'console = "http://127.0.0.1:{port}"\noperators = ["op@example.org"]\n'
        )
        try:
            with (
                visited(market.coordinator.folder, SystemClock(), port=port) as served,
                Browser(served) as opened,
            ):
                opened.open("/sign-in/")
                opened.driver.find_element(By.PARTIAL_LINK_TEXT, "Sign in through localhost").click()
                opened.until(lambda: "As the operator" in opened.text())
                opened.click("main a.button")
                opened.until(lambda: opened.driver.current_url.endswith("/operator/"))
                assert "The house" in opened.text()
        finally:
            config.write_text(before)


def test_pages_are_whole_without_scripts(console: Visited, market: LocalMarket) -> None:
    with Browser(console, scripts=False) as opened:
        opened.sign_in(Role.OPERATOR)
        opened.open("/operator/tasks/task/")
        assert opened.text("#live") == ""  # no script ran
        for words in ("CLOSED", "p4", "credits", "Rounds"):
            assert words in opened.text()
        opened.open("/audit/")
        opened.click("main button")
        opened.until(lambda: opened.open("/audit/") or "Everything holds." in opened.text())


def test_a_page_follows_the_market_without_being_loaded_again() -> None:
    with (
        held_market() as market,
        visited(market.coordinator.folder, market.coordinator.clock) as console,
        Browser(console) as opened,
    ):
        opened.sign_in(Role.OPERATOR)
        opened.open("/operator/tasks/task/")
        opened.until(lambda: opened.text("#live") == "follows the ledger")
        assert "TRAINING round 1 of 2" in opened.text()
        assert opened.text(".countdown").endswith("left")
        opened.run("window.stays = true; document.querySelector('main a').focus()")
        opened.until(lambda: opened.text().count("in training, 25%") == 4)
        assert opened.run("return document.activeElement.matches('main a')"), "the focus stays where it was"
        Held.half.set()
        opened.until(lambda: opened.text().count("trained; its model is on its way") == 4)
        Held.go.set()
        market.finish()
        opened.until(lambda: "CLOSED" in opened.text("main p"))
        assert opened.run("return window.stays") is True
        paid = {name: f"{micro}" for name, micro in market.paid_micro.items()}
        opened.until(
            lambda: opened.values('td[data-label="credits paid"] data.money')[:4] == list(paid.values())
        )


def test_the_operator_cancels_and_revokes_by_keyboard(console: Visited, market: LocalMarket) -> None:
    folder = market.folder
    market.coordinator.open(task_config(folder, "second", rule={"name": "paper"}, price=TERMS["price"]))
    with Browser(console) as opened:
        opened.sign_in(Role.OPERATOR)
        opened.open("/operator/tasks/second/")
        opened.press("Cancel this task")
        opened.until(lambda: "It cannot be undone" in opened.text())
        field = opened.driver.find_element(By.ID, "reason")
        field.clear()
        field.send_keys("no <b>budget</b>", Keys.TAB, Keys.ENTER)
        opened.until(lambda: "The coordinator that runs has taken notice." in opened.text())
        assert "no <b>budget</b>" in opened.text()
        last = [body for body in market.entries("transition") if body["task_id"] == "second"][-1]
        assert (last["state"], last["reason"]) == ("CANCELLED", "no <b>budget</b>")

        opened.open("/operator/participants/")
        opened.press("Revoke p4")
        opened.until(lambda: "Its certificates end at once" in opened.text())
        opened.click("button.grave")
        opened.until(lambda: "The coordinator that runs has taken notice." in opened.text())
        assert [body["participant_id"] for body in market.entries("revocation")] == ["p4"]


def test_a_running_demo_is_watched_to_its_end(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedpeer", "demo", "--watch", "--participants", "5", "--rounds", "2"]
    demo = subprocess.Popen(
        [*command, "--out", str(tmp_path / "demo")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert demo.stderr is not None
    try:
        link = next(line for line in demo.stderr if "/sign-in/?token=" in line).rpartition(" ")[2].strip()
        with Browser() as opened:
            opened.driver.get(link)
            opened.click("main button")
            # Found and followed at once: a refresh may come between.
            opened.until(lambda: opened.driver.find_element(By.PARTIAL_LINK_TEXT, "demo").click() or True)
            opened.until(lambda: "Who takes part" in opened.text())
            opened.run("window.stays = true")
            for words in (
                "TRAINING round 1 of 2",
                "SCORED",
                "TRAINING round 2 of 2",
                "Accuracy of the model",
            ):
                opened.until(lambda words=words: words in opened.text(), 300)
            assert opened.run("return window.stays") is True
        assert demo.wait(600) == 0
    finally:
        demo.terminate()  # it stops all that it has started
        demo.wait(60)
