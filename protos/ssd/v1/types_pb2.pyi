from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_UNSPECIFIED: _ClassVar[Mode]
    MODE_AR: _ClassVar[Mode]
    MODE_SD: _ClassVar[Mode]
    MODE_SSD: _ClassVar[Mode]
    MODE_AUTO: _ClassVar[Mode]

class Verification(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERIFICATION_UNSPECIFIED: _ClassVar[Verification]
    VERIFICATION_COUPLED: _ClassVar[Verification]
    VERIFICATION_REJECTION: _ClassVar[Verification]

class Fallback(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FALLBACK_UNSPECIFIED: _ClassVar[Fallback]
    FALLBACK_AUTO: _ClassVar[Fallback]
    FALLBACK_JIT: _ClassVar[Fallback]
    FALLBACK_NGRAM: _ClassVar[Fallback]
    FALLBACK_NONE: _ClassVar[Fallback]

class FanOutRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAN_OUT_RULE_UNSPECIFIED: _ClassVar[FanOutRule]
    FAN_OUT_RULE_UNIFORM: _ClassVar[FanOutRule]
    FAN_OUT_RULE_EXPLICIT: _ClassVar[FanOutRule]
    FAN_OUT_RULE_GEOMETRIC: _ClassVar[FanOutRule]
    FAN_OUT_RULE_MEASURED: _ClassVar[FanOutRule]

class ProposalSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROPOSAL_SOURCE_UNSPECIFIED: _ClassVar[ProposalSource]
    PROPOSAL_SOURCE_TABLE: _ClassVar[ProposalSource]
    PROPOSAL_SOURCE_JIT: _ClassVar[ProposalSource]
    PROPOSAL_SOURCE_NGRAM: _ClassVar[ProposalSource]

class PlaneKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLANE_KIND_UNSPECIFIED: _ClassVar[PlaneKind]
    PLANE_KIND_INLINE: _ClassVar[PlaneKind]
    PLANE_KIND_GLOO: _ClassVar[PlaneKind]
    PLANE_KIND_CUDA_IPC: _ClassVar[PlaneKind]
    PLANE_KIND_NCCL: _ClassVar[PlaneKind]

class PlaneState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLANE_STATE_UNSPECIFIED: _ClassVar[PlaneState]
    PLANE_STATE_OPENING: _ClassVar[PlaneState]
    PLANE_STATE_OPEN: _ClassVar[PlaneState]
    PLANE_STATE_BROKEN: _ClassVar[PlaneState]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_TIME_LIMIT: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]
MODE_UNSPECIFIED: Mode
MODE_AR: Mode
MODE_SD: Mode
MODE_SSD: Mode
MODE_AUTO: Mode
VERIFICATION_UNSPECIFIED: Verification
VERIFICATION_COUPLED: Verification
VERIFICATION_REJECTION: Verification
FALLBACK_UNSPECIFIED: Fallback
FALLBACK_AUTO: Fallback
FALLBACK_JIT: Fallback
FALLBACK_NGRAM: Fallback
FALLBACK_NONE: Fallback
FAN_OUT_RULE_UNSPECIFIED: FanOutRule
FAN_OUT_RULE_UNIFORM: FanOutRule
FAN_OUT_RULE_EXPLICIT: FanOutRule
FAN_OUT_RULE_GEOMETRIC: FanOutRule
FAN_OUT_RULE_MEASURED: FanOutRule
PROPOSAL_SOURCE_UNSPECIFIED: ProposalSource
PROPOSAL_SOURCE_TABLE: ProposalSource
PROPOSAL_SOURCE_JIT: ProposalSource
PROPOSAL_SOURCE_NGRAM: ProposalSource
PLANE_KIND_UNSPECIFIED: PlaneKind
PLANE_KIND_INLINE: PlaneKind
PLANE_KIND_GLOO: PlaneKind
PLANE_KIND_CUDA_IPC: PlaneKind
PLANE_KIND_NCCL: PlaneKind
PLANE_STATE_UNSPECIFIED: PlaneState
PLANE_STATE_OPENING: PlaneState
PLANE_STATE_OPEN: PlaneState
PLANE_STATE_BROKEN: PlaneState
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_TIME_LIMIT: FinishReason
FINISH_REASON_CANCELLED: FinishReason

class FanOut(_message.Message):
    __slots__ = ("rule", "fan_out", "budget", "after_hit", "after_miss", "acceptance", "exponent")
    RULE_FIELD_NUMBER: _ClassVar[int]
    FAN_OUT_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    AFTER_HIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_MISS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    EXPONENT_FIELD_NUMBER: _ClassVar[int]
    rule: FanOutRule
    fan_out: int
    budget: int
    after_hit: _containers.RepeatedScalarFieldContainer[int]
    after_miss: _containers.RepeatedScalarFieldContainer[int]
    acceptance: float
    exponent: float
    def __init__(self, rule: _Optional[_Union[FanOutRule, str]] = ..., fan_out: _Optional[int] = ..., budget: _Optional[int] = ..., after_hit: _Optional[_Iterable[int]] = ..., after_miss: _Optional[_Iterable[int]] = ..., acceptance: _Optional[float] = ..., exponent: _Optional[float] = ...) -> None: ...

class SparseLaw(_message.Message):
    __slots__ = ("ids", "weights")
    IDS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    weights: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., weights: _Optional[_Iterable[float]] = ...) -> None: ...

