"""Enrolment by certificate signing request: the key stays in the state folder, only its public half is sent."""

from dataclasses import dataclass, field

from fedpeer.v1 import enrolment_pb2
from mechanism.errors import FieldError
from mechanism.terms import identifier
from participant.errors import ConfigurationError, TLSError
from participant.identity import Credentials, IdentityFolder, check_authority


@dataclass(frozen=True)
class EnrolmentRequest:
    """One enrolment.

    Attributes:
        folder: where the key is, or will be made.
        participant_id: as the invitation has it.
        token: the invitation.
        authority: what the coordinator is trusted by; None: no TLS, or a renewal.
    """

    folder: IdentityFolder
    participant_id: str
    token: str = field(repr=False)
    authority: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        try:
            identifier("participant_id", self.participant_id)
        except FieldError as error:
            raise ConfigurationError(str(error)) from None
        if self.authority is not None:
            check_authority(self.authority, "the given authority", "ask the operator for it")

    def message(self) -> enrolment_pb2.EnrollRequest:
        """The request; makes the key where there is none."""
        from fedpeer.protocol.certificates import signing_request

        return enrolment_pb2.EnrollRequest(
            participant_id=self.participant_id,
            token=self.token,
            certificate_signing_request=signing_request(self.participant_id, self.folder.key(create=True)),
        )

    def complete(self, response: enrolment_pb2.EnrollResponse, authority: bytes | None) -> Credentials:
        """Checks and stores what the coordinator issued.

        Args:
            authority: what the coordinator was trusted by when it answered. What it names as its authorities in that
                answer is trusted from here on: one of them takes the other's place, perhaps. None without TLS.

        Raises:
            TLSError: a certificate for another name or key, or one that none of the authorities has signed.
        """
        from fedpeer.protocol.certificates import (
            CertificateError,
            certificate_name,
            issued_by_one_of,
            load_certificate,
            load_certificates,
        )

        trusted = response.authority or authority or b""
        try:
            certificate = load_certificate(response.certificate)
            name = certificate_name(certificate)
            signed = issued_by_one_of(certificate, load_certificates(trusted))
        except CertificateError as error:
            raise TLSError(f"the coordinator returned a certificate that cannot be used: {error}") from None
        if not signed:
            raise TLSError(
                "the coordinator returned a certificate that its authority has not signed; ask its operator"
            )
        if name != self.participant_id:
            raise TLSError(
                f"the coordinator returned a certificate for {name!r}, not {self.participant_id!r}; ask its operator"
            )
        return self.folder.save_enrolment(response.certificate, trusted)
