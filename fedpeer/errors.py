"""What the command line itself refuses."""


class CommandError(Exception):
    """A command that cannot be carried out as it was given; the message says what to change."""
