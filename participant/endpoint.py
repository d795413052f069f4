"""Where the coordinator is, how it is spoken to, and why it does not answer.

gRPC reports every failed connection as UNAVAILABLE; `Endpoint.diagnose` looks for itself, with a plain socket
and the standard library's TLS, and says which it is.
"""

import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep

import grpc

from fedpeer.protocol.limits import (
    HANDSHAKE_SECONDS,
    KEEPALIVE_SECONDS,
    KEEPALIVE_TIMEOUT_SECONDS,
    MAX_MESSAGE_BYTES,
)
from fedpeer.text_files import unmarked
from participant.errors import (
    BusyError,
    CertificateExpiredError,
    ConfigurationError,
    ServerNameError,
    TLSError,
    TransportError,
    UnreachableError,
)
from participant.identity import Credentials, utc_now
from participant.proxy import proxy_for, warn_of_unusable_proxy, words_of

#: Seconds in which a connection and a handshake must come about when the address is looked at.
PROBE_SECONDS = 5.0

#: Looks at a connection that breaks, and seconds between them.
LOOKS = 3
BETWEEN_LOOKS_SECONDS = 0.2

#: Milliseconds: gRPC's own waits between connection attempts. Short, because `Backoff` does the waiting.
_CONNECT_BACKOFF_MS = (100, 2_000)

#: Milliseconds that a connection and its handshake may take; gRPC's name for it is another. What a busy coordinator
#: allows: who gives up earlier makes it begin anew.
_CONNECT_MS = HANDSHAKE_SECONDS * 1000


