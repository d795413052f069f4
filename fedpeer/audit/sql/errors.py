"""What the storage refuses, one sentence each.

StorageError(Exception)
 +- DatabaseUnreachable    no such file, host or permission; the connection broke
 +- DatabaseLocked         another process holds the lock for longer than the wait
 +- DatabaseFull           no space left
 +- DatabaseReadOnly       the file, file system or server accepts no writes
 +- DatabaseDamaged        the file is not a database, or its pages are broken
 +- NotALedger             a database without fedpeer's tables
 +- UnknownSchema          written by another version of fedpeer
 +- ConstraintViolated     a write that the database's own rules refuse
 +- LeaseTaken             another process serves the database
 +- LeaseLost              the lease on the database was lost while serving
 +- HeadRefused            a head that would fork the log: nothing was signed
"""


class StorageError(Exception):
    """Base of every refusal of the storage. Nothing was half-written: its transaction was rolled back."""


class DatabaseUnreachable(StorageError):
    """The database cannot be opened or the connection to it broke."""


class DatabaseLocked(StorageError):
    """Another process holds the lock for longer than the wait."""


class DatabaseFull(StorageError):
    """There is no space left."""


class DatabaseReadOnly(StorageError):
    """The database accepts no writes."""


class DatabaseDamaged(StorageError):
    """The file is not a database, or its pages are broken."""


class NotALedger(StorageError):
    """A database without fedpeer's tables."""


class UnknownSchema(StorageError):
    """The database was written by another version of fedpeer."""


class ConstraintViolated(StorageError):
    """A write that the database's own rules refuse."""


class HeadRefused(StorageError):
    """A head that is not consistent with the last signed one, or a key that is not the log's."""


class LeaseTaken(StorageError):
    """Another process serves the database."""


class LeaseLost(StorageError):
    """The lease on the database was lost while serving."""
