"""An object store that speaks S3, through obstore: whole files in and out of one bucket, each under a name of its own.

A name stands for one content, so that what is put again is the same. That makes every fault a question of whether the
object is there:

    put   asks first. A file of one part is created only where nothing is (If-None-Match), so that two who send it at
          once leave one; a larger one goes in parts. Parts travel with their SHA-256, which a server that knows it
          checks; what the server says of the object then (ETag: the MD5 of a plain object, or of its parts') is held
          against the file. Where a server says neither, the object is read back.
    lost  an answer that is lost, a 503, a reset: tried again, and the first question finds what has arrived.

A server that ignores If-None-Match replaces an object by its equal. Parts of an upload that a killed process left lie
under no name; a bucket's rule for incomplete uploads deletes them.
"""

import configparser
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from coordinator.config import S3Section
from coordinator.errors import BucketError, ConfigError
from fedpeer.extras import missing
from fedpeer.terminal import printable

Result = TypeVar("Result")

#: Bytes of a part; a file of one part is put by one request.
PART_BYTES = 16 << 20

#: Parts on their way at once.
_CONCURRENCY = 4

#: What obstore tries again by itself, within one attempt: 503, a refused connection.
_RETRIES = {
    "max_retries": 6,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 2},
}

#: Attempts in all. Each begins by asking what is there.
_ATTEMPTS = 4

#: Seconds that one part may take; ten minutes a gigabyte would.
_PART_SECONDS = 120

#: Characters of what a store says, in an error.
_SAID = 200

#: How long keys of a file are used before it is read again, and how long before their end obstore asks for others.
_KEYS_LAST, _ASKED_BEFORE = timedelta(minutes=1), timedelta(minutes=5)

#: What a key consists of.
_KEY = re.compile(r"[!-~]+")

#: An object that says whose the others below the prefix are.
_OWNER = "fedpeer-market.json"

#: In obstore's words: what a store answers, and what keeps it from answering.
_STATUS = re.compile(r"status code: ([0-9]{3}[A-Za-z ]*)")
_CODE, _MESSAGE = re.compile(r"<Code>([A-Za-z0-9]+)</Code>"), re.compile(r"<Message>([^<]+)</Message>")
_SYSTEM = re.compile(r'(?:message|error): "([^"]+)"')

#: The same where a library says it in its own names.
_NO_TLS = {
    "InvalidContentType": "no TLS is spoken there; expected http://",
    "UnknownIssuer": "its certificate is of an authority that this machine does not trust",
    "NotValidForName": "its certificate is for another name",
    "Expired": "its certificate is out of date",
}

#: What an operator looks at, by what the answer has in it; the last for no answer.
_LOOK_AT = (
    (
        r"\b40[13]\b|credentials|AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|Token|Expired|TooSkewed",
        "check the keys (s3.credentials, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), this machine's clock, and "
        "that their user may get, put, delete and list there",
    ),
    (r"\b404\b|NoSuchBucket", "make the bucket, or name another: check s3.bucket and s3.endpoint"),
    (r"\b30[1-8]\b|\b400\b|Redirect|Malformed", "check s3.region and s3.endpoint"),
    ("", "check s3.endpoint, and that the store runs"),
)


@dataclass(frozen=True)
class StoredObject:
    """An object.

    Attributes:
        at: when it was last written, seconds since the epoch, by the store's clock.
        etag: what the store says of its content.
    """

    name: str
    size: int
    at: float
    etag: str


