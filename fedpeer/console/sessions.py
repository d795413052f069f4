"""Who a visitor is: roles, links that sign somebody in once, and signed cookies that expire.

All of it stands in the state folder's `console/`, for its owner alone:

    key               signs sessions; take it away, and everybody is signed out
    links/<digest>    a link of `fedpeer console link` that was not used, by SHA-256 of its token
    used/<nonce>      a participant's link that was used, until it would have expired
    certificates/...  see `fedpeer.console.client_certificates`
"""

import hashlib
import json
import os
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from itsdangerous import BadSignature, URLSafeSerializer

from fedpeer.console.errors import ConsoleError
from fedpeer.protocol.certificates import PublicKey
from fedpeer.protocol.console_link import LINK_SECONDS, LinkError, SignIn, read_token
from mechanism.ledger.entries import public_key_bytes
from mechanism.ledger.key_history import fingerprint

#: Seconds for which somebody stays signed in: a working day.
SESSION_SECONDS = 10 * 3600


class Role(StrEnum):
    """What a visitor may see; see `fedpeer.console.routes`."""

    PUBLIC = "public"
    PARTICIPANT = "participant"
    LEARNER = "learner"
    AUDITOR = "auditor"
    OPERATOR = "operator"


#: Role and name of who holds a certificate.
Holder: TypeAlias = tuple[Role, str]


@dataclass(frozen=True)
class Visitor:
    """Who asks.

    Attributes:
        name: of a participant or learner; empty for others.
        key: of a participant, the fingerprint of the key that counted when it signed in; of others that have signed in
            by a certificate, its mark. A session ends with it.
        session: names the session, for forms.
    """

    role: Role = Role.PUBLIC
    name: str = ""
    key: str = ""
    session: str = ""

    @property
    def called(self) -> str:
        """Who it is, in words."""
        return {
            Role.OPERATOR: "the operator",
            Role.AUDITOR: "an auditor",
            Role.PARTICIPANT: f"the participant {self.name}",
            Role.LEARNER: f"the learner {self.name}",
            Role.PUBLIC: "not signed in",
        }[self.role]


