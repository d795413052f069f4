"""Who takes part: participants, certificates, invitations."""

from dataclasses import dataclass

from sqlalchemy import ForeignKeyConstraint, Index, bindparam, func, select, update

from coordinator.storage.changes import Kind
from coordinator.storage.rows import Digest, Id, Rows, table
from fedpeer.audit.sql.statements import Statement


@dataclass(frozen=True)
class ParticipantRow:
    """A participant, and the organisation that it is of; None: one by itself.

    Attributes:
        task_id, owner: of a pseudonym: the task that it was made for, and whose it is; None where that was erased.
    """

    id: Id
    public_key: str
    enrolled_at: float
    revoked_at: float | None
    organisation: str | None = None
    task_id: Id | None = None
    owner: Id | None = None


@dataclass(frozen=True)
class CertificateRow:
    """A certificate; its serial number in hexadecimal."""

    serial: str
    participant_id: Id
    pem: str
    issued_at: float
    expires_at: float
    revoked_at: float | None


@dataclass(frozen=True)
class InvitationRow:
    """An invitation, by SHA-256 of its token: a reader of the database cannot enrol. `serial` is of the certificate
    that it was traded for; task and owner are as of a participant."""

    token_digest: Digest
    participant_id: Id
    created_at: float
    expires_at: float
    serial: str | None
    organisation: str | None = None
    task_id: Id | None = None
    owner: Id | None = None


participants = table("participants", ParticipantRow, key=("id",))
certificates = table(
    "certificates",
    CertificateRow,
    ForeignKeyConstraint(["participant_id"], ["participants.id"]),
    Index(None, "participant_id"),
    key=("serial",),
)
invitations = table(
    "invitations",
    InvitationRow,
    ForeignKeyConstraint(["serial"], ["certificates.serial"]),
    Index(None, "participant_id"),
    key=("token_digest",),
)


class Identities(Rows):
    """Participants, certificates, invitations."""

    def participants(self) -> list[ParticipantRow]:
        return self._all(ParticipantRow, participants, "id")

    def participant(self, participant_id: str) -> ParticipantRow | None:
        return self._one(ParticipantRow, participants, id=participant_id)

    def put_participant(self, row: ParticipantRow) -> None:
        """Adds a participant, or gives a known one a new key and standing."""
        if not self._set(participants, {"id": row.id}, **vars(row)):
            self._add(participants, row)
        self.announce(Kind.PERSON, row.id)

    def pseudonyms_of(self, owner: str) -> list[ParticipantRow]:
        """Those that were made for one owner and have enrolled."""
        return self._all(ParticipantRow, participants, "id", owner=owner)

    def pseudonym_for(self, owner: str, task_id: str) -> str | None:
        """The name that an owner was given in a task; None where it has none."""
        found = self._all(InvitationRow, invitations, "created_at", owner=owner, task_id=task_id)
        return found[-1].participant_id if found else None

    def invited_for(self, owner: str) -> list[str]:
        """The pseudonyms that an owner was ever invited under, whether or not they have enrolled."""
        found = self._all(InvitationRow, invitations, "created_at", owner=owner)
        return list(dict.fromkeys(row.participant_id for row in found))

    def erase_person(self, participant_id: str) -> int:
        """Erases whom a participant is of, whose pseudonym it is, and every invitation of it or of a pseudonym of it.
        An open token is worth nothing from here on. Returns how many invitations there were."""
        self._set(participants, {"id": participant_id}, organisation=None, owner=None)
        erased = self._delete(invitations, participant_id=participant_id)
        erased += self._delete(invitations, owner=participant_id)
        self.announce(Kind.PERSON, participant_id)
        return erased

    def add_certificate(self, row: CertificateRow) -> None:
        self._add(certificates, row)

    def certificate(self, serial: str) -> CertificateRow | None:
        return self._one(CertificateRow, certificates, serial=serial)

    def certificates(self, participant_id: str | None = None) -> list[CertificateRow]:
        """All certificates, or one participant's, the oldest first."""
        of = {} if participant_id is None else {"participant_id": participant_id}
        return self._all(CertificateRow, certificates, "issued_at", **of)

    def revoke(self, participant_id: str, now: float) -> None:
        """Revokes a participant and every certificate that it has."""
        self._set(participants, {"id": participant_id}, revoked_at=now)
        _REVOKE_CERTIFICATES.run(self._connection, {"of": participant_id, "now": now})
        self.announce(Kind.PERSON, participant_id)

    def add_invitation(self, row: InvitationRow) -> None:
        self._add(invitations, row)

    def invitation(self, token_digest: bytes) -> InvitationRow | None:
        return self._one(InvitationRow, invitations, token_digest=token_digest)

    def redeem_invitation(self, token_digest: bytes, serial: str) -> None:
        self._set(invitations, {"token_digest": token_digest}, serial=serial)

    def withdraw_invitations(self, participant_id: str, now: float) -> int:
        """Ends the unused invitations of a participant; returns how many could still be used.

        They end at the beginning of time, not now: the process that one is brought to may have another clock.
        """
        usable: int = _USABLE_INVITATIONS.value(self._connection, {"of": participant_id, "now": now})
        _END_INVITATIONS.run(self._connection, {"of": participant_id, "end": 0.0})
        return usable


_REVOKE_CERTIFICATES = Statement(
    update(certificates)
    .where(certificates.c.participant_id == bindparam("of"), certificates.c.revoked_at.is_(None))
    .values(revoked_at=bindparam("now"))
)
_UNUSED = invitations.c.participant_id == bindparam("of"), invitations.c.serial.is_(None)
_USABLE_INVITATIONS = Statement(
    select(func.count()).select_from(invitations).where(*_UNUSED, invitations.c.expires_at > bindparam("now"))
)
_END_INVITATIONS = Statement(update(invitations).where(*_UNUSED).values(expires_at=bindparam("end")))