class Bucket:
    """Objects of one bucket, below the prefix of its section.

    Args:
        folder: from which a relative path of credentials is taken.

    Raises:
        ConfigError: obstore is not there, or the file of credentials cannot be used.
    """

    def __init__(self, section: S3Section, folder: Path) -> None:
        try:
            import obstore
            from obstore import exceptions
            from obstore.store import S3Store
        except ImportError as error:
            raise ConfigError(f"[s3] cannot be used: {missing(error) or error}") from None
        self._obstore, self._errors = obstore, exceptions
        self.display = f"s3://{section.bucket}/{section.prefix}".rstrip("/")
        self._endpoint, self._region = section.endpoint, section.region
        options: dict[str, Any] = {"checksum_algorithm": "SHA256"}
        if section.credentials:
            path = folder / section.credentials
            read_credentials(path)  # says what is wrong with it before anything is asked of the store
            options["credential_provider"] = lambda: _lasting(read_credentials(path))
        else:
            check_environment(os.environ)
        if section.endpoint:
            # Bucket names as host names need a name service that knows them, which few stores at home have.
            options |= {"endpoint": section.endpoint, "virtual_hosted_style_request": False}
        try:
            self._store: S3Store = S3Store(
                section.bucket,
                prefix=section.prefix or None,
                region=section.region,
                client_options={
                    "allow_http": section.endpoint.startswith("http://"),
                    "timeout": timedelta(seconds=_PART_SECONDS),
                    "connect_timeout": timedelta(seconds=10),
                    "user_agent": "fedpeer",
                },
                retry_config=_RETRIES,  # type: ignore[arg-type]  # a typed dict of obstore's
                **options,
            )
        except (exceptions.BaseError, ValueError) as error:
            raise ConfigError(f"[s3] cannot be used for {self.display}: {_cause(str(error))}") from None

    def check(self) -> None:
        """Whether the bucket is there and can be read. Raises BucketError."""

        def attempt() -> None:
            next(iter(self._obstore.list(self._store, chunk_size=1)), None)

        try:
            self._persistently(attempt)
        except FileNotFoundError as error:
            raise self._translated(error) from None

    def claim(self, log: str) -> None:
        """Has the bucket say whose what lies below the prefix is. Two markets there would delete one another's files.

        Args:
            log: the first key of the market's log, as text; it begins with the market's name.

        Raises:
            ConfigError: another market's.
            BucketError: that cannot be found out.
        """
        mark = json.dumps({"log": log}).encode()

        def attempt() -> bytes:
            with suppress(FileNotFoundError):
                return self._content(_OWNER)
            try:
                self._obstore.put(self._store, _OWNER, mark, mode="create")
            except (self._errors.AlreadyExistsError, self._errors.PreconditionError):
                pass  # another has been faster
            except FileNotFoundError as error:  # the bucket
                raise self._translated(error) from None
            try:
                return self._content(_OWNER)
            except FileNotFoundError as error:
                raise self._translated(error) from None

        where, found = f"{self.display}/{_OWNER}", self._persistently(attempt)
        try:
            owner = str(json.loads(found)["log"])
        except (ValueError, TypeError, KeyError):
            raise BucketError(
                f"{where} is not what a coordinator writes there; check that s3.endpoint is an object store's, and "
                "that nothing else writes below the prefix"
            ) from None
        if owner != log:
            raise ConfigError(
                f"{self.display} has the model files of another market, whose log's first key is {printable(owner)}; "
                "each would delete the other's: give this market a prefix of its own (s3.prefix), or another bucket. "
                f"Where the other is no more, delete {where}"
            )

    def _content(self, name: str) -> bytes:
        return bytes(self._obstore.get(self._store, name).bytes())

    def find(self, name: str) -> StoredObject | None:
        """The object of a name; None where there is none. Raises BucketError."""
        return self._persistently(lambda: self._find(name))

    def put(self, name: str, path: Path, after: float) -> None:
        """Has the store hold the content of `path` under `name`, written after `after`, and the store say so.

        Args:
            after: seconds since the epoch; an older object is written again, which makes it young.

        Raises:
            BucketError: it could not be had to.
            OSError: the file cannot be read.
        """
        size, digests = path.stat().st_size, _etags(path)

        def attempt() -> None:
            found = self._find(name)
            if found is None or found.at <= after or not self._is(found, size, digests, path):
                self._write(name, path, size, create=found is None)
                found = self._find(name)
            if found is None or not self._is(found, size, digests, path):
                raise BucketError(f"{self.display} does not hold what was put there under {name}")

        self._persistently(attempt)

    def get(self, name: str, target: Path) -> bytes:
        """Writes the object to `target`; returns its SHA-256.

        Raises:
            FileNotFoundError: there is none.
            BucketError: it cannot be had.
            OSError: the file cannot be written.
        """

        def attempt() -> bytes:
            digest = hashlib.sha256()
            with target.open("wb") as file:
                for piece in self._obstore.get(self._store, name).stream(min_chunk_size=1 << 20):
                    digest.update(piece)
                    file.write(piece)
            return digest.digest()

        return self._persistently(attempt)

    def names(self) -> Iterator[StoredObject]:
        """All objects. Raises BucketError."""
        try:
            for objects in self._obstore.list(self._store):
                yield from (_stored(each) for each in objects)
        except (self._errors.BaseError, FileNotFoundError) as error:
            raise self._translated(error) from None

    def delete(self, name: str) -> None:
        """Deletes an object, which may be gone already. Raises BucketError."""

        def attempt() -> None:
            with suppress(FileNotFoundError):
                self._obstore.delete(self._store, name)

        self._persistently(attempt)

    def _find(self, name: str) -> StoredObject | None:
        try:
            return _stored(self._obstore.head(self._store, name))
        except FileNotFoundError:
            return None

    def _write(self, name: str, path: Path, size: int, *, create: bool) -> None:
        """One request for a file of one part, parts for a larger one, which replaces what is there."""
        if size > PART_BYTES:
            parts: Any = {"chunk_size": PART_BYTES, "max_concurrency": _CONCURRENCY}
            try:
                self._obstore.put(self._store, name, path, use_multipart=True, **parts)
            except FileNotFoundError as error:  # not the file: an upload that was completed, its answer lost
                raise self._translated(error) from None
            return
        try:
            mode: Any = "create" if create else "overwrite"
            self._obstore.put(self._store, name, path, use_multipart=False, mode=mode)
        except (self._errors.AlreadyExistsError, self._errors.PreconditionError):
            pass  # somebody else's, or our own of which the answer was lost: what it is, is looked at
        except FileNotFoundError as error:  # the bucket
            raise self._translated(error) from None

    def _is(self, found: StoredObject, size: int, digests: frozenset[str], path: Path) -> bool:
        """Whether an object is the file: by what the store says of it, else by reading it."""
        if found.size != size:
            return False
        if found.etag in digests:
            return True
        there = hashlib.sha256()
        for piece in self._obstore.get(self._store, found.name).stream(min_chunk_size=1 << 20):
            there.update(piece)
        with path.open("rb") as file:
            return there.digest() == hashlib.file_digest(file, "sha256").digest()

    def _persistently(self, attempt: Callable[[], Result]) -> Result:
        for left in reversed(range(_ATTEMPTS)):
            try:
                return attempt()
            except (self._errors.PermissionDeniedError, self._errors.UnauthenticatedError) as error:
                raise self._translated(error) from None  # which no further attempt changes
            except FileNotFoundError:
                raise
            except (self._errors.BaseError, BucketError, OSError) as error:
                if not left:
                    raise self._translated(error) from None
        raise AssertionError("unreachable")

    def _translated(self, error: Exception) -> Exception:
        """An error of obstore's in one sentence: what the store answered, or why it did not, and what to look at."""
        if isinstance(error, BucketError) or (isinstance(error, OSError) and error.errno is not None):
            return error  # our own, or the disk's
        cause = _cause(str(error))
        look = next(words for pattern, words in _LOOK_AT if re.search(pattern, cause))
        at = f" at {self._endpoint}" if self._endpoint else f" in {self._region}"
        return BucketError(f"{self.display}{at} cannot be used just now: {cause[:_SAID]}; {look}")


