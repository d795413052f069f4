"""A console on a real socket, and visitors that speak HTTP to it."""

import asyncio
import html
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from coordinator.clock import Clock
from coordinator.folder import StateFolder
from fedpeer.console.reading import Reader
from fedpeer.console.serving import ConsoleServer
from fedpeer.console.sessions import Role, Sessions
from fedpeer.protocol.console_link import sign_in_token
from participant.identity import IdentityFolder


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def main(self) -> str:
        """What stands in the page, without its frame."""
        found = re.search(r"<main.*?</main>", self.text, re.DOTALL)
        assert found is not None, self.text
        return found[0]


@dataclass
class Visit:
    """One browser: it keeps its cookie and sends it."""

    url: str
    cookie: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def open(self, method: str, path: str, body: str | None = None, **headers: str) -> HTTPResponse:
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        sent = {**self.headers, **headers}
        if self.cookie:
            sent["Cookie"] = self.cookie
        if body is not None:
            sent["Content-Type"] = "application/x-www-form-urlencoded"
        connection.request(method, path, body, sent)
        return connection.getresponse()

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> Answer:
        response = self.open(method, path, body, **headers)
        if (made := response.headers.get("set-cookie")) is not None:
            self.cookie = made.partition(";")[0]
        named = {name.lower(): value for name, value in response.headers.items()}
        return Answer(response.status, named, response.read().decode())

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def post(self, path: str, *, of: str | None = None, **fields: str) -> Answer:
        """Sends the form of the page `of`, with its token."""
        if of is not None:
            page = self.get(of)
            found = re.search(r'name="form" value="([^"]*)"', page.text)
            assert found is not None, page.text
            fields["form"] = html.unescape(found[1])
        return self.ask("POST", path, urlencode(fields))


class Visited:
    """A console that is served."""

    def __init__(self, server: ConsoleServer, folder: StateFolder, clock: Clock) -> None:
        self.server, self.folder, self.clock = server, folder, clock
        self.url = server.url
        self.host = urlsplit(self.url).netloc

    def public(self) -> Visit:
        return Visit(self.url)

    def link(self, role: Role, name: str = "") -> str:
        """A token for `role`, as `fedpeer console link` makes it."""
        return Sessions(self.folder.console, self.clock.now, lambda _: None).link(role, name)

    def signed_in(self, role: Role, name: str = "") -> Visit:
        return self.with_token(self.link(role, name))

    def participant(self, state: Path) -> Visit:
        """A visit of the participant whose state folder is `state`."""
        credentials = IdentityFolder(state).credentials()
        return self.with_token(
            sign_in_token(credentials.participant_id, credentials.key, self.host, self.clock.now())
        )

    def with_token(self, token: str) -> Visit:
        visit = Visit(self.url)
        answer = visit.post("/sign-in/", token=token)
        assert answer.status == 303, answer.text
        return visit


@contextmanager
def visited(
    folder: StateFolder, clock: Clock, results: Path | None = None, *, port: int = 0
) -> Iterator[Visited]:
    """A console over a state folder; port 0: on a free one."""
    server = ConsoleServer(folder, f"127.0.0.1:{port}", Reader(folder, clock), results)
    with running(server):
        yield Visited(server, folder, clock)


@contextmanager
def running(server: ConsoleServer) -> Iterator[None]:
    """Serves in a thread of its own."""
    loop = asyncio.new_event_loop()
    ended = threading.Event()

    def serve() -> None:
        try:
            loop.run_until_complete(server.serve())
        finally:
            loop.close()
            ended.set()

    thread = threading.Thread(target=serve, name="console", daemon=True)
    thread.start()
    try:
        yield
    finally:
        if not ended.is_set():
            loop.call_soon_threadsafe(server.stop)
        thread.join(30)
        assert ended.is_set(), "the console does not end"


def eventually(found: object, patience: float = 30.0) -> None:
    """Waits until `found` gives something true.

    Args:
        patience: seconds.
    """
    end = time.monotonic() + patience
    while not found():  # type: ignore[operator]
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.02)
