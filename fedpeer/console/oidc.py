"""Signing in through a provider of OpenID Connect: the authorisation code flow with PKCE, by authlib.

Who is who stands in coordinator.toml, by the provider's `sub` or by an e-mail address that the provider has verified.
What one browser has begun, it alone can end: state, nonce and verifier go with it in a signed cookie.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import structlog
from itsdangerous import BadSignature, URLSafeSerializer

from coordinator.config import OidcSection
from fedpeer.console.errors import ConsoleError
from fedpeer.console.sessions import Role, Visitor, key_mark
from fedpeer.extras import missing
from fedpeer.protocol.certificates import PublicKey
from fedpeer.protocol.console_link import LinkError

log = structlog.get_logger()

#: Where the provider sends a browser back to, on the console.
RETURN_PATH = "/sign-in/oidc/return"

#: Seconds in which somebody signs in at the provider; for which its description is taken as it was; for each call.
BEGUN_SECONDS = 600.0
_KNOWN_SECONDS = 3600.0
_CALL_SECONDS = 10.0

#: Signatures that a provider may use: with its own key, never with a shared secret or none.
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA")


@dataclass(frozen=True)
class _Provider:
    """A provider's description of itself, and its keys."""

    metadata: dict[str, Any]
    keys: dict[str, Any]
    read: float


