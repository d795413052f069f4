"""An OpenID provider on a real socket."""

import hashlib
import json
import threading
import time
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey


@dataclass
class Provider:
    """An OpenID provider that signs in whomever a test says, at once."""

    claims: dict[str, Any] = field(default_factory=dict)
    key: Any = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "first", "use": "sig"}))
    #: What signs where it is not the published key, and by which algorithm.
    forging: tuple[Any, str] | None = None
    url: str = ""
    codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def answer(self, method: str, path: str, fields: dict[str, str], authorization: str) -> tuple[int, Any]:
        if path == "/.well-known/openid-configuration":
            places = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
            return 200, {"issuer": self.url, **{name: f"{self.url}/{at}" for name, at in places.items()}}
        if path == "/keys":
            return 200, {"keys": [self.key.as_dict(private=False)]}
        if path == "/authorize":
            assert fields["response_type"] == "code"
            assert fields["client_id"] == "fedpeer"
            assert fields["code_challenge_method"] == "S256"
            assert "openid" in fields["scope"].split()
            code = f"code-{len(self.codes)}"
            self.codes[code] = fields
            return 302, f"{fields['redirect_uri']}?{urlencode({'code': code, 'state': fields['state']})}"
        assert (method, path) == ("POST", "/token")
        asked = self.codes.pop(fields["code"], None)
        challenge = urlsafe_b64encode(hashlib.sha256(fields.get("code_verifier", "").encode()).digest())
        secret = b64decode(authorization.removeprefix("Basic ")).decode()
        if (
            asked is None
            or challenge.decode().rstrip("=") != asked["code_challenge"]
            or fields["redirect_uri"] != asked["redirect_uri"]
            or secret != "fedpeer:hush"
        ):
            return 400, {"error": "invalid_grant"}
        return 200, {"access_token": "x", "token_type": "Bearer", "id_token": self.token(asked["nonce"])}

    def token(self, nonce: str) -> str:
        now = int(time.time())
        usual = {"iss": self.url, "aud": "fedpeer", "exp": now + 300, "iat": now, "nonce": nonce}
        claims = {name: value for name, value in {**usual, **self.claims}.items() if value is not None}
        key, algorithm = self.forging or (self.key, "RS256")
        header = {"alg": algorithm, "kid": self.key.kid}
        if algorithm == "none":
            parts = (json.dumps(part).encode() for part in (header, claims))
            return ".".join([urlsafe_b64encode(part).decode().rstrip("=") for part in parts] + [""])
        return jwt.encode(header, claims, key, algorithms=[algorithm])


@contextmanager
def providing(host: str = "127.0.0.1") -> Iterator[Provider]:
    """A provider on a free port of this machine, called by the name `host`."""
    made = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("GET", dict(parse_qsl(urlsplit(self.path).query)))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self._answer("POST", dict(parse_qsl(body.decode())))

        def _answer(self, method: str, fields: dict[str, str]) -> None:
            authorization = self.headers.get("authorization", "")
            status, found = made.answer(method, urlsplit(self.path).path, fields, authorization)
            body = b"" if status == 302 else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.send_header(
                "location" if status == 302 else "content-type",
                found if status == 302 else "application/json",
            )
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://{host}:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
