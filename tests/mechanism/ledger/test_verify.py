"""Heads, tiles, tables and receipts against the entries: what a source keeps besides them, altered one at a time."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from mechanism.ledger import entries
from mechanism.ledger.accounts import Balance, Book, Post, Reserve
from mechanism.ledger.entry import Entry
from mechanism.ledger.errors import NoteError
from mechanism.ledger.key_history import NO_KEYS, extended
from mechanism.ledger.merkle import inclusion_proof, leaf_hash
from mechanism.ledger.note import Checkpoint, Note, SigningKey, sign_checkpoint
from mechanism.ledger.tiles import Coordinates, TileNodes, append_to_tiles
from mechanism.ledger.tlog_proof import TlogProof
from mechanism.ledger.verify import Known, Problem, Report, TransferRow, _contradiction, verify_ledger
from tests import ledger_samples as samples
from tests.ledger_histories import Shape, started
from tests.memory_source import KEY, MemorySource, head


def history() -> list[Entry]:
    """More entries than a tile of the lowest level has, and a task with stakes and payments at their end."""
    task = started(Shape())
    strangers = [f"q{i:03d}" for i in range(300)]
    task.log.entries[:0] = [
        entries.enrolment(name, samples.private_key(name).public_key()) for name in strangers
    ]
    task.play()
    return samples.stamped(task.log.entries)


LEDGER = history()
SIZE = len(LEDGER)
HEADS = (1, 17, 256, 300, SIZE)


class Tables:
    """What a database keeps, from the entries."""

    def __init__(self, ledger: list[Entry]) -> None:
        self.book = Book()
        self.rows: list[TransferRow] = []
        for index, entry in enumerate(ledger):
            for position, transfer in enumerate(entry.transfers):
                self.book.apply(transfer)
                if isinstance(transfer, Post):
                    kind, name, held = "post", None, 0
                    debit, credit = transfer.debit, transfer.credit
                elif isinstance(transfer, Reserve):
                    kind, name, held = "reserve", transfer.reservation, 0
                    debit, credit = transfer.debit, transfer.credit
                else:
                    made = self.book.reservation(transfer.reservation)
                    assert made is not None
                    kind, name, held = "resolve", transfer.reservation, made.micro
                    debit, credit = made.debit, made.credit
                self.rows.append((index, position, kind, debit, credit, transfer.micro, name, held))
        self.known = [(entry.id, index) for index, entry in enumerate(ledger)]
        self.history: list[tuple[int, int, bytes, bytes, str]] = []
        digest = NO_KEYS
        for index, entry in enumerate(ledger):
            if entry.kind in ("enrolment", "revocation"):
                digest = extended(digest, index, entry.data)
                mark = entry.id.rpartition("/")[2]
                self.history.append((len(self.history), index, digest, entry.data, mark))
        self.sums = {name: self.book.balance(name) for name in self.book.accounts()}
        self.whole = self.book.totals()
        self.number, self.count = len(ledger), 0

    def size(self) -> int:
        return self.number

    def transfers(self) -> Iterator[TransferRow]:
        return iter(self.rows)

    def balances(self) -> Mapping[str, Balance]:
        return self.sums

    def totals(self) -> Balance:
        return self.whole

    def ids(self) -> Iterator[tuple[str, int]]:
        return iter(self.known)

    def tiles(self) -> int:
        return self.count

    def keys(self) -> Iterator[tuple[int, int, bytes, bytes, str]]:
        return iter(self.history)


class FullSource(MemorySource):
    """A source with heads, tiles and tables."""

    def __init__(self, ledger: list[Entry] | None = None) -> None:
        ledger = LEDGER if ledger is None else ledger
        super().__init__(ledger)
        self.notes = [head(self.data, size) for size in HEADS if size <= len(ledger)]
        self.stored: dict[Coordinates, bytes] = dict(
            append_to_tiles(lambda wanted: {}, 0, [leaf_hash(item) for item in self.data])
        )
        self.own = Tables(ledger)
        self.own.count = len(self.stored)

    def heads(self) -> Iterator[str]:
        return iter(self.notes)

    def tile(self, level: int, index: int, width: int) -> bytes | None:
        return self.stored.get((level, index))

    def tables(self) -> Any:
        return self.own


def verified(source: FullSource, known: str | None = None) -> Report:
    return verify_ledger(source, KEY.verification_key, known)


def receipt(index: int, size: int = SIZE) -> str:
    data = [entry.data for entry in LEDGER[:size]]
    tiles = dict(append_to_tiles(lambda wanted: {}, 0, [leaf_hash(item) for item in data]))
    nodes = TileNodes(lambda wanted: {tile: tiles[tile] for tile in wanted if tile in tiles}, size)
    return str(
        TlogProof(
            index, tuple(inclusion_proof(nodes, index, size)), Note.parse(head(data, size)), data[index]
        )
    )


def test_a_whole_source_is_verified_with_all_that_it_keeps() -> None:
    report = verified(FullSource())
    assert report.verified, report.problems
    assert (report.heads, report.size, report.unsigned) == (len(HEADS), SIZE, 0)


def flipped(data: bytes, place: int = 0) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def forge_head(source: FullSource, number: int, size: int) -> None:
    """A head of the log's key over a root that the entries do not give."""
    source.notes[number] = str(sign_checkpoint(Checkpoint(KEY.name, size, bytes(32)), KEY))


