"""Keys: those of participants, by which statements are signed, and those of the log."""

import base64
from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_der_public_key

from mechanism.ledger import entries as events
from mechanism.ledger.entry import Entry
from mechanism.ledger.key_history import extended, fingerprint
from mechanism.ledger.note import VerificationKey
from mechanism.ledger.replay.comparing import Wrong, same
from mechanism.ledger.replay.forms import check_owner
from mechanism.ledger.replay.world import RevokedKey, World
from mechanism.lifecycle import State
from mechanism.statements import Statement, signature_holds
from mechanism.terms import identifier


def enrolment(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    key = _public_key(body["public_key"])
    name = identifier("participant_id", body["participant_id"])
    same(entry, events.enrolment(name, key))
    mark = fingerprint(events.public_key_bytes(key))
    if (revoked := world.revoked.get(mark)) is not None:
        raise Wrong(f"this key was revoked before, as {revoked.owner}'s in entry {revoked.entry}")
    if entry.id in world.enrolled:
        raise Wrong("this key was enrolled before")
    if (owner := world.owners.setdefault(mark, name)) != name:
        raise Wrong(f"this key is enrolled as {owner}'s")
    world.enrolled.add(entry.id)
    _extend(world, entry)
    world.keys.setdefault(name, {})[mark] = key


def pseudonym(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    """A name that takes part in one task alone. Where it is opened: whose it is, and that nobody has two."""
    task, name = world.task(body["task_id"]), identifier("participant_id", body["participant_id"])
    commitment = bytes.fromhex(body["commitment"])
    same(entry, events.pseudonym_as(task.id, name, commitment))
    if not task.terms.pseudonyms:
        raise Wrong(f"a pseudonym in {task.id}, whose terms have none")
    if task.state not in (State.OPEN, State.EFFORT):
        raise Wrong(f"a pseudonym in {task.state}; they are taken until the selection")
    if name in world.pseudonyms:
        raise Wrong(f"{name} is a pseudonym of {world.pseudonyms[name]} already")
    check_standing(world, name)
    world.pseudonyms[name] = task.id
    opening = world.opened(entry, commitment)
    if opening is None:
        return
    check_owner(opening)
    owner = identifier("opening.owner", opening["owner"])
    if owner == name or task.owners.setdefault(owner, name) != name:
        raise Wrong(f"{name} is the second name of its owner in {task.id}, or none but its own")


def revocation(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    name, mark = body["participant_id"], body["fingerprint"]
    key = world.keys.get(name, {}).pop(mark, None)
    if key is None:
        raise Wrong(f"{name} has no key {mark} to revoke")
    same(entry, events.revocation(name, key, body["reason"]))
    _extend(world, entry)
    world.revoked[mark] = RevokedKey(name, key, world.counts.entries)


def log_key(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    """Whether the heads are signed accordingly is for `verify` to see."""
    previous, following = (VerificationKey.parse(body[name]) for name in ("previous", "verification_key"))
    known = world.log_keys or [str(previous)]
    same(entry, events.log_key(len(known), previous, following))
    if str(previous) != known[-1]:
        raise Wrong(f"the log's key before this entry is {known[-1]}, not {previous}")
    if str(following) in known:
        raise Wrong(f"the log had the key {following} before")
    world.log_keys = [*known, str(following)]


def check_signature(world: World, statement: Statement, signature: bytes) -> None:
    """That a key of the participant that counts at this point has signed its statement."""
    name = statement.participant_id
    keys = world.keys.get(name, {})
    if keys and not world.check_signatures:
        return
    if any(signature_holds(statement, signature, key) for key in keys.values()):
        world.counts.statements += 1
        return
    gone = [revoked for revoked in world.revoked.values() if revoked.owner == name]
    for revoked in gone:
        if signature_holds(statement, signature, revoked.key):
            raise Wrong(
                f"it is signed by a key of {name} that was revoked before, in entry {revoked.entry}: nothing "
                "signed by that key counts from there on"
            )
    if keys:
        raise Wrong(f"the statement is not signed by a key of {name}")
    raise Wrong(f"{name} has no enrolled key" + (", since all were revoked" if gone else ""))


def check_standing(world: World, name: str) -> None:
    """That what the coordinator says of a participant was said by somebody who then had a key."""
    if not world.keys.get(name):
        raise Wrong(f"{name} has no key at this point that was not revoked, so it cannot have said anything")


def _extend(world: World, entry: Entry) -> None:
    world.key_history = extended(world.key_history, world.counts.entries, entry.data)


def _public_key(encoded: str) -> ec.EllipticCurvePublicKey:
    try:
        key = load_der_public_key(base64.b64decode(encoded, validate=True))
    except (ValueError, UnsupportedAlgorithm):
        raise Wrong("the public key is unreadable") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise Wrong("the public key is not ECDSA P-256")
    return key
