"""Certificates that a real browser has imported sign in over real TLS, and are held against the market's authority."""

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

pytest.importorskip("selenium")

from selenium.webdriver.common.by import By

from coordinator.clock import SystemClock
from fedpeer.console.client_certificates import issue
from fedpeer.console.serving import ConsoleServer
from fedpeer.console.sessions import Role
from fedpeer.protocol.certificates import make_authority
from fedpeer.testing.coordinator import LocalCoordinator
from tests.browser.browsing import CERTUTIL, CHROMIUM, DRIVER, PK12UTIL, Browser, home_with
from tests.fedpeer.console.visiting import running

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER and CERTUTIL and PK12UTIL),
        reason="needs Chromium and its store: apt-get install chromium chromium-driver libnss3-tools",
    ),
]


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCoordinator]:
    with LocalCoordinator(tmp_path_factory.mktemp("tls") / "market", clock=SystemClock()) as coordinator:
        coordinator.enrol("ann", coordinator.folder.path.parent / "ann")
        yield coordinator


@pytest.fixture(scope="module")
def url(market: LocalCoordinator) -> Iterator[str]:
    server = ConsoleServer(market.folder, "0.0.0.0:0")
    with running(server):
        yield f"https://localhost:{server.url.rpartition(':')[2]}"


def signed_in(browser: Browser, url: str, called: str, home: str) -> None:
    browser.driver.get(f"{url}/sign-in/")
    assert f"Your browser has shown a certificate of {called}." in browser.text()
    browser.click("main button")
    browser.until(lambda: browser.driver.current_url == f"{url}{home}")


def test_an_operator_signs_in_by_a_certificate_that_it_has_imported(
    market: LocalCoordinator, url: str, tmp_path: Path
) -> None:
    password, mark = issue(market.folder, tmp_path / "operator.p12", Role.OPERATOR, 30)
    home = home_with(
        tmp_path / "home", market.folder.path / "authority.pem", tmp_path / "operator.p12", password
    )
    with Browser(home=home, shows=url) as opened:
        signed_in(opened, url, "the operator", "/operator/")
        assert "The house" in opened.text()
        opened.driver.get(f"{url}/operator/participants/")
        opened.driver.find_element(By.ID, "name").send_keys("bob")
        opened.click("main form button")
        opened.until(lambda: "Invitation of bob" in opened.text("h1"))  # its forms are taken over TLS
        (market.folder.console / "certificates" / mark).unlink()
        opened.driver.get(f"{url}/operator/")
        assert "for those who have signed in" in opened.text()


def test_a_participant_signs_in_by_its_own_until_it_is_revoked(
    market: LocalCoordinator, url: str, tmp_path: Path
) -> None:
    state, file = market.folder.path.parent / "ann", tmp_path / "me.p12"
    # As docs/console.md has it.
    command = [
        "openssl",
        "pkcs12",
        "-export",
        "-in",
        "certificate.pem",
        "-inkey",
        "key.pem",
        "-out",
        str(file),
    ]
    subprocess.run([*command, "-passout", "pass:secret"], cwd=state, check=True)
    home = home_with(tmp_path / "home", market.folder.path / "authority.pem", file, "secret")
    with Browser(home=home, shows=url) as opened:
        signed_in(opened, url, "the participant ann", "/participants/ann/")
        assert "No round is settled yet." in opened.text()
        opened.driver.get(f"{url}/operator/")
        assert "you are the participant ann" in opened.text()
        market.operator(lambda operator: operator.revoke("ann", "test"))
        opened.driver.get(f"{url}/participants/ann/")
        assert "for those who have signed in" in opened.text()
        opened.driver.get(f"{url}/sign-in/")
        assert "has shown a certificate" not in opened.text()


def test_a_browser_without_one_is_taken_and_one_that_does_not_know_the_market_refuses_it(
    market: LocalCoordinator, url: str, tmp_path: Path
) -> None:
    with Browser(home=home_with(tmp_path / "home", market.folder.path / "authority.pem")) as opened:
        opened.driver.get(f"{url}/sign-in/")
        assert "has shown a certificate" not in opened.text()
        assert "A link signs you in" in opened.text()
    other = tmp_path / "other.pem"
    other.write_bytes(make_authority("other", datetime.now(UTC)).certificate_pem)
    with Browser(home=home_with(tmp_path / "stranger", other)) as opened:
        opened.driver.get(f"{url}/sign-in/")
        assert "ERR_CERT_AUTHORITY_INVALID" in opened.text("body")