class PlaneAbility(_message.Message):
    __slots__ = ("host", "devices", "kinds")
    HOST_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    host: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    kinds: _containers.RepeatedScalarFieldContainer[PlaneKind]
    def __init__(self, host: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ..., kinds: _Optional[_Iterable[_Union[PlaneKind, str]]] = ...) -> None: ...

class PlaneOrder(_message.Message):
    __slots__ = ("plane", "kind", "name", "limit_s", "rendezvous", "target")
    PLANE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    plane: int
    kind: PlaneKind
    name: str
    limit_s: float
    rendezvous: str
    target: int
    def __init__(self, plane: _Optional[int] = ..., kind: _Optional[_Union[PlaneKind, str]] = ..., name: _Optional[str] = ..., limit_s: _Optional[float] = ..., rendezvous: _Optional[str] = ..., target: _Optional[int] = ...) -> None: ...

class PlaneReport(_message.Message):
    __slots__ = ("plane", "state", "reason", "rendezvous", "latency_us", "bandwidth")
    PLANE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    LATENCY_US_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    plane: int
    state: PlaneState
    reason: str
    rendezvous: str
    latency_us: float
    bandwidth: float
    def __init__(self, plane: _Optional[int] = ..., state: _Optional[_Union[PlaneState, str]] = ..., reason: _Optional[str] = ..., rendezvous: _Optional[str] = ..., latency_us: _Optional[float] = ..., bandwidth: _Optional[float] = ...) -> None: ...

class LawSpan(_message.Message):
    __slots__ = ("plane", "bundle", "row", "count")
    PLANE_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    plane: int
    bundle: int
    row: int
    count: int
    def __init__(self, plane: _Optional[int] = ..., bundle: _Optional[int] = ..., row: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class SamplingParameters(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "seed")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    seed: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., seed: _Optional[int] = ...) -> None: ...

