"""A second verifier of a fedpeer ledger, written from docs/ledger-format.md alone.

    python second_verifier.py LEDGER [VKEY] [--openings FILE]

LEDGER is an exported folder or a .jsonl file; FILE is what a participant or an auditor has of the openings. It needs
Python's standard library and `cryptography`, and nothing of fedpeer: numbers in the margins of the code are the
sections of the page. It reads a whole ledger into memory.
"""

import base64
import hashlib
import hmac
import itertools
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal, DecimalException
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

MICRO = 1_000_000
MAX_TOLERANCE_MICRO = 50_000
MAX_INTEGER = 2**53 - 1
MAX_NUMBER_CHARACTERS = 128
MAX_LABELS, MAX_TENSORS = 2_000, 20_000
MAX_BALANCE = 2**63 - 1
PART_BYTES = 48_000
NAME = "[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?"
AMOUNTS = Context(prec=28, rounding=ROUND_HALF_EVEN)
NOTHING = Decimal(0)
#: Likeness of one model sent twice.
ONE_MODEL = 999_000
#: Of a payment to one that is not scored.
UNSCORED = {"gross_micro": 0, "penalty_micro": 0, "fee_micro": 0}
MAX_COLUMNS, MAX_NODES, MAX_LINES, MAX_GROUP_LIMITS = 100, 2**18, 16, 62
LEVELS = [Fraction(level) for level in ("0", "1/2", "1", "3/2", "2", "3", "5")]
MEASURED = (
    "norm",
    "alignment",
    "novelty",
    "improvement",
    "echo_distance",
    "echo_cosine",
    "straying",
    "length",
)
DECIDING, SCORED = ("contract", "echo", "trained"), ("overlap", "samples", "contribution", "claim")
OF_THE_MODEL_ALONE = (*MEASURED, "fault", "features", "nearest_broadcast")

Record = dict[str, Any]


class Refused(Exception):
    """What does not hold."""


class Wrong(Refused):
    """What does not hold of an entry."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"entry {index}: {reason}")
        self.index = index


@dataclass
class Result:
    """What was found.

    Attributes:
        problems: (index of the entry or None, what is wrong); empty where everything holds.
        balances: what each account holds, micro-credits.
        level: as whom it was verified.
        opened, unchecked: how many entries commit to an opening that was there, and to one that was not.
    """

    problems: list[tuple[int | None, str]] = field(default_factory=list)
    balances: dict[str, int] = field(default_factory=dict)
    level: str = "public"
    opened: int = 0
    unchecked: int = 0

    @property
    def first(self) -> int | None:
        """Index of the first bad entry, where one is named."""
        return min((index for index, _ in self.problems if index is not None), default=None)


# 1 Canonical JSON


_WRITER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def canonical(value: Any) -> bytes:
    return _WRITER.encode(_ordered(value, 0)).encode()


def _ordered(value: Any, depth: int) -> Any:
    if depth > 32:
        raise Refused("nested more than 32 deep")
    if isinstance(value, dict):
        order = None if "".join(value).isascii() else _utf_16
        return {key: _ordered(value[key], depth + 1) for key in sorted(value, key=order)}
    if isinstance(value, list | tuple):
        return [_ordered(item, depth + 1) for item in value]
    if type(value) is int and abs(value) > MAX_INTEGER:
        raise Refused("an integer above 53 bits")
    return value


def _utf_16(key: str) -> bytes:
    return key.encode("utf-16-be")


def parsed(data: bytes) -> Any:
    try:
        value = json.loads(data, parse_float=_no_number, parse_constant=_no_number)
        same = canonical(value) == data
    except (ValueError, RecursionError) as error:
        raise Refused(f"not canonical JSON ({error})") from None
    if not same:
        raise Refused("not the canonical encoding of what it says")
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not an integer")


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def unbase64(value: str, what: str) -> bytes:
    try:
        data = base64.b64decode(value, validate=True)
    except ValueError:
        data = None
    require(
        data is not None and base64.b64encode(data).decode() == value,
        f"{what} is {shown(value)}; expected base64, in its one form",
    )
    return data or b""


def shown(value: Any) -> str:
    return f"{json.dumps(value, ensure_ascii=False):.120}"


def require(holds: bool, reason: str) -> None:
    if not holds:
        raise Refused(reason)


def shaped(value: Any, keys: str, what: str, perhaps: str = "") -> Record:
    """An object with exactly these keys, and perhaps others."""
    if not isinstance(value, dict):
        raise Refused(f"{what} is {shown(value)}; expected an object")
    wanted = set(keys.split())
    for key in sorted(wanted - set(value)):
        raise Refused(f"{what} has no {key}; expected the keys {', '.join(sorted(wanted))}")
    for key in sorted(set(value) - wanted - set(perhaps.split())):
        raise Refused(f"{what} has a key {key}; expected the keys {', '.join(sorted(wanted))}")
    return dict(value)


def tagged(value: Any, known: Mapping[str, str], what: str) -> None:
    """That an object's name is one of these."""
    require(isinstance(value, dict), f"{what} is {shown(value)}; expected an object")
    one_of(value.get("name"), known, f"{what}.name")


def one_of(value: Any, known: Iterable[str], what: str) -> None:
    require(
        isinstance(value, str) and value in known,
        f"{what} is {shown(value)}; expected one of {', '.join(known)}",
    )


def hexed(value: Any, count: int, what: str) -> bytes:
    if not isinstance(value, str) or re.fullmatch(f"[0-9a-f]{{{2 * count}}}", value) is None:
        raise Refused(f"{what} is {shown(value)}; expected {count} bytes in hexadecimal")
    return bytes.fromhex(value)


def identifier(value: Any, what: str) -> str:
    require(
        isinstance(value, str) and re.fullmatch(NAME, value) is not None,
        f"{what} is {shown(value)}; expected an id",
    )
    return str(value)


def text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise Refused(f"{what} is {shown(value)}; expected a string")
    return str(value)


def named(value: Any) -> str:
    found = text(value, "a name")
    require(
        1 <= len(found) <= 256 and not re.search("[\x00-\x1f\x7f-\x9f]", found),
        "a name has another length, or control characters",
    )
    return found


def different(value: Any, most: int, least: int = 2) -> list[str]:
    require(isinstance(value, list) and least <= len(value) <= most, "a list of names has another length")
    names = [named(name) for name in value]
    require(len(set(names)) == len(names), "a name stands twice")
    return names


def integer(value: Any, least: int, what: str, most: int = MAX_INTEGER) -> int:
    if type(value) is not int or not least <= value <= most:
        raise Refused(f"{what} is {shown(value)}; expected an integer from {least} to {most}")
    return int(value)


def rational(value: Any, what: str) -> Fraction:
    """A rational in [0, 1], in lowest terms."""
    require(
        isinstance(value, str)
        and len(value) <= MAX_NUMBER_CHARACTERS
        and re.fullmatch("[0-9]+(/[0-9]+)?", value) is not None,
        f"{what} is {shown(value)}; expected a rational in [0, 1]",
    )
    top, _, bottom = value.partition("/")
    require(not bottom or int(bottom) > 0, f"{what} divides by zero")
    found = Fraction(int(top), int(bottom or "1"))
    require(str(found) == value and found <= 1, f"{what} is {value}; expected lowest terms, and at most 1")
    return found


def decimal(value: Any, what: str) -> Decimal:
    """A decimal of the terms: plain, canonical, at most 30 digits on either side."""
    require(
        isinstance(value, str)
        and len(value) <= MAX_NUMBER_CHARACTERS
        and re.fullmatch(r"-?(0|[1-9][0-9]*)(\.[0-9]*[1-9])?", value) is not None,
        f"{what} is {shown(value)}; expected a plain decimal",
    )
    found = Decimal(value)
    require(value != "-0", f"{what} is {value}; expected a plain decimal")
    whole, _, part = value.removeprefix("-").partition(".")
    require(
        len(whole) <= 30 and len(part) <= 30, f"{what} is {value}; expected at most 30 places on either side"
    )
    return found


def positive(value: Any, what: str) -> Decimal:
    found = decimal(value, what)
    require(found > 0, f"{what} is {value}; expected a decimal above 0")
    return found


# 3 Tree; 4 heads and keys


def leaf_hash(data: bytes) -> bytes:
    return sha256(b"\x00" + data)


class Tree:
    """The roots of the perfect subtrees of what was added, left to right."""

    def __init__(self) -> None:
        self.size = 0
        self.roots: list[bytes] = []

    def add(self, leaf: bytes) -> None:
        size = self.size
        while size & 1:
            leaf = sha256(b"\x01" + self.roots.pop() + leaf)
            size >>= 1
        self.roots.append(leaf)
        self.size += 1

    def root(self) -> bytes:
        if not self.roots:
            return sha256(b"")
        root = self.roots[-1]
        for left in reversed(self.roots[:-1]):
            root = sha256(b"\x01" + left + root)
        return root


def vkey(value: str) -> tuple[str, bytes, bytes]:
    """Name, id and public key of `name+id+base64`."""
    parts = value.split("+", 2)
    require(len(value) <= 1024 and len(parts) == 3, "no verification key")
    name, key_id, encoded = parts
    require(bool(name) and not any(c.isspace() for c in name) and name.isprintable(), "no name of a key")
    blob = unbase64(encoded, "a verification key")
    require(len(blob) == 33 and blob[0] == 1, "no Ed25519 key")
    require(key_id == sha256(name.encode() + b"\n" + blob)[:4].hex(), "the id is not that of the key")
    return name, bytes.fromhex(key_id), blob[1:]


@dataclass
class Head:
    origin: str
    size: int
    root: bytes
    text: str
    signatures: list[tuple[str, bytes, bytes]]

    def check(self, key: str) -> None:
        """That `key` has signed it."""
        name, key_id, public = vkey(key)
        require(self.origin == name, f"the head is of the log {self.origin}")
        mine = [blob for who, which, blob in self.signatures if (who, which) == (name, key_id)]
        require(bool(mine), f"the head of {self.size} is not signed by {key}")
        for blob in mine:
            try:
                ed25519.Ed25519PublicKey.from_public_bytes(public).verify(blob, self.text.encode())
            except InvalidSignature:
                raise Refused(f"the signature of the head of {self.size} does not fit it") from None


def head(note: str) -> Head:
    require(len(note) <= 65_536 and note.replace("\n", "").isprintable(), "the note has control characters")
    body, gap, rest = note.rpartition("\n\n")
    require(bool(gap) and rest.endswith("\n"), "no note")
    lines = body.split("\n")
    require(len(lines) == 3 and bool(lines[0]), "no checkpoint")
    require(
        re.fullmatch("0|[1-9][0-9]{0,18}", lines[1]) is not None, "the size of a checkpoint is not a number"
    )
    require(int(lines[1]) < 2**63, "the size of a checkpoint is not a number")
    root = unbase64(lines[2], "the root of a checkpoint")
    require(len(root) == 32, "the root of a checkpoint has another length")
    signatures = []
    for line in rest[:-1].split("\n"):
        match = re.fullmatch(r"— ([^\s+]+) ([A-Za-z0-9+/]+={0,2})", line)
        require(match is not None, "no signature line")
        assert match is not None
        blob = unbase64(match[2], "a signature of a head")
        require(len(blob) >= 5, "a signature is too short")
        signatures.append((match[1], blob[:4], blob[4:]))
    require(len(signatures) <= 64, "too many signatures")
    return Head(lines[0], int(lines[1]), root, body + "\n", signatures)


# 5 Exports


@dataclass
class Export:
    key: str
    heads: list[Head]
    entries: list[bytes]
    tiles: Callable[[int, int, int], bytes | None] = lambda level, index, width: None


def read(path: Path) -> Export:
    return _read_folder(path) if path.is_dir() else _read_lines(path)


def _header(line: bytes) -> str:
    record = shaped(parsed(line), "format key", "the header")
    require(record["format"] == "fedpeer-ledger/1", "another format")
    return text(record["key"], "the key")


def _head_line(line: bytes) -> str:
    return text(shaped(parsed(line), "head", "a line of a head")["head"], "a head")


def _read_lines(path: Path) -> Export:
    data = path.read_bytes()
    require(data.endswith(b"\n"), "the last line has no end")
    first, *lines = data[:-1].split(b"\n")
    heads, entries = [], []
    for line in lines:
        if line.startswith(b'{"head":'):
            heads.append(head(_head_line(line)))
            require(heads[-1].size == len(entries), "a head stands in another place than its size says")
        else:
            entries.append(line)
    require(bool(lines) and lines[-1].startswith(b'{"head":'), "the last line is not a head")
    return Export(_header(first), heads, entries)


