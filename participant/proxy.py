"""The forward proxy that gRPC goes through, found as gRPC finds it.

gRPC takes the first of `grpc_proxy`, `https_proxy` and `http_proxy` that is set, unless the host is excepted by
`no_grpc_proxy`, or where that is not set by `no_proxy`: suffixes of host names, or address ranges. It asks the proxy
to CONNECT and speaks TLS with the coordinator through it. gRPC does not say when a proxy is what stops it;
`connect` does.

Source: gRPC core, doc/environment_variables.md and http_proxy_mapper.
"""

import base64
import ipaddress
import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from participant.errors import UnreachableError

_log = logging.getLogger("participant")

#: Variables that a warning was given of.
_warned: set[str] = set()

_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")

#: Bytes of a proxy's answer that are looked at; headers of an answer to CONNECT are short.
_MAX_ANSWER = 16 << 10


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy.

    Attributes:
        variable: the environment variable that names it.
        credentials: "user:password", or empty.
    """

    variable: str
    host: str
    port: int
    credentials: str = field(default="", repr=False)

    def connect(self, host: str, port: int, timeout: float) -> socket.socket:
        """A connection to host:port through the proxy.

        Raises:
            UnreachableError: the proxy does not answer, or refuses.
        """
        named = f"the proxy {self.host}:{self.port} of {self.variable}"
        try:
            connection = socket.create_connection((self.host, self.port), timeout=timeout)
        except OSError as error:
            raise UnreachableError(
                f"{named} does not answer ({words_of(error)}); correct {self.variable}, or set no_proxy to call "
                f"{host} directly"
            ) from None
        try:
            answer = self._ask(connection, host, port)
        except OSError as error:
            connection.close()
            raise UnreachableError(
                f"{named} did not answer CONNECT {host}:{port} ({words_of(error)}); ask its operator"
            ) from None
        if answer.split(" ")[1:2] == ["200"]:
            return connection
        connection.close()
        advice = (
            f"write them into it, {self.variable}=http://user:password@{self.host}:{self.port}"
            if " 407" in answer
            else "ask its operator to allow CONNECT to that port, or set no_proxy to go without"
        )
        raise UnreachableError(
            f"{named} refuses CONNECT {host}:{port} ({answer.partition(' ')[2] or 'no HTTP answer'}); {advice}"
        )

    def _ask(self, connection: socket.socket, host: str, port: int) -> str:
        """The first line of the proxy's answer; all of its head is read."""
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
        if self.credentials:
            token = base64.b64encode(self.credentials.encode()).decode()
            lines.append(f"Proxy-Authorization: Basic {token}")
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        head = b""
        while b"\r\n\r\n" not in head and len(head) < _MAX_ANSWER:
            # A byte at a time: what comes after the head is the coordinator's.
            byte = connection.recv(1)
            if not byte:
                break
            head += byte
        return head.split(b"\r\n", 1)[0].decode(errors="replace")


def proxy_for(host: str, environment: Mapping[str, str] = os.environ) -> Proxy | None:
    """The proxy that a call of `host` goes through; None: none."""
    variable, parts = _configured(host, environment)
    if parts is None or parts.scheme != "http" or not parts.hostname:
        return None  # gRPC ignores what it cannot use; `warn_of_unusable_proxy` says so
    credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
    return Proxy(variable, parts.hostname, parts.port or 80, credentials)


def warn_of_unusable_proxy(host: str, environment: Mapping[str, str] = os.environ) -> None:
    """Logs, once a process, that the proxy of the environment is ignored because gRPC cannot use it."""
    variable, parts = _configured(host, environment)
    if not variable or variable in _warned or proxy_for(host, environment) is not None:
        return
    _warned.add(variable)
    # Not the value: it may hold a password.
    kind = (
        f"of the kind {parts.scheme}://"
        if parts is not None and parts.scheme and parts.netloc
        else "not an address"
    )
    _log.warning(
        "%s is %s and is ignored: the coordinator is called directly. Expected http://host:port; set no_proxy where a "
        "direct connection is meant", variable, kind,
    )  # fmt: skip


def _configured(host: str, environment: Mapping[str, str]) -> tuple[str, SplitResult | None]:
    """The variable that names a proxy for `host`, and the proxy's URL, None where it is not one; empty: no variable."""
    variable = next((name for name in _VARIABLES if environment.get(name)), "")
    excepted = environment.get("no_grpc_proxy", environment.get("no_proxy", ""))
    if not variable or any(_excepts(entry.strip(), host) for entry in excepted.split(",")):
        return "", None
    return variable, _split(environment[variable])


def _split(value: str) -> SplitResult | None:
    """None where it is not a URL, or its port is not a port."""
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:
        return None
    return parts


def _excepts(entry: str, host: str) -> bool:
    if not entry:
        return False
    if host.lower().endswith(entry.lower()):
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False


def words_of(error: OSError) -> str:
    """What went wrong with a connection."""
    return "no answer in time" if isinstance(error, TimeoutError) else (error.strerror or str(error)).strip()
