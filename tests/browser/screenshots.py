"""Pictures of the console's pages, on a phone and on a screen: python -m tests.browser.screenshots FOLDER"""

import base64
import io
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from fedpeer.console.sessions import Role
from tests.browser.browsing import Browser, Held, held_market, some_results
from tests.fedpeer.console.visiting import visited

#: Widths in pixels.
WIDTHS = (390, 1280)

_COLOURS = 24

#: Pages by what the picture is called; the operator sees all of them.
PAGES = {
    "tasks": "/",
    "task": "/tasks/task/",
    "leaderboard": "/tasks/task/leaderboard/",
    "results": "/results/",
    "ledger": "/ledger/",
    "entry": "/ledger/30/",
    "receipt": "/ledger/receipt/",
    "participant": "/participants/p3/",
    "statement": "/participants/p3/statement/",
    "why": "/participants/p3/task/2/",
    "verify": "/audit/",
    "operator": "/operator/",
    "alarms": "/operator/alarms/",
    "operator-task": "/operator/tasks/task/",
    "cancel": "/operator/tasks/task/cancel/",
    "participants": "/operator/participants/",
    "open": "/operator/open/",
    "sign-in": "/sign-in/",
}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (
        TemporaryDirectory() as scratch,
        held_market(participants=6, rounds=4) as market,
        visited(
            market.coordinator.folder, market.coordinator.clock, some_results(Path(scratch) / "results")
        ) as console,
        Browser(console) as opened,
    ):
        opened.sign_in(Role.OPERATOR)
        _picture(folder, opened, "cancel", PAGES["cancel"])  # while it runs
        Held.go.set()
        market.finish()
        opened.open("/audit/")
        opened.click("main button")
        opened.until(lambda: opened.open("/audit/") or "Everything holds." in opened.text())
        for name, path in PAGES.items():
            if name != "cancel":
                _picture(folder, opened, name, path)


def _picture(folder: Path, opened: Browser, name: str, path: str) -> None:
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
    return {"x": 0, "y": 0, "width": width, "height": min(high, 1200), "scale": 1}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
