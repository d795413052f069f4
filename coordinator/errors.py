"""What the coordinator's commands refuse. (What its calls refuse is `fedpeer.protocol.errors.Refusal`.)

CoordinatorError(ValueError)
 +- ConfigError      a configuration file that cannot be used: names the file, the key and what was expected
 +- BucketError      an object store that does not take or give a file just now; an OSError, too
 +- FolderError      a state folder that is missing, taken or damaged
 +- MarketTaskError  a task that cannot be opened, found or cancelled
 +- PayoutError      money that cannot be paid in, paid out or taken back
 +- AlreadyServed    another process serves from the state folder
 +- ServeError       the service cannot start: a port that is taken, say
"""


class CoordinatorError(ValueError):
    """Base of every refusal of this package; one sentence that says what to do."""


class ConfigError(CoordinatorError):
    """A configuration file that cannot be used."""


class BucketError(CoordinatorError, OSError):
    """An object store that does not take or give a file just now: passing, as an error of the disk is."""


class FolderError(CoordinatorError):
    """A state folder that cannot be used."""


class MarketTaskError(CoordinatorError):
    """A task that cannot be opened, found or cancelled."""


class PayoutError(CoordinatorError):
    """Money that cannot be paid in, paid out or taken back."""


class ServeError(CoordinatorError):
    """The service cannot start."""


class AlreadyServed(CoordinatorError):
    """Another process serves from the state folder."""