def _read_folder(folder: Path) -> Export:
    latest = (folder / "checkpoint").read_text(encoding="utf-8")
    lines = (folder / "heads").read_bytes().split(b"\n")
    require(lines.pop() == b"" and bool(lines), "heads is empty or has no end")
    notes = [_head_line(line) for line in lines]
    require(notes[-1] == latest, "the last of the heads is not the checkpoint")
    heads, entries = [head(note) for note in notes], list[bytes]()
    for start in range(0, heads[-1].size, 256):
        width = min(256, heads[-1].size - start)
        data = (folder / "tile" / "entries" / _place(start // 256, width)).read_bytes()
        position = 0
        while position < len(data):
            length = int.from_bytes(data[position : position + 2], "big")
            position += 2 + length
            require(position <= len(data), "a bundle ends inside an entry")
            entries.append(data[position - length : position])
        require(len(entries) == start + width, "a bundle holds another number of entries")
    return Export(
        _header((folder / "ledger.json").read_bytes()),
        heads,
        entries,
        lambda level, index, width: (folder / "tile" / str(level) / _place(index, width)).read_bytes(),
    )


def _place(index: int, width: int) -> str:
    groups = [f"{index % 1000:03d}"]
    while index := index // 1000:
        groups.insert(0, f"x{index % 1000:03d}")
    return "/".join(groups) + ("" if width == 256 else f".p/{width}")


# 2 Entries


@dataclass
class Entry:
    index: int
    data: bytes
    id: str
    kind: str
    body: Record


#: Keys of the bodies of those kinds that are not compared as a whole; of terms, those of a part.
KEYS = {
    "terms": "task_id part parts sha256 data",
    "transition": "task_id round state at reason",
    "deletion": "task_id at",
    "selection": "task_id part parts participants participants_sha256",
    "closing": "task_id round at part parts absent",
    "enrolment": "participant_id public_key",
    "revocation": "participant_id fingerprint reason",
    "pseudonym": "task_id participant_id commitment",
    "log_key": "number previous verification_key",
    "claim": "statement signature keys organisation",
    "model": "statement signature sequence late keys",
    "failure": "task_id round participant_id submission_id reason",
    "evidence": "task_id round commitment shadows_sha256 shadows carried",
    "verdict": "task_id round outcome commitment",
    "seed": "task_id round seed",
    "aggregation": "task_id round model_sha256 figures state_sha256",
    "dispute": "task_id participant_id at",
    "awards": "task_id round total_micro",
    "award": "task_id round participant_id award_micro",
    "refund": "task_id round",
    "stake_release": "task_id participant_id",
    "audit": (
        "task_id round participant_id number at outcome submitted_micro retrained_micro limit_micro commitment"
    ),
    "appeal": "task_id round participant_id reason at",
    "audit_end": "task_id round participant_id why at",
    "remeasurement": "task_id at outcome statement signature",
    "held_release": "task_id participant_id",
    "audit_loss": "task_id participant_id",
    "deposit": "learner_id reference micro at",
    "withdrawal": "learner_id reference micro at",
    "payout": "number at price part parts participants",
    "payout_end": "number at outcome reason",
    "payout_return": "number participant_id at reason micro",
}


def entry_of(index: int, data: bytes) -> Entry:
    require(len(data) <= 65_535, "an entry of more than 65535 bytes")
    record = parsed(data)
    require(isinstance(record, dict), "an entry is an object")
    require(type(record.get("v")) is int and record["v"] == 1, "another version of the form")
    moves = "transfers " if "transfers" in record else ""
    shaped(record, moves + "body id kind v", "the entry")
    kind, body = text(record["kind"], "the kind"), record["body"]
    if kind == "terms" and isinstance(body, dict) and "terms" in body:
        shaped(body, "task_id terms", "the body")
    elif kind in KEYS:
        shaped(body, KEYS[kind], "the body")
    else:
        require(isinstance(body, dict), f"the body is {shown(body)}; expected an object")
    require(
        isinstance(record["id"], str) and re.fullmatch("[!-~]{1,255}", record["id"]) is not None,
        "no entry id",
    )
    return Entry(index, data, record["id"], kind, body)


def difference(found: Any, wanted: Any, path: str = "") -> str:
    """The first difference of two canonical values, in words; empty where they are equal."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in sorted(found.keys() | wanted.keys()):
            where = f"{path}.{key}" if path else key
            if key not in wanted:
                return f"{where} does not belong here"
            if key not in found:
                return f"{where} is missing; expected {shown(wanted[key])}"
            if words := difference(found[key], wanted[key], where):
                return words
        return ""
    # What a program compares as equal may be written in two ways: 1 and true.
    same = found == wanted if type(found) is type(wanted) is str else canonical(found) == canonical(wanted)
    return "" if same else f"{path} is {shown(found)}; expected {shown(wanted)}"


def encoded(id_: str, kind: str, body: Record, *transfers: Record) -> bytes:
    record: Record = {"body": body, "id": id_, "kind": kind, "v": 1}
    if transfers:
        record["transfers"] = list(transfers)
    return canonical(record)


def cut(record: Any) -> tuple[str, list[str]]:
    """Digest and pieces of what is written in parts."""
    data = canonical(record)
    whole = base64.b64encode(data).decode()
    return sha256(data).hex(), [whole[i : i + PART_BYTES] for i in range(0, len(whole), PART_BYTES)]


def runs(items: Sequence[Any]) -> list[list[Any]]:
    """A list cut into runs."""
    if len(canonical(list(items))) - 2 <= PART_BYTES:
        return [list(items)]
    parts: list[list[Any]] = [[]]
    used = 0
    for item in items:
        length = len(canonical(item)) + 1
        if used + length > PART_BYTES and parts[-1]:
            parts.append([])
            used = 0
        parts[-1].append(item)
        used += length
    return parts


# 8 Terms


class Price:
    """What a credit is paid out as."""

    def __init__(self, record: Any) -> None:
        self.record = shaped(record, "amount currency minor_unit", "price")
        amount = positive(record["amount"], "price.amount")
        require(
            re.fullmatch("[A-Z]{3}", text(record["currency"], "price.currency")) is not None,
            "price.currency is no code of a currency",
        )
        self.unit = Fraction(amount) * 10 ** integer(record["minor_unit"], 0, "price.minor_unit", 4) / 10**6

    def line(self, free: int) -> tuple[int, int]:
        """Units that micro-credits are paid out as, and the micro-credits that these take."""
        units = min(MAX_INTEGER, math.floor(min(free, MAX_INTEGER) * self.unit))
        return units, math.ceil(units / self.unit)


class Audit:
    """The section of the terms on audits, and what follows from it."""

    def __init__(self, record: Any) -> None:
        keys = "auditor probability rate held_back seconds appeal_seconds unaudited"
        audit = shaped(record, keys, "audit")
        spki = bytes.fromhex(text(audit["auditor"], "audit.auditor"))
        require(spki.hex() == audit["auditor"], "the auditor's key is not in hexadecimal")
        self.key = public_key(spki)
        self.probability, self.rate = (
            rational(audit[name], f"audit.{name}") for name in ("probability", "rate")
        )
        require(self.probability > 0, "audit.probability is 0")
        require(0 < self.rate < 1, "audit.rate is 0 or 1")
        self.share = Fraction(decimal(audit["held_back"], "audit.held_back"))
        require(0 <= self.share < 1, "audit.held_back is outside [0, 1)")
        self.seconds = integer(audit["seconds"], 1, "audit.seconds")
        self.appeal_seconds = integer(audit["appeal_seconds"], 0, "audit.appeal_seconds")
        one_of(audit["unaudited"], ("paid", "refunded"), "audit.unaudited")
        self.back = audit["unaudited"] == "refunded"

    def draws(self, key: bytes, name: str) -> bool:
        found = hmac.digest(
            key, b"fedpeer audit draw v1" + len(name).to_bytes(2, "big") + name.encode(), "sha256"
        )
        return Fraction(int.from_bytes(found[:8], "big"), 2**64) < self.probability

    def limit(self, differences: Sequence[int]) -> int | None:
        place = math.ceil((len(differences) + 1) * (1 - self.rate))
        return sorted(differences)[place - 1] if place <= len(differences) else None


def public_key(spki: bytes) -> ec.EllipticCurvePublicKey:
    """ECDSA on P-256, in the one form that it has."""
    try:
        key = serialization.load_der_public_key(spki)
    except (ValueError, UnsupportedAlgorithm):
        raise Refused("the public key is unreadable") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise Refused("the public key is not ECDSA P-256")
    again = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    require(again == spki, "the public key is not in its one form")
    return key


class Terms:
    """The terms of a task, read and checked."""

    def __init__(self, record: Any) -> None:
        keys = (
            "task_id reference q phi upsilon payment rule schedule contract recipe budget_micro seed_commitment "
            "validation_commitment initial_model aggregation"
        )
        terms = shaped(
            record, keys, "terms", "strata classes columns arrays price funder audit auditor pseudonyms"
        )
        self.record = terms
        self.task_id = identifier(terms["task_id"], "task_id")
        require(
            isinstance(terms["reference"], list) and 2 <= len(terms["reference"]) <= MAX_LABELS,
            "reference is too short or too long",
        )
        self.reference = [rational(p, "reference") for p in terms["reference"]]
        require(sum(self.reference) == 1, "reference does not sum to 1")
        require(
            math.lcm(*(q.denominator for q in self.reference)) <= 10**64,
            "reference has too long a denominator",
        )
        self.q, self.phi, self.upsilon = (positive(terms[name], name) for name in ("q", "phi", "upsilon"))
        self._payment(terms["payment"])
        rule = shaped(terms["rule"], "name peers claim_penalty stake_micro fee whole_from", "rule")
        names = ("verified", "paper", "leave_one_out", "shapley", "correlated_agreement", "dmi")
        one_of(rule["name"], names, "rule.name")
        self.rule = str(rule["name"])
        self.peers = integer(rule["peers"], 1, "rule.peers")
        self.penalty = decimal(rule["claim_penalty"], "rule.claim_penalty")
        require(self.penalty >= 0, "rule.claim_penalty is negative")
        self.stake = integer(rule["stake_micro"], 0, "rule.stake_micro")
        self.fee = decimal(rule["fee"], "rule.fee")
        require(self.fee >= 0, "rule.fee is negative")
        self.whole_from = Fraction(decimal(rule["whole_from"], "rule.whole_from"))
        require(Fraction(1, 2) < self.whole_from <= 1, "rule.whole_from is not above 1/2 and at most 1")
        self._schedule(terms["schedule"])
        self._contract(terms["contract"])
        self._aggregation(terms["aggregation"])
        keys = "model epochs batch_size optimizer learning_rate samples proximal"
        more = "momentum beta2 epsilon weight_decay label_smoothing augmentation precision allowed"
        recipe = shaped(terms["recipe"], keys, "recipe", f"source privacy {more}")
        require(len(text(recipe["model"], "recipe.model")) <= 256, "recipe.model is too long")
        require((":" in recipe["model"]) == ("source" in recipe), "recipe.source stands where it should not")
        if "source" in recipe:
            self._factory(recipe["model"], recipe["source"])
        self._samples(terms)
        one_of(recipe["optimizer"], ("adam", "sgd"), "recipe.optimizer")
        positive(recipe["learning_rate"], "recipe.learning_rate")
        require(decimal(recipe["proximal"], "recipe.proximal") >= 0, "recipe.proximal is negative")
        for name in ("epochs", "batch_size", "samples"):
            integer(recipe[name], 1, f"recipe.{name}")
        self._training(recipe)
        if "privacy" in recipe:
            privacy = shaped(recipe["privacy"], "method clip noise_multiplier delta", "recipe.privacy")
            one_of(privacy["method"], ("dp-sgd", "update"), "privacy.method")
            for name, most in (("clip", 10**6), ("noise_multiplier", 10**4)):
                require(positive(privacy[name], f"privacy.{name}") <= most, f"privacy.{name} is too large")
            require(positive(privacy["delta"], "privacy.delta") < 1, "privacy.delta is not below 1")
        self.budget = integer(terms["budget_micro"], 0, "budget_micro")
        self.price = Price(terms["price"]) if "price" in terms else None
        self.payer = f"learner:{identifier(terms['funder'], 'funder')}" if "funder" in terms else "treasury"
        self.audit = Audit(terms["audit"]) if "audit" in terms else None
        require(self.audit is None or self.rule == "verified", "audits under a rule that measures no degree")
        self.pseudonyms = "pseudonyms" in terms
        require(terms.get("pseudonyms", True) is True, "pseudonyms is not true")
        self.auditor = None if self.audit is None else self.audit.key
        if "auditor" in terms:
            spki = bytes.fromhex(text(terms["auditor"], "auditor"))
            require(spki.hex() == terms["auditor"], "the auditor's key is not in hexadecimal")
            require(self.audit is None and self.rule != "paper", "auditor stands where it should not")
            self.auditor = public_key(spki)
        self.seed = hexed(terms["seed_commitment"], 32, "seed_commitment")
        self.validation = hexed(terms["validation_commitment"], 32, "validation_commitment").hex()
        self.initial = hexed(terms["initial_model"], 32, "initial_model").hex()
        self.digest = sha256(canonical(terms)).hex()

    def _training(self, recipe: Any) -> None:
        """What a recipe has only where it is no default, and what may vary."""
        adam = recipe["optimizer"] == "adam"
        for name, usual in (("momentum", "0.9"), ("beta2", "0.999"), ("label_smoothing", "0")):
            if name in recipe:
                require(0 <= decimal(recipe[name], f"recipe.{name}") < 1, f"recipe.{name} is not in [0, 1)")
                require(recipe[name] != usual and (adam or name != "beta2"), f"recipe.{name} is out of place")
        if "epsilon" in recipe:
            positive(recipe["epsilon"], "recipe.epsilon")
            require(recipe["epsilon"] != "0.00000001" and adam, "recipe.epsilon is out of place")
        if "weight_decay" in recipe:
            positive(recipe["weight_decay"], "recipe.weight_decay")
        if "augmentation" in recipe:
            one_of(recipe["augmentation"], ("light",), "recipe.augmentation")
        if "precision" in recipe:
            one_of(recipe["precision"], ("bfloat16", "float64"), "recipe.precision")
        if "allowed" not in recipe:
            return
        names = (
            "batch_factor epochs learning_rate weight_decay label_smoothing proximal augmentation precision"
        )
        allowed = shaped(recipe["allowed"], "", "recipe.allowed", names)
        require(bool(allowed), "recipe.allowed allows nothing")
        if "batch_factor" in allowed:
            factor = decimal(allowed["batch_factor"], "allowed.batch_factor")
            require(1 < factor <= 64, "allowed.batch_factor is not above 1 and at most 64")
        if "epochs" in allowed:
            require(integer(allowed["epochs"], 1, "allowed.epochs") <= 1000, "allowed.epochs is above 1000")
        for name in ("learning_rate", "label_smoothing"):
            if name in allowed:
                require(positive(allowed[name], f"allowed.{name}") < 1, f"allowed.{name} is not below 1")
        for name in ("weight_decay", "proximal"):
            if name in allowed:
                positive(allowed[name], f"allowed.{name}")
        if "augmentation" in allowed:
            require(allowed["augmentation"] is True, "allowed.augmentation is not true")
        if "precision" in allowed:
            kinds = allowed["precision"]
            known = ("bfloat16", "float64", "tensors")
            require(isinstance(kinds, list) and bool(kinds), "allowed.precision is no list of something")
            for kind in kinds:
                one_of(kind, known, "allowed.precision")
            require(kinds == sorted(set(kinds)), "allowed.precision is not in order, each once")

    def _payment(self, record: Any) -> None:
        known = {
            "log": "name scale",
            "log1p": "name scale",
            "linear": "name scale",
            "power": "name scale exponent",
        }
        tagged(record, known, "payment")
        payment = shaped(record, known[record["name"]], "payment")
        self.function = str(payment["name"])
        self.scale = positive(payment["scale"], "scale")
        self.exponent = positive(payment["exponent"], "exponent") if "exponent" in payment else Decimal(1)
        require(self.exponent <= 1, "exponent is above 1")

    def _aggregation(self, record: Any) -> None:
        known = {
            "fedavg": "name", "fedavgm": "name averaged rate momentum",
            "fedadam": "name averaged rate beta1 beta2 tau", "fedyogi": "name averaged rate beta1 beta2 tau",
        }  # fmt: skip
        tagged(record, known, "aggregation")
        rule = shaped(record, known[record["name"]], "aggregation")
        self.stateful = rule["name"] != "fedavg"
        for name in rule.keys() & {"rate", "tau"}:
            positive(rule[name], f"aggregation.{name}")
        for name in rule.keys() & {"momentum", "beta1", "beta2"}:
            require(0 <= decimal(rule[name], name) < 1, f"aggregation.{name} is outside [0, 1)")
        if self.stateful:
            patterns = rule["averaged"]
            require(
                isinstance(patterns, list) and len(patterns) <= 100, "averaged is not a list, or too long"
            )
            for pattern in patterns:
                require(1 <= len(text(pattern, "a pattern")) <= 256, "a pattern has another length")
            require(patterns == sorted(set(patterns)), "the patterns of averaged are out of order")

    def _factory(self, factory: Any, source: Any) -> None:
        part = "[A-Za-z_][A-Za-z0-9_]*"
        require(
            len(text(factory, "a factory")) <= 256
            and re.fullmatch(rf"{part}(\.{part})*:{part}", factory) is not None,
            "that names no factory",
        )
        source = shaped(source, "options files", "source", "frozen")
        if "frozen" in source:
            hexed(source["frozen"], 32, "frozen")
        options = text(source["options"], "options")
        require(len(options) <= 8192, "options is too long")
        try:
            read = json.loads(options)
            same = json.dumps(read, sort_keys=True, separators=(",", ":"), allow_nan=False) == options
        except (ValueError, RecursionError):
            same = False
        require(same and isinstance(read, dict), "options is not the JSON text of an object")
        require(
            isinstance(source["files"], list) and 1 <= len(source["files"]) <= 200,
            "files is not a list, or too long",
        )
        names = []
        for item in source["files"]:
            file = shaped(item, "name sha256", "a file")
            names.append(named(file["name"]))
            hexed(file["sha256"], 32, "sha256")
        require(names == sorted(set(names)), "files are out of order")

    def _samples(self, terms: Record) -> None:
        classes = different(terms["classes"], 2_000) if "classes" in terms else None
        if "columns" in terms:
            columns = shaped(terms["columns"], "inputs target layout", "columns")
            different(columns["inputs"], 5_000, least=1)
            require(named(columns["target"]) not in columns["inputs"], "the target is an input")
            require(columns["layout"] in ("array", "named"), "no such layout")
        if "arrays" in terms:
            self._arrays(terms)
        if "strata" not in terms:
            require(
                classes is None or len(classes) == len(self.reference), "classes are other than the reference"
            )
            return
        known = {
            "quantiles": "name of edges", "column": "name column values", "factory": "name factory source names",
        }  # fmt: skip
        strata = terms["strata"]
        require(isinstance(strata, dict) and strata.get("name") in known, "no such strata")
        strata = shaped(strata, known[strata["name"]], "strata")
        if strata["name"] == "quantiles":
            named(strata["of"])
            require(
                isinstance(strata["edges"], list) and 1 <= len(strata["edges"]) < 2_000, "no list of edges"
            )
            edges = [decimal(edge, "an edge") for edge in strata["edges"]]
            require(edges == sorted(set(edges)), "edges are out of order")
            count = len(edges) + 1
        elif strata["name"] == "column":
            named(strata["column"])
            count = len(different(strata["values"], 2_000))
        else:
            self._factory(strata["factory"], strata["source"])
            count = len(different(strata["names"], 2_000))
        require(count == len(self.reference), "the strata are other than the reference")

    def _arrays(self, terms: Record) -> None:
        """Types and shapes of the inputs, and behind them of the targets."""
        listed = terms["arrays"]
        require(
            isinstance(listed, list) and 2 <= len(listed) <= 5_001, "arrays is no list, or of another length"
        )
        names = []
        for item in listed:
            array = shaped(item, "name dtype shape", "an array")
            name = text(array["name"], "the name of an array")
            if name not in ("inputs", "targets"):
                require(name.startswith("inputs."), "an array is neither inputs nor targets")
                named(name[len("inputs.") :])
            types = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
            types += ["text", "bool", "float16", "float32", "float64"]
            one_of(array["dtype"], types, "dtype")
            require(
                isinstance(array["shape"], list) and len(array["shape"]) <= 63,
                "shape is no list, or too long",
            )
            for size in array["shape"]:
                integer(size, 0, "shape")
            names.append(name)
        require(len(set(names)) == len(names) and names[-1] == "targets", "arrays are not inputs and targets")
        require("inputs" not in names or len(names) == 2, "inputs are one array beside others")
        if "columns" in terms:
            columns = terms["columns"]
            own = (
                [f"inputs.{name}" for name in columns["inputs"]]
                if columns["layout"] == "named"
                else ["inputs"]
            )
            require(names[:-1] == own, "arrays are other than the columns")

    def _schedule(self, record: Any) -> None:
        keys = "rounds quorum capacity effort_seconds round_seconds dispute_seconds"
        schedule = shaped(record, keys, "schedule", "identities_per_organisation retention_seconds")
        self.rounds = integer(schedule["rounds"], 1, "rounds")
        self.quorum = integer(schedule["quorum"], 3, "quorum")
        self.capacity = integer(schedule["capacity"], self.quorum, "capacity")
        self.effort_seconds, self.round_seconds = (
            integer(schedule[name], 1, name) for name in ("effort_seconds", "round_seconds")
        )
        self.window = integer(schedule["dispute_seconds"], 0, "dispute_seconds")
        name = "identities_per_organisation"
        self.identities = integer(schedule[name], 2, name) if name in schedule else 1
        self.retention = None
        if "retention_seconds" in schedule:
            self.retention = integer(schedule["retention_seconds"], 0, "retention_seconds")

    def _contract(self, record: Any) -> None:
        sizes = {
            "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
        }  # fmt: skip
        contract = shaped(record, "tensors max_norm max_bytes", "contract")
        require(
            isinstance(contract["tensors"], list) and len(contract["tensors"]) <= MAX_TENSORS,
            "contract.tensors is not a list, or too long",
        )
        names, payload = [], 0
        for item in contract["tensors"]:
            tensor = shaped(item, "name dtype shape", "a tensor")
            names.append(text(tensor["name"], "a tensor's name"))
            require(1 <= len(names[-1]) <= 256, "a tensor's name has another length")
            one_of(tensor["dtype"], sizes, f"the dtype of {names[-1]}")
            require(
                isinstance(tensor["shape"], list),
                f"the shape of {names[-1]} is {shown(tensor['shape'])}; expected a list",
            )
            payload += sizes[tensor["dtype"]] * math.prod(integer(n, 0, "a size") for n in tensor["shape"])
        require(bool(names) and names == sorted(set(names)), "contract.tensors are out of order")
        positive(contract["max_norm"], "contract.max_norm")
        self.max_bytes = integer(contract["max_bytes"], payload, "contract.max_bytes")

    # 13 Amounts

    def f(self, x: Decimal) -> Decimal:
        return AMOUNTS.multiply(self.scale, self.unscaled(x))

    def mean(self, squares: Sequence[Decimal]) -> Decimal:
        """Of f(q / (phi s + upsilon)) over sums of squares s, one a peer."""
        ratios = [AMOUNTS.divide(self.q, AMOUNTS.fma(self.phi, s, self.upsilon)) for s in squares]
        total, product = NOTHING, Decimal(1)
        if self.function == "log":
            for x in ratios:
                product = AMOUNTS.multiply(product, x) if x > 1 else product
            total = AMOUNTS.ln(product)
        else:
            for x in ratios:
                total = AMOUNTS.add(total, self.unscaled(x))
        return AMOUNTS.multiply(self.scale, AMOUNTS.divide(total, len(ratios)))

    def unscaled(self, x: Decimal) -> Decimal:
        if self.function == "log":
            return AMOUNTS.ln(x) if x > 1 else NOTHING
        if self.function == "log1p":
            return AMOUNTS.ln(AMOUNTS.add(1, x))
        if self.function == "linear":
            return x
        return AMOUNTS.power(x, self.exponent)

    def most(self) -> Decimal:
        return self.f(AMOUNTS.divide(self.q, self.upsilon))

    def bill(self) -> int:
        return self.rounds * self.capacity * micro(self.most(), ROUND_CEILING)

    def reserved(self, number: int) -> int:
        share, rest = divmod(self.budget, self.rounds)
        return share + (number <= rest)


def micro(credits_: Decimal, rounding: str) -> int:
    return int(AMOUNTS.multiply(credits_, MICRO).to_integral_value(rounding))


def weight(terms: Terms, subject: Record) -> int:
    """What part of a payment a participant's data earn, millionths."""
    enough = min(Fraction(1), Fraction(subject["distinct_micro"], MICRO) / terms.whole_from)
    whole, rest = divmod(subject["holders_micro"], MICRO)
    share = Fraction(1, whole) - Fraction(rest, MICRO * whole * (whole + 1))
    return math.floor(MICRO * enough**3 * share)


def gross(terms: Terms, subject: Record, peers: Sequence[Record]) -> Decimal:
    """What a scored participant earns before penalty and fee, credits. Arguments are outcomes."""
    return part(before_weight(terms, subject, peers), subject["weight_micro"])


def before_weight(terms: Terms, subject: Record, peers: Sequence[Record]) -> Decimal:
    if terms.rule in ("paper", "verified"):
        return verified(terms, subject["verified_micro"], subject["multiplier_ppm"], peers)
    score = subject["scores"].get(terms.rule)
    require(
        isinstance(score, str)
        and re.fullmatch(r"-?[0-9]{1,30}(\.[0-9]{1,30})?", score) is not None
        and 0 <= Decimal(score) <= 1,
        f"{subject['participant_id']} has no {terms.rule} score in [0, 1]",
    )
    return AMOUNTS.multiply(Decimal(score), terms.most())


def verified(terms: Terms, own: int, multiplier: int, peers: Sequence[Record]) -> Decimal:
    amount = terms.mean(
        [Decimal(own**2 + peer["verified_micro"] ** 2).scaleb(-12, AMOUNTS) for peer in peers]
    )
    return part(amount, multiplier)


def part(amount: Decimal, micros: int) -> Decimal:
    return amount if micros == MICRO else AMOUNTS.multiply(amount, Decimal(micros).scaleb(-6, AMOUNTS))


def fee(terms: Terms, subject: Record) -> Decimal:
    return part(terms.fee, MICRO - subject["weight_micro"]) if terms.rule == "verified" else NOTHING


def penalty(terms: Terms, assessment: Record) -> int:
    """Of a claim that is not what was measured, micro-credits."""
    if terms.rule != "verified" or assessment["verified_micro"] is None:
        return 0
    claim = Fraction(assessment["claimed_degree"])
    distance = claim.numerator * MICRO - assessment["verified_micro"] * claim.denominator
    squared = AMOUNTS.divide(distance**2, (claim.denominator * MICRO) ** 2)
    return micro(AMOUNTS.multiply(terms.penalty, squared), ROUND_CEILING)


def outcome_of(terms: Terms, assessment: Record) -> Record:
    """What of an assessment stands in clear."""
    scored = assessment["verified_micro"] is not None
    score = {key: text for key, text in assessment["scores"].items() if scored and key == terms.rule}
    kept = ("participant_id", "model_sha256", "verified_micro", "multiplier_ppm", "refuted", "cluster")
    return {
        **{key: assessment[key] for key in kept}, "weight_micro": weight(terms, assessment),
        "penalty_micro": penalty(terms, assessment), "scores": score,
        "verdicts": [[one["screen"], one["passed"]] for one in assessment["verdicts"]],
    }  # fmt: skip


def largest_remainder(net: Mapping[str, Decimal]) -> tuple[dict[str, int], int]:
    floors: dict[str, int] = {}
    fractions: dict[str, Decimal] = {}
    rest = NOTHING
    for name in sorted(net):
        exact = AMOUNTS.multiply(net[name], MICRO)
        floors[name] = int(exact)
        fractions[name] = AMOUNTS.subtract(exact, floors[name])
        rest = AMOUNTS.add(rest, fractions[name])
    units = int(rest)
    for name in sorted(fractions, key=lambda n: (-fractions[n], n))[:units]:
        floors[name] += 1
    return floors, 0 if rest == units else 1


# 11 The draw


def draw_key(seed: bytes, shares: Mapping[str, bytes]) -> tuple[bytes, bytes]:
    """Digest of the shares, and the key."""
    record = canonical([[name, shares[name].hex()] for name in sorted(shares)])
    return sha256(record), hmac.digest(seed, record, "sha256")


def order(key: bytes, name: str, everyone: Sequence[str]) -> Iterator[str]:
    """Everyone with a share, who come sorted, in the order in which `name` meets them."""
    left, words = list(everyone), _words(key, name.encode())
    for step in range(len(left)):
        bound = len(left) - step
        word = next(words)
        while word >= 2**64 - 2**64 % bound:
            word = next(words)
        chosen = step + word % bound
        left[step], left[chosen] = left[chosen], left[step]
        yield left[step]


def least_met(found: Iterable[str], met: Callable[[str], int], count: int) -> list[str]:
    """The first `count` of those met least often, sorted; none is read beyond them where they were never met."""
    read, never = list[str](), 0
    for name in found:
        read.append(name)
        never += met(name) == 0
        if never == count:
            break
    return sorted(sorted(read, key=met)[:count])


def _words(key: bytes, name: bytes) -> Iterator[int]:
    counter = 0
    while True:
        message = b"fedpeer peer draw v2" + len(name).to_bytes(2, "big") + name + counter.to_bytes(8, "big")
        block = hmac.digest(key, message, "sha256")
        yield from (int.from_bytes(block[i : i + 8], "big") for i in (0, 8, 16, 24))
        counter += 1


def hashed(value: bytes, times: int) -> bytes:
    for _ in range(times):
        value = sha256(value)
    return value


# 12 Evidence and verdicts


class Evidence:
    """What verdicts of a round rest on, its form checked, and what follows from features."""

    def __init__(self, model: Any) -> None:
        keys = (
            "arithmetic round start_sha256 validation_sha256 shadows_sha256 shadows carried degree quality thresholds "
            "likeness distinct computed_on"
        )
        self.model = shaped(model, keys, "evidence.model")
        texts = self.model["computed_on"]
        require(type(texts) is dict and len(texts) <= 16, "computed_on has more than 16 texts")
        for text in (text for pair in texts.items() for text in pair):
            require(
                type(text) is str and 1 <= len(text) <= 200, "computed_on has no text of 1 to 200 characters"
            )
        require(
            self.model["arithmetic"] == "strata-and-screens/half-even-micro-v10",
            "another arithmetic of evidence",
        )
        integer(self.model["shadows"], 1, "shadows")
        integer(self.model["carried"], 0, "carried")
        keys = "reference share_own share_mean share_intercept sorted_columns weights intercept forest half_width"
        self.degree = shaped(self.model["degree"], keys, "degree")
        self.reference = [rational(q, "reference") for q in sequence(self.degree["reference"], "reference")]
        self.columns = len(integers(self.degree["share_own"], "share_own"))
        self.strata = len(self.reference)
        integers(self.degree["share_mean"], "share_mean", self.columns)
        ordered = integers(self.degree["sorted_columns"], "sorted_columns")
        require(self.columns <= MAX_COLUMNS, "too many features")
        require(
            len(set(ordered)) == len(ordered) and set(ordered) <= set(range(self.columns)),
            "sorted_columns are not features, each once",
        )
        self.regressors = self.strata * (len(ordered) + 1) + 8 + 2 * self.columns
        integers(self.degree["weights"], "weights", self.regressors)
        integers([self.degree["share_intercept"], self.degree["intercept"]], "an intercept")
        integer(self.degree["half_width"], 0, "half_width")
        self._check_forest(self.degree["forest"])
        self.quality, self.distinct = self.model["quality"], self.model["distinct"]
        require(len(sequence(self.distinct, "distinct")) <= MAX_LINES, "too many lines to distinct samples")
        lines = [("quality", self.quality, 0), *(("distinct", line, 2) for line in self.distinct)]
        for name, line, more in lines:
            shaped(line, "weights intercept", name)
            integers(line["weights"], f"{name}.weights", self.regressors + more)
            integers([line["intercept"]], f"{name}.intercept")
        keys = (
            "norm_low norm_high alignment novelty improvement echo_distance echo_cosine quality_full quality_none "
            "quality_degree claim_band harm_full harm_none wide rate"
        )
        self.limits = limits = shaped(self.model["thresholds"], keys, "thresholds")
        integers(list(limits.values()), "a threshold")
        integer(limits["claim_band"], 0, "claim_band")
        integer(limits["wide"], 0, "wide")
        integer(limits["rate"], 0, "rate", MICRO)
        self.likeness = shaped(self.model["likeness"], "apart same link group", "likeness")
        for name in ("apart", "same"):
            require(
                2 <= len(integers(self.likeness[name], name)) <= 101,
                f"likeness.{name} is too short or too long",
            )
        integer(self.likeness["link"], 1, "likeness.link")
        require(
            len(sequence(self.likeness["group"], "likeness.group")) <= MAX_GROUP_LIMITS,
            "too many limits of groups",
        )
        for limit in self.likeness["group"]:
            integer(limit, 1, "likeness.group")
        for low, high in (
            ("norm_low", "norm_high"),
            ("quality_none", "quality_full"),
            ("harm_full", "harm_none"),
        ):
            require(limits[low] <= limits[high], f"{low} is above {high}")
        self.items: list[Record] = []

    def add(self, record: Any) -> None:
        """A measurement, in id order."""
        self.items.append(self._measurement(record))

    def _check_forest(self, forest: Any) -> None:
        nodes = 0
        require(bool(sequence(forest, "forest")), "a forest without a tree")
        for tree in forest:
            require(len(sequence(tree, "a tree")) == 3, "a tree is three lists")
            feature, bound, right = tree
            count = len(integers(feature, "feature"))
            integers(bound, "bound", count)
            integers(right, "right", count)
            require(count > 0, "a tree without a node")
            nodes += count
            for i, (which, child) in enumerate(zip(feature, right, strict=True)):
                inner = 0 <= which < self.regressors and i + 1 < child < count
                require(inner or (which, child) == (-1, 0), "neither a leaf nor a node with two children")
        require(nodes <= MAX_NODES, "too many nodes")

    def _measurement(self, record: Any) -> Record:
        keys = (
            "participant_id model_sha256 claimed_degree order samples fault features norm alignment novelty "
            "improvement echo_distance echo_cosine straying length nearest_broadcast twins group outside harm scores"
        )
        item = shaped(record, keys, "a measurement")
        for key in (
            "participant_id",
            "model_sha256",
            "claimed_degree",
            "fault",
            "nearest_broadcast",
            "group",
        ):
            text(item[key], key)
        integers([item[key] for key in ("order", "samples", "outside", *MEASURED)], "a figure")
        integers([] if item["harm"] is None else [item["harm"]], "harm")
        for row in sequence(item["features"], "features"):
            integers(row, "features")
        if not item["fault"]:
            shape = [len(row) for row in item["features"]]
            require(shape == [self.columns] * self.strata, "features of another form")
        for twin in sequence(item["twins"], "twins"):
            require(len(sequence(twin, "a twin")) == 3, "a twin is an id, a likeness and r")
            text(twin[0], "a twin")
            integers(twin[1:2], "a likeness")
            integer(twin[2], 0, "r", MICRO)
        require(isinstance(item["scores"], dict), "scores are not an object")
        for score in item["scores"].values():
            text(score, "a score")
        return item

    def shares(self, x: Sequence[Sequence[int]]) -> list[int]:
        own, mean = self.degree["share_own"], self.degree["share_mean"]
        totals = [sum(column) for column in zip(*x, strict=True)]
        common = Fraction(product(mean, totals), self.strata) + self.degree["share_intercept"] * MICRO
        return [round((product(own, row) + common) / 10**9) for row in x]

    def z(self, x: Sequence[Sequence[int]]) -> list[int]:
        """The regressors."""
        columns, p, size = list(zip(*x, strict=True)), self.shares(x), self.strata
        q = [value * MICRO for value in self.reference]
        z = [value for column in self.degree["sorted_columns"] for value in sorted(columns[column])]
        z += sorted(round(share - usual) for share, usual in zip(p, q, strict=True))
        positive = [max(share, 0) for share in p]
        total = sum(positive)
        apart = (
            abs(Fraction(share * MICRO, total or 1) - usual) for share, usual in zip(positive, q, strict=True)
        )
        z.append(round(sum(apart, Fraction(0)) / 2) if total else 0)
        for level in LEVELS:
            over = (max(share - level * usual, Fraction(0)) for share, usual in zip(p, q, strict=True))
            z.append(round(sum(over, Fraction(0))))
        z += [round(Fraction(sum(column), size)) for column in columns]
        for column in columns:
            variance = (
                Fraction(sum(value * value for value in column), size) - Fraction(sum(column), size) ** 2
            )
            z.append(math.isqrt(math.floor(variance)))
        return z

    def line(self, z: Sequence[int]) -> Fraction:
        return Fraction(product(self.degree["weights"], z) + self.degree["intercept"] * MICRO, 10**9)

    def forest(self, z: Sequence[int]) -> Fraction:
        values = []
        for feature, bound, right in self.degree["forest"]:
            node = 0
            while feature[node] >= 0:
                node = node + 1 if z[feature[node]] <= bound[node] else right[node]
            values.append(bound[node])
        return Fraction(sum(values), len(values))

    def estimate(self, z: Sequence[int]) -> int:
        highest = math.floor(MICRO * (1 - min(self.reference)))
        return min(max(round((self.line(z) + self.forest(z)) / 2), 0), highest)

    @staticmethod
    def told(line: Record, z: Sequence[int]) -> int:
        return round(Fraction(product(line["weights"], z) + line["intercept"] * MICRO, 10**9))

    def distinct_samples(self, z: Sequence[int], item: Record) -> int:
        """Over those of the recipe, at most 1."""
        more = [*z, item["straying"], item["length"]]
        times = max([self.told(line, more) for line in self.distinct], default=MICRO)
        return round(Fraction(MICRO * MICRO, max(times, MICRO)))

    def usual(self, r: int) -> tuple[int, int]:
        """The likeness of two models of other samples, and of the same."""
        apart, same = (between(self.likeness[name], r) for name in ("apart", "same"))
        return apart, same

    def group_limit(self, size: int) -> int | None:
        """What pairs of a linked group have beyond base in the mean, at least."""
        limits: Sequence[int] = self.likeness["group"]
        return limits[min(size - 3, len(limits) - 1)] if limits and size >= 3 else None


def between(table: Sequence[int], r: int) -> int:
    """The value of a table at r millionths of its length."""
    place = Fraction(r * (len(table) - 1), MICRO)
    step = min(math.floor(place), len(table) - 2)
    return table[step] + round((table[step + 1] - table[step]) * (place - step))


def sequence(value: Any, what: str) -> list[Any]:
    require(isinstance(value, list), f"{what} is not a list")
    return list(value)


def integers(value: Any, what: str, count: int | None = None) -> list[int]:
    require(all(type(one) is int for one in sequence(value, what)), f"{what} is not of integers")
    require(count is None or len(value) == count, f"{what} has another length")
    return list(value)


def product(left: Sequence[int], right: Sequence[int]) -> int:
    return sum(a * b for a, b in zip(left, right, strict=True))


def micro_decimal(micros: int) -> str:
    """Millionths as a decimal."""
    whole, rest = divmod(abs(micros), MICRO)
    digits = f"{whole}.{rest:06d}".rstrip("0").rstrip(".")
    return f"-{digits}" if micros < 0 else digits


def taper(x: int, a: int, b: int) -> int:
    if x >= b:
        return MICRO
    return 0 if x <= a else MICRO * (x - a) // (b - a)


def assessed(evidence: Evidence, sent: set[str]) -> dict[str, Record]:
    """The assessments of those who are measured; `sent` has the digests of the models that were sent out."""
    alone = {item["participant_id"]: _alone(evidence.limits, item, sent) for item in evidence.items}
    items = {item["participant_id"]: item for item in evidence.items}
    passing = [name for name in items if all(one["passed"] for one in alone[name])]
    first = _first_senders([items[name] for name in passing])
    groups = _linked_groups(evidence, [items[name] for name in sorted(set(first.values()))])
    cluster = _clusters(evidence, [items[name] for name in passing], groups)
    found = {}
    for name, item in items.items():
        result: Record = {
            "participant_id": name, "model_sha256": item["model_sha256"], "claimed_degree": item["claimed_degree"],
            "verified_micro": None, "lower_micro": None, "upper_micro": None, "multiplier_ppm": MICRO,
            "refuted": False, "cluster": cluster.get(name), "holders_micro": MICRO, "distinct_micro": MICRO,
            "scores": item["scores"], "verdicts": alone[name],
        }  # fmt: skip
        if name in passing:
            fellows = [
                n for n in passing if n != name and name in cluster and cluster.get(n) == cluster[name]
            ]
            common = {
                n: _common(
                    evidence,
                    items[first[item["model_sha256"]]],
                    items[first[items[n]["model_sha256"]]],
                )
                for n in fellows
            }
            _judge(evidence, item, common, result)
        found[name] = result
    return found


def _test(screen: str, passed: bool, explanation: str, **figures: str) -> Record:
    return {"screen": screen, "passed": passed, "explanation": explanation, "figures": figures}


def _rate(limits: Record) -> str:
    return f"At most {micro_decimal(limits['rate'])} of honest models fail this test."


def _alone(limits: Record, item: Record, sent: set[str]) -> list[Record]:
    """The tests 1 to 3."""
    if item["fault"]:
        return [_test("contract", False, f"The model was not scored: {item['fault']}.")]
    m = {key: micro_decimal(item[key]) for key in MEASURED}
    at = {key: micro_decimal(value) for key, value in limits.items()}
    echo = "The model is no copy of one that the coordinator has sent."
    again = item["model_sha256"] in sent or item["echo_distance"] < limits["echo_distance"]
    repeats = not again and item["echo_cosine"] > limits["echo_cosine"]
    if again:
        echo = (
            f"The model is the broadcast model of {item['nearest_broadcast']} again, or nearly: its distance is "
            f"{m['echo_distance']} of what training changes; expected at least {at['echo_distance']}. Train on your "
            f"own data and submit the result. {_rate(limits)}"
        )
    elif repeats:
        echo = (
            "The update repeats a step between models that the coordinator itself has sent: their cosine is "
            f"{m['echo_cosine']}; expected at most {at['echo_cosine']}. {_rate(limits)}"
        )
    faults = []
    if not limits["norm_low"] <= item["norm"] <= limits["norm_high"]:
        faults.append(
            f"its update has {m['norm']} of the usual length, expected {at['norm_low']} to {at['norm_high']}"
        )
    if item["alignment"] < limits["alignment"]:
        faults.append(
            f"its update goes where its mix pulls {m['alignment']} as much as is usual, expected at least "
            f"{at['alignment']}"
        )
    if item["novelty"] > limits["novelty"]:
        faults.append(
            f"a tensor's part in the change is {m['novelty']} standard deviations from the usual, expected at most "
            f"{at['novelty']}"
        )
    if item["improvement"] < limits["improvement"]:
        faults.append(
            f"on the strata that it seems to have been trained on it gains {m['improvement']} of the usual, expected "
            f"at least {at['improvement']}"
        )
    trained = "The model behaves like one trained by the task's recipe."
    if faults:
        trained = (
            "The model was not trained from the broadcast model by the task's recipe: "
            f"{'; '.join(faults)}. {_rate(limits)}"
        )
    figures = {key: m[key] for key in ("norm", "alignment", "novelty", "improvement")}
    return [
        _test(
            "contract",
            True,
            "The model has the task's tensors, all of its numbers are finite, and it came in time.",
        ),
        _test("echo", not again and not repeats, echo, distance=m["echo_distance"], cosine=m["echo_cosine"]),
        _test("trained", not faults, trained, **figures),
    ]


def _linked_groups(evidence: Evidence, firsts: Sequence[Record]) -> dict[str, list[str]]:
    """Groups that are linked, by name; of those who are the first to have sent a model."""
    members: dict[str, list[Record]] = {}
    for item in firsts:
        if item["group"]:
            members.setdefault(item["group"], []).append(item)
    linked = {}
    for name, of in members.items():
        size, limit = len(of), evidence.group_limit(len(of))
        beyond = sum(
            _beyond(evidence, one, other, _twin(other, one) or (0, 0))
            for one, other in itertools.combinations(of, 2)
        )
        if limit is not None and 2 * beyond >= limit * size * (size - 1):
            linked[name] = [item["participant_id"] for item in of]
    return linked


def _beyond(evidence: Evidence, one: Record, other: Record, twin: tuple[int, int]) -> int:
    """l - base."""
    return twin[0] - _base(evidence, one, other, twin[1])


def _near(evidence: Evidence, one: Record, other: Record, likeness: int, r: int) -> bool:
    """Whether two firsts are linked by what one says of the other."""
    base, apart, link = _base(evidence, one, other, r), evidence.usual(r)[0], evidence.likeness["link"]
    if likeness >= ONE_MODEL:
        return True
    if base > apart:
        return base < MICRO and (likeness - base) * (MICRO - apart) >= link * (MICRO - base)
    return bool(likeness - base >= link)


def _base(evidence: Evidence, one: Record, other: Record, r: int) -> int:
    """The likeness of models of other samples: within a group, more by what its mixes have in common."""
    together = one["group"] and one["group"] == other["group"]
    return evidence.usual(r)[0] + (one["outside"] if together else 0)


def _twin(item: Record, other: Record) -> tuple[int, int] | None:
    """Likeness and r of the other, where `twins` names it."""
    return next(((alike, r) for name, alike, r in item["twins"] if name == other["participant_id"]), None)


def _clusters(
    evidence: Evidence, items: Sequence[Record], groups: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Clusters by participant; `groups` are those that are linked."""
    near: dict[str, set[str]] = {item["participant_id"]: set() for item in items}
    by_name = {item["participant_id"]: item for item in items}
    by_digest: dict[str, list[str]] = {}
    for item in items:
        name = item["participant_id"]
        by_digest.setdefault(item["model_sha256"], []).append(name)
        for other, likeness, r in item["twins"]:
            if other not in near:
                continue
            if _near(evidence, item, by_name[other], likeness, r):
                near[name].add(other)
                near[other].add(name)
    for names in (*by_digest.values(), *groups.values()):
        for name in names[1:]:
            near[names[0]].add(name)
            near[name].add(names[0])
    cluster: dict[str, str] = {}
    for first in sorted(near):
        if first in cluster or not near[first]:
            continue
        members, left = {first}, [first]
        while left:
            new = near[left.pop()] - members
            members |= new
            left += new
        cluster.update(dict.fromkeys(members, first))
    return cluster


def _first_senders(items: Sequence[Record]) -> dict[str, str]:
    """By model, the first in id order of those who have sent it."""
    found: dict[str, str] = {}
    for item in items:
        name = item["participant_id"]
        found[item["model_sha256"]] = min(name, found.get(item["model_sha256"], name))
    return found


def _common(evidence: Evidence, item: Record, other: Record) -> int:
    """What part of a model's samples another of its cluster has, millionths, by the first who have sent the two."""
    if item["model_sha256"] == other["model_sha256"]:
        return MICRO
    twin = _twin(item, other)
    if twin is None:
        return 0
    likeness, r = twin
    base, same = _base(evidence, item, other, r), evidence.usual(r)[1]
    if likeness >= ONE_MODEL:
        return MICRO
    if likeness <= base:
        return 0
    return MICRO if likeness >= same else round(Fraction(MICRO * (likeness - base), same - base))


def _overlap(limits: Record, common: Mapping[str, int]) -> Record:
    holders = MICRO + sum(common.values())
    if holders == MICRO:
        return _test("overlap", True, "No other model of the round shows samples of this one.")
    most, nearest = max((part, name) for name, part in common.items())
    figures = {"holders": micro_decimal(holders), "nearest": nearest, "common": micro_decimal(most)}
    explanation = (
        f"A sample of this model is had by {figures['holders']} participants of the round in the mean, most by "
        f"{nearest}, which has {figures['common']} of them: what several have is paid once. At most "
        f"{micro_decimal(limits['rate'])} of honest participants are linked to another."
    )
    return _test("overlap", False, explanation, **figures)


def _judge(evidence: Evidence, item: Record, common: Mapping[str, int], result: Record) -> None:
    """What follows for one that is scored: the tests 4 to 7. `common` says what others of its cluster have."""
    limits, z = evidence.limits, evidence.z(item["features"])
    estimate, quality, half = (
        evidence.estimate(z),
        min(max(evidence.told(evidence.quality, z), 0), MICRO),
        evidence.degree["half_width"],
    )
    distinct = evidence.distinct_samples(z, item)
    lower, upper = max(estimate - half, 0), min(estimate + half, MICRO)
    verified = upper if half > limits["wide"] else estimate
    harm = item["harm"] or 0
    of_quality = MICRO
    if estimate < limits["quality_degree"]:
        of_quality = taper(quality, limits["quality_none"], limits["quality_full"])
    of_harm = taper(-harm, -limits["harm_none"], -limits["harm_full"])
    claimed = Fraction(item["claimed_degree"]) * MICRO
    refuted = claimed < estimate - limits["claim_band"]
    samples = "The model shows enough distinct samples with right targets."
    if distinct < MICRO:
        samples = (
            f"The model shows {micro_decimal(distinct)} of the distinct samples that the recipe asks for, with right "
            "targets."
        )
    if of_quality < MICRO:
        samples = (
            "The model behaves like one trained on few distinct samples or on wrong targets: quality "
            f"{micro_decimal(quality)}, expected at least {micro_decimal(limits['quality_full'])}; "
            f"{micro_decimal(of_quality)} of the payment is kept. {_rate(limits)}"
        )
    if limits["quality_full"] <= 0:
        samples = (
            "Shadow models of few distinct samples or wrong targets look like others here: neither is held against "
            "any model."
        )
        if distinct < MICRO:
            shown = (
                f"The model shows {micro_decimal(distinct)} of the distinct samples that the recipe asks for."
            )
            samples = f"{shown} {samples}"
    contribution = "The aggregate is not much worse with this model."
    if of_harm < MICRO:
        contribution = (
            f"With this model the aggregate's loss is {micro_decimal(harm)} higher in proportion than without; up to "
            f"{micro_decimal(limits['harm_full'])} costs nothing; {micro_decimal(of_harm)} of the payment is kept."
        )
    figures = {
        "claimed": micro_decimal(round(claimed)), "verified": micro_decimal(estimate), "lower": micro_decimal(lower),
        "upper": micro_decimal(upper), "band": micro_decimal(limits["claim_band"]),
    }  # fmt: skip
    claim = "The claimed degree is not lower than the evidence allows."
    if refuted:
        claim = (
            f"The claimed degree of {figures['claimed']} is refuted: the model shows {figures['verified']}, and a "
            f"claim may be lower by at most {figures['band']}. Claim what your counts give. {_rate(limits)}"
        )
    if verified > estimate:
        claim += f" The evidence is too wide to pay on {figures['verified']}; {figures['upper']} is paid on."
    kept = {
        "quality": micro_decimal(quality), "kept": micro_decimal(of_quality), "distinct": micro_decimal(distinct),
    }  # fmt: skip
    result["verdicts"] += [
        _overlap(limits, common),
        _test("samples", of_quality == MICRO, samples, **kept),
        _test(
            "contribution",
            of_harm == MICRO,
            contribution,
            harm=micro_decimal(harm),
            kept=micro_decimal(of_harm),
        ),
        _test("claim", not refuted, claim, **figures),
    ]
    result.update(
        verified_micro=verified,
        lower_micro=lower,
        upper_micro=upper,
        multiplier_ppm=of_quality * of_harm // MICRO,
        refuted=refuted,
        holders_micro=MICRO + sum(common.values()),
        distinct_micro=distinct,
    )


# 16 Accounts


class Book:
    """What accounts hold, and reservations."""

    def __init__(self) -> None:
        self.holds: dict[str, int] = {}
        self.pending: dict[str, int] = {}
        self.reserved: dict[str, tuple[str, str, int]] = {}
        self.names: set[str] = set()

    def apply(self, transfer: Record) -> None:
        amount = transfer["micro"]
        if "resolve" in transfer:
            debit, credit, held = self.reserved.pop(transfer["resolve"])
            require(0 <= amount <= held, "more is taken from a reservation than it holds")
            self.pending[debit] -= held
            self._move(debit, credit, amount)
            return
        require(1 <= amount <= MAX_INTEGER, "a transfer of nothing or of too much")
        debit, credit = transfer["debit"], transfer["credit"]
        free = self.holds.get(debit, 0) - self.pending.get(debit, 0)
        require(debit == "treasury" or free >= amount, f"{debit} would be overdrawn")
        if "reserve" in transfer:
            require(transfer["reserve"] not in self.names, "a reservation is made twice")
            self.names.add(transfer["reserve"])
            self.reserved[transfer["reserve"]] = debit, credit, amount
            self.pending[debit] = self.pending.get(debit, 0) + amount
            self.holds.setdefault(credit, 0)
        else:
            self._move(debit, credit, amount)

    def _move(self, debit: str, credit: str, amount: int) -> None:
        for name, change in ((debit, -amount), (credit, amount)):
            self.holds[name] = self.holds.get(name, 0) + change
            require(abs(self.holds[name]) <= MAX_BALANCE, f"{name} would pass 2^63")


def post(debit: str, credit: str, amount: int) -> Record:
    return {"debit": debit, "credit": credit, "micro": amount}


# The life of a task


@dataclass
class Claim:
    degree: str | None
    commitment: bytes
    nonce: str
    head: bytes
    root: str = ""


@dataclass
class Model:
    digest: str
    samples: int | None
    sequence: int
    share: bytes


@dataclass
class Pending:
    """A submission whose audit is pending.

    Attributes:
        evidence: of its round, and shown: the degree that it gives of the submission; None where they are not opened.
        start: what the round began from.
        verified: the degree of the round's verdict, which is not below that.
        question: micro-credits in question.
        stage: 0 where an audit is awaited, 1 where an appeal is, 2 where the audit after one is; since: from when on.
    """

    evidence: "Evidence | None"
    start: str
    shown: int | None
    verified: int
    question: int
    stage: int = 0
    since: int = 0


@dataclass
class Measured:
    """What an auditor may measure again of a task; at: its end, or the last of so many statements."""

    terms: str
    key: ec.EllipticCurvePublicKey
    digest: bytes = bytes(32)
    rounds: int = 0
    submissions: int = 0
    statements: int = 0
    at: int = 0

    def add(self, data: bytes) -> None:
        self.digest = sha256(self.digest + leaf_hash(data))


@dataclass
class Task:
    """A task that has not ended.

    Attributes:
        start: digest of the model that the current round begins from; starts: of all rounds so far, it included.
        at: time of the last transition or closing; closed: whether there was a closing in the current round.
        shadows: that were trained for the rounds so far.
        floors: of every round, the largest sequence among the models in time of the rounds before.
        server_state: digest of the server's state; None before the first, or where there is none.
        organisations: claims of each mark.
        measured: the round's evidence where it is opened; pending: audits, by round and participant; convicted: who
            failed one for good.
        again: where the terms have an auditor; owners: of pseudonyms, as far as they are opened.
        met: how often the first has had the second as its peer, in settled rounds.
        kept: of each round that kept something back, what its awards rest on: outcomes, peers, what was paid, and
            the assessments that were opened.
    """

    terms: Terms
    state: str
    start: str
    seed: bytes
    unresolved: set[int]
    round: int = 0
    at: int | None = None
    closed: bool = False
    shadows: int = 0
    floors: list[int] = field(default_factory=lambda: [0])
    claims: dict[str, Claim] = field(default_factory=dict)
    selected: list[str] = field(default_factory=list)
    submissions: set[tuple[str, str]] = field(default_factory=set)
    delivered: set[tuple[int, str]] = field(default_factory=set)
    sequences: set[int] = field(default_factory=set)
    models: dict[str, Model] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    starts: list[str] = field(default_factory=list)
    server_state: str | None = None
    disputes: set[str] = field(default_factory=set)
    measured: "Evidence | None" = None
    pending: dict[tuple[int, str], Pending] = field(default_factory=dict)
    convicted: set[str] = field(default_factory=set)
    again: Measured | None = None
    owners: set[str] = field(default_factory=set)
    organisations: Counter[str] = field(default_factory=Counter)
    met: Counter[tuple[str, str]] = field(default_factory=Counter)
    kept: dict[int, tuple[dict[str, Record], dict[str, list[str]], dict[str, int], dict[str, Record]]] = (
        field(default_factory=dict)
    )

    @property
    def id(self) -> str:
        return self.terms.task_id

    @property
    def disputable(self) -> bool:
        return self.terms.rule == "verified" and self.terms.window > 0

    def place(self, number: int | None = None) -> str:
        return f"{self.id}/round/{self.round if number is None else number}"

    def where(self, number: int | None = None) -> Record:
        return {"task_id": self.id, "round": self.round if number is None else number}


FOLLOWS = {
    "OPEN": ("EFFORT", "CANCELLED"),
    "EFFORT": ("SELECTED", "CANCELLED"),
    "SELECTED": ("TRAINING", "CANCELLED"),
    "TRAINING": ("SCORED", "CANCELLED"),
    "SCORED": ("SETTLED",),
    "SETTLED": ("TRAINING", "CLOSED", "CANCELLED"),
}


class Replay:
    """Reads entries one after the other. What stands together is read together."""

    def __init__(
        self, entries: Sequence[bytes], openings: Mapping[str, Record], reader: str | None = None
    ) -> None:
        self.data, self.reader = entries, reader
        self.openings = dict(openings)
        self.opened = self.unchecked = 0
        self.at = 0
        self.book = Book()
        self.tasks: dict[str, Task | None] = {}
        self.keys: dict[str, dict[str, ec.EllipticCurvePublicKey]] = {}
        self.enrolled: set[str] = set()
        self.pseudonyms: dict[str, str] = {}
        self.owners: dict[str, str] = {}
        self.revoked: set[str] = set()
        self.seeds: set[bytes] = set()
        self.shadows: dict[str, str] = {}
        self.history = bytes(32)
        self.log_keys: list[tuple[int, str]] = []
        self.price: Price | None = None
        self.funded: set[str] = set()
        self.runs = 0
        self.run_lines: dict[str, int] | None = None
        self.run_at = 0
        self.paid_at: dict[int, int] = {}
        self.kept_until: dict[str, int] = {}
        self.again: dict[str, Measured] = {}
        self.paid: dict[tuple[int, str], int] = {}

    def run(self) -> None:
        """Raises Wrong where an entry does not follow from those before it."""
        handlers: dict[str, Callable[[Entry], None]] = {
            "terms": self.terms, "enrolment": self.enrolment, "revocation": self.revocation,
            "pseudonym": self.pseudonym,
            "log_key": self.log_key, "claim": self.claim, "selection": self.selection,
            "transition": self.transition, "model": self.model, "failure": self.failure, "closing": self.closing,
            "evidence": self.evidence, "verdict": self.paper_verdicts, "dispute": self.dispute,
            "awards": self.awards, "refund": self.ending, "stake_release": self.ending,
            "held_release": self.ending, "audit_loss": self.ending, "audit": self.audit, "appeal": self.appeal,
            "audit_end": self.audit_end, "remeasurement": self.remeasurement,
            "deposit": self.funding, "withdrawal": self.funding, "payout": self.payout,
            "payout_end": self.payout_end, "payout_return": self.payout_return, "deletion": self.deletion,
        }  # fmt: skip
        try:
            while self.at < len(self.data):
                entry = self.take()
                require(
                    entry.kind in handlers, f"an entry of kind {entry.kind} is unknown or out of place here"
                )
                handlers[entry.kind](entry)
        except Refused as error:
            raise Wrong(self.at - 1, str(error)) from None
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, DecimalException):
            raise Wrong(self.at - 1, "it is not of the form that its kind has") from None

    def take(self) -> Entry:
        self.at += 1
        require(self.at <= len(self.data), "the log ends inside what is written together")
        return entry_of(self.at - 1, self.data[self.at - 1])

    def same(self, entry: Entry, id_: str, kind: str, body: Record, *transfers: Record) -> None:
        """That an entry is exactly this one; then it moves its money."""
        require(
            entry.id == id_ and entry.kind == kind, f"{entry.kind} {entry.id}; expected {kind} {id_} here"
        )
        wanted = encoded(id_, kind, body, *transfers)
        if entry.data != wanted:
            raise Refused(difference(parsed(entry.data), parsed(wanted)))
        for transfer in transfers:
            self.book.apply(transfer)

    def expect(self, id_: str, kind: str, body: Record, *transfers: Record) -> None:
        """The same of the next entry."""
        self.same(self.take(), id_, kind, body, *transfers)

    def opening(self, entry: Entry, commitment: bytes) -> Record | None:
        """What an entry commits to, where it is there."""
        found = self.openings.pop(entry.id, None)
        if found is None:
            self.unchecked += 1
            return None
        whose = re.sub(r"^[^/]*/(round/[^/]*/)?", "", entry.id).split("/")[1:2]
        require(self.reader is None or whose in ([], [self.reader]), "an opening of somebody else")
        require(
            sha256(canonical(found)) == commitment, "the opening is not the one that the entry commits to"
        )
        self.opened += 1
        return found

    def task(self, name: Any) -> Task:
        found = self.tasks.get(text(name, "task_id"))
        require(found is not None, f"the task {name} has no terms, or has ended")
        assert found is not None
        return found

    # 7 Keys

    def enrolment(self, entry: Entry) -> None:
        body = entry.body
        name, spki = (
            identifier(body["participant_id"], "participant_id"),
            unbase64(text(body["public_key"], "public_key"), "public_key"),
        )
        key = public_key(spki)
        mark = sha256(spki).hex()[:16]
        self.same(entry, f"participant/{name}/key/{mark}", "enrolment", body)
        require(mark not in self.revoked, "this key was revoked before")
        require(entry.id not in self.enrolled, "this key was enrolled before")
        require(self.owners.setdefault(mark, name) == name, "this key is enrolled under another name")
        self.enrolled.add(entry.id)
        self.keys.setdefault(name, {})[mark] = key
        self._extend(entry)

    def revocation(self, entry: Entry) -> None:
        body = entry.body
        name, mark = text(body["participant_id"], "participant_id"), text(body["fingerprint"], "fingerprint")
        text(body["reason"], "reason")
        require(mark in self.keys.get(name, {}), f"{name} has no key {mark}")
        self.same(entry, f"participant/{name}/revoked/{mark}", "revocation", body)
        del self.keys[name][mark]
        self.revoked.add(mark)
        self._extend(entry)

    def pseudonym(self, entry: Entry) -> None:
        body = entry.body
        task, name = self.task(body["task_id"]), identifier(body["participant_id"], "participant_id")
        commitment = hexed(body["commitment"], 32, "commitment")
        self.same(entry, f"{task.id}/pseudonym/{name}", "pseudonym", body)
        require(task.terms.pseudonyms, "a pseudonym where the terms have none")
        require(task.state in ("OPEN", "EFFORT"), f"a pseudonym in {task.state}")
        require(name not in self.pseudonyms, f"{name} is a pseudonym already")
        self.standing(name)
        self.pseudonyms[name] = task.id
        opening = self.opening(entry, commitment)
        if opening is not None:
            owner = identifier(shaped(opening, "owner salt", "the opening of a pseudonym")["owner"], "owner")
            hexed(opening["salt"], 32, "salt")
            require(owner != name and owner not in task.owners, "a second name of its owner, or its own")
            task.owners.add(owner)

    def _extend(self, entry: Entry) -> None:
        self.history = sha256(self.history + entry.index.to_bytes(8, "big") + leaf_hash(entry.data))

    def log_key(self, entry: Entry) -> None:
        body = entry.body
        before, after = (text(body[name], name) for name in ("previous", "verification_key"))
        require(vkey(before)[0] == vkey(after)[0] and before != after, "no other key of the same log")
        had = [key for _, key in self.log_keys] or [before]
        require(before == had[-1], f"the log's key here is {had[-1]}")
        require(after not in had, "the log had this key before")
        self.same(entry, f"log/key/{len(had)}", "log_key", {**body, "number": len(had)})
        if not self.log_keys:
            self.log_keys.append((-1, before))
        self.log_keys.append((entry.index, after))

    def signed(self, name: str, statement: Record, signature: Any) -> None:
        require(
            isinstance(signature, str) and re.fullmatch("([0-9a-f]{2})*", signature) is not None,
            "no signature",
        )
        for key in self.keys.get(name, {}).values():
            try:
                key.verify(bytes.fromhex(signature), canonical(statement), ec.ECDSA(hashes.SHA256()))
                return
            except InvalidSignature:
                pass
        raise Refused(f"not signed by a key that {name} has here")

    def standing(self, name: str) -> None:
        require(bool(self.keys.get(name)), f"{name} has no key here, so it cannot have said anything")

    # 8 Terms, 9 states

    def terms(self, entry: Entry) -> None:
        body = entry.body
        if "terms" in body:
            terms = Terms(body["terms"])
            require(len(canonical(terms.record)) <= PART_BYTES, "terms that should stand in parts")
            self.same(
                entry, f"{terms.task_id}/terms", "terms", {"task_id": terms.task_id, "terms": terms.record}
            )
        else:
            terms = self._terms_in_parts(entry)
        name = terms.task_id
        require(name not in self.tasks, f"the task {name} has terms already")
        require(terms.rounds <= 10_000, "more rounds than a task may have")
        require(terms.budget >= max(terms.bill(), terms.rounds), "the budget is below the maximal bill")
        if self.price is None:
            self.price = terms.price
        agreed = self.price is None or (terms.price is not None and terms.price.record == self.price.record)
        require(agreed, "the price is another than in the terms before")
        self._fresh(terms.seed)
        rounds = range(1, terms.rounds + 1)
        task = Task(terms, "", terms.initial, terms.seed, set(rounds))
        if terms.auditor is not None:
            task.again = Measured(terms.digest, terms.auditor)
        for number in rounds:
            held = {
                "reserve": f"{name}/{number}", "debit": terms.payer, "credit": f"escrow:{name}",
                "micro": terms.reserved(number),
            }  # fmt: skip
            self.expect(f"{task.place(number)}/reservation", "reservation", task.where(number), held)
        self.tasks[name] = task
        self.enter(self.take(), task, "OPEN")

    def _terms_in_parts(self, entry: Entry) -> Terms:
        pieces, parts = list[str](), integer(entry.body["parts"], 1, "parts", 350)
        name, digest = text(entry.body["task_id"], "task_id"), text(entry.body["sha256"], "sha256")
        for number in range(1, parts + 1):
            pieces.append(text(entry.body["data"], "data"))
            body = {"task_id": name, "part": number, "parts": parts, "sha256": digest, "data": pieces[-1]}
            self.same(entry, f"{name}/terms/{number}", "terms", body)
            if number < parts:
                entry = self.take()
        terms = Terms(joined(pieces, digest))
        require(
            terms.task_id == name and len(canonical(terms.record)) > PART_BYTES, "terms that need no parts"
        )
        return terms

    def transition(self, entry: Entry) -> None:
        task, state = self.task(entry.body["task_id"]), text(entry.body["state"], "state")
        if state in ("CLOSED", "CANCELLED"):
            self._check_step(task, state)
            require(not self._left(task), f"{state} before all that ends a task")
        require(state not in ("SELECTED", "SCORED", "SETTLED"), f"{state} without what it rests on")
        self.enter(entry, task, state)

    def _check_step(self, task: Task, state: str) -> None:
        require(
            state in (FOLLOWS[task.state] if task.state else ("OPEN",)),
            f"{state} does not follow {task.state}",
        )
        require(state != "CLOSED" or task.round == task.terms.rounds, "CLOSED before the last round")

    def enter(self, entry: Entry, task: Task, *states: str) -> None:
        """An entry is the transition to one of these states, in order."""
        require(entry.kind == "transition", f"{entry.kind} {entry.id}; expected {' or '.join(states)} here")
        body = entry.body
        state, at, reason = (text(body[name], name) for name in ("state", "at", "reason"))
        require(state in states, f"{state}; expected {' or '.join(states)} here")
        self._check_step(task, state)
        number = task.round + (state == "TRAINING")
        require(number <= task.terms.rounds, "a round beyond the terms")
        self.same(entry, f"{task.place(number)}/state/{state}", "transition", {**body, **task.where(number)})
        require(
            bool(reason.strip()) if state == "CANCELLED" else not reason,
            "a reason is missing, or has no place",
        )
        time, waited = moment(at, task)
        if state == "SELECTED":
            require(
                waited >= task.terms.effort_seconds or len(task.selected) == task.terms.capacity,
                "claims were taken for a shorter time",
            )
        if state == "CLOSED" and task.disputable:
            require(waited >= task.terms.window, "disputes were taken for a shorter time")
        require(state != "CLOSED" or not task.pending, "CLOSED while an audit is pending")
        task.state, task.at, task.closed = state, time, False
        if state == "TRAINING":
            task.floors.append(max([task.floors[-1], *(model.sequence for model in task.models.values())]))
            task.round, task.models, task.failures = number, {}, {}
            task.starts.append(task.start)
        elif state in ("CLOSED", "CANCELLED"):
            self.tasks[task.id] = None
            if task.again is not None and task.again.rounds:
                task.again.at = time
                self.again[task.id] = task.again
            if task.terms.retention is not None:
                self.kept_until[task.id] = time + task.terms.retention

    def deletion(self, entry: Entry) -> None:
        body = entry.body
        name = text(body["task_id"], "task_id")
        require(name in self.kept_until, "a deletion where none is promised, or before the end, or once more")
        self.same(entry, f"{name}/deletion", "deletion", body)
        time = seconds(text(body["at"], "at"))
        require(time >= self.kept_until.pop(name), "submitted models are deleted too early")
        self.again.pop(name, None)

    # 10 Statements

    def _about(self, task: Task, statement: Record) -> str:
        """Whose statement it is; what claims and models have in common."""
        name = identifier(statement["participant_id"], "participant_id")
        identifier(statement["submission_id"], "submission_id")
        hexed(statement["nonce"], 16, "the nonce")
        require(statement["terms"] == task.terms.digest, "the statement is about other terms")
        return name

    def _submission(self, task: Task, name: str, submission: str) -> None:
        require((name, submission) not in task.submissions, f"the submission id {submission} was used before")
        task.submissions.add((name, submission))

    def claim(self, entry: Entry) -> None:
        body = entry.body
        keys = "kind submission_id task_id terms participant_id commitment counts_commitment draw_head nonce"
        said = shaped(body["statement"], keys, "a claim's statement", "samples_root")
        task = self.task(said["task_id"])
        name = self._about(task, said)
        require(said["kind"] == "claim", "another kind of statement")
        self.same(
            entry,
            f"{task.id}/claim/{name}/{said['submission_id']}",
            "claim",
            {**body, "keys": self.history.hex()},
        )
        commitment = hexed(said["commitment"], 32, "commitment")
        of_counts = hexed(said["counts_commitment"], 32, "counts_commitment")
        require(task.state == "EFFORT", f"a claim in {task.state}")
        require(name not in task.claims, f"{name} has claimed before")
        require(len(task.claims) < task.terms.capacity, "all places are taken")
        mark = body["organisation"]
        if mark != "":
            hexed(mark, 32, "organisation")
            require(
                task.organisations[mark] < task.terms.identities, "its organisation has claimed often enough"
            )
        task.organisations[mark] += 1
        asked = task.id if task.terms.pseudonyms else None
        require(self.pseudonyms.get(name) == asked, "a claim by a pseudonym of another task, or by none")
        self._submission(task, name, said["submission_id"])
        self.signed(name, said, body["signature"])
        require(("samples_root" in said) == (task.terms.audit is not None), "samples_root is out of place")
        root = hexed(said["samples_root"], 32, "samples_root").hex() if "samples_root" in said else ""
        head, degree = hexed(said["draw_head"], 32, "draw_head"), None
        if (opened := self.opening(entry, commitment)) is not None:
            effort = shaped(opened, "degree effort salt", "the opening of a claim")["effort"]
            hexed(opened["salt"], 32, "salt")
            require(
                isinstance(effort, str) and re.fullmatch(r"0|1|0\.[0-9]{0,5}[1-9]", effort) is not None,
                "no effort",
            )
            require(0 <= rational(opened["degree"], "degree") <= 1, "a degree outside [0, 1]")
            degree = opened["degree"]
        task.claims[name] = Claim(degree, of_counts, said["nonce"], head, root)

    def selection(self, entry: Entry) -> None:
        task = self.task(entry.body["task_id"])
        require(task.state == "EFFORT", f"a selection in {task.state}")
        parts, _ = self._parts(entry, f"{task.id}/selection")
        everyone = sorted(task.claims)
        standing = [name for name in everyone if self.keys.get(name)]
        for chosen in (standing, everyone):
            made = [
                encoded(
                    f"{task.id}/selection/{number}",
                    "selection",
                    {
                        "task_id": task.id,
                        "participants_sha256": sha256(canonical(chosen)).hex(),
                        "part": number,
                        "parts": len(runs(chosen)),
                        "participants": run,
                    },
                )
                for number, run in enumerate(runs(chosen), 1)
            ]
            if made == [part.data for part in parts]:
                break
        else:
            raise Refused("those selected are not those who claimed")
        require(len(chosen) >= task.terms.quorum, "fewer are selected than the quorum")
        task.selected = chosen
        self.enter(self.take(), task, "SELECTED")

    def _parts(self, entry: Entry, prefix: str) -> tuple[list[Entry], Entry]:
        """All parts that begin with `entry`."""
        found = []
        while True:
            found.append(entry)
            number = integer(entry.body["part"], len(found), "part", len(found))
            if number == integer(entry.body["parts"], number, "parts"):
                return found, entry
            entry = self.take()
            require(
                entry.id == f"{prefix}/{number + 1}" and entry.kind == found[0].kind, "a part is out of place"
            )

    def model(self, entry: Entry) -> None:
        body = entry.body
        keys = (
            "kind submission_id task_id terms participant_id round model_sha256 model_bytes commitment nonce "
            "draw_share"
        )
        said = shaped(body["statement"], keys, "a model's statement")
        task = self.task(said["task_id"])
        name = self._about(task, said)
        require(said["kind"] == "model", "another kind of statement")
        number = integer(said["round"], 1, "round")
        self.same(
            entry,
            f"{task.place(number)}/model/{name}/{said['submission_id']}",
            "model",
            {**body, "keys": self.history.hex()},
        )
        hexed(said["model_sha256"], 32, "model_sha256")
        integer(said["model_bytes"], 1, "model_bytes", task.terms.max_bytes)
        commitment = hexed(said["commitment"], 32, "commitment")
        share = hexed(said["draw_share"], 32, "draw_share")
        require(type(body["late"]) is bool, "late is not a boolean")
        require(name in task.selected, f"{name} was not selected")
        require(said["nonce"] == task.claims[name].nonce, "the nonce is not the claim's")
        require(number <= task.round, f"a model of round {number} in round {task.round}")
        require((number, name) not in task.delivered, f"{name} has a model in round {number} already")
        sequence = integer(body["sequence"], task.floors[number] + 1, "sequence")
        require(sequence not in task.sequences, "the sequence is taken")
        self._submission(task, name, said["submission_id"])
        self.signed(name, said, body["signature"])
        require(hashed(share, number) == task.claims[name].head, "the draw share is not of the claim's chain")
        task.delivered.add((number, name))
        task.sequences.add(sequence)
        in_time = task.state == "TRAINING" and number == task.round and not task.closed
        require(
            body["late"] is not in_time, "a model is marked late that was in time, or the other way round"
        )
        trained_on = None
        if (opened := self.opening(entry, commitment)) is not None:
            shaped(opened, "samples salt", "the opening of a model")
            hexed(opened["salt"], 32, "salt")
            trained_on = integer(opened["samples"], 1, "samples")
        if in_time:
            task.models[name] = Model(said["model_sha256"], trained_on, sequence, share)

    def failure(self, entry: Entry) -> None:
        body = entry.body
        task, name = self.task(body["task_id"]), text(body["participant_id"], "participant_id")
        submission = identifier(body["submission_id"], "submission_id")
        text(body["reason"], "reason")
        self.same(entry, f"{task.place()}/failure/{name}/{submission}", "failure", {**body, **task.where()})
        require(
            task.state == "TRAINING" and not task.closed, f"a failure in {task.state}, or after the closing"
        )
        require(name in task.selected, f"{name} was not selected")
        self.standing(name)
        require(name not in task.failures, f"{name} has reported a failure in this round already")
        self._submission(task, name, submission)
        task.failures[name] = body["reason"]

    def closing(self, entry: Entry) -> None:
        task = self.task(entry.body["task_id"])
        require(task.state == "TRAINING" and not task.closed, f"a closing in {task.state}, or a second one")
        parts, _ = self._parts(entry, f"{task.place()}/closing")
        awaited = [name for name in task.selected if name not in task.models and name not in task.failures]
        absent = awaited if any(part.body["absent"] for part in parts) else []
        at = text(entry.body["at"], "at")
        made = runs(absent)
        require(len(parts) == len(made), f"a closing in {len(parts)} parts; expected {len(made)}")
        for number, (part, run) in enumerate(zip(parts, made, strict=True), 1):
            body = {**task.where(), "at": at, "part": number, "parts": len(parts), "absent": run}
            self.same(part, f"{task.place()}/closing/{number}", "closing", body)
        require(len(task.models) >= task.terms.quorum, "fewer models in time than the quorum")
        time, waited = moment(at, task)
        require(
            awaited == absent or waited >= task.terms.round_seconds, "models were taken for a shorter time"
        )
        task.at, task.closed = time, True

    # 12 Evidence and verdicts

    def evidence(self, entry: Entry) -> None:
        body = entry.body
        task = self.task(body["task_id"])
        require(task.terms.rule != "paper", "evidence under the rule paper")
        require(task.closed, f"evidence in {task.state}, before a closing")
        shadows = hexed(body["shadows_sha256"], 32, "shadows_sha256").hex()
        said = {
            "commitment": hexed(body["commitment"], 32, "commitment").hex(), "shadows_sha256": shadows,
            "shadows": integer(body["shadows"], 1, "shadows"),
            "carried": integer(body["carried"], 0, "carried", task.shadows),
        }  # fmt: skip
        self.same(entry, f"{task.place()}/evidence", "evidence", {**task.where(), **said})
        require(self.shadows.setdefault(shadows, task.start) == task.start, "shadow models of another start")
        if task.again is not None:
            task.again.add(entry.data)
        task.shadows += body["shadows"]
        opened = self.opening(entry, hexed(body["commitment"], 32, "commitment"))
        task.measured = None
        if opened is None:
            self._verdicts(None, task, {}, False)
            return
        hexed(shaped(opened, "model salt", "the opening of evidence")["salt"], 32, "salt")
        task.measured = evidence = Evidence(opened["model"])
        self._check_ground(task, evidence.model, said)
        for name in sorted(task.models):
            record = self.openings.get(f"{task.place()}/verdict/{name}", {}).get("measurement")
            if record is not None:
                evidence.add(record)
                self._check_measured(task, name, evidence.items[-1])
        sent, whole = set(task.starts[-9:]), len(evidence.items) == len(task.models)
        if whole:
            self._check_copies(evidence.items)
            found = assessed(evidence, sent)
        else:  # of each alone: what it has in common with others is not known
            items, found = evidence.items, {}
            for item in items:
                evidence.items = [{**item, "twins": [], "group": "", "outside": 0}]
                found.update(assessed(evidence, sent))
            evidence.items = items
        self._verdicts(None, task, found, whole)

    def _check_ground(self, task: Task, model: Record, said: Record) -> None:
        require(integer(model["round"], 1, "round") == task.round, "evidence of another round")
        require(
            model["degree"]["reference"] == task.terms.record["reference"],
            "evidence against another reference",
        )
        require(model["validation_sha256"] == task.terms.validation, "evidence on another validation set")
        require(model["start_sha256"] == task.start, "evidence about another start")
        for key in ("shadows_sha256", "shadows", "carried"):
            require(model[key] == said[key], f"{key} is not what the entry says")

    def _check_measured(self, task: Task, name: str, item: Record) -> None:
        """That a measurement is of what was signed, as far as that is opened."""
        sent, claimed = task.models[name], task.claims[name].degree
        require(item["participant_id"] == name, f"the measurement of {name} is of somebody else")
        require(
            item["model_sha256"] == sent.digest
            and item["order"] == sent.sequence
            and item["samples"] == (item["samples"] if sent.samples is None else sent.samples)
            and item["claimed_degree"] == (item["claimed_degree"] if claimed is None else claimed),
            f"the evidence is not about what {name} signed",
        )

    def _check_copies(self, items: Sequence[Record]) -> None:
        alone: dict[str, list[Any]] = {}
        names = set(_first_senders(items).values())
        likeness = {item["participant_id"]: item["twins"] for item in items}
        for item in items:
            name, twins = item["participant_id"], [twin for twin, *_ in item["twins"]]
            require(
                len(set(twins)) == len(twins) and name not in twins and set(twins) <= names,
                f"the twins of {name} are not others who were the first to send a model",
            )
            require(name in names or not twins, f"{name} has twins, and is not the first with its model")
            for other, *alike in item["twins"]:
                require(
                    [name, *alike] in likeness[other], f"{other} does not say of {name} how alike they are"
                )
            figures = [item[key] for key in OF_THE_MODEL_ALONE]
            require(
                alone.setdefault(item["model_sha256"], figures) == figures, "the same model has other figures"
            )
        outside: dict[str, int] = {}
        for item in items:  # in id order
            name, group = item["participant_id"], item["group"]
            if not group:
                require(item["outside"] == 0, f"{name} has an outside without a group")
                continue
            require(name in names, f"{name} is of a group, and is not the first with its model")
            require(
                group in outside or group == name, f"the group {group} is not named after its first member"
            )
            require(
                outside.setdefault(group, item["outside"]) == item["outside"],
                f"the members of the group {group} differ in outside",
            )

    def paper_verdicts(self, entry: Entry) -> None:
        """All verdicts of a round whose rule pays without evidence."""
        task = self.task(entry.body["task_id"])
        require(task.closed, f"a verdict in {task.state}, before a closing")
        require(task.terms.rule == "paper", "a verdict without evidence")
        self._verdicts(entry, task, {}, False)

    def _verdicts(self, first: Entry | None, task: Task, found: Mapping[str, Record], whole: bool) -> None:
        """A verdict on each of the selected; `found` has what opened evidence gives, `whole` where that is of all."""
        judged: dict[str, Record] = {}
        opened: dict[str, Record] = {}
        for name in task.selected:
            entry = first if first is not None and not judged else self.take()
            id_ = f"{task.place()}/verdict/{name}"
            require(entry.id == id_ and entry.kind == "verdict", f"{entry.kind} {entry.id}; expected {id_}")
            commitment = hexed(entry.body["commitment"], 32, "commitment")
            outcome = self._outcome(task, name, entry.body["outcome"])
            body = {**task.where(), "outcome": outcome, "commitment": commitment.hex()}
            self.same(entry, id_, "verdict", body)
            if task.again is not None:
                task.again.add(entry.data)
                task.again.submissions += name in task.models
            opening = self.opening(entry, commitment)
            if opening is not None:
                opened[name] = self._opened(task, name, outcome, opening, found.get(name), whole)
            judged[name] = outcome
        self._check_together(task, judged)
        self.settle(task, judged, opened)

    def _outcome(self, task: Task, name: str, record: Any) -> Record:
        """What stands in clear, and fits itself and the model that was sent."""
        keys = (
            "participant_id model_sha256 verified_micro weight_micro multiplier_ppm penalty_micro refuted cluster "
            "scores verdicts"
        )
        terms, sent, outcome = task.terms, task.models.get(name), shaped(record, keys, "an outcome")
        degree, cluster = outcome["verified_micro"], outcome["cluster"]
        require(outcome["participant_id"] == name, f"an outcome of somebody else than {name}")
        require(
            outcome["model_sha256"] == ("" if sent is None else sent.digest), "a verdict on another model"
        )
        if degree is not None:
            integer(degree, 0, "verified_micro", MICRO)
        for key in ("weight_micro", "multiplier_ppm"):
            integer(outcome[key], 0, key, MICRO)
        integer(outcome["penalty_micro"], 0, "penalty_micro")
        require(type(outcome["refuted"]) is bool, "refuted is not a boolean")
        require(cluster is None or isinstance(cluster, str), "a cluster is a name or null")
        require(isinstance(outcome["scores"], dict), "scores are not an object")
        passed: dict[str, bool] = {}
        for one in sequence(outcome["verdicts"], "verdicts"):
            require(len(sequence(one, "a verdict")) == 2, "a verdict is a test and whether it is passed")
            require(isinstance(one[0], str) and type(one[1]) is bool, "a verdict is a name and a boolean")
            passed[one[0]] = one[1]
        screens = [one[0] for one in outcome["verdicts"]]
        measured = sent is not None and terms.rule != "paper"
        if not measured:
            expected = ["delivered", False] if sent is None else ["contract", True]
            require(outcome["verdicts"] == [expected], "another verdict than there is without evidence")
        else:
            wanted: tuple[str, ...] = DECIDING[:1] if not passed.get("contract") else DECIDING
            if passed.get("contract") and passed.get("echo") and passed.get("trained"):
                wanted = (*DECIDING, *SCORED)
            require(tuple(screens) == wanted, "tests that do not follow one another")
            if passed["contract"] and outcome["model_sha256"] in task.starts[-9:]:
                require(not passed["echo"], "a model that was sent out is no echo")
        scored = sent is not None and all(passed.get(screen, True) for screen in DECIDING)
        require(scored is (degree is not None), "scored though a test failed, or not though all are passed")
        if not scored or not measured:
            plain: Record = {
                "weight_micro": MICRO, "multiplier_ppm": MICRO, "penalty_micro": 0, "refuted": False, "cluster": None,
                "scores": {},
            }  # fmt: skip
            require({**outcome, **plain} == outcome, "what only a measured model can have")
            return outcome
        require(passed["claim"] is not outcome["refuted"], "a claim is refuted and passed, or neither")
        require(
            (passed["samples"] and passed["contribution"]) is (outcome["multiplier_ppm"] == MICRO),
            "a multiplier that does not fit the tests",
        )
        require(
            passed["overlap"] or (cluster is not None and outcome["weight_micro"] < MICRO),
            "samples in common that weigh nothing",
        )
        require(list(outcome["scores"]) == ([] if terms.rule == "verified" else [terms.rule]), "other scores")
        most = micro(terms.penalty, ROUND_CEILING) if terms.rule == "verified" else 0
        require(outcome["penalty_micro"] <= most, "a larger penalty than the terms allow")
        return outcome

    def _check_together(self, task: Task, judged: Mapping[str, Record]) -> None:
        """Clusters, and copies of one model."""
        members: dict[str, list[str]] = {}
        for name, outcome in judged.items():
            if outcome["cluster"] is not None:
                members.setdefault(outcome["cluster"], []).append(name)
        for cluster, names in members.items():
            require(len(names) > 1 and names[0] == cluster, f"the cluster {cluster} is not one")
        first_of: dict[str, Record] = {}
        for outcome in judged.values():
            digest = outcome["model_sha256"]
            first = first_of.setdefault(digest, outcome)
            if task.terms.rule == "paper" or not digest or first is outcome:
                continue
            require(
                outcome["verdicts"][:3] == first["verdicts"][:3]
                and outcome["verified_micro"] == first["verified_micro"],
                "the same model is judged otherwise",
            )
            if outcome["verified_micro"] is not None:
                require(
                    outcome["cluster"] is not None
                    and outcome["cluster"] == first["cluster"]
                    and max(outcome["weight_micro"], first["weight_micro"]) <= MICRO // 2,
                    "the same model is paid twice",
                )

    def _opened(
        self, task: Task, name: str, outcome: Record, opening: Record, found: Record | None, whole: bool
    ) -> Record:
        """The assessment of an opening, which is what its ground gives, and of which the outcome is a part."""
        shaped(opening, "assessment measurement salt", "the opening of a verdict")
        hexed(opening["salt"], 32, "salt")
        keys = (
            "participant_id model_sha256 claimed_degree verified_micro lower_micro upper_micro multiplier_ppm refuted "
            "cluster holders_micro distinct_micro scores verdicts"
        )
        assessment, sent = shaped(opening["assessment"], keys, "an assessment"), task.models.get(name)
        require(assessment["participant_id"] == name, "an assessment of somebody else")
        claimed = task.claims[name].degree
        require(claimed in (None, assessment["claimed_degree"]), f"another claim than {name} signed")
        rational(assessment["claimed_degree"], "claimed_degree")
        measured = sent is not None and task.terms.rule != "paper"
        require((opening["measurement"] is not None) is measured, "a measurement of nothing, or none")
        if not measured:
            make = missing if sent is None else as_claimed
            found, whole = make(task, name, assessment["claimed_degree"]), True
        if found is not None:
            one, other = (assessment, found) if whole else (_apart(assessment), _apart(found))
            text = difference(parsed(canonical(one)), parsed(canonical(other)))
            require(not text, f"the assessment is not what the evidence gives: {text}")
        text = difference(outcome, outcome_of(task.terms, assessment))
        require(not text, f"the outcome is not the one of the assessment: {text}")
        return assessment

    # 11 The draw, 13 settlement

    def settle(self, task: Task, judged: Mapping[str, Record], opened: Mapping[str, Record]) -> None:
        """From SCORED to SETTLED."""
        self.enter(self.take(), task, "SCORED")
        terms, place, where = task.terms, task.place(), task.where()
        entry = self.take()
        require(entry.kind == "seed", f"{entry.kind} {entry.id}; expected a seed here")
        seed = hexed(entry.body["seed"], 32, "seed")
        require(sha256(seed) == task.seed, "the seed does not fit the one before it")
        self._fresh(seed)
        self.same(entry, f"{place}/seed", "seed", {**where, "seed": seed.hex()})
        task.seed = seed
        digest, key = draw_key(seed, {name: model.share for name, model in task.models.items()})
        scored = [name for name in task.selected if judged[name]["verified_micro"] is not None]
        peers: dict[str, list[str]] = {name: [] for name in task.selected}
        everyone, amounts, lines = sorted(task.models), {}, {}
        for name in scored:

            def may(other: str, name: str = name, cluster: Any = judged[name]["cluster"]) -> bool:
                return (
                    other != name
                    and other in judged
                    and judged[other]["verified_micro"] is not None
                    and (cluster is None or judged[other]["cluster"] != cluster)
                )

            def met(other: str, name: str = name) -> int:
                return task.met[name, other] if terms.rule == "verified" else 0

            peers[name] = least_met(filter(may, order(key, name, everyone)), met, terms.peers)
            before = gross(terms, judged[name], [judged[n] for n in peers[name] or [name]])
            less, share = judged[name]["penalty_micro"], fee(terms, judged[name])
            lines[name] = {
                "gross_micro": micro(before, ROUND_FLOOR), "penalty_micro": less,
                "fee_micro": micro(share, ROUND_CEILING),
            }  # fmt: skip
            less = Decimal(less).scaleb(-6, AMOUNTS)
            amounts[name] = max(NOTHING, AMOUNTS.subtract(AMOUNTS.subtract(before, less), share))
        task.met.update((name, peer) for name, found in peers.items() for peer in found)
        paid, rounding = largest_remainder(amounts)
        draws = runs([[name, peers[name]] for name in task.selected])
        for number, run in enumerate(draws, 1):
            body = {
                "part": number,
                "parts": len(draws),
                "shares": digest.hex(),
                "key": key.hex(),
                "draws": run,
            }
            self.expect(f"{place}/peers/{number}", "peers", {**where, **body})
        self._settlement(task, sum(paid.values()) + rounding, rounding)
        if task.round in task.kept:
            task.kept[task.round] = dict(judged), peers, paid, dict(opened)
        for name in task.selected:
            one = paid.get(name, 0)
            self._payment(task, name, one, lines.get(name, UNSCORED), judged[name], key)
        task.unresolved.discard(task.round)
        self._aggregation(task, bool(scored))
        self.enter(self.take(), task, "SETTLED")
        for (number, _), pending in task.pending.items():
            if number == task.round:
                pending.since = task.at or 0

    def _fresh(self, seed: bytes) -> None:
        require(seed not in self.seeds, "a seed or commitment stands in this log already")
        self.seeds.add(seed)

    def _settlement(
        self,
        task: Task,
        total: int,
        rounding: int,
    ) -> None:
        terms, escrow = task.terms, f"escrow:{task.id}"
        transfers: list[Record] = [{"resolve": f"{task.id}/{task.round}", "micro": total}]
        if rounding:
            transfers.append(post(escrow, "rounding", rounding))
        kept = terms.reserved(task.round) - total
        if task.disputable and kept:
            name = f"{task.id}/{terms.rounds + task.round}"
            transfers.append({"reserve": name, **post(terms.payer, escrow, kept)})
            task.kept[task.round] = {}, {}, {}, {}
        body = {
            **task.where(), "arithmetic": "decimal28-half-even/largest-remainder-v4",
            "participants": len(task.selected), "total_micro": total, "rounding_micro": rounding,
        }  # fmt: skip
        self.expect(f"{task.place()}/settlement", "settlement", body, *transfers)

    def _payment(
        self,
        task: Task,
        name: str,
        paid: int,
        line: Mapping[str, int],
        judged: Record,
        key: bytes,
    ) -> None:
        stake, payable, most = f"stake:{task.id}:{name}", f"payable:{name}", task.terms.stake
        held = self.book.holds.get(stake, 0)
        refuted = judged["refuted"]
        lost = min(held, most) if refuted else 0
        withheld = 0 if refuted else min(paid, max(0, most - held))
        kept, audited = self._audited(task, name, paid, withheld, key, judged["verified_micro"])
        moves = (
            post(f"escrow:{task.id}", payable, paid),
            post(payable, stake, withheld),
            post(stake, task.terms.payer, lost),
            post(payable, f"held:{task.id}:{name}", kept),
        )
        body = {
            **task.where(), **line, "participant_id": name, "paid_micro": paid, "withheld_micro": withheld,
            "stake_lost_micro": lost, "keys": self.history.hex(), **audited,
        }  # fmt: skip
        self.expect(f"{task.place()}/payment/{name}", "payment", body, *(m for m in moves if m["micro"]))

    def _audited(
        self, task: Task, name: str, paid: int, withheld: int, key: bytes, verified: int
    ) -> tuple[int, Record]:
        """What is held of a payment for audits, and what its entry says of it."""
        audit, rest = task.terms.audit, paid - withheld
        if audit is None:
            return 0, {}
        drawn, always = paid > 0 and audit.draws(key, name), math.floor(audit.share * rest)
        kept = rest if drawn else always
        if drawn:
            evidence, shown = task.measured, None
            for item in () if evidence is None else evidence.items:
                if item["participant_id"] == name and evidence is not None:
                    shown = evidence.estimate(evidence.z(item["features"]))
            task.pending[task.round, name] = Pending(evidence, task.start, shown, verified, kept - always)
        return kept, {"audited": drawn, "held_micro": kept}

    # 18 Audits

    def _of_audit(self, entry: Entry) -> tuple[Task, "Audit", int, str, Pending]:
        body = entry.body
        task = self.task(body["task_id"])
        require(task.terms.audit is not None, "the terms have no audits")
        assert task.terms.audit is not None
        number, name = integer(body["round"], 1, "round"), text(body["participant_id"], "participant_id")
        require((number, name) in task.pending, f"no audit of {name} for round {number} is pending")
        return task, task.terms.audit, number, name, task.pending[number, name]

    def _in_time(self, task: Task, pending: Pending, at: Any, least: int, most: float) -> int:
        time, _ = moment(text(at, "at"), task)
        waited = time - pending.since
        require(waited >= 0 and least <= waited <= most, f"{waited} seconds are not in time")
        return time

    def audit(self, entry: Entry) -> None:
        body = entry.body
        task, terms, round_, name, pending = self._of_audit(entry)
        number = integer(body["number"], 1, "number", 2)
        require(number == {0: 1, 2: 2}.get(pending.stage), "an audit where none is awaited")
        time = self._in_time(task, pending, body["at"], 0, terms.seconds)
        commitment, place = (
            hexed(body["commitment"], 32, "commitment"),
            f"{task.place(round_)}/audit/{name}/{number}",
        )
        shown = integer(body["submitted_micro"], 0, "submitted_micro", pending.verified)
        again, limit = body["retrained_micro"], body["limit_micro"]
        if again is not None:
            integer(again, 0, "retrained_micro", MICRO)
        if limit is not None:
            integers([limit], "limit_micro")
        one_of(body["outcome"], ("passed", "failed"), "outcome")
        passed = body["outcome"] == "passed"
        require(again is not None or (limit is None and not passed), "what only weights bring, without any")
        require(not passed or limit is None or again - shown <= limit, "passed above the limit")
        opening = self.opening(entry, commitment)
        if opening is not None:
            found = self._of_findings(task, (round_, name, number), pending, (shown, again), opening)
            if found is not None:
                passed, limit = found[0], found[2]
                shown, again = found[1]
        said = {
            **task.where(round_), "participant_id": name, "number": number, "at": body["at"],
            "outcome": "passed" if passed else "failed", "submitted_micro": shown, "retrained_micro": again,
            "limit_micro": limit, "commitment": commitment.hex(),
        }  # fmt: skip
        released = post(f"held:{task.id}:{name}", f"payable:{name}", pending.question)
        self.same(entry, place, "audit", said, *([released] if passed and pending.question else []))
        if passed or number == 2:
            del task.pending[round_, name]
        if not passed and number == 2:
            task.convicted.add(name)
        pending.stage, pending.since = 1, time

    def _of_findings(
        self,
        task: Task,
        place: tuple[int, str, int],
        pending: Pending,
        logged: tuple[int, int | None],
        opening: Record,
    ) -> tuple[bool, tuple[int, int | None], int | None] | None:
        """Whether opened findings have passed, v and v_r, and the limit; None where the claim is not opened."""
        terms, (round_, name, number), (shown, again) = task.terms.audit, place, logged
        assert terms is not None
        record = shaped(opening, "statement signature features differences salt", "the opening of an audit")
        hexed(record["salt"], 32, "salt")
        said = self._audit_statement(task, round_, name, number, pending, record["statement"])
        signature = text(record["signature"], "signature")
        require(re.fullmatch("([0-9a-f]{2})*", signature) is not None, "no signature")
        try:
            terms.key.verify(bytes.fromhex(signature), canonical(said), ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            raise Refused("not signed by the auditor of the terms") from None
        features = [integers(row, "features") for row in sequence(record["features"], "features")]
        differences = integers(record["differences"], "differences")
        named = bool(said["model_sha256"])
        require(bool(features) == named == (again is not None), "features of weights that nobody names")
        if pending.shown is not None:
            shown = pending.shown
        if features and pending.evidence is not None:
            shape = [len(row) for row in features]
            require(shape == [pending.evidence.columns] * pending.evidence.strata, "features of another form")
            again = pending.evidence.estimate(pending.evidence.z(features))
        claim = task.claims[name]
        if claim.degree is None:
            return None
        limit = None if again is None else terms.limit(differences)
        as_claimed = (
            said["samples"] > 0 and said["samples_root"] == claim.root and said["degree"] == claim.degree
        )
        passed = bool(as_claimed and said["accepted"])
        require(not passed or again is not None, "nothing was trained again")
        if passed and again is not None and limit is not None:
            passed = again - shown <= limit
        return passed, (shown, again), limit

    def _audit_statement(
        self, task: Task, round_: int, name: str, number: int, pending: Pending, record: Any
    ) -> Record:
        keys = (
            "kind task_id terms participant_id round number start_sha256 samples_root samples distinct near degree "
            "accepted remark model_sha256"
        )
        said = shaped(record, keys, "an audit's statement")
        about = {
            "kind": "audit", "task_id": task.id, "terms": task.terms.digest, "participant_id": name, "round": round_,
            "number": number, "start_sha256": pending.start,
        }  # fmt: skip
        integers([said["round"], said["number"]], "a number")
        require({key: said[key] for key in about} == about, "the statement is about something else")
        opened = integer(said["samples"], 0, "samples")
        integer(said["distinct"], 0, "distinct", opened)
        integer(said["near"], 0, "near", opened)
        rational(said["degree"], "degree")
        require(type(said["accepted"]) is bool, "accepted is not true or false")
        remark = text(said["remark"], "remark")
        require(
            len(remark) <= 500 and not re.search("[\x00-\x1f\x7f-\x9f]", remark), "a remark that is too long"
        )
        require(said["accepted"] or bool(remark.strip()), "the remark is missing")
        for key in ("samples_root", "model_sha256"):
            hexed(said[key], 32 if said[key] else 0, key)
        require(bool(opened) == bool(said["samples_root"]), "samples without a root, or a root without")
        require(opened > 0 or not said["model_sha256"], "a model of no samples")
        return said

    def appeal(self, entry: Entry) -> None:
        task, terms, round_, name, pending = self._of_audit(entry)
        self.same(entry, f"{task.place(round_)}/appeal/{name}", "appeal", entry.body)
        require(pending.stage == 1 and terms.appeal_seconds > 0, "an appeal where none is awaited")
        require(len(text(entry.body["reason"], "reason")) <= 500, "a reason that is too long")
        self.standing(name)
        pending.since = self._in_time(task, pending, entry.body["at"], 0, terms.appeal_seconds)
        pending.stage = 2

    def audit_end(self, entry: Entry) -> None:
        task, terms, round_, name, pending = self._of_audit(entry)
        why = ("unvisited", "unappealed", "unanswered")[pending.stage]
        require(entry.body["why"] == why, f"an audit ends otherwise than as {why}")
        payable = task.terms.payer if why == "unvisited" and terms.back else f"payable:{name}"
        moved = post(f"held:{task.id}:{name}", payable, pending.question)
        moves = (moved,) if pending.question and why != "unappealed" else ()
        self.same(entry, f"{task.place(round_)}/audit/{name}/end", "audit_end", entry.body, *moves)
        least = terms.appeal_seconds if pending.stage == 1 else terms.seconds
        self._in_time(task, pending, entry.body["at"], least, math.inf)
        del task.pending[round_, name]
        if why == "unappealed":
            task.convicted.add(name)

    def remeasurement(self, entry: Entry) -> None:
        body = entry.body
        numbers = (
            "number rounds submissions identical merged degree_micro weight_micro multiplier_micro turned "
            "tolerance_micro"
        )
        keys = f"kind task_id terms measured computed_on remark {numbers}"
        said = shaped(body["statement"], keys, "a statement")
        name = identifier(said["task_id"], "task_id")
        require(
            name in self.again,
            "measured again before its end, without an auditor, or after its models were deleted",
        )
        known = self.again[name]
        about = {
            "kind": "remeasurement", "terms": known.terms, "number": known.statements + 1,
            "measured": known.digest.hex(), "rounds": known.rounds, "submissions": known.submissions,
        }  # fmt: skip
        for key in numbers.split():
            integer(said[key], 0, key)
        require({key: said[key] for key in about} == about, "the statement is about something else")
        require(max(said["identical"], said["merged"]) <= known.rounds, "more rounds than there are")
        require(said["turned"] <= known.submissions, "more models than there are")
        differences = [said[key] for key in ("degree_micro", "weight_micro", "multiplier_micro")]
        require(max(differences) <= MICRO, "a difference of more than everything")
        require(said["tolerance_micro"] <= MAX_TOLERANCE_MICRO, "a tolerance that lets everything pass")
        require(
            said["identical"] < known.rounds or not (any(differences) or said["turned"]),
            "the same, and otherwise",
        )
        for key in ("computed_on", "remark"):
            require(
                len(text(said[key], key)) <= 500 and not re.search("[\x00-\x1f\x7f-\x9f]", said[key]),
                f"{key} is too long",
            )
        holds = (
            max(differences) <= said["tolerance_micro"]
            and not said["turned"]
            and said["merged"] == known.rounds
        )
        made = {**body, "task_id": name, "outcome": "confirmed" if holds else "deviates"}
        self.same(entry, f"{name}/remeasurement/{said['number']}", "remeasurement", made)
        signature = text(body["signature"], "signature")
        require(re.fullmatch("([0-9a-f]{2})*", signature) is not None, "no signature")
        try:
            known.key.verify(bytes.fromhex(signature), canonical(said), ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            raise Refused("not signed by the auditor of the terms") from None
        time = seconds(text(body["at"], "at"))
        require(time >= known.at, "a time before what came before")
        known.at, known.statements = time, said["number"]

    def _held(self, task: Task) -> list[tuple[Any, ...]]:
        """What becomes of what is held, when a task ends."""
        made: list[tuple[Any, ...]] = []
        for name in sorted(task.claims if task.terms.audit else ()):
            held, stake = f"held:{task.id}:{name}", f"stake:{task.id}:{name}"
            body = {"task_id": task.id, "participant_id": name}
            amount, staked = self.book.holds.get(held, 0), self.book.holds.get(stake, 0)
            if name in task.convicted:
                lost = [post(held, task.terms.payer, amount), post(stake, task.terms.payer, staked)]
                if amount or staked:
                    moves = [move for move in lost if move["micro"]]
                    made.append((f"{task.id}/held/{name}/loss", "audit_loss", body, *moves))
            elif amount:
                moved = post(held, f"payable:{name}", amount)
                made.append((f"{task.id}/held/{name}/release", "held_release", body, moved))
        return made

    def _aggregation(self, task: Task, scored: bool) -> None:
        entry = self.take()
        body = entry.body
        self.same(entry, f"{task.place()}/aggregate", "aggregation", {**body, **task.where()})
        digest = hexed(body["model_sha256"], 32, "model_sha256").hex()
        if body["figures"] != {}:
            figures = shaped(body["figures"], "loss", "figures", "accuracy")
            accuracy = text(figures.get("accuracy", "0"), "accuracy")
            text(figures["loss"], "loss")
            require(
                re.fullmatch(r"-?[0-9]{1,30}(\.[0-9]{1,30})?", accuracy) is not None,
                "accuracy is not a decimal",
            )
            require(0 <= Decimal(accuracy) <= 1, "an accuracy outside [0, 1]")
        state = body["state_sha256"]
        if state is not None:
            state = hexed(state, 32, "state_sha256").hex()
        if scored:
            require((state is not None) == task.terms.stateful, "a server's state that the terms do not have")
        else:
            require(digest == task.start, "the model has changed in a round in which nobody was scored")
            require(
                state == task.server_state,
                "the server's state has changed in a round in which nobody was scored",
            )
        task.server_state = state
        task.start = digest
        if task.again is not None:
            task.again.add(entry.data)
            task.again.rounds += 1

    # 14 Disputes, 15 ends

    def dispute(self, entry: Entry) -> None:
        body = entry.body
        task, name = self.task(body["task_id"]), text(body["participant_id"], "participant_id")
        body = {"task_id": task.id, "participant_id": name, "at": body["at"]}
        self.same(entry, f"{task.id}/dispute/{name}", "dispute", body)
        require(name in task.selected and name not in task.disputes, f"{name} has nothing to open")
        self.standing(name)
        require(task.disputable, "the terms allow no dispute")
        require(len(task.unresolved) < task.terms.rounds, "a dispute before a settlement")
        _, waited = moment(text(body["at"], "at"), task)
        require(bool(task.unresolved) or waited <= task.terms.window, "a dispute after the time for them")
        claim = task.claims[name]
        if (opened := self.opening(entry, claim.commitment)) is not None:
            hexed(shaped(opened, "counts salt", "the opening of counts")["salt"], 32, "salt")
            degree = str(degree_of(opened["counts"], task.terms.reference))
            require(claim.degree in (None, degree), "counts of another degree than was claimed")
        task.disputes.add(name)

    def awards(self, entry: Entry) -> None:
        """The awards of all rounds that kept something back, and the rest of the end."""
        task = self.task(entry.body["task_id"])
        require(bool(task.kept), "no round has kept something back for awards")
        for count, number in enumerate(sorted(task.kept)):
            self._awards(entry if not count else self.take(), task, number)
        task.kept.clear()
        for id_, kind, body, *transfers in self._left(task):
            self.expect(id_, kind, body, *transfers)
        self.enter(self.take(), task, "CLOSED", "CANCELLED")

    def _awards(self, entry: Entry, task: Task, number: int) -> None:
        judged, peers, paid, opened = task.kept[number]
        place, where = task.place(number), task.where(number)
        require(
            entry.id == f"{place}/awards" and entry.kind == "awards", f"expected the awards {place}/awards"
        )
        left = integer(entry.body["total_micro"], 0, "total_micro")
        resolve = {"resolve": f"{task.id}/{task.terms.rounds + number}", "micro": left}
        self.same(entry, f"{place}/awards", "awards", {**where, "total_micro": left}, resolve)
        most, waiting = micro(task.terms.most(), ROUND_CEILING), sorted(task.disputes)

        def check(name: str, amount: int) -> None:
            if name in opened:
                before = [judged[n] for n in peers[name]]
                due = award(task.terms, opened[name], before, paid.get(name, 0))
                require(due == amount, f"{name} is awarded {amount}; its dispute gives {due}")

        while left:
            require(bool(waiting), f"{left} micro-credits of the awards go to nobody")
            one = self.take()
            require(one.kind == "award", f"{one.kind} {one.id}; expected an award of round {number} here")
            name = text(one.body["participant_id"], "participant_id")
            require(name in waiting, f"{name} has no dispute, or is out of order")
            amount = integer(one.body["award_micro"], 1, "award_micro", left)
            require(amount + paid.get(name, 0) <= most, "more than the terms pay in a round")
            for other in waiting[: waiting.index(name)]:
                check(other, 0)
            check(name, amount)
            waiting, left = waiting[waiting.index(name) + 1 :], left - amount
            body = {**where, "participant_id": name, "award_micro": amount}
            moved = post(f"escrow:{task.id}", f"payable:{name}", amount)
            self.same(one, f"{place}/award/{name}", "award", body, moved)
        for name in waiting:
            check(name, 0)

    def ending(self, entry: Entry) -> None:
        task = self.task(entry.body["task_id"])
        require(not task.kept, "the awards are missing before the end")
        left = self._left(task)
        require(bool(left), "nothing is left to end here")
        for number, (id_, kind, body, *transfers) in enumerate(left):
            self.same(self.take() if number else entry, id_, kind, body, *transfers)
        self.enter(self.take(), task, "CLOSED", "CANCELLED")

    def _left(self, task: Task) -> list[tuple[Any, ...]]:
        """What must stand before a task's last transition, once awards are: id, kind, body, transfers."""
        made: list[tuple[Any, ...]] = []
        for number in sorted(task.unresolved):
            resolve = {"resolve": f"{task.id}/{number}", "micro": 0}
            made.append((f"{task.place(number)}/refund", "refund", task.where(number), resolve))
        for name in sorted(set(task.claims) - task.convicted):
            if held := self.book.holds.get(f"stake:{task.id}:{name}", 0):
                body = {"task_id": task.id, "participant_id": name}
                moved = post(f"stake:{task.id}:{name}", f"payable:{name}", held)
                made.append((f"{task.id}/stake/{name}/release", "stake_release", body, moved))
        return [*made, *self._held(task)]

    # 16 Money that comes and goes

    def funding(self, entry: Entry) -> None:
        body, kind = entry.body, entry.kind
        learner, reference = (identifier(body[name], name) for name in ("learner_id", "reference"))
        amount = integer(body["micro"], 1, "micro")
        seconds(text(body["at"], "at"))
        account = f"learner:{learner}"
        ends = ("treasury", account) if kind == "deposit" else (account, "treasury")
        require(entry.id not in self.funded, f"a {kind} is recorded twice")
        self.funded.add(entry.id)
        self.same(entry, f"{account}/{kind}/{reference}", kind, body, post(*ends, amount))

    def payout(self, entry: Entry) -> None:
        number = integer(entry.body["number"], 1, "number")
        require(self.run_lines is None, "a run begins before the last has ended")
        require(number == self.runs + 1, f"run {number} follows run {self.runs}")
        require(self.price is not None, "a payout where no terms have a price")
        assert self.price is not None
        self.run_at = seconds(text(entry.body["at"], "at"))
        parts, _ = self._parts(entry, f"payout/{number}")
        names = [name for part in parts for name in sequence(part.body["participants"], "participants")]
        require(bool(names), "a run of nobody")
        lines = {}
        for name in names:
            account = f"payable:{identifier(name, 'a participant')}"
            require(name not in lines, f"{name} stands in the run twice")
            lines[name] = self.price.line(self.book.holds.get(account, 0) - self.book.pending.get(account, 0))
            require(lines[name][0] >= 1, f"{name} is owed less than a unit")
        place = {"number": number, "at": entry.body["at"], "price": self.price.record}
        made = runs(sorted(names))
        require(len(parts) == len(made), "the list of a run is cut otherwise")
        for index, (part, run) in enumerate(zip(parts, made, strict=True), 1):
            body = {**place, "part": index, "parts": len(made), "participants": run}
            self.same(part, f"payout/{number}/{index}", "payout", body)
        for name in sorted(names):
            units, micro_ = lines[name]
            body = {"number": number, "participant_id": name, "units": units, "micro": micro_}
            held = {"reserve": f"payout:{name}/{number}", **post(f"payable:{name}", f"paid:{name}", micro_)}
            self.expect(f"payout/{number}/line/{name}", "payout_line", body, held)
        self.runs, self.run_lines = number, {name: micro_ for name, (_, micro_) in lines.items()}

    def payout_end(self, entry: Entry) -> None:
        body = entry.body
        number = integer(body["number"], 1, "number")
        require(self.run_lines is not None and number == self.runs, f"no run {number} is on its way")
        assert self.run_lines is not None
        one_of(body["outcome"], ("confirmed", "withdrawn"), "outcome")
        confirmed = body["outcome"] == "confirmed"
        require(
            bool(text(body["reason"], "reason").strip()) != confirmed, "a reason is missing, or has no place"
        )
        at = seconds(text(body["at"], "at"))
        require(at >= self.run_at, "a time before what came before")
        self.same(entry, f"payout/{number}/end", "payout_end", body)
        for name, held in sorted(self.run_lines.items()):
            where = {"number": number, "participant_id": name}
            resolve = {"resolve": f"payout:{name}/{number}", "micro": held if confirmed else 0}
            self.expect(f"payout/{number}/resolved/{name}", "payout_resolved", where, resolve)
            if confirmed:
                self.paid[number, name] = held
        self.paid_at[number], self.run_lines = at, None

    def payout_return(self, entry: Entry) -> None:
        body = entry.body
        number, name = integer(body["number"], 1, "number"), text(body["participant_id"], "participant_id")
        require((number, name) in self.paid, f"run {number} has paid {name} nothing that could come back")
        require(bool(text(body["reason"], "reason").strip()), "a reason is missing")
        require(seconds(text(body["at"], "at")) >= self.paid_at[number], "a time before what came before")
        amount = self.paid.pop((number, name))
        moved = post(f"paid:{name}", f"payable:{name}", amount)
        self.same(
            entry, f"payout/{number}/returned/{name}", "payout_return", {**body, "micro": amount}, moved
        )


def seconds(at: str) -> int:
    """Seconds since the epoch."""
    form = "[0-9]{4}-[0-9]{2}-[0-9]{2}T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z"
    require(re.fullmatch(form, at) is not None, "no time")
    return int(datetime.fromisoformat(at).timestamp())


def moment(at: str, task: Task) -> tuple[int, float]:
    """Seconds since the epoch, and since the task's last transition or closing."""
    time = seconds(at)
    waited = math.inf if task.at is None else time - task.at
    require(waited >= 0, "a time before what came before")
    return time, waited


def degree_of(counts: Any, reference: Sequence[Fraction]) -> Fraction:
    require(isinstance(counts, list) and len(counts) == len(reference), "counts of another number of labels")
    total = sum(integer(count, 0, "a count") for count in counts)
    require(total > 0, "counts of no sample")
    return sum((abs(Fraction(n, total) - p) for n, p in zip(counts, reference, strict=True)), Fraction(0)) / 2


def award(terms: Terms, subject: Record, peers: Sequence[Record], paid: int) -> int:
    """What a dispute adds to a settled round, micro-credits."""
    if subject["verified_micro"] is None or subject["refuted"]:
        return 0
    claimed = Fraction(subject["claimed_degree"]) * MICRO
    if not subject["lower_micro"] <= claimed <= subject["upper_micro"]:
        return 0
    own = round(claimed)
    shown = outcome_of(terms, subject)
    amount = verified(terms, own, subject["multiplier_ppm"], peers or [{"verified_micro": own}])
    left = AMOUNTS.subtract(part(amount, shown["weight_micro"]), fee(terms, shown))
    return max(0, micro(max(NOTHING, left), ROUND_FLOOR) - paid)


def missing(task: Task, name: str, claimed: str) -> Record:
    said = task.failures.get(name)
    explanation = "No model came before the round closed." + (f" It said: {said}" if said else "")
    return _assessment(name, "", claimed, None, ("delivered", False, explanation))


def as_claimed(task: Task, name: str, claimed: str) -> Record:
    degree = round(Fraction(claimed) * MICRO)
    verdict = ("contract", True, "The model fits the task's contract.")
    return _assessment(name, task.models[name].digest, claimed, degree, verdict)


def _assessment(
    name: str, digest: str, claimed: str, degree: int | None, verdict: tuple[str, bool, str]
) -> Record:
    screen, passed, explanation = verdict
    return {
        "participant_id": name, "model_sha256": digest, "claimed_degree": claimed,
        "verified_micro": degree, "lower_micro": None, "upper_micro": None, "multiplier_ppm": MICRO,
        "refuted": False, "cluster": None, "holders_micro": MICRO, "distinct_micro": MICRO, "scores": {},
        "verdicts": [{"screen": screen, "passed": passed, "explanation": explanation, "figures": {}}],
    }  # fmt: skip


def _apart(assessment: Record) -> Record:
    """Without what it says of samples in common with others."""
    verdicts = [one for one in assessment["verdicts"] if one["screen"] != "overlap"]
    return {**assessment, "cluster": None, "holders_micro": MICRO, "verdicts": verdicts}


def read_openings(path: Path) -> tuple[str | None, dict[str, Record]]:
    """Whose a file of openings is, None where it is meant to hold all, and the openings by the ids of their entries."""
    head, *lines = [parsed(line) for line in path.read_bytes().splitlines()]
    shaped(head, "format participant", "the head of the openings")
    require(head["format"] == "fedpeer-openings/1", "another format of openings")
    found: dict[str, Record] = {}
    for line in lines:
        id_ = text(shaped(line, "id opening", "an opening")["id"], "id")
        require(id_ not in found and isinstance(line["opening"], dict), f"a second opening of {id_}, or none")
        found[id_] = line["opening"]
    reader = head["participant"]
    return None if reader is None else text(reader, "participant"), found


def joined(pieces: Sequence[str], digest: str) -> Any:
    data = unbase64("".join(pieces), "data")
    require(sha256(data).hex() == digest, f"sha256 is {shown(digest)}; expected that of the parts together")
    return parsed(data)


# The whole


def verify(path: Path, key: str | None = None, openings: Path | None = None) -> Result:
    """Verifies an export; `key` is one that the log has or had."""
    result, opened, reader = Result(), dict[str, Record](), None
    try:
        export = read(path)
        vkey(export.key)
        if openings is not None:
            reader, opened = read_openings(openings)
            result.level = "auditor" if reader is None else f"participant {reader}"
    except (Refused, OSError, ValueError) as error:
        result.problems.append((None, f"unreadable: {error}"))
        return result
    replay = Replay(export.entries, opened, reader)
    try:
        replay.run()
        for id_ in replay.openings:
            if id_.partition("/")[0] in replay.tasks and replay.tasks[id_.partition("/")[0]] is None:
                result.problems.append((None, f"no entry commits to the opening of {id_}"))
        if reader is not None and reader not in replay.owners.values():
            result.problems.append(
                (None, f"the openings are said to be those of {reader}, who never enrolled")
            )
        if openings is not None and reader is None and not opened and replay.unchecked:
            result.problems.append((None, "the openings are said to be all, and there are none"))
    except Wrong as error:
        result.problems.append((error.index, str(error)))
    result.opened, result.unchecked = replay.opened, replay.unchecked
    _check_tree(export, replay, key, result)
    result.balances = dict(sorted(replay.book.holds.items()))
    return result


def _check_tree(export: Export, replay: Replay, trusted: str | None, result: Result) -> None:
    """Heads, the log's keys, tiles."""
    keys = replay.log_keys or [(-1, export.key)]
    if keys[0][1] != export.key:
        result.problems.append((keys[1][0], "the announcement does not begin at the log's first key"))
    if trusted is not None and trusted not in [key for _, key in keys]:
        result.problems.append((None, f"the log never had the key {trusted}"))
    leaves = [leaf_hash(data) for data in export.entries]
    handed, tree, before = set[int](), Tree(), -1
    for one in export.heads:
        try:
            require(one.size > before, f"the head of {one.size} is out of order")
            before = one.size
            require(one.size <= len(leaves), f"the log ends before its head of {one.size}")
            for leaf in leaves[tree.size : one.size]:
                tree.add(leaf)
            require(tree.root() == one.root, f"the entries do not give the root of the head of {one.size}")
            one.check(next((key for index, key in reversed(keys) if one.size > index + 1), export.key))
            for index, key in keys[1:]:
                if one.size == index + 1:
                    one.check(key)
                    handed.add(index)
        except Refused as error:
            result.problems.append((None, str(error)))
    for index, key in keys[1:]:
        if index not in handed:
            result.problems.append(
                (index, f"no head of {index + 1} entries is signed by {key} and the one before")
            )
    if not export.heads or export.heads[-1].size != len(leaves):
        result.problems.append((None, "entries after the last head"))
    _check_tiles(export, leaves, result)


def _check_tiles(export: Export, leaves: list[bytes], result: Result) -> None:
    level, row = 0, leaves
    while row:
        above = []
        for start in range(0, len(row), 256):
            tile = row[start : start + 256]
            try:
                stored = export.tiles(level, start // 256, len(tile))
            except OSError as error:
                result.problems.append((None, f"a tile is missing: {error}"))
                return
            if stored is not None and stored != b"".join(tile):
                result.problems.append((None, f"tile {level}/{start // 256} is not what the entries give"))
            if len(tile) == 256:
                while len(tile) > 1:
                    tile = [sha256(b"\x01" + a + b) for a, b in zip(tile[::2], tile[1::2], strict=True)]
                above.append(tile[0])
        level, row = level + 1, above


def main(arguments: Sequence[str]) -> int:
    given, openings = list(arguments), None
    if "--openings" in given:
        place = given.index("--openings")
        openings = Path(given[place + 1])
        del given[place : place + 2]
    result = verify(Path(given[0]), given[1] if len(given) > 1 else None, openings)
    for index, reason in result.problems:
        print(reason if index is None or reason.startswith("entry") else f"entry {index}: {reason}")
    for name, held in result.balances.items():
        print(f"{name} {held}")
    print(f"as {result.level}: {result.opened} openings checked, {result.unchecked} entries commit to others")
    print("does not hold" if result.problems else "holds")
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
