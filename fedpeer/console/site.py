"""The console as an ASGI application: who asks, whether the page is for them, and the page or its JSON.

Every answer forbids what the pages do not need: scripts, styles and connections of other origins, frames. A
form is taken from the console's own pages alone: it carries the session's token, and its Origin is the console's.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import structlog
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.control_socket import RoundProgress
from coordinator.errors import CoordinatorError
from fedpeer.audit.sql.errors import StorageError
from fedpeer.console.client_certificates import SCOPE_KEY, ClientCertificates, holder_of
from fedpeer.console.oidc import BEGUN_SECONDS, RETURN_PATH, Oidc
from fedpeer.console.opening import Opening
from fedpeer.console.progress import CurrentProgress
from fedpeer.console.reading import NotThere, Reader
from fedpeer.console.rendering import templates
from fedpeer.console.results import Results
from fedpeer.console.routes import (
    PAGES,
    Answer,
    Asked,
    Content,
    Mistake,
    Moved,
    Page,
    Shown,
    Text,
    admitted,
    home,
    json_text,
)
from fedpeer.console.sessions import SESSION_SECONDS, Role, Sessions, Visitor
from fedpeer.console.verification import LedgerVerification, ServiceHealth
from fedpeer.protocol.console_link import LinkError
from mechanism.errors import MechanismError

log = structlog.get_logger()

#: Seconds between two looks at the ledger's size, for all watchers together.
_LOOK_SECONDS = 1.0

#: Seconds after which a silent stream says that it is alive: proxies cut what says nothing for a minute.
_ALIVE_SECONDS = 20.0

#: Streams at once; each costs a socket and some kilobytes.
MAX_WATCHERS = 1_000

_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

#: What becomes of an error that a visitor can put right, by its class.
_STATUS: dict[type[Exception], int] = {
    NotThere: 404,
    Mistake: 400,
    LinkError: 403,
    MechanismError: 400,
    CoordinatorError: 409,
    StorageError: 503,
}


class Console:
    """One market's pages.

    Args:
        reader: of its folder and database.
        hosts: names and addresses under which it may be called; another Host is refused.
        secure: whether it is reached over TLS.
        results: a folder of the arena's and the figures' results.

    Raises:
        ConsoleError: the folder cannot be written.
    """

    def __init__(
        self, reader: Reader, hosts: Sequence[str], *, secure: bool, results: Path | None = None
    ) -> None:
        self.reader = reader
        console = reader.folder.console
        self.sessions = Sessions(
            console, reader.now, reader.key_of, lambda mark: holder_of(console, mark, reader.now())
        )
        self.certificates = ClientCertificates(reader)
        section = reader.config.oidc
        self.oidc = Oidc(section, self.sessions.begun, reader.now, reader.key_of) if section.issuer else None
        self.verification = LedgerVerification(reader, self.look)
        self.opening = Opening(reader, self.look)
        self.service = ServiceHealth(reader)
        self.progress = CurrentProgress(reader)
        self.results = Results(results)
        self._hosts, self._secure = frozenset(hosts), secure
        #: Each who watches, and whether it is shown how far participants are.
        self._watchers: dict[asyncio.Event, bool] = {}
        self._said: dict[str, RoundProgress] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._size = 0
        self._turn = 0
        self._ended = False
        self._pages = templates(reader.now)
        self._pages.globals |= {"market": reader.config.name, "Role": Role, "home": home, "results": results}

    def application(self) -> ASGIApp:
        """The application, whose lifespan follows the ledger."""
        app = Starlette(
            routes=self.routes(),
            exception_handlers=dict.fromkeys((*_STATUS, HTTPException, 500), self._problem_of),
            lifespan=self._following,
        )
        return _Guard(app, self._hosts)

    def routes(self) -> list[BaseRoute]:
        """Every address there is: the pages, their JSON, the stream and the files."""
        routes: list[BaseRoute] = []
        for page in PAGES:
            methods = [m for m, there in (("GET", page.show), ("POST", page.act)) if there is not None]
            if page.json_path is not None:
                routes.append(Route(page.json_path, self._endpoint(page, as_json=True), methods=["GET"]))
            routes.append(Route(page.path, self._endpoint(page), methods=methods))
        routes.append(Route("/events", self._events))
        routes.append(Mount("/static", StaticFiles(packages=[("fedpeer.console", "static")])))
        return routes

    def look(self) -> None:
        """Has watchers look again at once; may be called from any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                self._loop.call_soon_threadsafe(self._tell)

    def end(self) -> None:
        """Ends every stream, so that the server can stop."""
        self._ended = True
        self._tell()

    def _tell(self, *, progress: bool = False) -> None:
        """Has everybody look again, or those alone who are shown how far participants are."""
        self._turn += 1
        for watcher, shown in self._watchers.items():
            if shown or not progress:
                watcher.set()

    @contextlib.asynccontextmanager
    async def _following(self, _app: Starlette) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        follower = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)

    async def _follow(self) -> None:
        """One look a second at the ledger's size, and none where nobody watches."""
        while True:
            if self._watchers:
                try:
                    size = await asyncio.to_thread(self.reader.size)
                    if size != self._size:
                        self._size = size
                        self._tell()
                except StorageError as error:
                    log.warning("the ledger cannot be followed; it is tried again", why=str(error))
            if any(self._watchers.values()):
                said = await asyncio.to_thread(self.progress.look)
                if said != self._said:
                    self._said = said
                    self._tell(progress=True)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _events(self, request: Request) -> Response:
        """A stream that says when a page is worth another look: the ledger has grown, or a verification moved on."""
        visitor = await self._visitor(request)
        if visitor.role is Role.PUBLIC and not self.reader.config.server.public_ledger:
            return await self._problem(request, 401, "Sign in first.", visitor)
        if len(self._watchers) >= MAX_WATCHERS:
            return await self._problem(
                request, 503, "Too many pages are watched; reload this one by hand.", visitor
            )
        shown = visitor.role is Role.OPERATOR
        return StreamingResponse(self._stream(shown), media_type="text/event-stream", headers=_HEADERS)

    async def _stream(self, shown: bool) -> AsyncIterator[str]:
        moved = asyncio.Event()
        self._watchers[moved] = shown
        try:
            yield "retry: 3000\n\n"
            while not self._ended:
                try:
                    async with asyncio.timeout(_ALIVE_SECONDS):
                        await moved.wait()
                except TimeoutError:
                    yield ": alive\n\n"
                    continue
                moved.clear()
                yield f"event: moved\ndata: {json.dumps({'entries': self._size, 'turn': self._turn})}\n\n"
        finally:
            self._watchers.pop(moved, None)

    def _endpoint(self, page: Page, *, as_json: bool = False) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            visitor = await self._visitor(request)
            public = self.reader.config.server.public_ledger
            if not admitted(page, visitor, request.path_params, public_ledger=public):
                if visitor.role is Role.PUBLIC:
                    return await self._problem(
                        request, 401, "This page is for those who have signed in.", visitor
                    )
                return await self._problem(
                    request, 403, f"This page is not for you: you are {visitor.called}.", visitor
                )
            form = await self._form(request, page, visitor) if request.method == "POST" else {}
            if any("\0" in text for text in [*request.path_params.values(), *request.query_params.values()]):
                raise NotThere("There is no such page: no name has a NUL in it.")
            if any("\0" in text for text in form.values()):
                raise Mistake("A field of the form has a NUL in it; write it without.")
            host = request.headers.get("host", "")
            shown = request.scope.get("state", {}).get(SCOPE_KEY)
            kept = request.cookies.get(f"{self.sessions.cookie}-begun")
            query = dict(request.query_params)
            asked = Asked(self, visitor, request.path_params, query, form, host, shown, kept)
            act = page.act if request.method == "POST" else page.show
            assert act is not None  # the route's methods
            found = await run_in_threadpool(act, asked)
            return await run_in_threadpool(self._response, found, visitor, as_json)

        return answer

    async def _visitor(self, request: Request) -> Visitor:
        return await run_in_threadpool(self.sessions.visitor, request.cookies.get(self.sessions.cookie))

    async def _form(self, request: Request, page: Page, visitor: Visitor) -> Mapping[str, str]:
        """The fields of a form of ours.

        Raises:
            Mistake: it is too large, or of another site.
        """
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
            raise LinkError("This form was sent from another site; nothing was changed.")
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > page.form_bytes:
                raise Mistake(f"The form has more than {page.form_bytes:,} bytes.")
        try:
            form = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=20))
        except ValueError:
            raise Mistake("The form cannot be read.") from None
        if not page.harmless and not self.sessions.form_holds(visitor, form.get("form", "")):
            raise LinkError(
                "This form is of an earlier session; go back, load the page again, and send it again."
            )
        return form

    def _response(self, found: Answer, visitor: Visitor, as_json: bool) -> Response:
        if isinstance(found, Moved):
            response: Response = RedirectResponse(found.to, 303)
            if found.visitor is not None:
                self._set_cookie(response, found.visitor)
            if found.kept:
                # Lax: the provider leads back here, and the browser must have it then.
                response.set_cookie(
                    f"{self.sessions.cookie}-begun",
                    found.kept,
                    max_age=int(BEGUN_SECONDS),
                    path=RETURN_PATH,
                    httponly=True,
                    samesite="lax",
                    secure=self._secure,
                )
            return response
        if isinstance(found, Text):
            disposition = {"content-disposition": f'attachment; filename="{found.name}"'}
            return Response(found.content, media_type=found.kind, headers=disposition)
        if isinstance(found, Content):
            return Response(found.content, media_type=found.kind)
        if as_json:
            return Response(json_text(found.record), media_type="application/json")
        made = Response(self._render(found, found.visitor or visitor), media_type="text/html")
        if found.visitor is not None:
            self._set_cookie(made, found.visitor)
            made.delete_cookie(
                f"{self.sessions.cookie}-begun",
                path=RETURN_PATH,
                httponly=True,
                samesite="lax",
                secure=self._secure,
            )
        return made

    def _set_cookie(self, response: Response, visitor: Visitor) -> None:
        if visitor.role is Role.PUBLIC:
            response.delete_cookie(
                self.sessions.cookie, httponly=True, samesite="strict", secure=self._secure
            )
            return
        response.set_cookie(
            self.sessions.cookie,
            self.sessions.cookie_of(visitor),
            max_age=SESSION_SECONDS,
            httponly=True,
            samesite="strict",
            secure=self._secure,
        )

    def _render(self, found: Shown, visitor: Visitor) -> str:
        form = Markup('<input type="hidden" name="form" value="{}">').format(
            self.sessions.form_token(visitor)
        )
        return self._pages.get_template(found.template).render(
            r=found.record, visitor=visitor, form=form, **found.more
        )

    async def _problem(self, request: Request, status: int, sentence: str, visitor: Visitor) -> Response:
        if request.url.path.endswith(".json"):
            return Response(json_text({"error": sentence}), status, media_type="application/json")
        page = await run_in_threadpool(
            self._render, Shown("problem.html", {"status": status, "sentence": sentence}), visitor
        )
        return Response(page, status, media_type="text/html")

    async def _problem_of(self, request: Request, error: Exception) -> Response:
        """The page of what a visitor can put right, of an address that is none, and of a fault of ours."""
        for kind, status in _STATUS.items():
            if isinstance(error, kind):
                visitor = Visitor() if kind is StorageError else await self._visitor(request)
                return await self._problem(request, status, str(error), visitor)
        if isinstance(error, HTTPException):
            visitor = await self._visitor(request)
            return await self._problem(request, error.status_code, f"{error.detail}.", visitor)
        return await self._problem(
            request, 500, "Something went wrong here; the console's log says what.", Visitor()
        )


class _Guard:
    """Refuses a Host that is not the console's, so that no other name leads here, and adds the headers."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        # Files are the same for everybody: a browser asks whether they have changed.
        sent = {**_HEADERS, "cache-control": "no-cache"} if scope["path"].startswith("/static/") else _HEADERS

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name for name, _ in message["headers"]}
                added = [(n.encode(), v.encode()) for n, v in sent.items() if n.encode() not in there]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        if host_name(host) not in self._hosts:
            refused = Response("This console is not called by that name.", 400, media_type="text/plain")
            await refused(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)


def host_name(host: str) -> str:
    """The name or address of a Host header, without port and brackets."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).strip("[]").lower()
