from protos.ssd.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DraftServiceServeRequest(_message.Message):
    __slots__ = ("hello", "opens", "advances", "resyncs", "closes", "ping", "planes", "plane_closes")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    OPENS_FIELD_NUMBER: _ClassVar[int]
    ADVANCES_FIELD_NUMBER: _ClassVar[int]
    RESYNCS_FIELD_NUMBER: _ClassVar[int]
    CLOSES_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PLANES_FIELD_NUMBER: _ClassVar[int]
    PLANE_CLOSES_FIELD_NUMBER: _ClassVar[int]
    hello: _types_pb2.Hello
    opens: _containers.RepeatedCompositeFieldContainer[DraftOpen]
    advances: _containers.RepeatedCompositeFieldContainer[Advance]
    resyncs: _containers.RepeatedCompositeFieldContainer[Resync]
    closes: _containers.RepeatedScalarFieldContainer[int]
    ping: _types_pb2.Ping
    planes: _containers.RepeatedCompositeFieldContainer[_types_pb2.PlaneOrder]
    plane_closes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, hello: _Optional[_Union[_types_pb2.Hello, _Mapping]] = ..., opens: _Optional[_Iterable[_Union[DraftOpen, _Mapping]]] = ..., advances: _Optional[_Iterable[_Union[Advance, _Mapping]]] = ..., resyncs: _Optional[_Iterable[_Union[Resync, _Mapping]]] = ..., closes: _Optional[_Iterable[int]] = ..., ping: _Optional[_Union[_types_pb2.Ping, _Mapping]] = ..., planes: _Optional[_Iterable[_Union[_types_pb2.PlaneOrder, _Mapping]]] = ..., plane_closes: _Optional[_Iterable[int]] = ...) -> None: ...

class DraftServiceServeResponse(_message.Message):
    __slots__ = ("welcome", "tables", "proposals", "need_resync", "refused", "closed", "pong", "timing", "planes")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    NEED_RESYNC_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    PLANES_FIELD_NUMBER: _ClassVar[int]
    welcome: _types_pb2.Welcome
    tables: _containers.RepeatedCompositeFieldContainer[_types_pb2.OutcomeTable]
    proposals: _containers.RepeatedCompositeFieldContainer[_types_pb2.Proposal]
    need_resync: _containers.RepeatedCompositeFieldContainer[NeedResync]
    refused: _containers.RepeatedCompositeFieldContainer[_types_pb2.Refused]
    closed: _containers.RepeatedScalarFieldContainer[int]
    pong: _types_pb2.Pong
    timing: DraftTiming
    planes: _containers.RepeatedCompositeFieldContainer[_types_pb2.PlaneReport]
    def __init__(self, welcome: _Optional[_Union[_types_pb2.Welcome, _Mapping]] = ..., tables: _Optional[_Iterable[_Union[_types_pb2.OutcomeTable, _Mapping]]] = ..., proposals: _Optional[_Iterable[_Union[_types_pb2.Proposal, _Mapping]]] = ..., need_resync: _Optional[_Iterable[_Union[NeedResync, _Mapping]]] = ..., refused: _Optional[_Iterable[_Union[_types_pb2.Refused, _Mapping]]] = ..., closed: _Optional[_Iterable[int]] = ..., pong: _Optional[_Union[_types_pb2.Pong, _Mapping]] = ..., timing: _Optional[_Union[DraftTiming, _Mapping]] = ..., planes: _Optional[_Iterable[_Union[_types_pb2.PlaneReport, _Mapping]]] = ...) -> None: ...

class DraftTiming(_message.Message):
    __slots__ = ("rows", "tokens", "prefill", "step_ms", "asked")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    STEP_MS_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    rows: int
    tokens: int
    prefill: bool
    step_ms: float
    asked: bool
    def __init__(self, rows: _Optional[int] = ..., tokens: _Optional[int] = ..., prefill: bool = ..., step_ms: _Optional[float] = ..., asked: bool = ...) -> None: ...

