"""Target, draft and the router's coordinator in one process, in lockstep: a table is always finished in time.

So hit rates say what a fan-out covers, not how fast a machine is; T_p is 1 or less by construction.
"""

from collections.abc import Callable, Mapping

from draft_service.engine import DraftEngine
from protos.ssd.v1 import target_pb2
from router.coordinator import Coordinator, Failed
from router.plan import Plan
from target_service.engine import TargetEngine

STREAM = 1
OnOutcome = Callable[[target_pb2.StepOutcome], None]


def run(
    target: TargetEngine, draft: DraftEngine | None, plans: Mapping[int, Plan], on_outcome: OnOutcome
) -> dict[int, list[int]]:
    """Generate all `plans`; every outcome is shown to `on_outcome`. Returns the output ids of each sequence.

    RuntimeError if a sequence fails or nothing can go on.
    """
    coordinator = Coordinator()
    coordinator.target_ready("target", 64)
    if draft is not None:
        coordinator.draft_ready("draft", 64)
    for number, plan in plans.items():
        coordinator.open(number, plan)
    output: dict[int, list[int]] = {number: [] for number in plans}
    now = 0.0
    while len(coordinator):
        _deliver(coordinator, target, draft)
        _draft_all(coordinator, target, draft, now)
        now += 1.0
        target.begin(now)
        _draft_all(coordinator, target, draft, now)
        for response in target.finish(now).values():
            for event in coordinator.on_target("target", response):
                if isinstance(event, Failed):
                    raise RuntimeError(event.failure.message)
                output[event.sequence].extend(event.outcome.ids)
                on_outcome(event.outcome)
    _deliver(coordinator, target, draft)
    return output


def _deliver(coordinator: Coordinator, target: TargetEngine, draft: DraftEngine | None) -> None:
    coordinator.govern()
    for message in coordinator.flush().values():
        if isinstance(message, target_pb2.TargetServiceServeRequest):
            target.handle(STREAM, message)
        elif draft is not None:
            draft.handle(STREAM, message)


def _draft_all(coordinator: Coordinator, target: TargetEngine, draft: DraftEngine | None, now: float) -> None:
    """Let the draft finish everything it has to do."""
    while draft is not None and draft.wake_at(now) is not None:
        for response in draft.step(now).values():
            coordinator.on_draft("draft", response)
        _deliver(coordinator, target, draft)
