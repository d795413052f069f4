"""The Enrolment service: an invitation and a signing request in, a certificate out.

On the public port it takes invitations; on the market port, where the caller has a certificate, it renews.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from coordinator.identity import Enrolled
from fedpeer.v1 import enrolment_pb2, enrolment_pb2_grpc

#: Participant id, token, signing request to a certificate.
Enrol = Callable[[str, str, bytes], Awaitable[Enrolled]]


class EnrolmentServicer(enrolment_pb2_grpc.EnrolmentServicer):
    """Hands out certificates by `enrol`.

    Args:
        authorities: gives the PEM of the certificate authorities in force, handed out with every certificate.
    """

    def __init__(self, enrol: Enrol, authorities: Callable[[], bytes]) -> None:
        self._enrol = enrol
        self._authorities = authorities

    async def GetAuthority(
        self, request: enrolment_pb2.GetAuthorityRequest, context: Any
    ) -> enrolment_pb2.Authority:
        return enrolment_pb2.Authority(certificates=self._authorities())

    async def Enroll(
        self, request: enrolment_pb2.EnrollRequest, context: Any
    ) -> enrolment_pb2.EnrollResponse:
        enrolled = await self._enrol(
            request.participant_id, request.token, request.certificate_signing_request
        )
        return enrolment_pb2.EnrollResponse(
            certificate=enrolled.certificate_pem,
            authority=self._authorities(),
            expires=Timestamp(seconds=int(enrolled.expires)),
        )