class DraftOpen(_message.Message):
    __slots__ = ("sequence", "ids", "prompt_len", "sampling", "limits", "mode", "k", "fan_out", "need_proposal", "verification", "saguaro_c", "part", "parts", "target")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LEN_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    FAN_OUT_FIELD_NUMBER: _ClassVar[int]
    NEED_PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_FIELD_NUMBER: _ClassVar[int]
    SAGUARO_C_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    prompt_len: int
    sampling: _types_pb2.SamplingParameters
    limits: _types_pb2.TokenLimits
    mode: _types_pb2.Mode
    k: int
    fan_out: _types_pb2.FanOut
    need_proposal: bool
    verification: _types_pb2.Verification
    saguaro_c: float
    part: int
    parts: int
    target: int
    def __init__(self, sequence: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., prompt_len: _Optional[int] = ..., sampling: _Optional[_Union[_types_pb2.SamplingParameters, _Mapping]] = ..., limits: _Optional[_Union[_types_pb2.TokenLimits, _Mapping]] = ..., mode: _Optional[_Union[_types_pb2.Mode, str]] = ..., k: _Optional[int] = ..., fan_out: _Optional[_Union[_types_pb2.FanOut, _Mapping]] = ..., need_proposal: bool = ..., verification: _Optional[_Union[_types_pb2.Verification, str]] = ..., saguaro_c: _Optional[float] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ..., target: _Optional[int] = ...) -> None: ...

class DraftPlan(_message.Message):
    __slots__ = ("mode", "k", "depth", "fan_out")
    MODE_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    FAN_OUT_FIELD_NUMBER: _ClassVar[int]
    mode: _types_pb2.Mode
    k: int
    depth: int
    fan_out: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, mode: _Optional[_Union[_types_pb2.Mode, str]] = ..., k: _Optional[int] = ..., depth: _Optional[int] = ..., fan_out: _Optional[_Iterable[int]] = ...) -> None: ...

class Advance(_message.Message):
    __slots__ = ("sequence", "base_len", "ids", "need_proposal", "next_depth", "plan", "in_flight", "next_source", "part", "parts", "target")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BASE_LEN_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    NEED_PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    NEXT_DEPTH_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    NEXT_SOURCE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    base_len: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    need_proposal: bool
    next_depth: int
    plan: DraftPlan
    in_flight: _containers.RepeatedScalarFieldContainer[int]
    next_source: _types_pb2.ProposalSource
    part: int
    parts: int
    target: int
    def __init__(self, sequence: _Optional[int] = ..., base_len: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., need_proposal: bool = ..., next_depth: _Optional[int] = ..., plan: _Optional[_Union[DraftPlan, _Mapping]] = ..., in_flight: _Optional[_Iterable[int]] = ..., next_source: _Optional[_Union[_types_pb2.ProposalSource, str]] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ..., target: _Optional[int] = ...) -> None: ...

class Resync(_message.Message):
    __slots__ = ("sequence", "ids", "need_proposal")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    NEED_PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    need_proposal: bool
    def __init__(self, sequence: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., need_proposal: bool = ...) -> None: ...

class NeedResync(_message.Message):
    __slots__ = ("sequence", "have_len")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    HAVE_LEN_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    have_len: int
    def __init__(self, sequence: _Optional[int] = ..., have_len: _Optional[int] = ...) -> None: ...

class DraftServiceGetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DraftServiceGetStatusResponse(_message.Message):
    __slots__ = ("epoch", "model", "load")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    model: _types_pb2.ModelInfo
    load: _types_pb2.EngineLoad
    def __init__(self, epoch: _Optional[int] = ..., model: _Optional[_Union[_types_pb2.ModelInfo, _Mapping]] = ..., load: _Optional[_Union[_types_pb2.EngineLoad, _Mapping]] = ...) -> None: ...
