from protos.ssd.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PeerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PEER_STATE_UNSPECIFIED: _ClassVar[PeerState]
    PEER_STATE_CONNECTING: _ClassVar[PeerState]
    PEER_STATE_READY: _ClassVar[PeerState]
    PEER_STATE_LOST: _ClassVar[PeerState]
    PEER_STATE_INCOMPATIBLE: _ClassVar[PeerState]
PEER_STATE_UNSPECIFIED: PeerState
PEER_STATE_CONNECTING: PeerState
PEER_STATE_READY: PeerState
PEER_STATE_LOST: PeerState
PEER_STATE_INCOMPATIBLE: PeerState

class Peer(_message.Message):
    __slots__ = ("address", "state", "detail", "epoch", "model", "load", "rtt_ms")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    RTT_MS_FIELD_NUMBER: _ClassVar[int]
    address: str
    state: PeerState
    detail: str
    epoch: int
    model: _types_pb2.ModelInfo
    load: _types_pb2.EngineLoad
    rtt_ms: float
    def __init__(self, address: _Optional[str] = ..., state: _Optional[_Union[PeerState, str]] = ..., detail: _Optional[str] = ..., epoch: _Optional[int] = ..., model: _Optional[_Union[_types_pb2.ModelInfo, _Mapping]] = ..., load: _Optional[_Union[_types_pb2.EngineLoad, _Mapping]] = ..., rtt_ms: _Optional[float] = ...) -> None: ...

class Plane(_message.Message):
    __slots__ = ("target", "draft", "epoch", "kind", "state", "reason", "latency_us", "bandwidth", "fallbacks")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LATENCY_US_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    FALLBACKS_FIELD_NUMBER: _ClassVar[int]
    target: str
    draft: str
    epoch: int
    kind: _types_pb2.PlaneKind
    state: _types_pb2.PlaneState
    reason: str
    latency_us: float
    bandwidth: float
    fallbacks: int
    def __init__(self, target: _Optional[str] = ..., draft: _Optional[str] = ..., epoch: _Optional[int] = ..., kind: _Optional[_Union[_types_pb2.PlaneKind, str]] = ..., state: _Optional[_Union[_types_pb2.PlaneState, str]] = ..., reason: _Optional[str] = ..., latency_us: _Optional[float] = ..., bandwidth: _Optional[float] = ..., fallbacks: _Optional[int] = ...) -> None: ...

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerInfoResponse(_message.Message):
    __slots__ = ("version", "epoch", "uptime_s", "targets", "drafts", "planes")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    PLANES_FIELD_NUMBER: _ClassVar[int]
    version: str
    epoch: int
    uptime_s: float
    targets: _containers.RepeatedCompositeFieldContainer[Peer]
    drafts: _containers.RepeatedCompositeFieldContainer[Peer]
    planes: _containers.RepeatedCompositeFieldContainer[Plane]
    def __init__(self, version: _Optional[str] = ..., epoch: _Optional[int] = ..., uptime_s: _Optional[float] = ..., targets: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., drafts: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., planes: _Optional[_Iterable[_Union[Plane, _Mapping]]] = ...) -> None: ...

class GetLoadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetLoadResponse(_message.Message):
    __slots__ = ("running", "waiting", "prompt_tokens", "target", "draft", "acceptance", "hit_rate", "stale_drops", "cached_tables", "degraded")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    HIT_RATE_FIELD_NUMBER: _ClassVar[int]
    STALE_DROPS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TABLES_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    running: int
    waiting: int
    prompt_tokens: int
    target: _types_pb2.EngineLoad
    draft: _types_pb2.EngineLoad
    acceptance: float
    hit_rate: float
    stale_drops: int
    cached_tables: int
    degraded: bool
    def __init__(self, running: _Optional[int] = ..., waiting: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., target: _Optional[_Union[_types_pb2.EngineLoad, _Mapping]] = ..., draft: _Optional[_Union[_types_pb2.EngineLoad, _Mapping]] = ..., acceptance: _Optional[float] = ..., hit_rate: _Optional[float] = ..., stale_drops: _Optional[int] = ..., cached_tables: _Optional[int] = ..., degraded: bool = ...) -> None: ...

class InspectSpeculationRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class InspectSpeculationResponse(_message.Message):
    __slots__ = ("sequence", "committed_len", "mode", "drafting", "tables", "proposals", "rounds", "hits", "misses", "decision", "statistics")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LEN_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    DRAFTING_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    committed_len: int
    mode: _types_pb2.Mode
    drafting: bool
    tables: _containers.RepeatedCompositeFieldContainer[_types_pb2.OutcomeTable]
    proposals: _containers.RepeatedCompositeFieldContainer[_types_pb2.Proposal]
    rounds: int
    hits: int
    misses: int
    decision: GovernorDecision
    statistics: AcceptanceStatistics
    def __init__(self, sequence: _Optional[int] = ..., committed_len: _Optional[int] = ..., mode: _Optional[_Union[_types_pb2.Mode, str]] = ..., drafting: bool = ..., tables: _Optional[_Iterable[_Union[_types_pb2.OutcomeTable, _Mapping]]] = ..., proposals: _Optional[_Iterable[_Union[_types_pb2.Proposal, _Mapping]]] = ..., rounds: _Optional[int] = ..., hits: _Optional[int] = ..., misses: _Optional[int] = ..., decision: _Optional[_Union[GovernorDecision, _Mapping]] = ..., statistics: _Optional[_Union[AcceptanceStatistics, _Mapping]] = ...) -> None: ...

class GovernorDecision(_message.Message):
    __slots__ = ("mode", "k", "depth", "budget", "fallback", "fan_out", "predicted_tokens_per_s", "t_primary", "hit_rate", "probe", "reason")
    class PredictedTokensPerSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    MODE_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    FAN_OUT_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    T_PRIMARY_FIELD_NUMBER: _ClassVar[int]
    HIT_RATE_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    mode: _types_pb2.Mode
    k: int
    depth: int
    budget: int
    fallback: _types_pb2.Fallback
    fan_out: _containers.RepeatedScalarFieldContainer[int]
    predicted_tokens_per_s: _containers.ScalarMap[str, float]
    t_primary: float
    hit_rate: float
    probe: bool
    reason: str
    def __init__(self, mode: _Optional[_Union[_types_pb2.Mode, str]] = ..., k: _Optional[int] = ..., depth: _Optional[int] = ..., budget: _Optional[int] = ..., fallback: _Optional[_Union[_types_pb2.Fallback, str]] = ..., fan_out: _Optional[_Iterable[int]] = ..., predicted_tokens_per_s: _Optional[_Mapping[str, float]] = ..., t_primary: _Optional[float] = ..., hit_rate: _Optional[float] = ..., probe: bool = ..., reason: _Optional[str] = ...) -> None: ...

class AcceptanceStatistics(_message.Message):
    __slots__ = ("acceptance", "acceptance_at", "coverage", "observations")
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_AT_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    acceptance: float
    acceptance_at: _containers.RepeatedScalarFieldContainer[float]
    coverage: _containers.RepeatedScalarFieldContainer[float]
    observations: float
    def __init__(self, acceptance: _Optional[float] = ..., acceptance_at: _Optional[_Iterable[float]] = ..., coverage: _Optional[_Iterable[float]] = ..., observations: _Optional[float] = ...) -> None: ...
