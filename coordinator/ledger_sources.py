"""Where a ledger can be read from: an exported folder, a JSON lines file, a database, a coordinator's address.

folder     ledger.json, checkpoint, heads, tile/..., tile/entries/...   (tlog-tiles, see `ledger_export`)
file       .jsonl, or a SQLite database
database   sqlite:///..., postgresql://...
address    host:port of a coordinator's Ledger service
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import grpc
import orjson
from sqlalchemy import Connection, func, select

from coordinator.storage.database import Database, parse_url, shown
from coordinator.storage.errors import StorageError
from coordinator.storage.ledger import SqlLedgerStore
from coordinator.storage.ledger_tables import IDS, LOG, TILES, TOTALS
from mechanism.ledger.accounts import Balance
from mechanism.ledger.entry import MAX_ENTRY_BYTES
from mechanism.ledger.errors import LedgerError
from mechanism.ledger.journal import Journal
from mechanism.ledger.merkle import MAX_SIZE
from mechanism.ledger.note import Checkpoint, Note
from mechanism.ledger.tiles import (
    TILE_WIDTH,
    Coordinates,
    bundle_path,
    tile_path,
    unpack_bundle,
)
from mechanism.ledger.verify import LedgerSource, StoredTables, TransferRow
from protos.fedpeer.v1 import ledger_pb2, ledger_pb2_grpc

#: Version of the folder's and the JSON lines file's form.
FORMAT = "fedpeer-ledger/1"

#: A SQLite file begins so.
_SQLITE_MAGIC = b"SQLite format 3\x00"

#: Longest line of a JSON lines file that is read: an entry or a note, and its frame.
_MAX_LINE = 2 * MAX_ENTRY_BYTES

#: Entries that are asked of a coordinator at once, and seconds that they may take: a link that is dead is noticed.
_PAGE_ENTRIES = 4_096
_PAGE_SECONDS = 60


class SourceError(LedgerError):
    """A source that is no ledger, or cannot be read."""


def open_source(
    source: str,
    resources: ExitStack,
    *,
    ca: Path | None = None,
    insecure: bool = False,
    certificate: tuple[Path, Path] | None = None,
) -> LedgerSource:
    """The ledger at `source`.

    Args:
        source: folder, file, database URL or host:port.
        resources: closes what was opened.
        ca: PEM of the authority that signed the coordinator's certificate, for an address.
        insecure: speak to an address without TLS.
        certificate: PEM files of the caller's certificate and key, where the coordinator asks for one.

    Raises:
        SourceError: no such source, or not a ledger of a known form.
        StorageError: a database that cannot be opened.
    """
    if "://" in source:
        return _database(source, resources)
    if not source:
        raise SourceError("the source is empty; expected a folder, a file, a database URL or host:port")
    path = Path(source)
    if path.is_dir():
        return _folder(path, resources)
    if path.is_file():
        with path.open("rb") as file:
            magic = file.read(len(_SQLITE_MAGIC))
        if magic == _SQLITE_MAGIC:
            return _database(f"sqlite:///{path}", resources)
        return JsonLinesSource(path)
    host, _, port = source.rpartition(":")
    if host and port.isdigit():
        if not 1 <= int(port) <= 65_535:
            raise SourceError(f"{source!r} has the port {port}; expected 1 to 65535")
        return _remote(source, resources, ca, insecure, certificate)
    raise SourceError(
        f"there is no ledger at {source!r}; expected a folder, a .jsonl or database file, "
        "a database URL or a coordinator's host:port"
    )


def named(source: str) -> str:
    """What was given as a source, for people: a database's URL without its secrets."""
    if "://" not in source:
        return source
    try:
        return shown(parse_url(source))
    except StorageError:
        return f"{source.partition('://')[0]}://..."