class Oidc:
    """One provider, as coordinator.toml names it.

    Args:
        begun: signs what a browser keeps meanwhile.
        key_of: the key that counts for a participant now.

    Raises:
        ConsoleError: authlib is not installed.
    """

    def __init__(
        self,
        section: OidcSection,
        begun: URLSafeSerializer,
        now: Callable[[], float],
        key_of: Callable[[str], PublicKey | None],
    ) -> None:
        try:
            from authlib.integrations.httpx_client import OAuth2Client
        except ImportError as error:
            raise ConsoleError(f"[oidc] cannot be served: {missing(error) or error}") from None
        self._section, self._begun, self._now, self._key_of = section, begun, now, key_of
        self._return = f"{section.console.rstrip('/')}{RETURN_PATH}"
        self._client: Callable[..., Any] = OAuth2Client
        self._known: _Provider | None = None

    @property
    def name(self) -> str:
        """What the button calls it: the provider's host."""
        return urlsplit(self._section.issuer).hostname or self._section.issuer

    def begin(self) -> tuple[str, str]:
        """Where the browser is sent to, and what it keeps meanwhile.

        Raises:
            LinkError: the provider cannot be reached.
        """
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        with self._session() as session:
            url, _ = session.create_authorization_url(
                self._provider().metadata["authorization_endpoint"],
                state=state,
                nonce=nonce,
                code_verifier=verifier,
            )
        expires = self._now() + BEGUN_SECONDS
        kept = {"state": state, "nonce": nonce, "verifier": verifier, "expires": expires}
        return url, str(self._begun.dumps(kept))

    def end(self, query: dict[str, str], kept: str | None) -> Visitor:
        """Whom the provider has signed in.

        Args:
            query: of the address that the provider has sent the browser to.
            kept: what the browser kept.

        Raises:
            LinkError: nobody; the sentence says why.
        """
        begun = self._kept(kept)
        if not secrets.compare_digest(query.get("state", ""), begun["state"]):
            raise LinkError("this sign-in was begun in another browser, or another one since; begin it again")
        if "code" not in query:
            raise LinkError(
                f"the provider has signed nobody in: {query.get('error', 'it gave no code')[:100]!r}"
            )
        return self._visitor(self._claims(self._token(query["code"], begun["verifier"]), begun["nonce"]))

    def _kept(self, kept: str | None) -> dict[str, Any]:
        try:
            begun: dict[str, Any] = self._begun.loads(kept or "")
        except BadSignature:
            raise LinkError("this browser has begun no sign-in here; begin at /sign-in/") from None
        if begun["expires"] < self._now():
            raise LinkError("this sign-in took too long; begin it again")
        return begun

    def _session(self) -> Any:
        section = self._section
        return self._client(
            section.client_id,
            section.client_secret,
            scope="openid email",
            redirect_uri=self._return,
            code_challenge_method="S256",
            timeout=_CALL_SECONDS,
        )

    def _provider(self, *, fresh: bool = False) -> _Provider:
        """Raises LinkError where it cannot be read, or is another one than it says."""
        if self._known is None or fresh or time.monotonic() - self._known.read > _KNOWN_SECONDS:
            issuer = self._section.issuer
            metadata = self._get(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
            if metadata.get("issuer") != issuer:
                log.error(
                    "the provider names another issuer",
                    expected=issuer,
                    found=str(metadata.get("issuer"))[:200],
                )
                raise LinkError(
                    "the provider calls itself otherwise than oidc.issuer; the console's log says more"
                )
            self._known = _Provider(metadata, self._get(metadata.get("jwks_uri", "")), time.monotonic())
        return self._known

    def _get(self, url: str) -> dict[str, Any]:
        import httpx

        try:
            answer = httpx.get(url, timeout=_CALL_SECONDS)
            answer.raise_for_status()
            found = answer.json()
            if isinstance(found, dict):
                return found
            why = "it is no JSON object"
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            why = str(error)
        log.error("the provider cannot be read", url=url, why=why)
        raise LinkError("the sign-in provider cannot be reached; use a link, or try again later")

    def _token(self, code: str, verifier: str) -> str:
        """The id token that a code stands for."""
        import httpx
        from authlib.common.errors import AuthlibBaseError

        try:
            with self._session() as session:
                found = session.fetch_token(
                    self._provider().metadata["token_endpoint"], code=code, code_verifier=verifier
                )
            return str(found["id_token"])
        except (AuthlibBaseError, httpx.HTTPError, httpx.InvalidURL, KeyError, ValueError) as error:
            log.warning("a code of the provider was not traded for a token", why=str(error))
            raise LinkError("the provider does not know this sign-in any more; begin it again") from None

    def _claims(self, token: str, nonce: str) -> dict[str, Any]:
        """What an id token says, once its signature, issuer, audience, nonce and times hold (OIDC Core, 3.1.3.7)."""
        from joserfc import jwt
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        rules = jwt.JWTClaimsRegistry(
            now=lambda: int(self._now()),
            leeway=60,
            iss={"essential": True, "value": self._section.issuer},
            sub={"essential": True},
            aud={"essential": True, "value": self._section.client_id},
            exp={"essential": True},
            iat={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        for fresh in (False, True):  # a provider changes its keys now and then
            try:
                keys = KeySet.import_key_set(self._provider(fresh=fresh).keys)  # type: ignore[arg-type]
                claims = dict(jwt.decode(token, keys, algorithms=_ALGORITHMS).claims)
                rules.validate(claims)
                return claims
            except (JoseError, ValueError, KeyError) as error:
                why = str(error)
        log.warning("an id token does not hold", why=why)
        raise LinkError("what the provider says of you does not hold; the console's log says why")

    def _visitor(self, claims: dict[str, Any]) -> Visitor:
        names = [str(claims["sub"])]
        if claims.get("email_verified") is True:
            names.append(str(claims.get("email", "")).lower())
        section, session = self._section, secrets.token_hex(16)
        for role, known in ((Role.OPERATOR, section.operators), (Role.AUDITOR, section.auditors)):
            if any(name in known for name in names):
                return Visitor(role, session=session)
        for name in names:
            if (learner := section.learners.get(name)) is not None:
                return Visitor(Role.LEARNER, learner, session=session)
        for name in names:
            if (participant := section.participants.get(name)) is not None:
                if (key := self._key_of(participant)) is None:
                    raise LinkError(f"no key of {participant} counts here any more")
                return Visitor(Role.PARTICIPANT, participant, key_mark(key), session)
        log.warning(
            "somebody whom coordinator.toml does not name has signed in at the provider", sub=names[0][:100]
        )
        raise LinkError(
            f"the provider knows you as {names[0][:100]!r}, and nobody here is called so; ask the operator to name you "
            "under [oidc] in coordinator.toml"
        )
