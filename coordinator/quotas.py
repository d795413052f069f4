"""What one identity may ask of the service: requests a second, bytes an hour, and streams open at once."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedpeer.protocol.errors import Code, Refusal
from fedpeer.protocol.limits import MAX_BYTES_PER_HOUR, MAX_REQUESTS_PER_SECOND, MAX_STREAMS_PER_IDENTITY

#: Seconds over which the request rate is averaged: a burst of a reconnecting client is not an attack.
_WINDOW = 10.0

#: Seconds over which bytes are counted.
_HOUR = 3600.0

#: Identities after which the silent ones are forgotten; on the public port anybody can be one.
_REMEMBERED = 10_000


class Quotas:
    """Token buckets by identity; `monotonic` gives seconds that never run backwards."""

    def __init__(
        self,
        monotonic: Callable[[], float],
        *,
        rate: float = MAX_REQUESTS_PER_SECOND,
        streams: int = MAX_STREAMS_PER_IDENTITY,
        bytes_per_hour: float = MAX_BYTES_PER_HOUR,
    ) -> None:
        self._monotonic = monotonic
        self._rate = rate
        self._streams = streams
        self._hourly = bytes_per_hour
        #: Bytes that an identity has moved and not yet worked off at the hourly rate, and when that was so.
        self._moved: dict[str, tuple[float, float]] = {}
        self._tokens: dict[str, tuple[float, float]] = {}
        self._open: Counter[str] = Counter()

    def request(self, identity: str, rate: float | None = None) -> None:
        """Counts one request.

        Args:
            rate: requests a second of a bucket with a rate of its own; None: that of all.

        Raises:
            Refusal: QUOTA_EXCEEDED.
        """
        rate = self._rate if rate is None else rate
        now, burst = self._monotonic(), rate * _WINDOW
        tokens, since = self._tokens.get(identity, (burst, now))
        tokens = min(burst, tokens + (now - since) * rate)
        if tokens < 1:
            raise Refusal(
                Code.QUOTA_EXCEEDED, f"More than {rate:g} requests a second came from {identity!r}."
            )
        self._tokens[identity] = (tokens - 1, now)
        if len(self._tokens) > _REMEMBERED:
            # An identity that was silent for the window has its whole burst again, as if it were unknown.
            self._tokens = {k: v for k, v in self._tokens.items() if now - v[1] < _WINDOW}

    def moved(self, identity: str, size: int) -> None:
        """Counts bytes of a stream of the identity. What is open goes on; the next stream may be refused."""
        now = self._monotonic()
        self._moved[identity] = (self._left_over(identity, now) + size, now)
        if len(self._moved) > _REMEMBERED:
            self._moved = {k: v for k, v in self._moved.items() if self._left_over(k, now) > 0}

    def _left_over(self, identity: str, now: float) -> float:
        size, since = self._moved.get(identity, (0.0, now))
        return max(0.0, size - (now - since) * self._hourly / _HOUR)

    @contextmanager
    def stream(self, identity: str) -> Iterator[None]:
        """Holds one of the identity's streams.

        Raises:
            Refusal: QUOTA_EXCEEDED.
        """
        if self._left_over(identity, self._monotonic()) > self._hourly:
            raise Refusal(
                Code.QUOTA_EXCEEDED,
                f"{identity!r} has moved more than {self._hourly / 2**30:g} GiB in an hour, which is the limit.",
            )
        full = f"{identity!r} has {self._streams} streams open, which is the limit."
        with held(self._open, identity, self._streams, full):
            yield


@contextmanager
def held(places: Counter[str], name: str, most: int, full: str) -> Iterator[None]:
    """Holds one of the `most` places under a name.

    Raises:
        Refusal: QUOTA_EXCEEDED, in the words of `full`, where none is free.
    """
    if places[name] >= most:
        raise Refusal(Code.QUOTA_EXCEEDED, full)
    places[name] += 1
    try:
        yield
    finally:
        places[name] -= 1
        if not places[name]:
            del places[name]
