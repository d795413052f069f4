"""A headless Chromium, and a market to look at."""

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from fedpeer.console.sessions import Role
from fedpeer.protocol.console_link import sign_in_token
from fedpeer.testing import LocalMarket
from participant import Task, Trained, TrainingRound, Weights
from participant.identity import IdentityFolder
from tests.fedpeer.console.visiting import Visited

#: Where Debian puts them; elsewhere on the path.
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

#: Of Debian's libnss3-tools: what fills the store of certificates that Chromium has.
CERTUTIL, PK12UTIL = shutil.which("certutil"), shutil.which("pk12util")

#: Seconds in which a page must come, on a machine that is busy.
PATIENCE = 60

#: A market whose rounds wait for `Held.go`.
TERMS: dict[str, Any] = {
    "leaderboard": True,
    "funder": "trust",
    "price": {"credit": "0.75", "currency": "EUR"},
    "rule": {"name": "paper", "peers": 1, "stake_micro": 300_000},
}


class Held(Task):
    """Trains a step when it is let: says that a quarter is done, and when `half` is set that all of it is."""

    go, half = threading.Event(), threading.Event()

    def __init__(self, participant: int = 0) -> None:
        self._number = participant

    def start_weights(self) -> dict[str, Any]:
        return {"bias": np.zeros(4, np.float32), "weight": np.ones((4, 3), np.float32)}

    def label_counts(self) -> list[int]:
        return [25 + 9 * self._number, 25, 25, 25]

    def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002 - as Task.train
        round.progress(0.25)
        assert self.half.wait(10 * PATIENCE)
        round.progress(1)
        assert self.go.wait(10 * PATIENCE)
        return Trained({name: array + np.float32(0.01) for name, array in weights.items()})


def some_results(folder: Path) -> Path:
    """A folder of results, as `fedpeer arena --out` leaves one."""
    folder.mkdir()
    for end in ("png", "json"):
        shutil.copy(Path(__file__).resolve().parents[2] / f"docs/figures/arena-digits.{end}", folder)
    return folder


@contextmanager
def held_market(participants: int = 4, rounds: int = 2) -> Iterator[LocalMarket]:
    """A market that is in its first round and stays there until `Held.half` and `Held.go` are set."""
    Held.go.clear()
    Held.half.clear()
    try:
        with LocalMarket(Held, participants, rounds=rounds, terms=TERMS) as market:
            market.start()
            market.until("TRAINING")
            yield market
    finally:
        Held.half.set()
        Held.go.set()


def home_with(folder: Path, authority: Path, file: Path | None = None, password: str = "") -> Path:
    """A person's home whose Chromium trusts `authority`, and has imported the PKCS#12 file, as a person does both."""
    store = folder / ".pki/nssdb"
    store.mkdir(parents=True)
    database = f"sql:{store}"

    def run(*command: str | None) -> None:
        subprocess.run([part or "" for part in command], check=True, stdout=subprocess.DEVNULL)

    run(CERTUTIL, "-N", "-d", database, "--empty-password")
    run(CERTUTIL, "-A", "-d", database, "-n", "market", "-t", "C,,", "-i", str(authority))
    if file is not None:
        run(PK12UTIL, "-i", str(file), "-d", database, "-W", password)
    return folder


class Browser:
    """Chromium, and what a person does with it.

    Args:
        home: whose home it runs in, with its certificates; None: the process's own, and none.
        shows: an origin that it shows a certificate to without asking, as a person does who clicks on it.
    """

    def __init__(
        self,
        console: Visited | None = None,
        *,
        dark: bool = False,
        scripts: bool = True,
        home: Path | None = None,
        shows: str = "",
    ) -> None:
        options = Options()
        options.binary_location = CHROMIUM or ""
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
            options.add_argument(argument)
        if dark:
            options.add_argument("--force-dark-mode")
            options.add_argument("--blink-settings=preferredColorScheme=0")
        settings: dict[str, Any] = {}
        if not scripts:
            settings["profile.managed_default_content_settings.javascript"] = 2
        if shows:
            settings["profile.content_settings.exceptions.auto_select_certificate"] = {
                f"{shows},*": {"setting": {"filters": [{}]}}
            }
        if settings:
            options.add_experimental_option("prefs", settings)
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        env = None if home is None else {**os.environ, "HOME": str(home)}
        self.driver = webdriver.Chrome(options, Service(DRIVER, env=env))
        self.driver.set_page_load_timeout(PATIENCE)
        self.driver.set_script_timeout(5 * PATIENCE)
        self._console = console

    @property
    def console(self) -> Visited:
        assert self._console is not None
        return self._console

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.driver.quit()

    def open(self, path: str) -> None:
        self.driver.get(f"{self.console.url}{path}")

    def sign_in(self, role: Role, name: str = "") -> None:
        """By a link, as a person does."""
        self._sign_in(self.console.link(role, name))

    def sign_in_as(self, market: LocalMarket, name: str) -> None:
        key = IdentityFolder(market.folder / name).credentials().key
        self._sign_in(sign_in_token(name, key, self.console.host, self.console.clock.now()))

    def _sign_in(self, token: str) -> None:
        self.open(f"/sign-in/?token={token}")
        self.click("main button")
        self.until(lambda: "/sign-in/" not in self.driver.current_url)

    def click(self, selector: str) -> None:
        self.driver.find_element(By.CSS_SELECTOR, selector).click()

    def press(self, link: str) -> None:
        """Enter on a link; again where the page was just fetched anew and it stood in the old one."""

        def pressed() -> bool:
            self.driver.find_element(By.PARTIAL_LINK_TEXT, link).send_keys(Keys.ENTER)
            return True

        self.until(pressed)

    def text(self, selector: str = "main") -> str:
        return self.driver.find_element(By.CSS_SELECTOR, selector).text

    def values(self, selector: str) -> list[str]:
        """The exact values behind amounts."""
        found = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return [element.get_attribute("value") or "" for element in found]

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, found: Callable[[], Any], patience: float = PATIENCE) -> Any:
        return WebDriverWait(self.driver, patience, ignored_exceptions=(Exception,)).until(lambda _: found())

    def resize(self, width: int, height: int = 900) -> None:
        """The page's own width: a window has frames, and a least width."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
