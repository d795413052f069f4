"""Where a ledger can be read from: an exported folder, a JSON lines file, a database, a coordinator's address.

folder     ledger.json, checkpoint, heads, tile/..., tile/entries/...   (tlog-tiles, see `ledger_export`)
file       .jsonl, or a SQLite database
database   sqlite:///..., postgresql://...
address    host:port of a coordinator's Ledger service
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import orjson

from fedpeer.audit.input_files import (
    MAX_KEY_BYTES,
    MAX_LEDGER_BYTES,
    MAX_PEM_BYTES,
    NothingThereError,
    SourceError,
    is_file,
    opened,
    read_bytes,
    read_lines,
)
from fedpeer.protocol.limits import LEDGER_BATCH_BYTES
from fedpeer.terminal import printable
from fedpeer.v1 import ledger_pb2, ledger_pb2_grpc
from mechanism.ledger.entry import MAX_ENTRY_BYTES
from mechanism.ledger.log_keys import key_change
from mechanism.ledger.merkle import HASH_BYTES
from mechanism.ledger.note import MAX_NOTE_BYTES, Checkpoint, Note
from mechanism.ledger.tiles import TILE_WIDTH, bundle_path, tile_path, unpack_bundle
from mechanism.ledger.tlog_proof import TlogProof
from mechanism.ledger.verify import LedgerSource, StoredTables

#: Version of the folder's and the JSON lines file's form.
FORMAT = "fedpeer-ledger/1"

#: A SQLite file begins so.
_SQLITE_MAGIC = b"SQLite format 3\x00"

#: Longest line of a JSON lines file that is read: an entry or a note, and its frame.
_MAX_LINE = 2 * MAX_ENTRY_BYTES

#: Bytes of a bundle of entries: each with its length, as tlog-tiles has it.
_MAX_BUNDLE = TILE_WIDTH * (MAX_ENTRY_BYTES + 2)

#: Bytes of one message of a coordinator: a batch, and the entry that passes its limit. A larger one is refused
#: before it is taken in.
_MAX_MESSAGE = LEDGER_BATCH_BYTES + 2 * MAX_ENTRY_BYTES

#: Entries and bytes of entries that are asked of a coordinator at once, and kept until all are there; and seconds that
#: they may take.
_PAGE_ENTRIES, _PAGE_BYTES, _PAGE_SECONDS = 4_096, 16 << 20, 60

#: Entries or bytes that must arrive in that time: else a server that sends one now and then keeps the reader for as
#: long as it claims to have more. A modem brings as much.
_LEAST_ENTRIES, _LEAST_BYTES = 64, 64 << 10

#: Seconds that any other answer may take.
_ANSWER_SECONDS = 10

#: Hashes of a proof in a tree of 2^63 entries.
_MAX_HASHES = 63

#: Characters of a coordinator's own words that are passed on.
_MAX_DETAILS = 300


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
        raise NothingThereError("the source is empty; expected a folder, a file, a database URL or host:port")
    path = Path(source)
    try:
        folder = path.is_dir()
    except OSError:  # longer than a path may be
        folder = False
    if folder:
        return _folder(path, resources)
    if is_file(path):
        with opened(path, MAX_LEDGER_BYTES) as file:
            magic = file.read(len(_SQLITE_MAGIC))
        if magic == _SQLITE_MAGIC:
            return _database(f"sqlite:///{path}", resources)
        return JsonLinesSource(path)
    host, _, port = source.rpartition(":")
    if host and port.isdecimal():
        if not 1 <= int(port) <= 65_535:
            raise NothingThereError(f"{source!r} has the port {port}; expected 1 to 65535")
        return _remote(source, resources, ca, insecure, certificate)
    raise NothingThereError(
        f"there is no ledger at {source!r:.300}; expected a folder, a .jsonl or database file, "
        "a database URL or a coordinator's host:port"
    )


def named(source: str) -> str:
    """What was given as a source, for people: a database's URL without its secrets."""
    if "://" not in source:
        return source
    from fedpeer.audit.sql.database import parse_url, shown  # an extra, as above
    from fedpeer.audit.sql.errors import StorageError

    try:
        return shown(parse_url(source))
    except StorageError:
        return f"{source.partition('://')[0]}://..."


def head_size(note: str) -> int:
    """How many entries a signed head covers."""
    return Checkpoint.parse_text(Note.parse(note).text).size


class _Bare:
    """A source that keeps nothing besides the log."""

    def tile(self, level: int, index: int, width: int) -> bytes | None:
        return None

    def tables(self) -> StoredTables | None:
        return None


