"""Messages and plans for the coordinator's tests."""

from protos.ssd.v1 import draft_pb2, target_pb2, types_pb2
from router.coordinator import Coordinator
from router.plan import Plan, uniform

PROMPT = [1, 2, 3]
OK = types_pb2.FINISH_REASON_UNSPECIFIED


def plan(mode=types_pb2.MODE_SSD, *, max_tokens=100, k=4, **fields):
    return Plan(
        prompt=PROMPT,
        sampling=types_pb2.SamplingParameters(seed=5),
        limits=types_pb2.TokenLimits(max_tokens=max_tokens),
        logprobs=-1,
        mode=mode,
        k=k,
        fan_out=uniform(3),
        **fields,
    )


def outcome(base_len, ids, *, sequence=1, finish=OK, **fields):
    return target_pb2.StepOutcome(sequence=sequence, base_len=base_len, ids=ids, finish=finish, **fields)


def said(*outcomes, refused=()):
    return target_pb2.TargetServiceServeResponse(outcomes=outcomes, refused=refused)


def drafted(**fields):
    return draft_pb2.DraftServiceServeResponse(**fields)


def table(base_len, branches, *, proposal=(), sequence=1):
    made = [types_pb2.Branch(accepted=k, id=t, ids=ids) for k, t, ids in branches]
    return types_pb2.OutcomeTable(sequence=sequence, base_len=base_len, proposal=proposal, branches=made)


def made(base_len, ids, *, sequence=1, **fields):
    return types_pb2.Proposal(sequence=sequence, base_len=base_len, ids=ids, **fields)


def target_and_draft():
    """A coordinator with a target T and a draft D."""
    coordinator = Coordinator()
    coordinator.target_ready("T", 8)
    coordinator.draft_ready("D", 8)
    return coordinator


def opened(coordinator, **fields):
    coordinator.open(1, plan(**fields))
    return coordinator.flush()


def advance(coordinator, response):
    coordinator.on_target("T", response)
    (one,) = coordinator.flush()["D"].advances
    return one
