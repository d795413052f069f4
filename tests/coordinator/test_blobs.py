"""Model files at rest: one contract, in a folder and in buckets of two object stores; what their faults cost."""

import hashlib
import os
import re
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from coordinator.blobs import BlobStore, open_blobs
from coordinator.bucket import PART_BYTES, Bucket, read_credentials
from coordinator.config import S3Section
from coordinator.errors import BucketError, ConfigError
from tests.object_stores import (
    ACCESS_KEY,
    SECRET_KEY,
    STORES,
    faulty_store,
    names_in,
    now_and_then,
    object_store,
    section,
    write_key,
)

CONTENT = b"weights" * 1000
DIGEST = hashlib.sha256(CONTENT).digest()

#: A file in three parts.
LARGE = os.urandom(1 << 20) * (2 * PART_BYTES // (1 << 20)) + b"end"
LARGE_DIGEST = hashlib.sha256(LARGE).digest()


@dataclass(frozen=True)
class Place:
    """Stores over one place, each with a folder of its own, and the place's URL; "" for a folder."""

    folder: Path
    url: str

    def store(self, name: str = "models") -> BlobStore:
        blobs = open_blobs(self.folder / name, section(self.url) if self.url else S3Section(), self.folder)
        blobs.prepare()
        return blobs


@pytest.fixture(scope="module", params=STORES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with object_store(request.param, tmp_path_factory.mktemp(request.param) / "store") as url:
        yield url


@pytest.fixture(params=("folder", *STORES))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    write_key(tmp_path)
    with ExitStack() as resources:
        url = ""
        if request.param != "folder":
            url = resources.enter_context(object_store(request.param, tmp_path / "store"))
        yield Place(tmp_path, url)


def source(folder: Path, content: bytes = CONTENT) -> Path:
    path = folder / "source"
    path.write_bytes(content)
    return path


def test_the_contract_of_a_store(place: Place) -> None:
    blobs, folder = place.store(), place.folder
    # Nothing is held.
    assert not blobs.holds(DIGEST)
    assert not blobs.intact(DIGEST)
    for ask in (blobs.size, blobs.fetch):
        with pytest.raises(FileNotFoundError):
            ask(DIGEST)
    with pytest.raises(FileNotFoundError):
        blobs.adopt(folder / "nothing", DIGEST)
    # One file for one digest, however often and by whatever way it comes; also a large one.
    for _ in range(2):
        assert blobs.adopt(source(folder), DIGEST) == blobs.path(DIGEST)
        assert not (folder / "source").exists()
        assert blobs.put(CONTENT, DIGEST) == blobs.path(DIGEST)
        blobs.adopt(source(folder, LARGE), LARGE_DIGEST)
    for content, digest in ((CONTENT, DIGEST), (LARGE, LARGE_DIGEST)):
        assert blobs.holds(digest)
        assert blobs.intact(digest)
        assert blobs.size(digest) == len(content)
        assert blobs.fetch(digest).read_bytes() == content
    if place.url:
        assert names_in(place.url, folder) == sorted(
            f"{name[:2]}/{name}.safetensors" for name in (DIGEST.hex(), LARGE_DIGEST.hex())
        )
    # What nobody refers to goes once it is old, the rest stays.
    other = place.store()
    assert other.retain({LARGE_DIGEST}, time.time() - 3600) == 0
    old = time.time() + 10
    assert other.retain({LARGE_DIGEST}, old) == len(CONTENT)
    assert [other.holds(digest) for digest in (DIGEST, LARGE_DIGEST)] == [False, True]
    assert list(blobs.path(DIGEST).parent.iterdir()) == []


def test_another_machine_finds_what_is_in_the_bucket_and_only_whole(server: str, tmp_path: Path) -> None:
    write_key(tmp_path)
    here, there = Place(tmp_path, server).store("here"), Place(tmp_path, server).store("there")
    here.put(CONTENT, DIGEST)
    assert there.holds(DIGEST)
    assert there.size(DIGEST) == len(CONTENT)
    assert not there.path(DIGEST).exists()
    assert there.fetch(DIGEST).read_bytes() == CONTENT
    assert there.fetch(DIGEST) == there.path(DIGEST)
    # Damage in the bucket is found, said, and repaired by a process that has the file.
    bucket = Bucket(section(server), tmp_path)
    bucket.put(f"{DIGEST.hex()[:2]}/{DIGEST.hex()}.safetensors", source(tmp_path, CONTENT[::-1]), time.time())
    third = Place(tmp_path, server).store("third")
    assert not third.intact(DIGEST)
    with pytest.raises(BucketError, match=r"is damaged: its SHA-256 is [0-9a-f]{64}; restore it"):
        third.fetch(DIGEST)
    assert not third.path(DIGEST).exists()
    third.put(CONTENT, DIGEST)
    assert here.intact(DIGEST)


def test_copies_that_are_not_in_use_make_room(server: str, tmp_path: Path) -> None:
    write_key(tmp_path)
    blobs = open_blobs(tmp_path / "models", section(server, cache_bytes=2.5 * len(CONTENT)), tmp_path)
    blobs.prepare()
    contents = [bytes([number]) * len(CONTENT) for number in range(4)]
    digests = [hashlib.sha256(content).digest() for content in contents]
    for number, (content, digest) in enumerate(zip(contents, digests, strict=True)):
        blobs.put(content, digest)
        if number < 2:
            used = time.time() - 7200 + number
            os.utime(blobs.path(digest), (used, used))
    assert [blobs.path(digest).exists() for digest in digests] == [False, False, True, True]
    assert [blobs.fetch(digest).read_bytes() for digest in digests] == contents
    assert all(blobs.path(digest).exists() for digest in digests), "what was used within the hour stays"


def test_a_line_that_fails_loses_nothing_and_stores_nothing_twice(server: str, tmp_path: Path) -> None:
    write_key(tmp_path)
    rates = {"503": 0.15, "reset": 0.10, "lost": 0.15}
    with faulty_store(server, now_and_then(7, rates)) as line:
        blobs, other = Place(tmp_path, line.url).store(), Place(tmp_path, line.url).store("other")
        contents = [os.urandom(1000 + number) for number in range(12)] + [LARGE]
        digests = [hashlib.sha256(content).digest() for content in contents]
        before = set(names_in(server, tmp_path))
        for content, digest in zip(contents, digests, strict=True):
            blobs.adopt(source(tmp_path, content), digest)
            assert other.fetch(digest).read_bytes() == content
        assert min(line.seen[fault] for fault in rates) > 0
    stored = {f"{digest.hex()[:2]}/{digest.hex()}.safetensors" for digest in digests}
    assert set(names_in(server, tmp_path)) - before == stored
    assert all(Place(tmp_path, server).store("third").intact(digest) for digest in digests)


@pytest.mark.parametrize("content", [CONTENT, LARGE], ids=["whole", "in parts"])
def test_a_lost_answer_to_what_was_done_is_no_failure(server: str, tmp_path: Path, content: bytes) -> None:
    write_key(tmp_path)
    content = content + os.urandom(8)
    lost = set()

    def once_each(method: str, path: str) -> str:
        kind = (method, "uploadId" in path, "partNumber" in path)
        if kind in lost or method in ("GET", "HEAD", "DELETE"):
            return ""
        lost.add(kind)
        return "lost"

    with faulty_store(server, once_each) as line:
        digest = hashlib.sha256(content).digest()
        Place(tmp_path, line.url).store().adopt(source(tmp_path, content), digest)
        assert line.seen["lost"] == len(lost) == (1 if len(content) < PART_BYTES else 3)
    assert Place(tmp_path, server).store("other").intact(digest)


def test_a_byte_that_changes_on_the_line_is_not_taken(server: str, tmp_path: Path) -> None:
    write_key(tmp_path)
    content = os.urandom(5000)
    with faulty_store(server, lambda method, path: "flipped" if method == "PUT" else "") as line:
        blobs = Place(tmp_path, line.url).store()
        with pytest.raises(BucketError):
            blobs.put(content, hashlib.sha256(content).digest())
    assert not Place(tmp_path, server).store("other").intact(hashlib.sha256(content).digest())


def test_a_store_that_is_away_is_said_and_a_disk_would_be_taken_for_no_other_error(
    server: str, tmp_path: Path
) -> None:
    write_key(tmp_path)
    with (
        faulty_store(server, lambda method, path: "reset") as line,
        pytest.raises(
            BucketError, match=r"cannot be used just now: Connection reset by peer.*; check s3\.endpoint, and"
        ) as caught,
    ):
        Place(tmp_path, line.url).store()
    assert SECRET_KEY not in str(caught.value)
    assert isinstance(caught.value, OSError)


@pytest.mark.parametrize("server", STORES[:1], indirect=True)
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:1", "Connection refused; check s3.endpoint, and that the store runs"),
        ("http://there.invalid", "Name or service not known; check s3.endpoint"),
        ("https://STORE", "no TLS is spoken there; expected http://; check s3.endpoint"),
        (
            "https://TLS",
            "its certificate is of an authority that this machine does not trust; check s3.endpoint",
        ),
    ],
)
def test_an_endpoint_that_is_another_is_said(server: str, url: str, said: str, tmp_path: Path) -> None:
    write_key(tmp_path)
    with web_server(trustme.CA().issue_cert("127.0.0.1")) as other:
        url = url.replace("STORE", server.removeprefix("http://")).replace("TLS", other)
        blobs = open_blobs(tmp_path / "models", section(url), tmp_path)
        with pytest.raises(BucketError, match=f"cannot be used just now: .*{re.escape(said)}"):
            blobs.prepare()