class FolderSource(_Bare):
    """A folder in tlog-tiles form."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._folder = folder
        self._key = _header_key(self._read("ledger.json", MAX_KEY_BYTES), "ledger.json")
        self._size = head_size(self.checkpoint())

    def verification_key(self) -> str:
        return self._key

    def checkpoint(self) -> str:
        return _text(self._read("checkpoint", 4 * MAX_NOTE_BYTES), "checkpoint")

    def heads(self) -> Iterator[str]:
        number = 0
        for number, line in enumerate(read_lines(self._folder / "heads", _MAX_LINE), 1):
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
            entries = unpack_bundle(self._read(path, _MAX_BUNDLE))
            if len(entries) != width:
                raise SourceError(f"{path} holds {len(entries)} entries; expected {width}")
            yield from entries[max(0, first - start) :]

    def tile(self, level: int, index: int, width: int) -> bytes | None:
        return self._read(tile_path(level, index, width), TILE_WIDTH * HASH_BYTES)

    def _read(self, path: str, limit: int) -> bytes:
        if not os.path.lexists(self._folder / path):
            raise SourceError(f"{self._folder / path} is missing; the folder is not a ledger or incomplete")
        return read_bytes(self._folder / path, limit)


class JsonLinesSource(_Bare):
    """A file of lines: a header, then entries, with each signed head after the last entry that it covers."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._key = _header_key(next(read_lines(path, _MAX_LINE), b""), f"{path}, line 1")
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
                size = head_size(head)
                if size != count:
                    raise SourceError(f"line {number}: a head of {size} stands after {count} entries")
                yield head
            else:
                count += 1

    def entries(self, first: int = 0) -> Iterator[bytes]:
        return islice((line for _, line in self._body() if not _is_head(line)), first, None)

    def _body(self) -> Iterator[tuple[int, bytes]]:
        lines = enumerate(read_lines(self._path, _MAX_LINE), 1)
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


class RemoteSource(_Bare):
    """A coordinator's Ledger service, which may be anybody's.

    What it sends is bounded in memory by the size of a message and of a page, in time by what each page must bring.
    How many entries there are is its own word: verification stops at what is wrong.
    """

    def __init__(self, address: str, channel: grpc.Channel) -> None:
        self.name = address
        self._stub = ledger_pb2_grpc.LedgerStub(channel)
        self._head = self._answer(self._stub.GetCheckpoint, ledger_pb2.GetCheckpointRequest())

    def verification_key(self) -> str:
        changes = self.key_changes()
        if not changes:
            return str(self._head.verification_key)
        change = key_change(changes[0].index, changes[0].entry)
        if change is None:
            raise SourceError(f"the coordinator at {self.name} sent a change of key that announces none")
        return str(change.previous)

    def key_changes(self) -> list[TlogProof]:
        """The receipts of every change of the log's key."""
        return [TlogProof.parse(text) for text in self._head.key_changes]

    def checkpoint(self) -> str:
        return str(self._head.note)

    def heads(self) -> Iterator[str]:
        """The heads under which the log's key was changed, and the latest."""
        latest = self.checkpoint()
        handed_over = [str(proof.checkpoint) for proof in self.key_changes()]
        return iter([note for note in handed_over if note != latest] + [latest])

    def entries(self, first: int = 0) -> Iterator[bytes]:
        size = head_size(self.checkpoint())
        while first < size:
            page = self._page(first, min(_PAGE_ENTRIES, size - first))
            yield from page
            first += len(page)

    def entry(self, index: int) -> bytes | None:
        """Entry `index`; the coordinator says itself where there is none."""
        return self._page(index, 1)[0]

    def _page(self, first: int, count: int) -> list[bytes]:
        """The next entries, at least one: how long the caller takes over them is not the link's time.

        Raises:
            SourceError: none came in time, too few, others than asked for, or more.
        """
        entries: list[bytes] = []
        used = 0
        stream = self._stub.GetEntries(
            ledger_pb2.GetEntriesRequest(first=first, count=count), timeout=_PAGE_SECONDS
        )
        try:
            for batch in stream:
                due = first + len(entries)
                if batch.first != due or not batch.entries:
                    raise SourceError(
                        f"the coordinator sent {len(batch.entries)} entries from {batch.first} where {due} was due"
                    )
                if len(entries) + len(batch.entries) > count:
                    raise SourceError(
                        f"the coordinator sent more than the {count} entries that were asked for"
                    )
                for entry in batch.entries:
                    if len(entry) > MAX_ENTRY_BYTES:
                        raise SourceError(
                            f"entry {len(entries) + first} has {len(entry)} bytes; expected at most {MAX_ENTRY_BYTES}"
                        )
                    entries.append(entry)
                    used += len(entry)
                if len(entries) == count or used > _PAGE_BYTES:
                    return entries
        except grpc.RpcError as error:
            late = isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            if late and (len(entries) >= _LEAST_ENTRIES or used >= _LEAST_BYTES):
                return entries
            if late:
                raise SourceError(
                    f"the coordinator at {self.name} does not answer fast enough: {len(entries)} of the entries from "
                    f"{first} on in {_PAGE_SECONDS} seconds; try again on a faster link"
                ) from None
            raise _remote_error(self.name, error) from None
        finally:
            stream.cancel()
        raise SourceError(
            f"the coordinator at {self.name} sent {len(entries)} of the {count} entries from {first} on that it claims "
            "to have"
        )

    def inclusion_proof(self, index: int, size: int) -> Sequence[bytes]:
        """The coordinator's proof of entry `index` in its tree of `size`."""
        request = ledger_pb2.GetInclusionProofRequest(index=index, size=size)
        return _hashes(self._answer(self._stub.GetInclusionProof, request))

    def consistency_proof(self, first: int, second: int) -> Sequence[bytes]:
        """The coordinator's proof that its tree of `second` extends that of `first`."""
        request = ledger_pb2.GetConsistencyProofRequest(first=first, second=second)
        return _hashes(self._answer(self._stub.GetConsistencyProof, request))

    def _answer(self, method: Callable[..., Any], request: Any) -> Any:
        try:
            return method(request, timeout=_ANSWER_SECONDS)
        except grpc.RpcError as error:
            raise _remote_error(self.name, error) from None


