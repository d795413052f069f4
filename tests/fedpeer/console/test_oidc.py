"""Signing in through a provider of OpenID Connect, a real one on this machine, and through one that lies."""

import time
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
from joserfc.jwk import ECKey, OctKey, RSAKey

from coordinator.clock import ManualClock
from fedpeer.testing import LocalMarket
from tests.fedpeer.console.providing import Provider, providing
from tests.fedpeer.console.visiting import Visited, visited

CONSOLE = "http://console.example.org"


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with providing() as made:
        yield made


@pytest.fixture
def honest(provider: Provider) -> Provider:
    provider.claims, provider.forging = {}, None
    return provider


@pytest.fixture(scope="module")
def served(market: LocalMarket, provider: Provider) -> Iterator[Visited]:
    config = market.coordinator.folder.path / "coordinator.toml"
    before = config.read_text()
    config.write_text(
        f'{before}[oidc]\nissuer = "{provider.url}"\nclient_id = "fedpeer"\nclient_secret = "hush"\n'
        f'console = "{CONSOLE}"\noperators = ["op@example.org"]\nauditors = ["sub-of-auditor"]\n'
        '[oidc.participants]\n"carol@example.org" = "p1"\n"gone@example.org" = "nobody"\n'
        '[oidc.learners]\n"dan@example.org" = "trust"\n'
    )
    try:
        with visited(market.coordinator.folder, ManualClock(time.time())) as console:
            yield console
    finally:
        config.write_text(before)


class Person:
    """A browser that goes where it is sent, with its cookies."""

    def __init__(self, served: Visited, provider: Provider) -> None:
        self._served, self._provider = served, provider
        self.cookies: dict[str, str] = {}

    def get(self, path: str) -> tuple[int, str, str]:
        """Status, where it is sent on to, and the page."""
        connection = HTTPConnection(self._served.host, timeout=60)
        sent = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        connection.request("GET", path, headers={"Cookie": sent})
        answer = connection.getresponse()
        for made in answer.headers.get_all("set-cookie") or ():
            name, _, value = made.partition(";")[0].partition("=")
            self.cookies[name] = value.strip('"')
            assert "HttpOnly" in made
        return answer.status, answer.headers.get("location", ""), answer.read().decode()

    def sent_back(self) -> str:
        """Signs in at the provider; the path on the console that the provider leads back to."""
        status, there, _ = self.get("/sign-in/oidc")
        assert status == 303
        assert there.startswith(f"{self._provider.url}/authorize?")
        connection = HTTPConnection(urlsplit(there).netloc, timeout=60)
        connection.request("GET", there)
        back = connection.getresponse().headers["location"]
        assert back.startswith(f"{CONSOLE}/sign-in/oidc/return?")
        return back.removeprefix(CONSOLE)

    def signs_in(self) -> tuple[int, str]:
        status, _, page = self.get(self.sent_back())
        return status, page


@pytest.mark.parametrize(
    ("claims", "who", "home"),
    [
        ({"sub": "1", "email": "Op@example.org", "email_verified": True}, "the operator", "/operator/"),
        ({"sub": "sub-of-auditor"}, "an auditor", "/audit/"),
        (
            {"sub": "2", "email": "carol@example.org", "email_verified": True},
            "the participant p1",
            "/participants/p1/",
        ),
        (
            {"sub": "3", "email": "dan@example.org", "email_verified": True},
            "the learner trust",
            "/learners/trust/",
        ),
    ],
)
def test_a_provider_signs_in_whom_the_configuration_names(
    served: Visited, honest: Provider, claims: dict[str, Any], who: str, home: str
) -> None:
    person = Person(served, honest)
    assert "Sign in through 127.0.0.1" in person.get("/sign-in/")[2]
    honest.claims = claims
    status, page = person.signs_in()
    assert (status, f"As {who}," in page, f'href="{home}"' in page) == (200, True, True)
    assert person.get(home)[0] == 200
    others = {"/operator/", "/audit/", "/participants/p2/", "/learners/else/"} - {home}
    if who != "the operator":
        assert {person.get(path)[0] for path in others} == {403}