def _cause(said: str) -> str:
    """What a store answered, or why it did not, from obstore's words and what it adds for debugging."""
    words, _, source = said.partition("Debug source")
    if ours := words.partition(f"{ConfigError.__name__}: ")[2]:  # of the file of keys
        return " ".join(ours.split())
    if status := _STATUS.search(words):
        code, message = _CODE.search(words), _MESSAGE.search(words)
        names = ": ".join(found[1].strip() for found in (code, message) if found)
        return printable(" ".join(f"the store answers {status[1].strip()} {names and f'({names})'}".split()))
    for name, cause in _NO_TLS.items():
        if name in source:
            return cause
    if system := _SYSTEM.search(source):
        return printable(" ".join(system[1].split()))
    return printable(" ".join(words.split()))


def read_credentials(path: Path) -> dict[str, str]:
    """The keys of a file of the form that AWS's own programs read.

        [default]
        aws_access_key_id = ...
        aws_secret_access_key = ...
        aws_session_token = ...      # where there is one

    Raises:
        ConfigError: the file cannot be read, can be read by everybody, or lacks a key; no secret is repeated.
    """
    try:
        if path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
            raise ConfigError(f"{path} can be read by everybody on this machine; run: chmod o= {path}")
        parser = configparser.ConfigParser(interpolation=None)
        parser.read_string(path.read_text())
    except OSError as error:
        raise ConfigError(f"s3.credentials: {path} cannot be read: {error.strerror}") from None
    except (configparser.Error, UnicodeDecodeError):
        raise ConfigError(f"s3.credentials: {path} is not in the form of AWS's credentials files") from None
    section = parser["default"] if parser.has_section("default") else {}
    names = ("access_key_id", "secret_access_key", "session_token")
    found = {name: section[f"aws_{name}"] for name in names if f"aws_{name}" in section}
    if lacking := [name for name in names[:2] if not found.get(name)]:
        raise ConfigError(f"s3.credentials: {path} has no aws_{lacking[0]} in its section [default]")
    for name, value in found.items():
        _check_key(f"s3.credentials: aws_{name} of {path}", value)
    return found