def row(source: FullSource, number: int, place: int, value: Any) -> None:
    changed = list(source.own.rows[number])
    changed[place] = value
    source.own.rows[number] = tuple(changed)  # type: ignore[assignment]


def key_row(source: FullSource, number: int, place: int, value: Any) -> None:
    changed = list(source.own.history[number])
    changed[place] = value
    source.own.history[number] = tuple(changed)  # type: ignore[assignment]


#: What is altered, and the place and the words of the first problem.
ALTERED: Mapping[str, tuple[Callable[[FullSource], Any], str, str]] = {
    "a head in a tile": (lambda s: forge_head(s, 1, 17), "head of 17", "do not give its root"),
    "a head at a tile's end": (lambda s: forge_head(s, 2, 256), "head of 256", "do not give its root"),
    "the last head": (lambda s: forge_head(s, 4, SIZE), f"head of {SIZE}", "do not give its root"),
    "the latest head left out": (lambda s: s.notes.pop(), "head of 300", "is not the checkpoint"),
    "a head twice": (lambda s: s.notes.insert(2, s.notes[1]), "head of 17", "kept after the head of 17"),
    "a head out of order": (
        lambda s: s.notes.insert(4, s.notes[0]),
        "head of 1",
        "kept after the head of 300",
    ),
    "a head unsigned": (lambda s: s.notes.__setitem__(1, "17\n"), "head after that of 1", "no note"),
    "the first head unsigned": (lambda s: s.notes.__setitem__(0, "17\n"), "first head", "no note"),
    "the checkpoint": (
        lambda s: setattr(s, "note", str(sign_checkpoint(Checkpoint(KEY.name, SIZE, bytes(32)), KEY))),
        "checkpoint",
        "is not the signed one",
    ),
    "the checkpoint unsigned": (lambda s: setattr(s, "note", "none"), "checkpoint", "no note"),
    "an entry missing at the end": (
        lambda s: s.data.pop(),
        f"entry {SIZE - 1}",
        f"after {SIZE - 1} of the {SIZE}",
    ),
    "a leaf's hash": (
        lambda s: s.stored.__setitem__((0, 0), flipped(s.stored[0, 0], 40)),
        "tile 0/0",
        "its hash 1 is not that of entry 1",
    ),
    "a node's hash": (
        lambda s: s.stored.__setitem__((1, 0), flipped(s.stored[1, 0])),
        "tile 1/0",
        "not that of the entries below it",
    ),
    "a tile cut": (
        lambda s: s.stored.__setitem__((0, 0), s.stored[0, 0][:-32]),
        "tile 0/0",
        "expected 256 hashes",
    ),
    "a tile too many": (lambda s: setattr(s.own, "count", s.own.count + 1), "tiles", "tiles are stored"),
    "a transfer's amount": (lambda s: row(s, 3, 5, 7), "transfers of entry", "the database holds"),
    "a transfer left out": (lambda s: s.own.rows.pop(4), "transfers of entry", "the database holds"),
    "the last transfer left out": (lambda s: s.own.rows.pop(), "transfers of entry", "holds None"),
    "a transfer too many": (
        lambda s: s.own.rows.append((SIZE, 0, "post", "treasury", "payable:p000", 5, None, 0)),
        f"transfers of entry {SIZE}",
        "that no entry orders",
    ),
    "what is held": (lambda s: row(s, 2, 7, 1), "transfers of entry", "the database holds"),
    "an id": (
        lambda s: s.own.known.__setitem__(7, ("x", 7)),
        "table ledger_ids",
        "the database says ('x', 7)",
    ),
    "an id left out": (lambda s: s.own.known.pop(), "table ledger_ids", "the database says None"),
    "an id too many": (lambda s: s.own.known.append(("x", SIZE)), "table ledger_ids", "of no entry"),
    "the number of a key": (lambda s: key_row(s, 7, 0, 8), "table ledger_keys", "entry 7 makes row 7"),
    "the entry of a key": (lambda s: key_row(s, 7, 1, 8), "table ledger_keys", "the database says (7, 8,"),
    "the digest of a key": (
        lambda s: key_row(s, 7, 2, bytes(32)),
        "table ledger_keys",
        "entry 7 makes row 7",
    ),
    "a key": (lambda s: key_row(s, 7, 3, LEDGER[8].data), "table ledger_keys", "entry 7 makes row 7"),
    "the fingerprint of a key": (
        lambda s: key_row(s, 7, 4, "0" * 16),
        "table ledger_keys",
        "entry 7 makes row 7",
    ),
    "the last key left out": (lambda s: s.own.history.pop(), "table ledger_keys", "the database says None"),
    "a key too many": (
        lambda s: s.own.history.append((99, SIZE, bytes(32), LEDGER[0].data, "")),
        "table ledger_keys",
        f"the key of entry {SIZE}, which is none",
    ),
    "the log's size": (lambda s: setattr(s.own, "number", 5), "table ledger_log", "it says 5 entries"),
    "a balance": (
        lambda s: s.own.sums.__setitem__("payable:p000", Balance(0, 1)),
        "account payable:p000",
        "the entries give",
    ),
    "an account too many": (
        lambda s: s.own.sums.__setitem__("payable:zoe", Balance(1, 1)),
        "account payable:zoe",
        "the entries give",
    ),
    "an account left out": (lambda s: s.own.sums.pop("rounding"), "account rounding", "holds None"),
    "the totals": (lambda s: setattr(s.own, "whole", Balance(1)), "table ledger_totals", "the entries give"),
}