def _hashes(proof: Any) -> list[bytes]:
    hashes = list(proof.hashes)
    if len(hashes) > _MAX_HASHES or any(len(value) != HASH_BYTES for value in hashes):
        raise SourceError(
            f"the coordinator's proof is none; expected at most {_MAX_HASHES} hashes of {HASH_BYTES} bytes"
        )
    return hashes


def _folder(path: Path, resources: ExitStack) -> LedgerSource:
    """An exported folder, or one that holds it or a database, as the demo's and a coordinator's do."""
    for folder in (path, path / "ledger"):
        if (folder / "ledger.json").exists() or (folder / "checkpoint").exists():
            return FolderSource(folder)
    databases = sorted(path.glob("*.db"))
    if len(databases) == 1:
        return _database(f"sqlite:///{databases[0]}", resources)
    raise NothingThereError(
        f"the folder {path} holds no ledger: no ledger.json, no ledger/ and no one database file"
    )


def _database(url: str, resources: ExitStack) -> LedgerSource:
    from fedpeer.audit.database_source import (
        open_database,  # SQLAlchemy is an extra, which other sources do not need
    )

    return open_database(url, resources)


def _remote(
    address: str, resources: ExitStack, ca: Path | None, insecure: bool, certificate: tuple[Path, Path] | None
) -> LedgerSource:
    options = [
        ("grpc.max_receive_message_length", _MAX_MESSAGE),
        ("grpc.enable_retries", 0),
        ("grpc.service_config_disable_resolution", 1),
    ]
    if insecure:
        channel = grpc.insecure_channel(address, options)
    else:
        chain, key = certificate if certificate else (None, None)
        credentials = grpc.ssl_channel_credentials(
            root_certificates=_pem(ca), private_key=_pem(key), certificate_chain=_pem(chain)
        )
        channel = grpc.secure_channel(address, credentials, options)
    resources.callback(channel.close)
    return RemoteSource(address, channel)


def _pem(path: Path | None) -> bytes | None:
    if path is None:
        return None
    return read_bytes(path, MAX_PEM_BYTES)


def _remote_error(address: str, error: grpc.RpcError) -> SourceError:
    details = (error.details() if isinstance(error, grpc.Call) else None) or str(error)
    details = printable(" ".join(details[:_MAX_DETAILS].split()))
    away = isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNAVAILABLE
    kind = NothingThereError if away else SourceError
    return kind(f"the coordinator at {address} does not answer: {details}{_remedy(details)}")


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


def _header_key(data: bytes, place: str) -> str:
    """The key that the header of a folder or of a file names."""
    header = _object(data, place)
    if header.get("format") != FORMAT:
        raise SourceError(f"{place}: the format is {header.get('format')!r:.60}; this program knows {FORMAT}")
    if header.keys() != {"format", "key"}:
        raise SourceError(f"{place}: expected exactly the keys format, key")
    return str(header["key"])


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