def check_environment(environment: Mapping[str, str]) -> None:
    """Raises ConfigError where the environment has one of two keys, or one that is none; no secret is repeated."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    given = [name for name in names if name in environment]
    if len(given) == 1:
        lacking = next(name for name in names if name not in given)
        raise ConfigError(
            f"{given[0]} is set and {lacking} is not; set both, or name a file of them by s3.credentials"
        )
    for name in (*given, "AWS_SESSION_TOKEN"):
        if name in environment:
            _check_key(name, environment[name])


def _check_key(name: str, value: str) -> None:
    """Raises ConfigError for what no key is, and no header of a request can hold."""
    if not _KEY.fullmatch(value):
        raise ConfigError(
            f"{name} is empty, or has a space, a line break or another character that no key has (`echo` adds a line "
            "break, `printf` does not); put the key there and nothing else"
        )


def _lasting(keys: dict[str, str]) -> Any:
    """Keys as obstore asks for them again after a minute: it does so five minutes before their end."""
    token = {"token": keys["session_token"]} if "session_token" in keys else {}
    ends = datetime.now(UTC) + _ASKED_BEFORE + _KEYS_LAST
    names = ("access_key_id", "secret_access_key")
    return {**{name: keys[name] for name in names}, **token, "expires_at": ends}


def _stored(found: Any) -> StoredObject:
    return StoredObject(
        found["path"], found["size"], found["last_modified"].timestamp(), (found["e_tag"] or "").strip('"')
    )


def _etags(path: Path) -> frozenset[str]:
    """What a store may say of a plain object of this content: put at once, or in parts of `PART_BYTES`."""
    whole, parts = hashlib.md5(usedforsecurity=False), []
    with path.open("rb") as file:
        while piece := file.read(PART_BYTES):
            whole.update(piece)
            parts.append(hashlib.md5(piece, usedforsecurity=False).digest())
    in_parts = hashlib.md5(b"".join(parts), usedforsecurity=False).hexdigest()
    return frozenset({whole.hexdigest(), f"{in_parts}-{len(parts)}"})
