"""Every transport option of the system, in one place, each with its reason."""

MAX_MESSAGE_BYTES = 32 * 1024 * 1024
"""A prompt of a million ids takes 5 MB; gRPC's own default of 4 MiB cuts such requests off."""

_PING_EVERY_MS = 20_000
_PING_ANSWER_WITHIN_MS = 10_000
_CLIENT_PINGS_AT_LEAST_MS = 5_000

_COMMON = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A dead peer behind a silent network shows within half a minute, also on idle streams.
    ("grpc.keepalive_time_ms", _PING_EVERY_MS),
    ("grpc.keepalive_timeout_ms", _PING_ANSWER_WITHIN_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    # Pings without data are not limited to two; an idle stream may be pinged for as long as it lives.
    ("grpc.http2.max_pings_without_data", 0),
)

CHANNEL_OPTIONS = _COMMON + (
    # A restarted peer is tried again quickly: its downtime is time without speculation.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # In spite of its name this is the least time that one attempt to connect is given: a busy peer may need a while.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # Channels to the same address do not share a connection: one stalled stream must not hold up another service's.
    ("grpc.use_local_subchannel_pool", 1),
    # Peers are addressed directly; a proxy named in the environment is for the outside world.
    ("grpc.enable_http_proxy", 0),
)

SERVER_OPTIONS = _COMMON + (
    # Clients may ping as often as every 5 s without being sent away (GOAWAY too_many_pings).
    ("grpc.http2.min_recv_ping_interval_without_data_ms", _CLIENT_PINGS_AT_LEAST_MS),
    ("grpc.http2.min_ping_interval_without_data_ms", _CLIENT_PINGS_AT_LEAST_MS),
    ("grpc.http2.max_ping_strikes", 0),
    # Two servers must never share a port by accident: the second one has to fail at start.
    ("grpc.so_reuseport", 0),
)
