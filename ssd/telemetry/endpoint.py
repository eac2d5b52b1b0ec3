"""GET /metrics over HTTP, on the event loop that owns what is measured: nothing is read while it changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

PATH = "/metrics"
REQUEST_BYTES = 16_384
REQUEST_WITHIN_S = 5.0


@contextlib.asynccontextmanager
async def metrics_endpoint(listen: str, registry: CollectorRegistry) -> AsyncIterator[str]:
    """Serve `registry` at host:port `listen`; yields the address it is bound to. Raises OSError."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_WITHIN_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_answer(head, registry))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a peer that does not speak HTTP, or has left: there is nobody to tell
        finally:
            writer.close()

    host, _, port = listen.rpartition(":")
    server = await asyncio.start_server(serve, host.strip("[]"), int(port), limit=REQUEST_BYTES)
    try:
        yield "{}:{}".format(*server.sockets[0].getsockname()[:2])
    finally:
        server.close()


def _answer(head: bytes, registry: CollectorRegistry) -> bytes:
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0].decode("ascii", "replace")
    if method not in (b"GET", b"HEAD"):
        return _response("405 Method Not Allowed", "text/plain", b"only GET\n", body=True)
    if path != PATH:
        return _response("404 Not Found", "text/plain", f"only {PATH}\n".encode(), body=method == b"GET")
    return _response("200 OK", CONTENT_TYPE_LATEST, generate_latest(registry), body=method == b"GET")


def _response(status: str, kind: str, content: bytes, *, body: bool) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    return head.encode() + (content if body else b"")
