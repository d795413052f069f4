"""What a local market itself refuses, or waits for in vain."""

#: Seconds of real time in which something must happen: evidence alone may take a minute on a busy machine.
PATIENCE_SECONDS = 180.0


class MarketTestError(Exception):
    """A local market that cannot be made or played as it was asked for; the message says what to change."""
