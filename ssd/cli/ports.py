"""Finding and checking ports before anything heavy is started."""

import contextlib
import socket

from ssd.cli.errors import BAD_INPUT, CliError


def check_free(host: str, port: int, purpose: str) -> None:
    """Raise CliError if `host:port` cannot be bound now."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise CliError(
            f"cannot listen on {host}:{port} ({purpose}): {_reason(error)}; choose another with --port", BAD_INPUT
        ) from None


def free_ports(host: str, count: int) -> list[int]:
    """`count` different ports that were free a moment ago."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server((host, 0))) for _ in range(count)]
        return [s.getsockname()[1] for s in sockets]


def _reason(error: OSError) -> str:
    text = error.strerror or str(error)
    return text.partition(" (while")[0].lower()