OPERATOR = {"sub": "1", "email": "op@example.org", "email_verified": True}


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"sub": "stranger"}, "nobody here is called so"),
        ({"sub": "1", "email": "op@example.org"}, "nobody here is called so"),
        ({"sub": "1", "email": "op@example.org", "email_verified": "true"}, "nobody here is called so"),
        ({"sub": "1", "email": "gone@example.org", "email_verified": True}, "no key of nobody counts here"),
        ({**OPERATOR, "nonce": "another"}, "does not hold"),
        ({**OPERATOR, "nonce": None}, "does not hold"),
        ({**OPERATOR, "aud": "another"}, "does not hold"),
        ({**OPERATOR, "iss": "https://evil.example"}, "does not hold"),
        ({**OPERATOR, "exp": 1_000_000}, "does not hold"),
        ({**OPERATOR, "exp": None}, "does not hold"),
        ({"email": "op@example.org", "email_verified": True}, "does not hold"),
    ],
)
def test_it_signs_in_nobody_else(
    served: Visited, honest: Provider, claims: dict[str, Any], said: str
) -> None:
    honest.claims = claims
    person = Person(served, honest)
    status, page = person.signs_in()
    assert (status, said in page) == (403, True), page
    assert person.get("/operator/")[0] == 401


@pytest.mark.parametrize(
    "forging",
    [
        (RSAKey.generate_key(2048, {"kid": "first"}), "RS256"),
        (OctKey.import_key("hush" * 8), "HS256"),
        (None, "none"),
        (ECKey.generate_key("P-256", {"kid": "first"}), "ES256"),
    ],
    ids=["another key", "the shared secret", "no signature", "another kind of key"],
)
def test_a_token_that_the_provider_has_not_signed_does_not_hold(
    served: Visited, honest: Provider, forging: tuple[Any, str]
) -> None:
    honest.claims, honest.forging = OPERATOR, forging
    status, page = Person(served, honest).signs_in()
    assert (status, "does not hold" in page) == (403, True)


def test_a_provider_may_change_its_key(served: Visited, honest: Provider) -> None:
    honest.claims = OPERATOR
    assert Person(served, honest).signs_in()[0] == 200
    honest.key = RSAKey.generate_key(2048, {"kid": "second", "use": "sig"})
    assert Person(served, honest).signs_in()[0] == 200


def test_what_one_browser_has_begun_no_other_ends_nor_twice(served: Visited, honest: Provider) -> None:
    honest.claims = OPERATOR
    victim, attacker = Person(served, honest), Person(served, honest)
    back = attacker.sent_back()
    status, _, page = victim.get(back)  # a link that an attacker sends
    assert (status, "has begun no sign-in here" in page) == (403, True)
    victim.sent_back()
    status, _, page = victim.get(back)
    assert (status, "begun in another browser" in page) == (403, True)
    kept = dict(attacker.cookies)
    assert attacker.get(back)[0] == 200
    again = Person(served, honest)
    again.cookies = kept
    status, _, page = again.get(back)
    assert (status, "does not know this sign-in any more" in page) == (403, True)
    status, _, page = victim.get("/sign-in/oidc/return?error=access_denied&state=x")
    assert status == 403


def test_a_provider_that_is_away_is_said_in_a_sentence(market: LocalMarket) -> None:
    config = market.coordinator.folder.path / "coordinator.toml"
    before = config.read_text()
    config.write_text(
        before.partition("[oidc]")[0]
        + f'[oidc]\nissuer = "http://127.0.0.1:9"\nclient_id = "fedpeer"\nconsole = "{CONSOLE}"\n'
    )
    try:
        with visited(market.coordinator.folder, ManualClock(time.time())) as console:
            answer = console.public().get("/sign-in/oidc")
            assert (answer.status, "cannot be reached" in answer.main) == (403, True)
    finally:
        config.write_text(before)
