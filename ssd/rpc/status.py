"""Errors of the public contract: one exception type, one way onto the wire."""

from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from ssd.errors import FieldError

DOMAIN = "ssd-serve"


@dataclass
class ApiError(Exception):
    """A failure with its gRPC status and details (google.rpc messages)."""

    code: grpc.StatusCode
    message: str
    details: tuple[Message, ...] = ()

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


def invalid(field: str, message: str) -> ApiError:
    """INVALID_ARGUMENT with one BadRequest field violation."""
    violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=message)
    return ApiError(
        grpc.StatusCode.INVALID_ARGUMENT,
        f"{field}: {message}",
        (error_details_pb2.BadRequest(field_violations=[violation]),),
    )


def from_field_error(error: FieldError) -> ApiError:
    """The same for an error raised below the API."""
    return invalid(error.field, error.message)


def unimplemented(field: str, message: str) -> ApiError:
    """A valid request for something that is not supported."""
    return ApiError(grpc.StatusCode.UNIMPLEMENTED, f"{field}: {message}")


def unavailable(reason: str, message: str, retry_s: float = 1.0) -> ApiError:
    """UNAVAILABLE with ErrorInfo (reason in UPPER_SNAKE_CASE) and RetryInfo."""
    info = error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN)
    return ApiError(grpc.StatusCode.UNAVAILABLE, message, (info, _retry(retry_s)))


def exhausted(message: str, retry_s: float = 1.0) -> ApiError:
    """RESOURCE_EXHAUSTED with RetryInfo: full now, try again."""
    return ApiError(grpc.StatusCode.RESOURCE_EXHAUSTED, message, (_retry(retry_s),))


def from_code(code: int, message: str) -> ApiError:
    """An ApiError for a google.rpc.Code number received from a peer."""
    for status in grpc.StatusCode:
        if status.value[0] == code:
            return ApiError(status, message)
    return ApiError(grpc.StatusCode.INTERNAL, f"peer sent unknown status {code}: {message}")


async def abort(context: grpc.aio.ServicerContext, error: ApiError) -> NoReturn:
    """End the call with the error's status; details travel as google.rpc.Status in `grpc-status-details-bin`."""
    status = status_pb2.Status(code=error.code.value[0], message=error.message)
    for detail in error.details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    trailing = (("grpc-status-details-bin", status.SerializeToString()),) if error.details else ()
    await context.abort(error.code, error.message, trailing)
    raise AssertionError("abort returns by raising")


def details_of(error: grpc.RpcError) -> status_pb2.Status | None:
    """The google.rpc.Status of a failed call, for clients."""
    metadata: Any = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    for key, value in metadata or ():
        if key == "grpc-status-details-bin":
            return status_pb2.Status.FromString(value)
    return None


def _retry(seconds: float) -> error_details_pb2.RetryInfo:
    delay = duration_pb2.Duration()
    delay.FromMilliseconds(round(seconds * 1000))
    return error_details_pb2.RetryInfo(retry_delay=delay)
