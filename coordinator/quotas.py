"""What one identity may ask of the service: requests a second, and streams open at once."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wire.errors import Code, Refusal
from wire.limits import MAX_REQUESTS_PER_SECOND, MAX_STREAMS_PER_IDENTITY

#: Seconds over which the request rate is averaged: a burst of a reconnecting client is no attack.
_WINDOW = 10.0

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
    ) -> None:
        self._monotonic = monotonic
        self._rate = rate
        self._burst = rate * _WINDOW
        self._streams = streams
        self._tokens: dict[str, tuple[float, float]] = {}
        self._open: defaultdict[str, int] = defaultdict(int)

    def request(self, identity: str) -> None:
        """Counts one request.

        Raises:
            Refusal: QUOTA_EXCEEDED.
        """
        now = self._monotonic()
        tokens, since = self._tokens.get(identity, (self._burst, now))
        tokens = min(self._burst, tokens + (now - since) * self._rate)
        if tokens < 1:
            raise Refusal(
                Code.QUOTA_EXCEEDED, f"More than {self._rate:g} requests a second came from {identity!r}."
            )
        self._tokens[identity] = (tokens - 1, now)
        if len(self._tokens) > _REMEMBERED:
            # Whoever has been silent for the window has its whole burst again, as if it were unknown.
            self._tokens = {k: v for k, v in self._tokens.items() if now - v[1] < _WINDOW}

    @contextmanager
    def stream(self, identity: str) -> Iterator[None]:
        """Holds one of the identity's streams.

        Raises:
            Refusal: QUOTA_EXCEEDED.
        """
        if self._open[identity] >= self._streams:
            raise Refusal(
                Code.QUOTA_EXCEEDED, f"{identity!r} has {self._streams} streams open, which is the limit."
            )
        self._open[identity] += 1
        try:
            yield
        finally:
            self._open[identity] -= 1
            if not self._open[identity]:
                del self._open[identity]
