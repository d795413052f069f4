"""Pictures of the console's pages, on a phone and on a screen: python -m tests.browser.screenshots FOLDER [PAGE ...]"""

import base64
import io
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from selenium.webdriver.common.by import By

from fedpeer.console.report import page, task_report
from fedpeer.console.sessions import Role
from tests.browser.browsing import Browser, some_results
from tests.browser.pictured import ACCOUNTS, TASK_FILE, Scans, pictured_market
from tests.fedpeer.console.visiting import visited

#: Widths in pixels.
WIDTHS = (390, 1280)

_COLOURS = 40

#: Pages by what the picture is called: in the second round, and when the task has ended. The operator sees all of them.
RUNNING = {
    "operator": "/operator/",
    "operator-task": "/operator/tasks/digits-1/",
    "cancel": "/operator/tasks/digits-1/cancel/",
}
ENDED = {
    "tasks": "/",
    "task": "/tasks/digits-1/",
    "leaderboard": "/tasks/digits-1/leaderboard/",
    "results": "/results/",
    "ledger": "/ledger/",
    "entry": "/ledger/30/",
    "receipt": "/ledger/receipt/",
    "participant": "/participants/county/",
    "statement": "/participants/county/statement/",
    "why": "/participants/county/digits-1/3/",
    "why-refused": "/participants/riverside/digits-1/3/",
    "verify": "/audit/",
    "alarms": "/operator/alarms/",
    "operator-task-ended": "/operator/tasks/digits-1/",
    "participants": "/operator/participants/",
    "revoke": "/operator/participants/mercy/revoke/",
    "payouts": "/operator/payouts/",
    "payout": "/operator/payouts/1/",
    "learners": "/operator/learners/",
    "learner": "/learners/health-trust/",
    "learner-statement": "/learners/health-trust/statement/",
    "sign-in": "/sign-in/",
    "not-there": "/nowhere/",
}


def main(folder: Path, wanted: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (
        TemporaryDirectory() as scratch,
        pictured_market() as market,
        visited(
            market.coordinator.folder, market.coordinator.clock, some_results(Path(scratch) / "results")
        ) as console,
        Browser(console) as opened,
    ):

        def picture(name: str, path: str | None) -> None:
            if not wanted or name in wanted:
                _picture(folder, opened, name, path)

        def until(said: Callable[[], bool], patience: float = 600) -> None:
            opened.until(said, patience)

        opened.sign_in(Role.OPERATOR)
        opened.open(RUNNING["operator-task"])
        until(lambda: "in training, epoch" in opened.text() and "shadow models" in opened.text())
        for name, path in RUNNING.items():
            picture(name, path)
        opened.open("/operator/open/")
        picture("open", None)
        opened.run("document.getElementById('text').value = arguments[0]", TASK_FILE)
        opened.click("main form button")
        until(lambda: "If you open task" in opened.text())
        picture("open-offer", None)
        opened.click("main form button")
        until(lambda: "What everybody sees" in opened.text())
        opened.open("/operator/participants/")
        opened.driver.find_element(By.ID, "name").send_keys("harbour")
        opened.click("main form button")
        until(lambda: "Invitation of harbour" in opened.text("h1"))
        picture("invited", None)
        Scans.go.set()
        market.finish(1_200)
        for name, (holder, iban) in ACCOUNTS.items():
            market.coordinator.operator(lambda o, n=name, h=holder, i=iban: o.set_bank_account(n, h, i))  # type: ignore[misc]
        market.coordinator.operator(lambda o: o.pay_out())
        opened.open("/audit/")
        opened.click("main button")
        until(lambda: opened.open("/audit/") or "Everything holds." in opened.text())
        for name, path in ENDED.items():
            picture(name, path)
        report = Path(scratch) / "report.html"
        report.write_text(page(task_report(market.coordinator.folder, "digits-1")))
        opened.driver.get(report.as_uri())
        picture("report", None)


def _picture(folder: Path, opened: Browser, name: str, path: str | None) -> None:
    """Of a page, or of the one that is open."""
    if path is not None:
        opened.open(path)
    for width in WIDTHS:
        opened.resize(width)
        taken = opened.driver.execute_cdp_cmd(
            "Page.captureScreenshot",
            {"format": "png", "captureBeyondViewport": True, "clip": _whole(opened, width)},
        )
        picture = Image.open(io.BytesIO(base64.b64decode(taken["data"]))).convert("RGB")
        # Text on a plain ground: few colours do, and a third of the bytes.
        picture.quantize(_COLOURS, dither=Image.Dither.NONE).save(
            folder / f"{name}-{width}.png", optimize=True
        )


def _whole(opened: Browser, width: int) -> dict[str, float]:
    """The page from its top, two screens at most."""
    high = opened.run("return document.documentElement.scrollHeight")
    return {"x": 0, "y": 0, "width": width, "height": min(high, 1600), "scale": 1}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
