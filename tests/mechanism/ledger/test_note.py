import string

import pytest

from mechanism.ledger.errors import NoteError, SignatureError
from mechanism.ledger.merkle import leaf_hash, tree_root
from mechanism.ledger.note import (
    COSIGNATURE_V1,
    Checkpoint,
    Note,
    SigningKey,
    VerificationKey,
    cosign,
    sign_checkpoint,
)
from mechanism.ledger.tiles import append_to_tiles, bundle_path, pack_bundle, tile_path, unpack_bundle
from tests import vectors

KEY = SigningKey("example.com/log", 1, bytes(range(32)))
CHECKPOINT = Checkpoint("example.com/log", 5, leaf_hash(b"x"))


def test_a_signed_checkpoint_opens_to_what_was_signed() -> None:
    note = str(sign_checkpoint(CHECKPOINT, KEY))
    assert Checkpoint.open(note, KEY.verification_key) == CHECKPOINT


def test_no_byte_of_a_signed_checkpoint_can_change() -> None:
    note = str(sign_checkpoint(CHECKPOINT, KEY)).encode()
    for place in range(len(note)):
        for bit in range(8):
            changed = bytearray(note)
            changed[place] ^= 1 << bit
            with pytest.raises(NoteError):
                Checkpoint.open(bytes(changed), KEY.verification_key)
    for end in range(len(note)):
        with pytest.raises(NoteError):
            Checkpoint.open(note[:end], KEY.verification_key)
    with pytest.raises(NoteError):
        Checkpoint.open(note + b"\n", KEY.verification_key)


def test_a_checkpoint_of_another_log_or_key_is_refused() -> None:
    other = SigningKey("example.com/log", 1, bytes(32))
    with pytest.raises(SignatureError, match="not signed by"):
        Checkpoint.open(str(sign_checkpoint(CHECKPOINT, other)), KEY.verification_key)
    foreign = Checkpoint("example.com/other", 5, CHECKPOINT.root)
    with pytest.raises(NoteError, match=r"the log 'example\.com/other'"):
        Checkpoint.open(str(sign_checkpoint(foreign, KEY)), KEY.verification_key)


def test_keys_round_trip_and_never_show_the_secret() -> None:
    assert SigningKey.parse(KEY.secret_text()) == KEY
    assert VerificationKey.parse(str(KEY.verification_key)) == KEY.verification_key
    assert KEY.seed.hex() not in repr(KEY)
    assert "seed" not in repr(KEY)
    with pytest.raises(NoteError) as caught:
        SigningKey.parse(KEY.secret_text()[:-4])
    assert KEY.secret_text()[-40:-4] not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a\nb", "a\tb"])
def test_a_key_name_without_form_is_refused(name: str) -> None:
    with pytest.raises(NoteError):
        VerificationKey(name, 1, bytes(32))


def test_a_cosignature_says_when_and_fits_one_text() -> None:
    witness = SigningKey("witness.example", COSIGNATURE_V1, bytes(32))
    note = sign_checkpoint(CHECKPOINT, KEY)
    cosigned = note.with_signature(cosign(note.text, witness, 1_700_000_000))
    again = Note.parse(str(cosigned))
    assert again.cosigned_by(witness.verification_key) == 1_700_000_000
    assert Checkpoint.open(again, KEY.verification_key) == CHECKPOINT
    moved = Note(note.text.replace("\n5\n", "\n6\n"), again.signatures)
    assert moved.cosigned_by(witness.verification_key) is None
    assert note.cosigned_by(witness.verification_key) is None


@pytest.mark.parametrize(
    "text", ["a\n05\nr\n", "a\n-1\nr\n", "a\n1e3\nr\n", "a\n9999999999999999999\nr\n", "a\n5\n", "\n5\nr\n"]
)
def test_a_malformed_head_is_refused(text: str) -> None:
    root = "CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I="
    with pytest.raises(NoteError):
        Checkpoint.parse_text(text.replace("r\n", root + "\n"))


# Public vectors


def test_the_public_notes_verify_and_come_back_byte_for_byte() -> None:
    notes = vectors.load("c2sp_notes.json")["notes"]
    assert len(notes) == 5
    for case in notes:
        note = Note.parse(case["note"])
        assert str(note) == case["note"]
        if case["vkey"]:
            note.verify(VerificationKey.parse(case["vkey"]))
        if "skey_public_fixture" in case:
            key = SigningKey.parse(case["skey_public_fixture"])
            assert str(key.verification_key) == case["vkey"]
            assert key.sign(note.text.encode()) == note.signatures[0].payload


def test_the_public_cosignature_has_its_time() -> None:
    case = vectors.load("c2sp_notes.json")["notes"][4]
    payload = Note.parse(case["note"]).signatures[1].payload
    assert len(payload) == 72
    assert int.from_bytes(payload[:8]) == 1_679_315_147


def test_every_public_bad_key_is_refused() -> None:
    data = vectors.load("c2sp_notes.json")
    good = data["notes"][1]["vkey"]
    VerificationKey.parse(good)
    for case in data["bad_vkeys"]:
        with pytest.raises(NoteError):
            VerificationKey.parse(case["vkey"])
    for start in range(len(good)):
        for end in range(start, len(good) + 1):
            if (start, end) != (0, len(good)):
                with pytest.raises(NoteError):
                    VerificationKey.parse(good[start:end])
    for place, char in enumerate(good):
        with pytest.raises(NoteError):
            VerificationKey.parse(good[:place] + chr(ord(char) + 1) + good[place + 1 :])


def test_the_public_tree_texts_are_judged_as_they_should() -> None:
    data = vectors.load("c2sp_notes.json")["tree_text"]
    head = Checkpoint.parse_text(data["good"])
    assert (head.origin, head.size, head.root) == (
        "go.sum database tree",
        123456789012,
        leaf_hash(b"hello world"),
    )
    for text in data["bad"][1:]:  # the first is of another log, which the key's name decides, not the form
        with pytest.raises(NoteError):
            Checkpoint.parse_text(text)
    assert Checkpoint.parse_text(data["bad"][0]).origin != "go.sum database tree"


def test_the_public_log_is_reproduced_byte_for_byte() -> None:
    data = vectors.load("c2sp_notes.json")["tessera_testlog"]
    key = SigningKey.parse(data["test_skey_public_fixture"])
    assert str(key.verification_key) == data["vkey"]
    log = vectors.folder() / "tessera-testlog/testdata/log"
    entries = [text.encode() for text in data["leaves"]]
    leaves = [leaf_hash(entry) for entry in entries]
    tiles: dict[tuple[int, int], bytes] = {}
    for size in range(16):
        if size:
            tiles.update(append_to_tiles(lambda wanted: tiles, size - 1, leaves[size - 1 : size]))
            assert tiles[(0, 0)] == (log / tile_path(0, 0, size)).read_bytes()
            bundle = (log / bundle_path(0, size)).read_bytes()
            assert pack_bundle(entries[:size]) == bundle
            assert unpack_bundle(bundle) == entries[:size]
        head = Checkpoint(key.name, size, tree_root(leaves[:size]))
        note = str(sign_checkpoint(head, key)).encode()
        assert note == (log / f"checkpoint.{size}").read_bytes()
    assert note == (log / "checkpoint").read_bytes()


def test_base64_has_one_form() -> None:
    key = str(KEY.verification_key)
    last = key[-2]
    alphabet = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
    for other in alphabet:
        if other != last:
            with pytest.raises(NoteError):
                VerificationKey.parse(key[:-2] + other + key[-1])