class FolderSource:
    """A folder in tlog-tiles form."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._folder = folder
        header = _object(self._read("ledger.json"), "ledger.json")
        _check_format(header, {"format", "key"}, "ledger.json")
        self._key = str(header["key"])
        self._size = Checkpoint.parse_text(Note.parse(self.checkpoint()).text).size

    def verification_key(self) -> str:
        return self._key

    def checkpoint(self) -> str:
        return _text(self._read("checkpoint"), "checkpoint")

    def heads(self) -> Iterator[str]:
        number = 0
        for number, line in enumerate(_lines(self._folder / "heads"), 1):
            record = _object(line, f"heads, line {number}")
            if record.keys() != {"head"}:
                raise SourceError(f"heads, line {number}: expected an object with the key head")
            yield str(record["head"])
        if not number:
            raise SourceError("heads is empty; expected every head that was signed")

    def entries(self, first: int = 0) -> Iterator[bytes]:
        for start in range(first - first % TILE_WIDTH, self._size, TILE_WIDTH):
            width = min(TILE_WIDTH, self._size - start)
            path = bundle_path(start // TILE_WIDTH, width)
            entries = unpack_bundle(self._read(path))
            if len(entries) != width:
                raise SourceError(f"{path} holds {len(entries)} entries; expected {width}")
            yield from entries[max(0, first - start) :]

    def tile(self, level: int, index: int, width: int) -> bytes | None:
        return self._read(tile_path(level, index, width))

    def tables(self) -> StoredTables | None:
        return None

    def _read(self, path: str) -> bytes:
        try:
            return (self._folder / path).read_bytes()
        except FileNotFoundError:
            raise SourceError(
                f"{self._folder / path} is missing; the folder is no ledger or incomplete"
            ) from None
        except OSError as error:
            raise SourceError(f"{self._folder / path} cannot be read: {error.strerror}") from None


class JsonLinesSource:
    """A file of lines: a header, then entries, with each signed head after the last entry that it covers."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        header = _object(next(_lines(path), b""), f"{path}, line 1")
        _check_format(header, {"format", "key"}, f"{path}, line 1")
        self._key = str(header["key"])
        self._last = self._last_head()

    def verification_key(self) -> str:
        return self._key

    def checkpoint(self) -> str:
        return self._last

    def heads(self) -> Iterator[str]:
        count = 0
        for number, line in self._body():
            if _is_head(line):
                head = str(_object(line, f"line {number}")["head"])
                size = Checkpoint.parse_text(Note.parse(head).text).size
                if size != count:
                    raise SourceError(f"line {number}: a head of {size} stands after {count} entries")
                yield head
            else:
                count += 1

    def entries(self, first: int = 0) -> Iterator[bytes]:
        return islice((line for _, line in self._body() if not _is_head(line)), first, None)

    def tile(self, level: int, index: int, width: int) -> bytes | None:
        return None

    def tables(self) -> StoredTables | None:
        return None

    def _body(self) -> Iterator[tuple[int, bytes]]:
        lines = enumerate(_lines(self._path), 1)
        next(lines)
        return lines

    def _last_head(self) -> str:
        """The last line, which a truncated file lacks."""
        last = b""
        for _, line in self._body():
            last = line
        if not _is_head(last):
            raise SourceError(f"{self._path} does not end with a signed head; the file is truncated")
        return str(_object(last, f"{self._path}, last line")["head"])