class TokenLimits(_message.Message):
    __slots__ = ("max_tokens", "min_tokens", "ignore_eos", "stop_ids")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    STOP_IDS_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    stop_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., ignore_eos: bool = ..., stop_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class TopLogprob(_message.Message):
    __slots__ = ("id", "logprob")
    ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    id: int
    logprob: float
    def __init__(self, id: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("id", "logprob", "rank", "top")
    ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    id: int
    logprob: float
    rank: int
    top: _containers.RepeatedCompositeFieldContainer[TopLogprob]
    def __init__(self, id: _Optional[int] = ..., logprob: _Optional[float] = ..., rank: _Optional[int] = ..., top: _Optional[_Iterable[_Union[TopLogprob, _Mapping]]] = ...) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("sequence", "base_len", "ids", "laws", "source", "law_spans")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BASE_LEN_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    LAWS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    LAW_SPANS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    base_len: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    laws: _containers.RepeatedCompositeFieldContainer[SparseLaw]
    source: ProposalSource
    law_spans: _containers.RepeatedCompositeFieldContainer[LawSpan]
    def __init__(self, sequence: _Optional[int] = ..., base_len: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., laws: _Optional[_Iterable[_Union[SparseLaw, _Mapping]]] = ..., source: _Optional[_Union[ProposalSource, str]] = ..., law_spans: _Optional[_Iterable[_Union[LawSpan, _Mapping]]] = ...) -> None: ...

class Branch(_message.Message):
    __slots__ = ("accepted", "id", "ids", "laws", "rank", "law_spans")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    LAWS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    LAW_SPANS_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    id: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    laws: _containers.RepeatedCompositeFieldContainer[SparseLaw]
    rank: int
    law_spans: _containers.RepeatedCompositeFieldContainer[LawSpan]
    def __init__(self, accepted: _Optional[int] = ..., id: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., laws: _Optional[_Iterable[_Union[SparseLaw, _Mapping]]] = ..., rank: _Optional[int] = ..., law_spans: _Optional[_Iterable[_Union[LawSpan, _Mapping]]] = ...) -> None: ...

class OutcomeTable(_message.Message):
    __slots__ = ("sequence", "base_len", "proposal", "branches")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BASE_LEN_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    base_len: int
    proposal: _containers.RepeatedScalarFieldContainer[int]
    branches: _containers.RepeatedCompositeFieldContainer[Branch]
    def __init__(self, sequence: _Optional[int] = ..., base_len: _Optional[int] = ..., proposal: _Optional[_Iterable[int]] = ..., branches: _Optional[_Iterable[_Union[Branch, _Mapping]]] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("name", "source", "architecture", "vocab_size", "context_length", "dtype", "parameters", "tokenizer_digest", "tokenizer_source", "eos_ids", "deterministic", "tensor_parallel")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_SOURCE_FIELD_NUMBER: _ClassVar[int]
    EOS_IDS_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    source: str
    architecture: str
    vocab_size: int
    context_length: int
    dtype: str
    parameters: int
    tokenizer_digest: str
    tokenizer_source: str
    eos_ids: _containers.RepeatedScalarFieldContainer[int]
    deterministic: bool
    tensor_parallel: int
    def __init__(self, name: _Optional[str] = ..., source: _Optional[str] = ..., architecture: _Optional[str] = ..., vocab_size: _Optional[int] = ..., context_length: _Optional[int] = ..., dtype: _Optional[str] = ..., parameters: _Optional[int] = ..., tokenizer_digest: _Optional[str] = ..., tokenizer_source: _Optional[str] = ..., eos_ids: _Optional[_Iterable[int]] = ..., deterministic: bool = ..., tensor_parallel: _Optional[int] = ...) -> None: ...

class EngineLoad(_message.Message):
    __slots__ = ("running", "waiting", "kv_blocks_used", "kv_blocks_total", "block_size", "steps", "stale_drops", "preemptions", "law_drops")
    class LawDropsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_USED_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STALE_DROPS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    LAW_DROPS_FIELD_NUMBER: _ClassVar[int]
    running: int
    waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    block_size: int
    steps: int
    stale_drops: int
    preemptions: int
    law_drops: _containers.ScalarMap[str, int]
    def __init__(self, running: _Optional[int] = ..., waiting: _Optional[int] = ..., kv_blocks_used: _Optional[int] = ..., kv_blocks_total: _Optional[int] = ..., block_size: _Optional[int] = ..., steps: _Optional[int] = ..., stale_drops: _Optional[int] = ..., preemptions: _Optional[int] = ..., law_drops: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("epoch", "caller")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    caller: str
    def __init__(self, epoch: _Optional[int] = ..., caller: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("epoch", "model", "max_k", "max_branches", "max_sequences", "max_tokens", "plane")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MAX_K_FIELD_NUMBER: _ClassVar[int]
    MAX_BRANCHES_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PLANE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    model: ModelInfo
    max_k: int
    max_branches: int
    max_sequences: int
    max_tokens: int
    plane: PlaneAbility
    def __init__(self, epoch: _Optional[int] = ..., model: _Optional[_Union[ModelInfo, _Mapping]] = ..., max_k: _Optional[int] = ..., max_branches: _Optional[int] = ..., max_sequences: _Optional[int] = ..., max_tokens: _Optional[int] = ..., plane: _Optional[_Union[PlaneAbility, _Mapping]] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    def __init__(self, nonce: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("nonce", "load", "busy_ms")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    BUSY_MS_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    load: EngineLoad
    busy_ms: int
    def __init__(self, nonce: _Optional[int] = ..., load: _Optional[_Union[EngineLoad, _Mapping]] = ..., busy_ms: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("sequence", "status", "message")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    status: int
    message: str
    def __init__(self, sequence: _Optional[int] = ..., status: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...