@dataclass(frozen=True)
class Endpoint:
    """One port of a coordinator.

    Attributes:
        address: "host:port"; IPv6 as "[::1]:7443".
        authority_pem: what the coordinator's certificate is checked against; None for plain text.
        credentials: the caller's own, for the market port; None for the public port.
        plain_text_name: participant id that is sent in clear where TLS is off; for tests on one machine.
    """

    address: str
    authority_pem: bytes | None = field(default=None, repr=False)
    credentials: Credentials | None = field(default=None, repr=False)
    plain_text_name: str | None = None

    def __post_init__(self) -> None:
        host, _ = self.host_and_port()
        warn_of_unusable_proxy(host)

    @property
    def secure(self) -> bool:
        return self.authority_pem is not None

    def host_and_port(self) -> tuple[str, int]:
        """Raises ConfigurationError where the address is not host:port."""
        host, colon, port = self.address.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ConfigurationError(
                f"the coordinator's address is {self.address!r}; expected host:port, such as market.example:7443"
            )
        return host.removeprefix("[").removesuffix("]"), int(port)

    def options(self) -> list[tuple[str, int]]:
        """gRPC channel options: dead peers are noticed, no message is larger than the protocol's limit."""
        return [
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_SECONDS * 1000),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.initial_reconnect_backoff_ms", _CONNECT_BACKOFF_MS[0]),
            ("grpc.min_reconnect_backoff_ms", _CONNECT_MS),
            ("grpc.max_reconnect_backoff_ms", _CONNECT_BACKOFF_MS[1]),
            # Clients of one process that differ in their keys must not share a connection.
            ("grpc.use_local_subchannel_pool", 1),
        ]

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """The TLS credentials; the endpoint is secure."""
        own = self.credentials
        return grpc.ssl_channel_credentials(
            root_certificates=unmarked(self.authority_pem or b""),
            private_key=own.key_pem if own else None,
            certificate_chain=unmarked(own.certificate_pem) if own else None,
        )

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What is sent with every call."""
        name = self.plain_text_name
        return () if self.secure or name is None else ((PLAIN_TEXT_NAME, name),)

    def diagnose(self, *, certain: bool = False) -> TransportError | None:
        """What keeps the coordinator from being reached, or None where a connection comes about.

        A connection that breaks in a handshake may be refused, unlucky, or end at a proxy whose coordinator is
        down; only one that breaks every time is taken for refused, and with `certain` not even that one.
        """
        for _ in range(LOOKS - 1):
            try:
                return self._look()
            except _Unclear:
                sleep(BETWEEN_LOOKS_SECONDS)
        try:
            return self._look()
        except _Unclear as unclear:
            return None if certain else unclear.error

    def _look(self) -> TransportError | None:
        if self.credentials is not None:
            try:
                self.credentials.check_valid(utc_now())
            except CertificateExpiredError as error:
                return error
        host, port = self.host_and_port()
        try:
            with self._connected(host, port) as connection:
                if self.secure:
                    return self._diagnose_tls(connection, host)
        except UnreachableError as error:  # the proxy's
            return error
        except socket.gaierror as error:
            return UnreachableError(
                f"the host name {host!r} is not known ({error.strerror}); check the coordinator's address"
            )
        except OSError as error:
            return UnreachableError(
                f"nothing answers at {self.address} ({words_of(error)}); check that the coordinator runs, the address, "
                "and that a firewall lets outbound connections to that port through"
            )
        return None

    def _connected(self, host: str, port: int) -> socket.socket:
        proxy = proxy_for(host)
        if proxy is not None:
            return proxy.connect(host, port, PROBE_SECONDS)
        return socket.create_connection((host, port), timeout=PROBE_SECONDS)

    def _diagnose_tls(self, connection: socket.socket, host: str) -> TransportError | None:
        import tempfile  # slow to import, and needed only when something is wrong

        context = ssl.create_default_context(cadata=unmarked(self.authority_pem or b"").decode())
        context.set_alpn_protocols(["h2"])
        if self.credentials is not None:
            with tempfile.TemporaryDirectory() as folder:  # the standard library reads keys from files only
                pair = Path(folder) / "pair.pem"
                pair.touch(mode=0o600)
                pair.write_bytes(self.credentials.key_pem + self.credentials.certificate_pem)
                context.load_cert_chain(pair)
        try:
            with context.wrap_socket(connection, server_hostname=host) as secured:
                return self._refused_after_handshake(secured)
        except ssl.SSLCertVerificationError as error:
            return self._untrusted(error)
        except TimeoutError:  # it listens and does not serve yet: a coordinator that starts, or is overloaded
            return BusyError(
                f"{self.address} does not answer a TLS handshake in time; the coordinator may be starting or busy"
            )
        except OSError as error:
            incomplete = TLSError(
                f"{self.address} does not complete a TLS handshake ({words_of(error)}); check that the port is "
                "the coordinator's and that both sides use TLS"
            )
            if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
                return incomplete  # an answer, and not one of TLS
            raise _Unclear(incomplete) from None

    def _refused_after_handshake(self, secured: ssl.SSLSocket) -> TransportError | None:
        """In TLS 1.3 a server refuses a client's certificate only after the client's handshake is over."""
        try:
            secured.settimeout(PROBE_SECONDS)
            if secured.recv(1):  # the server's HTTP/2 settings
                return None
        except TimeoutError:
            return None
        except OSError:
            pass
        if self.credentials is None:
            refused = (
                f"{self.address} asks for a participant's certificate; for enrolment use the coordinator's "
                "public port"
            )
        else:
            refused = (
                f"{self.address} does not accept the certificate of {self.credentials.participant_id}: it was "
                "issued by another authority or has expired; enrol at this coordinator"
            )
        raise _Unclear(TLSError(refused))

    def _untrusted(self, error: ssl.SSLCertVerificationError) -> TransportError:
        # Verification codes of OpenSSL: X509_V_ERR_HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH; _CERT_NOT_YET_VALID,
        # _CERT_HAS_EXPIRED.
        if error.verify_code in (62, 64):
            return ServerNameError(
                f"the coordinator's certificate is not for {self.host_and_port()[0]!r} ({error.verify_message}); "
                "use the name that the operator gave it, or have it issued for this one"
            )
        if error.verify_code in (9, 10):
            return CertificateExpiredError(
                f"the coordinator's certificate is out of date ({error.verify_message}); tell its operator, "
                "and check this machine's clock"
            )
        return TLSError(
            f"the certificate at {self.address} is not signed by the authority of this enrolment "
            f"({error.verify_message}); this is another coordinator, or somebody in between: do not go on "
            "before its operator has confirmed the authority"
        )


def market_endpoint(credentials: Credentials, address: str, insecure: bool) -> Endpoint:
    """A coordinator's market port, for the holder of `credentials`."""
    if insecure:
        return Endpoint(address, plain_text_name=credentials.participant_id)
    return Endpoint(address, credentials.authority_pem, credentials)


class _Unclear(Exception):
    """What it would mean if it happened every time."""

    def __init__(self, error: TLSError) -> None:
        super().__init__(str(error))
        self.error = error


#: Metadata key under which a caller names itself where TLS is off.
PLAIN_TEXT_NAME = "fedpeer-participant"