@pytest.mark.parametrize("name", ALTERED)
def test_what_is_kept_besides_the_entries_is_compared_with_them(name: str) -> None:
    change, place, words = ALTERED[name]
    source = FullSource()
    change(source)
    report = verified(source)
    assert not report.verified
    found = [p for p in report.problems if p.place.startswith(place)]
    assert found, report.problems
    assert words in found[0].message


def test_an_altered_entry_is_named_by_its_place_and_one_beyond_the_head_is_unsigned() -> None:
    source = FullSource()
    source.data[9] = entries.enrolment("q009", samples.private_key("other").public_key()).data
    report = verified(source)
    assert report.problems[0].index == 9
    assert "it was altered" in report.problems[0].message
    source = FullSource()
    source.note = head(source.data, 300)
    source.notes = source.notes[:4]
    report = verified(source)
    assert report.verified, report.problems
    assert report.unsigned == SIZE - 300


def test_another_key_than_the_trusted_one_is_named() -> None:
    source = FullSource()
    source.verification_key = lambda: "nonsense"  # type: ignore[method-assign]
    assert verified(source).problems[0].place == "key"


@pytest.mark.parametrize("limit", ["MAX_AFTER_WRONG_BYTES", "MAX_AFTER_WRONG_ENTRIES"])
def test_after_a_wrong_entry_a_bounded_part_of_the_rest_is_read(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = FullSource()
    source.data[3] = source.data[2]
    monkeypatch.setattr(f"mechanism.ledger.verify.{limit}", 200)
    report = verified(source)
    assert report.problems[0].index == 3
    assert any("from 256 on were not read: enough is wrong" in p.message for p in report.problems)


def test_of_a_log_by_another_name_than_the_trusted_keys_nothing_is_read() -> None:
    source = FullSource()
    other = replace(KEY, name="example.com/other").verification_key
    report = verify_ledger(source, other)
    assert [p.place for p in report.problems] == ["key"]
    assert str(other) in report.problems[0].message
    assert (report.size, report.heads, report.counts.entries) == (0, 0, 0)


@pytest.mark.parametrize("size", [1, 17, 256, 300, SIZE])
def test_a_known_head_of_the_ledger_is_extended(size: int) -> None:
    report = verified(FullSource(), head(FullSource().data, size))
    assert report.verified, report.problems
    assert (report.known, report.known_size) == (Known.EXTENDED, size)
    assert report.record()["known"] == "extended"
    assert report.record()["root"] == report.root


@pytest.mark.parametrize("size", [17, 256, 300, SIZE])
def test_a_known_head_of_another_ledger_contradicts(size: int) -> None:
    known = str(sign_checkpoint(Checkpoint(KEY.name, size, bytes(32)), KEY))
    report = verified(FullSource(), known)
    assert not report.verified
    assert report.known is Known.CONTRADICTED
    assert "not that of the head that was given: a fork" in report.problems[0].message


@pytest.mark.parametrize("size", [17, 256, SIZE])
def test_a_known_head_that_a_stranger_signed_is_named_once(size: int) -> None:
    stranger = SigningKey(KEY.name, 1, bytes([9] * 32))
    report = verified(FullSource(), head(FullSource().data, size, stranger))
    assert [p.place for p in report.problems].count("known checkpoint") == 1
    assert len(report.problems) == 1


@pytest.mark.parametrize(("width", "height"), [(2, 1), (4, 2), (8, 3)])
def test_the_tree_is_that_of_the_entries_at_whatever_width_of_tiles(
    width: int, height: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that whole tiles of several levels are completed at once, which takes 65,536 entries otherwise."""
    monkeypatch.setattr("mechanism.ledger.verify.TILE_WIDTH", width)
    monkeypatch.setattr("mechanism.ledger.tiles.TILE_WIDTH", width)
    monkeypatch.setattr("mechanism.ledger.tiles.TILE_HEIGHT", height)
    report = verify_ledger(MemorySource(LEDGER), KEY.verification_key)
    assert report.verified, report.problems


def test_a_source_that_ends_before_the_known_head_is_older_and_otherwise_verified() -> None:
    older = FullSource(LEDGER[:300])
    for known in (head(FullSource().data, SIZE), receipt(5), receipt(SIZE - 1)):
        report = verified(older, known)
        assert report.verified, report.problems
        assert (report.known, report.known_size, report.size) == (Known.OLDER, SIZE, 300)


def test_a_source_that_kept_no_head_but_the_last_is_verified_and_one_whose_heads_are_unreadable_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FullSource, "heads", lambda _: iter(()))
    assert verified(FullSource()).verified

    def unreadable(_: FullSource) -> Iterator[str]:
        raise NoteError("the file of heads is damaged")
        yield

    monkeypatch.setattr(FullSource, "heads", unreadable)
    report = verified(FullSource())
    assert [(p.place, p.message) for p in report.problems] == [("first head", "the file of heads is damaged")]


@pytest.mark.parametrize(("proven", "has"), [(False, "late"), (True, "in time")])
def test_a_receipt_of_a_model_that_came_otherwise_says_how(proven: bool, has: str) -> None:
    both = [Entry("m", "model", {"late": late, "sequence": 1}).data for late in (proven, not proven)]
    came = {False: "in time", True: "late"}[proven]
    assert _contradiction(*both) == f"the receipt says that m came {came}; the ledger says {has}"
    one, other = (Entry("m", "model", {"late": proven, "sequence": n}).data for n in (1, 2))
    words = "the receipt proves another m than the ledger has: they differ in sequence"
    assert _contradiction(one, other) == words
    for both in ((one, b"{"), (b"{", one)):
        assert _contradiction(*both).endswith("and one of both is unreadable")


def test_a_known_head_beyond_the_end_counts_only_under_the_logs_key() -> None:
    older = FullSource(LEDGER[:300])
    report = verified(older, head(FullSource().data, SIZE, replace(KEY, seed=bytes(32))))
    assert [p.place for p in report.problems] == ["known checkpoint"]
    assert report.known is Known.CONTRADICTED


@pytest.mark.parametrize("index", [0, 255, 256, SIZE - 1])
def test_a_receipt_is_compared_with_the_entry_in_its_place(index: int) -> None:
    assert verified(FullSource(), receipt(index)).known is Known.EXTENDED
    other = [*LEDGER]
    other[index] = entries.enrolment("q-new", samples.private_key("new").public_key())
    report = verified(FullSource(other), receipt(index))
    assert report.known is Known.CONTRADICTED
    found = [p for p in report.problems if p.place == "receipt"]
    assert [p.index for p in found] == [index]
    assert f"the receipt proves the entry {LEDGER[index].id}" in found[0].message
    older = FullSource(other[:300])
    if index < 300:  # the copy is older, and still contradicts: its entry is another one
        assert verified(older, receipt(index)).known is Known.CONTRADICTED


@pytest.mark.parametrize(
    "known", ["", "nothing", "c2sp.org/tlog-proof@v1\n", "c2sp.org/tlog-proof@v1\nindex 0\n\n\n"]
)
def test_what_is_neither_a_head_nor_a_receipt_is_said_to_be_none(known: str) -> None:
    report = verified(FullSource(), known)
    assert report.problems[0].place == "known checkpoint"
    assert report.known is None


def test_a_receipt_that_does_not_hold_is_no_evidence() -> None:
    for broken in (receipt(5).replace("index 5", "index 6"), receipt(5).replace("\nextra ", "\nextra AAAA")):
        report = verified(FullSource(), broken)
        assert report.problems[0].place == "known checkpoint"
        assert report.known is None


def test_a_receipt_without_its_form_or_its_entry_is_refused() -> None:
    text, hash_line = receipt(5), "A" * 43 + "=\n"
    for broken in (
        text.replace("index 5\n", "index x\n"),
        text.replace("index 5\n", "index 5\n" + 64 * hash_line),
    ):
        with pytest.raises(NoteError, match="expected an index line and at most 63 hashes"):
            TlogProof.parse(broken)
    whole = TlogProof.parse(text)
    bare = TlogProof(whole.index, whole.hashes, whole.checkpoint)
    with pytest.raises(NoteError, match="carries no entry"):
        bare.verify(KEY.verification_key)
    assert bare.verify(KEY.verification_key, LEDGER[5].data).size == SIZE
    with pytest.raises(NoteError, match="another entry than the one given"):
        whole.verify(KEY.verification_key, LEDGER[6].data)


def test_all_before_the_first_wrong_entry_holds_and_nothing_where_a_head_is_wrong() -> None:
    def holds(*indices: int | None) -> int | None:
        return Report("x", problems=[Problem("somewhere", "wrong", index) for index in indices]).holds

    assert holds(7, 3, 9) == 3
    assert holds(7, None, 3) is holds(None) is None
    assert verified(FullSource()).holds == SIZE
