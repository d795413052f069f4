import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetAuthorityRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Authority(_message.Message):
    __slots__ = ("certificates",)
    CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    certificates: bytes
    def __init__(self, certificates: _Optional[bytes] = ...) -> None: ...

class EnrollRequest(_message.Message):
    __slots__ = ("participant_id", "token", "certificate_signing_request")
    PARTICIPANT_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_SIGNING_REQUEST_FIELD_NUMBER: _ClassVar[int]
    participant_id: str
    token: str
    certificate_signing_request: bytes
    def __init__(self, participant_id: _Optional[str] = ..., token: _Optional[str] = ..., certificate_signing_request: _Optional[bytes] = ...) -> None: ...

class EnrollResponse(_message.Message):
    __slots__ = ("certificate", "authority", "expires")
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    authority: bytes
    expires: _timestamp_pb2.Timestamp
    def __init__(self, certificate: _Optional[bytes] = ..., authority: _Optional[bytes] = ..., expires: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
