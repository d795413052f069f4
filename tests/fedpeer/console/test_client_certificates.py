"""Certificates sign in over real TLS: participants by their own, operators by one that the console has made."""

import html
import re
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.client import HTTPSConnection
from pathlib import Path
from urllib.parse import urlencode

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12

from coordinator.clock import SystemClock
from fedpeer.console import serving
from fedpeer.console.client_certificates import issue
from fedpeer.console.errors import ConsoleError
from fedpeer.console.serving import ConsoleServer
from fedpeer.console.sessions import Role, Visitor
from fedpeer.protocol.certificates import issue_client_certificate, make_authority
from fedpeer.testing.coordinator import LocalCoordinator
from tests.fedpeer.console.visiting import eventually, running


class Browser:
    """A browser with a certificate, or without."""

    def __init__(self, port: int, authority: Path, pair: Path | None = None, key: Path | None = None) -> None:
        self._context = ssl.create_default_context(cafile=str(authority))
        if pair is not None:
            self._context.load_cert_chain(pair, key)
        self._port, self._cookie = port, ""

    def ask(self, method: str, path: str, **fields: str) -> tuple[int, str]:
        connection = HTTPSConnection(f"localhost:{self._port}", timeout=60, context=self._context)
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": self._cookie}
        connection.request(method, path, urlencode(fields), headers)
        answer = connection.getresponse()
        if (made := answer.headers.get("set-cookie")) is not None:
            self._cookie = made.partition(";")[0]
        return answer.status, answer.headers.get("location") or html.unescape(answer.read().decode())


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCoordinator]:
    with LocalCoordinator(tmp_path_factory.mktemp("tls") / "market", clock=SystemClock()) as coordinator:
        for name in ("ann", "bob"):
            coordinator.enrol(name, coordinator.folder.path.parent / name)
        coordinator.operator(lambda operator: operator.fund("trust", "first", 1_000_000))
        yield coordinator


@pytest.fixture(scope="module")
def browser(market: LocalCoordinator) -> Iterator[Callable[..., Browser]]:
    server = ConsoleServer(market.folder, "0.0.0.0:0")
    with running(server):
        port, authority = int(server.url.rpartition(":")[2]), market.folder.path / "authority.pem"
        yield lambda pair=None, key=None: Browser(port, authority, pair, key)


def unpacked(file: Path, password: str) -> Path:
    """The key and certificate of a PKCS#12 file, as OpenSSL's own command unpacks it for a browser without a store."""
    key, certificate, more = pkcs12.load_key_and_certificates(file.read_bytes(), password.encode())
    assert key is not None
    assert certificate is not None
    assert more, "the authority is in it"
    pair = file.with_suffix(".pem")
    pair.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        + certificate.public_bytes(Encoding.PEM)
    )
    return pair


def test_a_participant_signs_in_by_its_own_certificate_until_it_is_revoked(
    market: LocalCoordinator, browser: Callable[..., Browser]
) -> None:
    ann = market.folder.path.parent / "ann"
    visit = browser(ann / "certificate.pem", ann / "key.pem")
    assert visit.ask("GET", "/participants/ann/")[0] == 401  # shown, and not yet used
    assert "a certificate of the participant ann" in visit.ask("GET", "/sign-in/")[1]
    assert visit.ask("POST", "/sign-in/", by="certificate") == (303, "/participants/ann/")
    assert visit.ask("GET", "/participants/ann/")[0] == 200
    assert visit.ask("GET", "/participants/bob/")[0] == 403
    market.operator(lambda operator: operator.revoke("ann", "test"))
    assert visit.ask("GET", "/participants/ann/")[0] == 401
    status, said = visit.ask("POST", "/sign-in/", by="certificate")
    assert (status, "revoked" in said) == (403, True)
    assert "has shown a certificate" not in visit.ask("GET", "/sign-in/")[1]