class DatabaseSource:
    """A coordinator's database, seen in one reading transaction."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self.name = database.display
        self._store = SqlLedgerStore(connection)
        self._journal = Journal(self._store)
        self._tables = _Tables(connection)
        self._cache: dict[Coordinates, bytes] = {}

    def verification_key(self) -> str:
        key = self._store.verification_key()
        if key is None:
            raise SourceError(f"{self.name} has no signed head yet; there is nothing to verify")
        return key

    def checkpoint(self) -> str:
        note = self._store.checkpoint()
        if note is None:
            raise SourceError(f"{self.name} has no signed head yet; there is nothing to verify")
        return note

    def heads(self) -> Iterator[str]:
        for size, note in self._store.checkpoints():
            if Checkpoint.parse_text(Note.parse(note).text).size != size:
                raise SourceError(f"the head that is kept as that of {size} is of another size")
            yield note

    def entries(self, first: int = 0) -> Iterator[bytes]:
        if first:
            yield from self._store.entries(first, MAX_SIZE - first)
            return
        expected = 0
        try:
            for start, entries in self._store.bundles():
                if start != expected:
                    raise SourceError(f"the stored bundle at entry {start} should begin at entry {expected}")
                expected += len(entries)
                yield from entries
        except StorageError as error:
            raise SourceError(str(error)) from None

    def tile(self, level: int, index: int, width: int) -> bytes | None:
        if (level, index) not in self._cache:  # verification asks for one after the other
            self._cache = self._store.tile_run(level, index, 64)
        return self._cache.get((level, index), b"")

    def inclusion_proof(self, index: int, size: int) -> Sequence[bytes]:
        """The proof of entry `index` in the tree of `size`, from the few tiles that it takes."""
        return self._journal.inclusion_proof(index, size)

    def consistency_proof(self, first: int, second: int) -> Sequence[bytes]:
        """The proof that the tree of `second` extends that of `first`."""
        return self._journal.consistency_proof(first, second)

    def entry(self, index: int) -> bytes | None:
        """Entry `index`, None where there is none."""
        return next(self._store.entries(index, 1), None)

    def tables(self) -> StoredTables | None:
        return self._tables


class _Tables:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._store = SqlLedgerStore(connection)

    def size(self) -> int:
        """-1 where the one row that says it is missing."""
        query = select(LOG.c.size).where(LOG.c.id == 1)
        size = self._connection.execute(query).scalar_one_or_none()
        return -1 if size is None else int(size)

    def transfers(self) -> Iterator[TransferRow]:
        return self._store.transfers(0, 2**62)

    def balances(self) -> Mapping[str, Balance]:
        return self._store.all_balances()

    def totals(self) -> Balance:
        row = self._connection.execute(select(*TOTALS.c[1:]).where(TOTALS.c.id == 1)).one_or_none()
        return Balance(-1, -1, -1, -1) if row is None else Balance(*row)

    def ids(self) -> Iterator[tuple[str, int]]:
        query = select(IDS.c.id, IDS.c.entry_index).order_by(IDS.c.entry_index, IDS.c.id)
        for entry_id, index in self._connection.execute(query, execution_options={"yield_per": 1000}):
            yield entry_id, int(index)

    def tiles(self) -> int:
        return int(self._connection.execute(select(func.count()).select_from(TILES)).scalar_one())


class RemoteSource:
    """A coordinator's Ledger service."""

    def __init__(self, address: str, channel: grpc.Channel) -> None:
        self.name = address
        self._stub = ledger_pb2_grpc.LedgerStub(channel)
        try:
            self._head = self._stub.GetCheckpoint(ledger_pb2.GetCheckpointRequest(), timeout=10)
        except grpc.RpcError as error:
            raise _remote_error(address, error) from None

    def verification_key(self) -> str:
        return str(self._head.verification_key)

    def checkpoint(self) -> str:
        return str(self._head.note)

    def heads(self) -> Iterator[str]:
        return iter(())

    def entries(self, first: int = 0) -> Iterator[bytes]:
        size = Checkpoint.parse_text(Note.parse(self.checkpoint()).text).size
        if first >= size:
            return
        for start in range(first, size, _PAGE_ENTRIES):
            yield from self._page(start, min(_PAGE_ENTRIES, size - start))

    def _page(self, first: int, count: int) -> list[bytes]:
        """Entries [first, first + count), whole: how long the caller takes over them is not the link's time."""
        request = ledger_pb2.GetEntriesRequest(first=first, count=count)
        entries: list[bytes] = []
        try:
            for batch in self._stub.GetEntries(request, timeout=_PAGE_SECONDS):
                if batch.first != first + len(entries):
                    raise SourceError(
                        f"the coordinator sent entry {batch.first} where {first + len(entries)} was due"
                    )
                entries.extend(batch.entries)
        except grpc.RpcError as error:
            raise _remote_error(self.name, error) from None
        return entries

    def tile(self, level: int, index: int, width: int) -> bytes | None:
        return None

    def tables(self) -> StoredTables | None:
        return None

    def inclusion_proof(self, index: int, size: int) -> Sequence[bytes]:
        """The coordinator's proof of entry `index` in its tree of `size`."""
        request = ledger_pb2.GetInclusionProofRequest(index=index, size=size)
        try:
            return list(self._stub.GetInclusionProof(request, timeout=10).hashes)
        except grpc.RpcError as error:
            raise _remote_error(self.name, error) from None

    def consistency_proof(self, first: int, second: int) -> Sequence[bytes]:
        """The coordinator's proof that its tree of `second` extends that of `first`."""
        request = ledger_pb2.GetConsistencyProofRequest(first=first, second=second)
        try:
            return list(self._stub.GetConsistencyProof(request, timeout=10).hashes)
        except grpc.RpcError as error:
            raise _remote_error(self.name, error) from None


