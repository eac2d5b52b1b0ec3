"""Where a draft and a target find each other: a key-value store in the target, with a part of it for each plane.

The store knows nothing but addresses of sockets and handles of device memory. Like the services' own ports it asks
nobody for a password, so it belongs on a network where only these processes are.
"""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore

from ssd.tensor_plane.channel import Broken

_ANYWHERE = frozenset({"", "0.0.0.0", "::", "[::]"})
_NEAR = "127.0.0.1"


class Rendezvous:
    """The target's store, listening until the process ends."""

    def __init__(self, listen: str, limit_s: float) -> None:
        """listen: host:port; port 0 = any free one. Raises Broken where that cannot be had."""
        self.host, _, port = listen.rpartition(":")
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        # As gRPC does at [::]; this process itself comes over IPv4.
        both = family == socket.AF_INET6 and self.host in _ANYWHERE and socket.has_dualstack_ipv6()
        try:
            listener = socket.create_server((self.host.strip("[]"), int(port)), family=family, dualstack_ipv6=both)
        except OSError as error:
            raise Broken(f"plane_listen: cannot listen on {listen}: {_short(error)}") from error
        self.port: int = listener.getsockname()[1]
        try:
            # By itself it would listen on every address of the machine.
            self._server = TCPStore(
                self._near,
                self.port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=limit_s),
                master_listen_fd=listener.detach(),
            )
        except RuntimeError as error:
            raise Broken(f"plane_listen: no store at {listen}") from error

    @property
    def address(self) -> str:
        """host:port for the draft; without a host where this one listens on all of its addresses."""
        return f"{'' if self.host in _ANYWHERE else self.host}:{self.port}"

    @property
    def device_host(self) -> str:
        """What the sockets of a plane are bound to; "" = the address of the machine's name."""
        return "" if self.host in _ANYWHERE else self.host.strip("[]")

    def store(self, name: str, limit_s: float) -> Store:
        """The part of one plane. Every plane has a connection of its own: one that waits holds up nobody else."""
        return connect(f"{self._near}:{self.port}", name, limit_s)

    @property
    def _near(self) -> str:
        return _NEAR if self.host in _ANYWHERE else self.host.strip("[]")


def connect(address: str, name: str, limit_s: float) -> Store:
    """One plane's part of the store at host:port; Broken where nobody answers within limit_s."""
    host, _, port = address.rpartition(":")
    try:
        # The store's own attempt would take all of the time, and say so in its own way.
        socket.create_connection((host.strip("[]"), int(port)), timeout=limit_s).close()
        store = TCPStore(host.strip("[]"), int(port), is_master=False, timeout=timedelta(seconds=limit_s))
    except (OSError, RuntimeError, ValueError) as error:
        raise Broken(f"no store can be reached at {address}") from error
    return PrefixStore(name, store)


def _short(error: OSError) -> str:
    return (error.strerror or str(error)).partition(" (while")[0].lower()


def route_to(address: str) -> str:
    """This machine's own address on the way to host:port; "" where there is no way."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)  # sends nothing
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return ""
