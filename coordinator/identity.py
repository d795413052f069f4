"""Who calls: certificates, invitations, revocation.

A caller holds the key of a certificate of ours, provided that the participant is not revoked, that
the certificate has neither expired nor been revoked, and that its key is the participant's current one. This is
checked at every call, not only when the connection is made, and at every message of an open stream.

The `Roster` that answers there is a copy. A revocation comes from another process, so what a caller can have written
is decided once more, by `check_standing`, inside the transaction that writes it.
"""

import hashlib
import secrets
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from coordinator.errors import MarketTaskError
from coordinator.storage.identities import CertificateRow, InvitationRow, ParticipantRow
from coordinator.storage.store import MarketStore
from coordinator.storage.tasks import TaskRow
from fedpeer.protocol.certificates import (
    CertificateError,
    Identity,
    PublicKey,
    authority_id,
    certificate_key,
    certificate_name,
    issue_participant_certificate,
    issuer_id,
    load_certificate,
    load_public_key,
    public_key_pem,
)
from fedpeer.protocol.errors import Code, Refusal
from fedpeer.protocol.limits import TOKEN_BYTES, TOKEN_LIFETIME
from mechanism.errors import FieldError
from mechanism.lifecycle import State
from mechanism.terms import identifier

#: Parsed certificates that are kept, so that a call does not parse its caller's again.
_PARSED_CERTIFICATES = 4096


#: Characters of an organisation's name.
MAX_ORGANISATION = 100


@dataclass(frozen=True)
class Caller:
    """An authenticated participant and the key that its statements are checked with, parsed and as PEM."""

    participant_id: str
    key: PublicKey
    key_pem: str


@dataclass(frozen=True)
class _Parsed:
    caller: Caller
    serial: str
    issuer: bytes
    not_before: float
    not_after: float


class Roster:
    """Who is enrolled and who is revoked, in memory; `load` replaces it from the database."""

    def __init__(self) -> None:
        self._participants: dict[str, ParticipantRow] = {}
        self._revoked_serials: set[str] = set()
        self._authorities: frozenset[bytes] = frozenset()

    def load(self, participants: Iterable[ParticipantRow], certificates: Iterable[CertificateRow]) -> None:
        self._participants = {row.id: row for row in participants}
        self._revoked_serials = _revoked_of(certificates)

    def trust(self, authorities: Iterable[x509.Certificate]) -> None:
        """Certificates of these authorities alone count from here on, on open connections too."""
        self._authorities = frozenset(authority_id(certificate) for certificate in authorities)

    def add(self, row: ParticipantRow, certificates: Iterable[CertificateRow] = ()) -> None:
        """A participant has just enrolled, or changed; with its certificates where one may be revoked."""
        self._participants[row.id] = row
        self._revoked_serials |= _revoked_of(certificates)

    def refusal_of(self, caller: Caller) -> Refusal | None:
        """Why a caller no longer counts as one; None where it still does."""
        return _refusal_of(self._participants.get(caller.participant_id), caller)

    def counts(self) -> tuple[int, int]:
        """Participants in good standing, and revoked."""
        revoked = sum(row.revoked_at is not None for row in self._participants.values())
        return len(self._participants) - revoked, revoked

    def caller(self, certificate_pem: bytes, now: float) -> Caller:
        """Whose certificate this is.

        Raises:
            Refusal: CERTIFICATE_REQUIRED or CERTIFICATE_REVOKED.
        """
        parsed = _parsed(certificate_pem)
        found, name = parsed.caller, parsed.caller.participant_id
        if (refusal := self.refusal_of(found)) is not None:
            raise refusal
        if parsed.serial in self._revoked_serials:
            raise _revoked(name)
        if self._authorities and parsed.issuer not in self._authorities:
            raise Refusal(
                Code.CERTIFICATE_REQUIRED,
                f"The certificate of {name!r} is of an authority that has ended here; enrol again.",
            )
        if not parsed.not_before <= now <= parsed.not_after:
            raise Refusal(Code.CERTIFICATE_REQUIRED, f"The certificate of {name!r} has expired.")
        return found

    def believed(self, participant_id: str) -> Caller:
        """The participant that a caller without TLS says it is; insecure mode only.

        Raises:
            Refusal: CERTIFICATE_REQUIRED or CERTIFICATE_REVOKED.
        """
        row = self._participants.get(participant_id)
        if row is None:
            raise _unknown(participant_id)
        if row.revoked_at is not None:
            raise _revoked(participant_id)
        return Caller(participant_id, load_public_key(row.public_key), row.public_key)


def _revoked_of(certificates: Iterable[CertificateRow]) -> set[str]:
    return {c.serial for c in certificates if c.revoked_at is not None}


