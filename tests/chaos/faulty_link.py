"""A TCP link that stalls, drops and resets: a proxy between a participant and its coordinator."""

import base64
import contextlib
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

#: Bytes moved at once.
_BLOCK = 64 << 10


@dataclass
class FaultyLink:
    """Forwards connections to `target` (host:port) from a port of its own.

    Attributes:
        on_sent: called after each block that the client sent, with the number of bytes so far on all connections;
            may call `stall` or `cut`.
    """

    target: str
    on_sent: Callable[[int], None] = lambda sent: None
    sent: int = 0
    connections: int = 0
    _pairs: list[tuple[socket.socket, socket.socket]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True, name="link").start()

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def stall(self, seconds: float) -> None:
        """Nothing passes for a while; called from `on_sent` or another thread."""
        self._open.clear()
        time.sleep(seconds)
        self._open.set()

    def cut(self, *, reset: bool = True) -> int:
        """Ends all connections, with RST in both directions or in order; returns how many."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    if reset:  # no lingering: the kernel sends RST and throws what is on its way away
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    else:
                        end.shutdown(socket.SHUT_RDWR)
                    end.close()
        return len(pairs)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = self._dial(client)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            self.connections += 1
            with self._lock:
                self._pairs.append((client, server))
            threading.Thread(target=self._pump, args=(client, server), daemon=True).start()

    def _dial(self, client: socket.socket) -> socket.socket:
        """Connects a client to where it is meant to go."""
        del client
        return _connected(self.target)

    def _pump(self, client: socket.socket, server: socket.socket) -> None:
        with selectors.DefaultSelector() as selector, contextlib.suppress(OSError, ValueError):
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            while True:
                for key, _ in selector.select():
                    self._open.wait()
                    data = key.fileobj.recv(_BLOCK)  # type: ignore[union-attr]  # only sockets are registered
                    if not data:
                        return self._finish(client, server)
                    key.data.sendall(data)
                    if key.fileobj is client:
                        self.sent += len(data)
                        self.on_sent(self.sent)
        return self._finish(client, server)

    def _finish(self, *ends: socket.socket) -> None:
        with self._lock:
            self._pairs = [pair for pair in self._pairs if pair[0] is not ends[0]]
        for end in ends:
            with contextlib.suppress(OSError):
                end.close()


@dataclass
class ConnectProxy(FaultyLink):
    """The same as an HTTP proxy: a client says by CONNECT where it wants to go.

    Attributes:
        asked: the addresses that clients asked for.
        refuses: status line that is answered instead, such as "403 Forbidden".
        password: "user:password" that clients have to give.
    """

    target: str = ""
    asked: set[str] = field(default_factory=set)
    refuses: str = ""
    password: str = ""

    def _dial(self, client: socket.socket) -> socket.socket:
        client.settimeout(60)
        head = b""
        while b"\r\n\r\n" not in head:
            byte = client.recv(1)
            if not byte:
                raise ConnectionError("the client went away")
            head += byte
        first, *fields = head.decode().split("\r\n")
        method, address, _ = first.split(" ")
        assert method == "CONNECT"
        self.asked.add(address)
        token = base64.b64encode(self.password.encode()).decode()
        given = any(line.lower() == f"proxy-authorization: basic {token}".lower() for line in fields)
        refusal = self.refuses or ("407 Proxy Authentication Required" if self.password and not given else "")
        if refusal:
            client.sendall(f"HTTP/1.1 {refusal}\r\nContent-Length: 0\r\n\r\n".encode())
            raise ConnectionError(refusal)
        server = _connected(address)
        client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        client.settimeout(None)
        return server


def _connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)
