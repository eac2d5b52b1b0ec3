from protos.ssd.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TargetServiceServeRequest(_message.Message):
    __slots__ = ("hello", "opens", "tables", "proposals", "drafting", "closes", "ping", "planes", "plane_closes")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    OPENS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    DRAFTING_FIELD_NUMBER: _ClassVar[int]
    CLOSES_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PLANES_FIELD_NUMBER: _ClassVar[int]
    PLANE_CLOSES_FIELD_NUMBER: _ClassVar[int]
    hello: _types_pb2.Hello
    opens: _containers.RepeatedCompositeFieldContainer[TargetOpen]
    tables: _containers.RepeatedCompositeFieldContainer[_types_pb2.OutcomeTable]
    proposals: _containers.RepeatedCompositeFieldContainer[_types_pb2.Proposal]
    drafting: _containers.RepeatedCompositeFieldContainer[SetDrafting]
    closes: _containers.RepeatedScalarFieldContainer[int]
    ping: _types_pb2.Ping
    planes: _containers.RepeatedCompositeFieldContainer[_types_pb2.PlaneOrder]
    plane_closes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, hello: _Optional[_Union[_types_pb2.Hello, _Mapping]] = ..., opens: _Optional[_Iterable[_Union[TargetOpen, _Mapping]]] = ..., tables: _Optional[_Iterable[_Union[_types_pb2.OutcomeTable, _Mapping]]] = ..., proposals: _Optional[_Iterable[_Union[_types_pb2.Proposal, _Mapping]]] = ..., drafting: _Optional[_Iterable[_Union[SetDrafting, _Mapping]]] = ..., closes: _Optional[_Iterable[int]] = ..., ping: _Optional[_Union[_types_pb2.Ping, _Mapping]] = ..., planes: _Optional[_Iterable[_Union[_types_pb2.PlaneOrder, _Mapping]]] = ..., plane_closes: _Optional[_Iterable[int]] = ...) -> None: ...

class TargetServiceServeResponse(_message.Message):
    __slots__ = ("welcome", "outcomes", "refused", "closed", "pong", "timing", "planes")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    PLANES_FIELD_NUMBER: _ClassVar[int]
    welcome: _types_pb2.Welcome
    outcomes: _containers.RepeatedCompositeFieldContainer[StepOutcome]
    refused: _containers.RepeatedCompositeFieldContainer[_types_pb2.Refused]
    closed: _containers.RepeatedScalarFieldContainer[int]
    pong: _types_pb2.Pong
    timing: StepTiming
    planes: _containers.RepeatedCompositeFieldContainer[_types_pb2.PlaneReport]
    def __init__(self, welcome: _Optional[_Union[_types_pb2.Welcome, _Mapping]] = ..., outcomes: _Optional[_Iterable[_Union[StepOutcome, _Mapping]]] = ..., refused: _Optional[_Iterable[_Union[_types_pb2.Refused, _Mapping]]] = ..., closed: _Optional[_Iterable[int]] = ..., pong: _Optional[_Union[_types_pb2.Pong, _Mapping]] = ..., timing: _Optional[_Union[StepTiming, _Mapping]] = ..., planes: _Optional[_Iterable[_Union[_types_pb2.PlaneReport, _Mapping]]] = ...) -> None: ...

class StepTiming(_message.Message):
    __slots__ = ("rows", "tokens", "prefill", "step_ms")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    STEP_MS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    tokens: int
    prefill: bool
    step_ms: float
    def __init__(self, rows: _Optional[int] = ..., tokens: _Optional[int] = ..., prefill: bool = ..., step_ms: _Optional[float] = ...) -> None: ...

class TargetOpen(_message.Message):
    __slots__ = ("sequence", "ids", "prompt_len", "sampling", "limits", "logprobs", "mode", "k", "drafting", "verification", "fallback")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LEN_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    DRAFTING_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    prompt_len: int
    sampling: _types_pb2.SamplingParameters
    limits: _types_pb2.TokenLimits
    logprobs: int
    mode: _types_pb2.Mode
    k: int
    drafting: bool
    verification: _types_pb2.Verification
    fallback: _types_pb2.Fallback
    def __init__(self, sequence: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., prompt_len: _Optional[int] = ..., sampling: _Optional[_Union[_types_pb2.SamplingParameters, _Mapping]] = ..., limits: _Optional[_Union[_types_pb2.TokenLimits, _Mapping]] = ..., logprobs: _Optional[int] = ..., mode: _Optional[_Union[_types_pb2.Mode, str]] = ..., k: _Optional[int] = ..., drafting: bool = ..., verification: _Optional[_Union[_types_pb2.Verification, str]] = ..., fallback: _Optional[_Union[_types_pb2.Fallback, str]] = ...) -> None: ...

class SetDrafting(_message.Message):
    __slots__ = ("sequence", "drafting", "fallback")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DRAFTING_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    drafting: bool
    fallback: _types_pb2.Fallback
    def __init__(self, sequence: _Optional[int] = ..., drafting: bool = ..., fallback: _Optional[_Union[_types_pb2.Fallback, str]] = ...) -> None: ...

class StepOutcome(_message.Message):
    __slots__ = ("sequence", "base_len", "proposed", "accepted", "ids", "logprobs", "finish", "stop_id", "hit", "next_depth", "cached_tokens", "source", "next_source", "hit_rank")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BASE_LEN_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    STOP_ID_FIELD_NUMBER: _ClassVar[int]
    HIT_FIELD_NUMBER: _ClassVar[int]
    NEXT_DEPTH_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    NEXT_SOURCE_FIELD_NUMBER: _ClassVar[int]
    HIT_RANK_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    base_len: int
    proposed: int
    accepted: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_types_pb2.TokenLogprob]
    finish: _types_pb2.FinishReason
    stop_id: int
    hit: bool
    next_depth: int
    cached_tokens: int
    source: _types_pb2.ProposalSource
    next_source: _types_pb2.ProposalSource
    hit_rank: int
    def __init__(self, sequence: _Optional[int] = ..., base_len: _Optional[int] = ..., proposed: _Optional[int] = ..., accepted: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_types_pb2.TokenLogprob, _Mapping]]] = ..., finish: _Optional[_Union[_types_pb2.FinishReason, str]] = ..., stop_id: _Optional[int] = ..., hit: bool = ..., next_depth: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., source: _Optional[_Union[_types_pb2.ProposalSource, str]] = ..., next_source: _Optional[_Union[_types_pb2.ProposalSource, str]] = ..., hit_rank: _Optional[int] = ...) -> None: ...

class TargetServiceGetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TargetServiceGetStatusResponse(_message.Message):
    __slots__ = ("epoch", "model", "load")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    model: _types_pb2.ModelInfo
    load: _types_pb2.EngineLoad
    def __init__(self, epoch: _Optional[int] = ..., model: _Optional[_Union[_types_pb2.ModelInfo, _Mapping]] = ..., load: _Optional[_Union[_types_pb2.EngineLoad, _Mapping]] = ...) -> None: ...