@contextmanager
def web_server(certificate: trustme.LeafCert | None = None) -> Iterator[str]:
    """host:port of a server that says the same to whatever is asked."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "13")
            self.send_header("last-modified", "Mon, 30 Nov 2026 08:00:00 GMT")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(b"<html></html>")

        do_HEAD = do_PUT = do_GET  # noqa: N815 - as http.server names them

        def log_message(self, *said: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    server.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_web_server_is_no_store(tmp_path: Path) -> None:
    write_key(tmp_path)
    with (
        web_server() as other,
        pytest.raises(BucketError, match=r"check that s3\.endpoint is an object store's"),
    ):
        Place(tmp_path, f"http://{other}").store().claim("market")


def test_a_wrong_key_is_said_without_a_secret(tmp_path: Path) -> None:
    with object_store("rclone", tmp_path / "store") as url:
        wrong = "wrong-secret-that-is-nowhere-shown"
        for key, secret, code in (
            (ACCESS_KEY, wrong, "SignatureDoesNotMatch"),
            ("AKIDOTHER000", SECRET_KEY, "InvalidAccessKeyId"),
        ):
            write_key(tmp_path, key, secret)
            blobs = open_blobs(tmp_path / "models", section(url), tmp_path)
            for attempt in (blobs.prepare, lambda blobs=blobs: blobs.put(CONTENT, DIGEST)):
                with pytest.raises(BucketError, match="the store answers 403 Forbidden") as caught:
                    attempt()
                assert "; check the keys (s3.credentials, or AWS_ACCESS_KEY_ID" in str(caught.value)
                assert not {wrong, SECRET_KEY} & set(re.split(r"\W", str(caught.value)))
                assert wrong not in str(caught.value) + repr(caught.value.__cause__)
            with pytest.raises(BucketError, match=code):
                blobs.prepare()


def test_a_bucket_below_a_prefix_is_one_markets(server: str, tmp_path: Path) -> None:
    write_key(tmp_path)

    def blobs(prefix: str) -> BlobStore:
        return open_blobs(tmp_path / "models", section(server, prefix=prefix), tmp_path)

    for prefix, market in (("all/a", "a"), ("all/a/b", "b"), ("all", "c"), ("all/a", "a")):
        blobs(prefix).claim(f"market-{market}+key")
    for prefix in ("all/a", "all/a/b", "all"):
        with pytest.raises(
            ConfigError, match=r"has the model files of another market, .* give this market a prefix"
        ):
            blobs(prefix).claim("market-d+key")
    # What each keeps, the others' housekeeping leaves.
    blobs("all/a").put(CONTENT, DIGEST)
    for prefix in ("all/a/b", "all"):
        assert blobs(prefix).retain([], time.time() + 3600) == 0
    assert blobs("all/a").holds(DIGEST)
    assert blobs("all/a").retain([], time.time() + 3600) == len(CONTENT)
    with pytest.raises(ConfigError):  # of which housekeeping takes nothing away
        blobs("all/a").claim("market-d+key")


def test_a_bucket_that_is_not_there_is_said_before_anything_is_stored(server: str, tmp_path: Path) -> None:
    write_key(tmp_path)
    missing = section(server).model_copy(update={"bucket": "missing"})
    blobs = open_blobs(tmp_path / "models", missing, tmp_path)
    for attempt in (
        blobs.prepare,
        lambda: blobs.put(CONTENT, DIGEST),
        lambda: blobs.retain([], time.time()),
    ):
        with pytest.raises(
            BucketError, match=r"^s3://missing at .* cannot be used just now: .* make the bucket"
        ):
            attempt()


def test_a_file_of_credentials_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    write_key(tmp_path)
    path = tmp_path / "s3.key"
    assert read_credentials(path)["secret_access_key"] == SECRET_KEY
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by everybody on this machine; run: chmod"):
        read_credentials(path)
    path.chmod(0o600)
    for text, said in (
        ("", "has no aws_access_key_id in its section"),
        (
            f"[default]\naws_access_key_id = A\naws_secret_access_key = é{SECRET_KEY}\n",
            "character that no key has",
        ),
        ("[default]\naws_access_key_id = A\n", "has no aws_secret_access_key"),
        (f"[default\n{SECRET_KEY}", "is not in the form of AWS's"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=said) as caught:
            read_credentials(path)
        assert SECRET_KEY not in str(caught.value)
    with pytest.raises(ConfigError, match=r"none.key cannot be read: No such file"):
        read_credentials(tmp_path / "none.key")


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (
            {"AWS_ACCESS_KEY_ID": ACCESS_KEY},
            "AWS_ACCESS_KEY_ID is set and AWS_SECRET_ACCESS_KEY is not; set both",
        ),
        ({"AWS_SECRET_ACCESS_KEY": SECRET_KEY}, "AWS_SECRET_ACCESS_KEY is set and AWS_ACCESS_KEY_ID is not"),
        (
            {"AWS_ACCESS_KEY_ID": f"{ACCESS_KEY}\n", "AWS_SECRET_ACCESS_KEY": SECRET_KEY},
            "AWS_ACCESS_KEY_ID is empty, or",
        ),
        (
            {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": f"{SECRET_KEY}\n"},
            "AWS_SECRET_ACCESS_KEY is empty",
        ),
        (
            {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_SESSION_TOKEN": ""},
            "AWS_SESSION_TOKEN is empty",
        ),
    ],
)
def test_keys_of_the_environment_that_are_none_are_refused(
    environment: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=said) as caught:
        Bucket(S3Section(bucket="models", endpoint="http://127.0.0.1:1"), tmp_path)
    assert SECRET_KEY not in str(caught.value)


def test_keys_of_a_file_are_taken_from_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.bucket._KEYS_LAST", -timedelta(minutes=4))
    with object_store("rclone", tmp_path / "store") as url:
        write_key(tmp_path)
        bucket = Bucket(section(url), tmp_path)
        assert said_in_the_end(bucket, "") == ""
        write_key(tmp_path, secret_key="one-that-has-ended")
        said_in_the_end(bucket, "SignatureDoesNotMatch")
        (tmp_path / "s3.key").write_text("[default")  # as somebody writes it
        said_in_the_end(bucket, "s3.key is not in the form of AWS's credentials files; check the keys")
        write_key(tmp_path)
        said_in_the_end(bucket, "")


def said_in_the_end(bucket: Bucket, expected: str) -> str:
    """What is wrong with a bucket, once that is what is expected; "" for nothing."""
    while True:
        said = ""
        try:
            bucket.check()
        except BucketError as error:
            said = str(error)
        if expected in said and bool(expected) == bool(said):
            return said