@lru_cache(maxsize=_PARSED_CERTIFICATES)
def _parsed(pem: bytes) -> _Parsed:
    try:
        certificate = load_certificate(pem)
        key = certificate_key(certificate)
        name = certificate_name(certificate)
    except CertificateError as error:
        raise Refusal(Code.CERTIFICATE_REQUIRED, f"The certificate cannot be used: {error}.") from None
    return _Parsed(
        caller=Caller(name, key, public_key_pem(key)),
        serial=format(certificate.serial_number, "x"),
        issuer=issuer_id(certificate),
        not_before=certificate.not_valid_before_utc.timestamp(),
        not_after=certificate.not_valid_after_utc.timestamp(),
    )


def check_standing(store: MarketStore, caller: Caller) -> None:
    """That the caller is enrolled, not revoked, and speaks with its current key, as this transaction sees it.

    A writing transaction holds the ledger's lock from its first read on (`Transactions.run`), and so does the one that
    revokes: either the revocation is seen here, or what is written here stands before it in the ledger.

    Raises:
        Refusal: CERTIFICATE_REQUIRED or CERTIFICATE_REVOKED.
    """
    if (refusal := _refusal_of(store.participant(caller.participant_id), caller)) is not None:
        raise refusal


def _refusal_of(row: ParticipantRow | None, caller: Caller) -> Refusal | None:
    if row is None:
        return _unknown(caller.participant_id)
    if row.revoked_at is not None:
        return _revoked(caller.participant_id)
    if row.public_key != caller.key_pem:
        return Refusal(
            Code.CERTIFICATE_REVOKED,
            f"{row.id!r} has enrolled again with another key; this certificate is no longer its own.",
        )
    return None


def _unknown(participant_id: str) -> Refusal:
    return Refusal(Code.CERTIFICATE_REQUIRED, f"There is no participant {participant_id!r} here.")


def _revoked(participant_id: str) -> Refusal:
    return Refusal(Code.CERTIFICATE_REVOKED, f"The certificate of {participant_id!r} has been revoked.")


@dataclass(frozen=True)
class Invitation:
    """A one-time token and when it expires, seconds since the epoch.

    Attributes:
        withdrawn: earlier tokens of this participant that could still be used, and no longer can.
        colleagues: who else has enrolled for its organisation.
    """

    participant_id: str
    token: str
    expires: float
    withdrawn: int
    colleagues: tuple[str, ...] = ()


def invite(
    store: MarketStore, participant_id: str, now: float, organisation: str = "", task: TaskRow | None = None
) -> Invitation:
    """A one-time token for `participant_id`; earlier ones are withdrawn.

    Args:
        organisation: that it is of; empty: the one that it has, or, of a new participant, none but itself.
        task: for which the token makes a pseudonym of `participant_id`; None: it is invited under its own name.

    Raises:
        FieldError: not a well-formed id or name.
        MarketTaskError: as `pseudonym_for`.
    """
    identifier("participant_id", participant_id)
    named = organisation_name(organisation) if organisation else None
    owner = None
    if task is not None:
        owner, participant_id = participant_id, pseudonym_for(store, participant_id, task)
        known = store.participant(owner)
        named = named or (None if known is None else known.organisation)
    token = secrets.token_urlsafe(TOKEN_BYTES)
    expires = now + TOKEN_LIFETIME.total_seconds()
    withdrawn = store.withdraw_invitations(participant_id, now)
    of_task = None if task is None else task.id
    store.add_invitation(
        InvitationRow(_token_digest(token), participant_id, now, expires, None, named, of_task, owner)
    )
    others = (row for row in store.participants() if row.organisation == named and row.id != participant_id)
    colleagues = () if named is None else tuple(row.id for row in others)
    return Invitation(participant_id, token, expires, withdrawn, colleagues)


def pseudonym_for(store: MarketStore, owner: str, task: TaskRow) -> str:
    """The name under which an owner takes part in a task: the one that it has, or a new one that says nothing.

    Raises:
        FieldError: not a well-formed id of an owner.
        MarketTaskError: the task takes no pseudonyms, or none any more; or the owner is one itself.
    """
    identifier("participant_id", owner)
    known = store.participant(owner)
    if known is not None and known.task_id is not None:
        raise MarketTaskError(f"{owner!r} is a pseudonym itself, of task {known.task_id!r}; name whose it is")
    if not task.terms.pseudonyms:
        raise MarketTaskError(
            f"the terms of task {task.id!r} ask for no pseudonyms; invite {owner!r} without --task, or open a task "
            "with pseudonyms = true"
        )
    if task.state not in (State.OPEN, State.EFFORT):
        raise MarketTaskError(f"task {task.id!r} is {task.state} and takes nobody any more")
    return store.pseudonym_for(owner, task.id) or f"p-{secrets.token_hex(8)}"


