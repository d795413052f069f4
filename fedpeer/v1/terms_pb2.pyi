from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PaymentFunction(_message.Message):
    __slots__ = ("name", "kappa", "exponent")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KAPPA_FIELD_NUMBER: _ClassVar[int]
    EXPONENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    kappa: str
    exponent: str
    def __init__(self, name: _Optional[str] = ..., kappa: _Optional[str] = ..., exponent: _Optional[str] = ...) -> None: ...

class TensorSpec(_message.Message):
    __slots__ = ("name", "dtype", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class ModelContract(_message.Message):
    __slots__ = ("tensors", "max_norm", "max_bytes")
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    MAX_NORM_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    max_norm: str
    max_bytes: int
    def __init__(self, tensors: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., max_norm: _Optional[str] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class Recipe(_message.Message):
    __slots__ = ("model", "epochs", "batch_size", "optimizer", "learning_rate", "samples")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    model: str
    epochs: int
    batch_size: int
    optimizer: str
    learning_rate: str
    samples: int
    def __init__(self, model: _Optional[str] = ..., epochs: _Optional[int] = ..., batch_size: _Optional[int] = ..., optimizer: _Optional[str] = ..., learning_rate: _Optional[str] = ..., samples: _Optional[int] = ...) -> None: ...

class Schedule(_message.Message):
    __slots__ = ("rounds", "quorum", "capacity", "effort_seconds", "round_seconds", "dispute_seconds")
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    EFFORT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ROUND_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DISPUTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    rounds: int
    quorum: int
    capacity: int
    effort_seconds: int
    round_seconds: int
    dispute_seconds: int
    def __init__(self, rounds: _Optional[int] = ..., quorum: _Optional[int] = ..., capacity: _Optional[int] = ..., effort_seconds: _Optional[int] = ..., round_seconds: _Optional[int] = ..., dispute_seconds: _Optional[int] = ...) -> None: ...

class Rule(_message.Message):
    __slots__ = ("name", "peers", "claim_penalty", "stake_micro")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    CLAIM_PENALTY_FIELD_NUMBER: _ClassVar[int]
    STAKE_MICRO_FIELD_NUMBER: _ClassVar[int]
    name: str
    peers: int
    claim_penalty: str
    stake_micro: int
    def __init__(self, name: _Optional[str] = ..., peers: _Optional[int] = ..., claim_penalty: _Optional[str] = ..., stake_micro: _Optional[int] = ...) -> None: ...

class Terms(_message.Message):
    __slots__ = ("task_id", "reference", "q", "phi", "upsilon", "payment", "rule", "schedule", "contract", "recipe", "budget_micro", "seed_commitment", "validation_commitment", "initial_model")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    Q_FIELD_NUMBER: _ClassVar[int]
    PHI_FIELD_NUMBER: _ClassVar[int]
    UPSILON_FIELD_NUMBER: _ClassVar[int]
    PAYMENT_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    BUDGET_MICRO_FIELD_NUMBER: _ClassVar[int]
    SEED_COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    INITIAL_MODEL_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    reference: _containers.RepeatedScalarFieldContainer[str]
    q: str
    phi: str
    upsilon: str
    payment: PaymentFunction
    rule: Rule
    schedule: Schedule
    contract: ModelContract
    recipe: Recipe
    budget_micro: int
    seed_commitment: bytes
    validation_commitment: bytes
    initial_model: bytes
    def __init__(self, task_id: _Optional[str] = ..., reference: _Optional[_Iterable[str]] = ..., q: _Optional[str] = ..., phi: _Optional[str] = ..., upsilon: _Optional[str] = ..., payment: _Optional[_Union[PaymentFunction, _Mapping]] = ..., rule: _Optional[_Union[Rule, _Mapping]] = ..., schedule: _Optional[_Union[Schedule, _Mapping]] = ..., contract: _Optional[_Union[ModelContract, _Mapping]] = ..., recipe: _Optional[_Union[Recipe, _Mapping]] = ..., budget_micro: _Optional[int] = ..., seed_commitment: _Optional[bytes] = ..., validation_commitment: _Optional[bytes] = ..., initial_model: _Optional[bytes] = ...) -> None: ...
