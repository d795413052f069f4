from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class GetCheckpointRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("note", "verification_key", "key_changes")
    NOTE_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_KEY_FIELD_NUMBER: _ClassVar[int]
    KEY_CHANGES_FIELD_NUMBER: _ClassVar[int]
    note: str
    verification_key: str
    key_changes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, note: _Optional[str] = ..., verification_key: _Optional[str] = ..., key_changes: _Optional[_Iterable[str]] = ...) -> None: ...

class GetEntriesRequest(_message.Message):
    __slots__ = ("first", "count")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    first: int
    count: int
    def __init__(self, first: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class Entries(_message.Message):
    __slots__ = ("first", "entries")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    first: int
    entries: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, first: _Optional[int] = ..., entries: _Optional[_Iterable[bytes]] = ...) -> None: ...

class GetInclusionProofRequest(_message.Message):
    __slots__ = ("index", "size")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    index: int
    size: int
    def __init__(self, index: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class InclusionProof(_message.Message):
    __slots__ = ("index", "size", "hashes")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    index: int
    size: int
    hashes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, index: _Optional[int] = ..., size: _Optional[int] = ..., hashes: _Optional[_Iterable[bytes]] = ...) -> None: ...

class GetConsistencyProofRequest(_message.Message):
    __slots__ = ("first", "second")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SECOND_FIELD_NUMBER: _ClassVar[int]
    first: int
    second: int
    def __init__(self, first: _Optional[int] = ..., second: _Optional[int] = ...) -> None: ...

class ConsistencyProof(_message.Message):
    __slots__ = ("hashes",)
    HASHES_FIELD_NUMBER: _ClassVar[int]
    hashes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, hashes: _Optional[_Iterable[bytes]] = ...) -> None: ...

class GetKeysRequest(_message.Message):
    __slots__ = ("first", "index")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    first: int
    index: int
    def __init__(self, first: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class Keys(_message.Message):
    __slots__ = ("entries", "indices", "count", "proof")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedScalarFieldContainer[bytes]
    indices: _containers.RepeatedScalarFieldContainer[int]
    count: int
    proof: str
    def __init__(self, entries: _Optional[_Iterable[bytes]] = ..., indices: _Optional[_Iterable[int]] = ..., count: _Optional[int] = ..., proof: _Optional[str] = ...) -> None: ...

class GetBalanceRequest(_message.Message):
    __slots__ = ("account",)
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    account: str
    def __init__(self, account: _Optional[str] = ...) -> None: ...

class Balance(_message.Message):
    __slots__ = ("account", "debits_posted_micro", "credits_posted_micro", "debits_pending_micro", "credits_pending_micro", "ledger_size")
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    DEBITS_POSTED_MICRO_FIELD_NUMBER: _ClassVar[int]
    CREDITS_POSTED_MICRO_FIELD_NUMBER: _ClassVar[int]
    DEBITS_PENDING_MICRO_FIELD_NUMBER: _ClassVar[int]
    CREDITS_PENDING_MICRO_FIELD_NUMBER: _ClassVar[int]
    LEDGER_SIZE_FIELD_NUMBER: _ClassVar[int]
    account: str
    debits_posted_micro: int
    credits_posted_micro: int
    debits_pending_micro: int
    credits_pending_micro: int
    ledger_size: int
    def __init__(self, account: _Optional[str] = ..., debits_posted_micro: _Optional[int] = ..., credits_posted_micro: _Optional[int] = ..., debits_pending_micro: _Optional[int] = ..., credits_pending_micro: _Optional[int] = ..., ledger_size: _Optional[int] = ...) -> None: ...