class Sessions:
    """Makes and reads links and cookies.

    Args:
        folder: the state folder's `console/`, made where it is not there.
        now: seconds since the epoch.
        key_of: the key that counts for a participant now, None where there is none.
        holder_of: role and name of the certificate with a mark now, None where there is none.

    Raises:
        ConsoleError: the folder cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        now: Callable[[], float],
        key_of: Callable[[str], PublicKey | None],
        holder_of: Callable[[str], Holder | None] = lambda _: None,
    ) -> None:
        self._folder, self._now, self._key_of, self._holder_of = folder, now, key_of, holder_of
        try:
            for part in (folder, folder / "links", folder / "used"):
                part.mkdir(mode=0o700, exist_ok=True)
            secret = _secret(folder / "key")
        except OSError as error:
            raise ConsoleError(
                f"{error.filename or folder} cannot be written ({error.strerror}); the console keeps its key and links "
                "there: give its owner the right to write"
            ) from None
        sha256 = {"digest_method": hashlib.sha256}
        self._cookies = URLSafeSerializer(secret, "session", signer_kwargs=sha256)
        self._forms = URLSafeSerializer(secret, "form", signer_kwargs=sha256)
        #: Signs what a browser keeps while it signs in elsewhere.
        self.begun = URLSafeSerializer(secret, "begun", signer_kwargs=sha256)
        #: Of the cookie: two consoles on one host, on different ports, must not share one.
        self.cookie = f"fedpeer-{hashlib.sha256(secret).hexdigest()[:8]}"

    def link(self, role: Role, name: str = "") -> str:
        """A token that signs somebody in once as operator, auditor or the learner `name`, for `LINK_SECONDS`."""
        token = secrets.token_urlsafe(32)
        record = json.dumps({"role": role, "name": name, "expires": self._now() + LINK_SECONDS})
        path = self._folder / "links" / hashlib.sha256(token.encode()).hexdigest()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(record)
        return token

    def redeem(self, token: str, console: str) -> Visitor:
        """Whom a token signs in; it works once.

        Args:
            console: host:port under which the console was called.

        Raises:
            LinkError: it signs nobody in.
        """
        if "." in token:
            return self._redeem_participant(read_token(token, console, self._now(), self._key_of))
        path = self._folder / "links" / hashlib.sha256(token.encode()).hexdigest()
        try:
            record = json.loads(path.read_text())
            path.unlink()  # the one who takes it away has it
        except (OSError, ValueError):
            raise LinkError(
                "this link was used, or was never made here; make a new one: fedpeer console link"
            ) from None
        if record["expires"] < self._now():
            raise LinkError("this link has expired; make a new one: fedpeer console link")
        return Visitor(Role(record["role"]), record["name"], session=secrets.token_hex(16))

    def _redeem_participant(self, asked: SignIn) -> Visitor:
        self._forget_used()
        mark = hashlib.sha256(f"{asked.participant_id} {asked.nonce}".encode()).hexdigest()
        try:
            descriptor = os.open(self._folder / "used" / mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise LinkError("this link was used; make a new one: fedpeer participant console") from None
        with os.fdopen(descriptor, "w") as file:
            file.write(str(asked.expires))
        key = self._key_of(asked.participant_id)
        if key is None:
            raise LinkError("no key of that name counts here any more")
        return Visitor(Role.PARTICIPANT, asked.participant_id, key_mark(key), secrets.token_hex(16))

    def _forget_used(self) -> None:
        """Takes away the marks of links that have expired for longer than two clocks may differ."""
        for path in (self._folder / "used").iterdir():
            if path.stat().st_mtime + 4 * LINK_SECONDS < self._now():
                path.unlink(missing_ok=True)

    def cookie_of(self, visitor: Visitor) -> str:
        """The value of the cookie that names `visitor`, for `SESSION_SECONDS`."""
        return str(self._cookies.dumps({**asdict(visitor), "expires": self._now() + SESSION_SECONDS}))

    def visitor(self, cookie: str | None) -> Visitor:
        """Who has sent this cookie; the public where it is none of ours, has expired, or its key no longer counts."""
        if not cookie:
            return Visitor()
        try:
            fields = self._cookies.loads(cookie)
        except BadSignature:
            return Visitor()
        if fields.pop("expires") < self._now():
            return Visitor()
        visitor = Visitor(**{**fields, "role": Role(fields["role"])})
        if visitor.role is not Role.PARTICIPANT and visitor.key:
            return visitor if self._holder_of(visitor.key) == (visitor.role, visitor.name) else Visitor()
        if visitor.role is Role.PARTICIPANT:
            key = self._key_of(visitor.name)
            if key is None or key_mark(key) != visitor.key:
                return Visitor()
        return visitor

    def form_token(self, visitor: Visitor) -> str:
        """What a form of this session must carry: another site cannot know it."""
        return str(self._forms.dumps(visitor.session))

    def form_holds(self, visitor: Visitor, token: str) -> bool:
        try:
            return bool(visitor.session) and self._forms.loads(token) == visitor.session
        except BadSignature:
            return False


def key_mark(key: PublicKey) -> str:
    """What a session names a key by."""
    return fingerprint(public_key_bytes(key))


def _secret(path: Path) -> bytes:
    """The key of the sessions, made where there is none: whole, also where another process does the same."""
    if not path.exists():
        fresh = path.with_name(f"key.{os.getpid()}.{secrets.token_hex(4)}")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(32))
        try:
            os.link(fresh, path)
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    secret = path.read_bytes()
    if len(secret) != 32:
        raise ConsoleError(
            f"{path} is damaged; take it away: a new one is made, and everybody signs in again"
        )
    return secret
