"""What keeps the console from serving, as sentences for the one who starts it."""


class ConsoleError(Exception):
    """The console cannot serve, or cannot make a link; the sentence says why and what to do."""
