"""What every RPC handler of the router does around its work: statuses out of exceptions, limits on the way out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
import structlog

from ssd.errors import FieldError
from ssd.rpc.status import ApiError, abort, from_field_error

# A status waits behind messages that a client does not read; after this it is left to the transport.
STATUS_WITHIN_S = 1.0

log = structlog.get_logger()


@asynccontextmanager
async def statuses(
    context: grpc.aio.ServicerContext, count: Callable[[str], None] = lambda _: None
) -> AsyncIterator[None]:
    """Errors of the contract end the call with their status, others with INTERNAL; cancellation passes through.

    count: hears the name of the status.
    """
    try:
        yield
        count("OK")
    except ApiError as error:
        count(error.code.name)
        await _abort(context, error)
    except FieldError as error:
        count("INVALID_ARGUMENT")
        await _abort(context, from_field_error(error))
    except asyncio.CancelledError:
        count("CANCELLED")
        raise
    except grpc.aio.InternalError as error:  # a write to a client that has left
        count("CANCELLED")
        raise asyncio.CancelledError from error
    except Exception:  # the last line before the wire: whatever it is, the client gets a status and the log a reason
        count("INTERNAL")
        log.exception("call failed")
        await _abort(context, ApiError(grpc.StatusCode.INTERNAL, "the router failed; its log has the reason"))


async def _abort(context: grpc.aio.ServicerContext, error: ApiError) -> None:
    try:
        async with asyncio.timeout(STATUS_WITHIN_S):
            await abort(context, error)
    except (grpc.aio.InternalError, TimeoutError) as undeliverable:
        # The client has left, is past its deadline or does not read: for the transport the call is cancelled.
        raise asyncio.CancelledError from undeliverable