@pytest.mark.parametrize(
    ("role", "name", "home"),
    [
        (Role.OPERATOR, "", "/operator/"),
        (Role.AUDITOR, "", "/audit/"),
        (Role.LEARNER, "trust", "/learners/trust/"),
    ],
)
def test_an_operator_signs_in_by_one_that_was_made_until_it_is_taken_away(
    market: LocalCoordinator,
    browser: Callable[..., Browser],
    tmp_path: Path,
    role: Role,
    name: str,
    home: str,
) -> None:
    file = tmp_path / "made.p12"
    password, mark = issue(market.folder, file, role, 30, name)
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConsoleError, match="there already"):
        issue(market.folder, file, role, 30, name)
    visit = browser(unpacked(file, password))
    assert f"a certificate of {Visitor(role, name).called}" in visit.ask("GET", "/sign-in/")[1]
    for _ in range(2):  # as often as it is shown
        assert visit.ask("POST", "/sign-in/", by="certificate") == (303, home)
    assert visit.ask("GET", home)[0] == 200
    assert visit.ask("GET", "/operator/")[0] == (200 if role is Role.OPERATOR else 403)
    (market.folder.console / "certificates" / mark).unlink()
    assert visit.ask("GET", home)[0] == 401
    assert visit.ask("POST", "/sign-in/", by="certificate")[0] == 403


def test_others_are_taken_without_one_and_not_with_a_strangers(
    market: LocalCoordinator, browser: Callable[..., Browser], tmp_path: Path
) -> None:
    without = browser()
    assert without.ask("GET", "/")[0] == 200
    status, said = without.ask("POST", "/sign-in/", by="certificate")
    assert (status, "has shown no certificate" in said) == (403, True)
    now = datetime.now(UTC)
    stranger = issue_client_certificate(
        make_authority("other", now), "console operator", now, timedelta(days=1)
    )
    pair = tmp_path / "stranger.pem"
    pair.write_bytes(stranger.key_pem + stranger.certificate_pem)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        browser(pair).ask("GET", "/")


def test_an_operators_certificate_opens_nothing_at_the_market(
    market: LocalCoordinator, tmp_path: Path
) -> None:
    import grpc

    from fedpeer.v1 import market_pb2, market_pb2_grpc

    password, _ = issue(market.folder, tmp_path / "made.p12", Role.OPERATOR, 1)
    pair = unpacked(tmp_path / "made.p12", password).read_bytes()
    found = re.match(rb"(-----BEGIN PRIVATE.*?END PRIVATE KEY-----\n)(.*)", pair, re.DOTALL)
    assert found is not None
    credentials = grpc.ssl_channel_credentials(market.authority, found[1], found[2])
    address = market.market.replace("127.0.0.1", "localhost")
    with grpc.secure_channel(address, credentials) as channel, pytest.raises(grpc.RpcError) as refusal:
        market_pb2_grpc.MarketStub(channel).ListTasks(market_pb2.ListTasksRequest(), timeout=30)
    assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]


def test_it_ends_with_its_time(market: LocalCoordinator, tmp_path: Path) -> None:
    from fedpeer.console.client_certificates import holder_of

    _, mark = issue(market.folder, tmp_path / "made.p12", Role.OPERATOR, 1)
    assert holder_of(market.folder.console, mark, time.time()) == (Role.OPERATOR, "")
    assert holder_of(market.folder.console, mark, time.time() + 86_401) is None


def test_a_renewed_certificate_and_a_new_authority_are_taken_while_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_CERTIFICATE_SECONDS", 0.02)
    with LocalCoordinator(tmp_path / "market", clock=SystemClock()) as coordinator:
        folder = coordinator.folder
        before = (folder.path / "authority.pem").read_bytes()
        old = tmp_path / "old.pem"
        old.write_bytes(before)
        server = ConsoleServer(folder, "0.0.0.0:0")
        with running(server):
            port = int(server.url.rpartition(":")[2])
            first = ssl.get_server_certificate(("localhost", port))
            coordinator.operator(lambda operator: operator.renew_server([]))
            eventually(lambda: ssl.get_server_certificate(("localhost", port)) != first)
            assert Browser(port, old).ask("GET", "/")[0] == 200
            coordinator.operator(lambda operator: operator.begin_authority())
            password, _ = issue(folder, tmp_path / "new.p12", Role.OPERATOR, 1)  # of the new one
            pair = unpacked(tmp_path / "new.p12", password)

            def taken() -> bool:
                try:
                    return Browser(port, old, pair).ask("POST", "/sign-in/", by="certificate")[0] == 303
                except (ssl.SSLError, ConnectionError):
                    return False

            eventually(taken)