def _folder(path: Path, resources: ExitStack) -> LedgerSource:
    """An exported folder, or one that holds it or a database, as the demo's and a coordinator's do."""
    for folder in (path, path / "ledger"):
        if (folder / "ledger.json").exists() or (folder / "checkpoint").exists():
            return FolderSource(folder)
    databases = sorted(path.glob("*.db"))
    if len(databases) == 1:
        return _database(f"sqlite:///{databases[0]}", resources)
    raise SourceError(
        f"the folder {path} holds no ledger: no ledger.json, no ledger/ and no one database file"
    )


def _database(url: str, resources: ExitStack) -> LedgerSource:
    database = Database(url, read_only=True)
    resources.callback(database.close)
    database.check_schema()
    return DatabaseSource(database, resources.enter_context(database.read()))


def _remote(
    address: str,
    resources: ExitStack,
    ca: Path | None,
    insecure: bool,
    certificate: tuple[Path, Path] | None,
) -> LedgerSource:
    if insecure:
        channel = grpc.insecure_channel(address)
    else:
        chain, key = certificate if certificate else (None, None)
        credentials = grpc.ssl_channel_credentials(
            root_certificates=_pem(ca), private_key=_pem(key), certificate_chain=_pem(chain)
        )
        channel = grpc.secure_channel(address, credentials)
    resources.callback(channel.close)
    return RemoteSource(address, channel)


def _pem(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from None


def _remote_error(address: str, error: grpc.RpcError) -> SourceError:
    details = (error.details() if isinstance(error, grpc.Call) else None) or str(error)
    return SourceError(f"the coordinator at {address} does not answer: {details}{_remedy(details)}")


def _remedy(details: str) -> str:
    """What to do about a connection that TLS ended, which gRPC tells in its library's words."""
    if "CERTIFICATE_VERIFY_FAILED" in details:
        return "; its certificate is of an authority unknown here: name that authority's PEM by --ca"
    if "Socket closed" in details or "PEER_DID_NOT_RETURN_A_CERTIFICATE" in details or "SSL" in details:
        return (
            "; it may speak TLS (leave --insecure out, give --ca), or ask for a certificate "
            "(--certificate and --private-key; its public port asks for none)"
        )
    return ""


def _check_format(header: Mapping[str, object], keys: set[str], place: str) -> None:
    if header.get("format") != FORMAT:
        raise SourceError(f"{place}: the format is {header.get('format')!r:.60}; this program knows {FORMAT}")
    if header.keys() != keys:
        raise SourceError(f"{place}: expected exactly the keys {', '.join(sorted(keys))}")


def _lines(path: Path) -> Iterator[bytes]:
    """Lines without their newline; the last must have one too."""
    try:
        with path.open("rb") as file:
            while line := file.readline(_MAX_LINE):
                if not line.endswith(b"\n"):
                    raise SourceError(
                        f"{path} ends inside a line, or a line is too long; it is truncated or damaged"
                    )
                yield line[:-1]
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from None


def _object(data: bytes, place: str) -> dict[str, object]:
    """A canonical JSON object of strings."""
    try:
        value = orjson.loads(data)
    except ValueError:
        raise SourceError(f"{place}: expected a JSON object; is this a fedpeer ledger?") from None
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise SourceError(f"{place}: expected a JSON object of strings; is this a fedpeer ledger?")
    if orjson.dumps(value, option=orjson.OPT_SORT_KEYS) != data:
        raise SourceError(f"{place}: it is not in its canonical form; it was altered")
    return value


def _is_head(line: bytes) -> bool:
    """Entries begin with their body."""
    return line.startswith(b'{"head":')


def _text(data: bytes, place: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise SourceError(f"{place} is not UTF-8; it was altered") from None
