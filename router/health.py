"""What the router's health says, and the proofs behind it.

ssd.v1.InferenceService   SERVING once a real generation went through a target; not while no target is connected
ssd.v1.AdminService       SERVING from the start
ssd.v1.Draft              SERVING while a draft is connected; without one the router decodes plainly
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import structlog

from protos.ssd.v1 import admin_pb2
from router.gate import Gate
from router.generation import Generations
from router.hub import Hub
from router.peer import Peer
from ssd.config import RouterConfig
from ssd.rpc.server import Server, StartupError
from ssd.rpc.status import ApiError

INFERENCE = "ssd.v1.InferenceService"
ADMIN = "ssd.v1.AdminService"
DRAFT = "ssd.v1.Draft"

REPORT_EVERY_S = 10.0
WARM_UP_RETRY_S = 1.0

log = structlog.get_logger()


class Health:
    """Keeps the server's health in step with the peers. Readiness follows state; it is proved only on transitions."""

    def __init__(self, config: RouterConfig, server: Server) -> None:
        self._config = config
        self._server = server
        self._shown: dict[str, bool] = {}

    async def begin(self) -> None:
        """Nothing can be generated yet."""
        await self._show(INFERENCE, False)
        await self._show(ADMIN, True)
        await self._show(DRAFT, False)

    async def keep(self, generations: Generations, gate: Gate) -> None:
        """Follow the peers until cancelled. Raises StartupError when one is incompatible at the start."""
        hub = generations.hub
        await self._first_contact(hub)
        while True:
            await self._show(DRAFT, hub.draft_ready)
            if not hub.target_ready:
                await self._show(INFERENCE, False)
            elif not self._shown[INFERENCE] and await self._proved(generations):
                gate.open()
                await self._show(INFERENCE, True)
                log.info("serving", address=self._server.address, model=generations.name, draft=hub.draft_ready)
            retry = hub.target_ready and not self._shown[INFERENCE]
            await _changed(hub, WARM_UP_RETRY_S if retry else None)

    async def _first_contact(self, hub: Hub) -> None:
        """Wait for a target as long as it takes, then for all other peers for peer_timeout_s."""
        while not await self._until(hub, lambda: hub.target_ready, REPORT_EVERY_S):
            log.info("waiting for a target", peers=_described(hub.targets))
        everybody = [*hub.targets, *hub.drafts]
        if not await self._until(hub, lambda: all(peer.ready for peer in everybody), self._config.peer_timeout_s):
            log.warning("starting without all peers", peers=_described([peer for peer in everybody if not peer.ready]))

    async def _until(self, hub: Hub, condition: Callable[[], bool], limit_s: float) -> bool:
        """Whether `condition` came true in time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + limit_s
        while True:
            for peer in (*hub.targets, *hub.drafts):
                if peer.state == admin_pb2.PEER_STATE_INCOMPATIBLE:
                    raise StartupError(peer.detail)
            if condition():
                return True
            if loop.time() >= end:
                return False
            await _changed(hub, end - loop.time())

    async def _proved(self, generations: Generations) -> bool:
        try:
            await generations.warm_up()
        except ApiError as error:
            if error.code is grpc.StatusCode.RESOURCE_EXHAUSTED and generations.hub.live:
                # Full of live streams that it has taken over: they are the proof.
                return True
            log.error("the first generation failed", error=str(error))
            return False
        return True

    async def _show(self, name: str, serving: bool) -> None:
        if self._shown.get(name) is not serving:
            self._shown[name] = serving
            await self._server.set_serving(serving, name)
            if name == DRAFT and INFERENCE in self._shown:
                log.info("draft", connected=serving)


async def _changed(hub: Hub, limit_s: float | None) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await hub.changed()
    except TimeoutError:
        return


def _described(peers: list[Peer]) -> str:
    return "; ".join(f"{peer.address}: {peer.detail}" for peer in peers)