def organisation_name(text: str) -> str:
    """An organisation's name as it is compared: without regard to case and to the width of spaces.

    Raises:
        FieldError: not 1 to 100 characters that can be printed.
    """
    name = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    if not 1 <= len(name) <= MAX_ORGANISATION or not name.isprintable():
        raise FieldError(
            "organisation", text[:200], f"a name of 1 to {MAX_ORGANISATION} printable characters"
        )
    return name


@dataclass(frozen=True)
class Enrolled:
    """A certificate that was issued, and whether the participant's key is new to the ledger."""

    participant: ParticipantRow
    certificate_pem: bytes
    expires: float
    new_key: bool


def enrol(
    store: MarketStore, authority: Identity, participant_id: str, token: str, request: bytes, now: float
) -> Enrolled:
    """Trades an invitation for a certificate. Asked again with the same key, it gives the same certificate, so
    that a lost reply costs nothing.

    Raises:
        Refusal: INVITATION_INVALID, FIELD_INVALID.
    """
    invitation = store.invitation(_token_digest(token))
    if invitation is None or invitation.participant_id != participant_id:
        raise Refusal(Code.INVITATION_INVALID, f"This is not an invitation for {participant_id!r}.")
    if invitation.serial is not None:
        return _enrolled_before(store, invitation, request)
    if now >= invitation.expires_at:
        raise Refusal(
            Code.INVITATION_INVALID,
            f"The invitation for {participant_id!r} no longer holds: it has expired, was withdrawn, or a newer one "
            "has taken its place.",
        )
    if invitation.task_id is not None:
        task = store.task(invitation.task_id)
        if task is None or task.state not in (State.OPEN, State.EFFORT):
            raise Refusal(
                Code.INVITATION_INVALID,
                f"The invitation for {participant_id!r} no longer holds: its task takes nobody any more.",
            )
    enrolled, serial = _issue(store, authority, participant_id, request, now, invitation)
    store.redeem_invitation(invitation.token_digest, serial)
    return enrolled


def renew(store: MarketStore, authority: Identity, caller: Caller, request: bytes, now: float) -> Enrolled:
    """A further certificate for an authenticated caller, for the same key or a new one.

    Raises:
        Refusal: FIELD_INVALID; as `check_standing`: only a new invitation takes a revoked participant back.
    """
    check_standing(store, caller)
    return _issue(store, authority, caller.participant_id, request, now)[0]


def _issue(
    store: MarketStore,
    authority: Identity,
    participant_id: str,
    request: bytes,
    now: float,
    invitation: InvitationRow | None = None,
) -> tuple[Enrolled, str]:
    at = datetime.fromtimestamp(now, UTC)
    try:
        certificate = issue_participant_certificate(authority, participant_id, request, at)
    except CertificateError as error:
        raise Refusal(Code.FIELD_INVALID, f"certificate_signing_request: {error}.") from None
    key_pem = public_key_pem(certificate_key(certificate))
    known = store.participant(participant_id)
    organisation = None if invitation is None else invitation.organisation
    if organisation is None and known is not None:
        organisation = known.organisation
    # A pseudonym stays one, however it is invited again.
    of = known if known is not None and known.task_id is not None else invitation
    made_for = (None, None) if of is None else (of.task_id, of.owner)
    if known is not None and known.revoked_at is not None and known.public_key == key_pem:
        known = None  # the ledger refuses the key, since it was revoked
    row = ParticipantRow(participant_id, key_pem, now, None, organisation, *made_for)
    store.put_participant(row)
    serial = format(certificate.serial_number, "x")
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    expires = certificate.not_valid_after_utc.timestamp()
    store.add_certificate(CertificateRow(serial, participant_id, pem.decode(), now, expires, None))
    new_key = known is None or known.public_key != key_pem
    return Enrolled(row, pem, expires, new_key), serial


def _enrolled_before(store: MarketStore, invitation: InvitationRow, request: bytes) -> Enrolled:
    used = Refusal(
        Code.INVITATION_INVALID, f"The invitation for {invitation.participant_id!r} has been used already."
    )
    certificate = store.certificate(invitation.serial or "")
    participant = store.participant(invitation.participant_id)
    if certificate is None or participant is None or certificate.revoked_at is not None:
        raise used
    try:
        asked = x509.load_pem_x509_csr(request).public_key()
    except ValueError:
        raise used from None
    issued = load_certificate(certificate.pem.encode()).public_key()
    if asked != issued:
        raise used
    return Enrolled(participant, certificate.pem.encode(), certificate.expires_at, new_key=False)


def _token_digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
