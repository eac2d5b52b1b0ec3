"""Statuses as a client sees them."""

import grpc
import pytest
from google.rpc import error_details_pb2

from ssd.errors import FieldError
from ssd.rpc import status


class _Recorder:
    """Stands in for a servicer context: records what abort was given."""

    async def abort(self, code, message, trailing):
        self.code, self.message, self.trailing = code, message, trailing
        raise grpc.aio.AbortError


class _Failed(grpc.RpcError):
    def __init__(self, trailing):
        self._trailing = trailing

    def trailing_metadata(self):
        return self._trailing


async def _sent(error):
    context = _Recorder()
    with pytest.raises(grpc.aio.AbortError):
        await status.abort(context, error)
    return context, status.details_of(_Failed(context.trailing))


async def test_invalid_names_the_field_in_message_and_details():
    context, sent = await _sent(status.from_field_error(FieldError("top_k", "is -1, must be >= 0")))
    assert context.code is grpc.StatusCode.INVALID_ARGUMENT
    assert context.message == "top_k: is -1, must be >= 0"
    detail = error_details_pb2.BadRequest()
    assert sent.details[0].Unpack(detail)
    assert [v.field for v in detail.field_violations] == ["top_k"]


async def test_unavailable_says_why_and_when_to_retry():
    context, sent = await _sent(status.unavailable("NO_TARGET", "no target is ready", retry_s=1.5))
    assert context.code is grpc.StatusCode.UNAVAILABLE
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert sent.details[0].Unpack(info) and info.reason == "NO_TARGET"
    assert sent.details[1].Unpack(retry) and retry.retry_delay.ToMilliseconds() == 1500


async def test_exhausted_carries_retry_info_and_unimplemented_needs_no_details():
    context, sent = await _sent(status.exhausted("the queue is full"))
    assert context.code is grpc.StatusCode.RESOURCE_EXHAUSTED and len(sent.details) == 1
    context, sent = await _sent(status.unimplemented("output.regex", "not supported yet"))
    assert context.code is grpc.StatusCode.UNIMPLEMENTED and sent is None


def test_peer_codes_become_statuses_and_unknown_ones_internal():
    assert status.from_code(8, "full").code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert status.from_code(99, "?").code is grpc.StatusCode.INTERNAL
