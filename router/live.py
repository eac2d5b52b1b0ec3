"""One live sequence as the coordinator sees it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from protos.ssd.v1 import draft_pb2, target_pb2
from router.plan import Plan


@dataclass(slots=True)
class Totals:
    """Speculation counters, of one sequence or of all since start."""

    rounds: int = 0  # target steps that drew tokens
    proposed: int = 0  # draft tokens verified
    accepted: int = 0
    hits: int = 0  # rounds whose outcome was in the cache when it was needed
    misses: int = 0  # rounds whose outcome was needed and not there

    def count(self, proposed: int, accepted: int, hit: bool | None) -> None:
        """Add one round; hit is None where nothing was anticipated or no proposal was needed."""
        self.rounds += 1
        self.proposed += proposed
        self.accepted += accepted
        self.hits += hit is True
        self.misses += hit is False


@dataclass(frozen=True, slots=True)
class Failure:
    """Why no target goes on with a sequence. status is a google.rpc.Code number."""

    status: int
    message: str


@dataclass(slots=True)
class Live:
    """State of one sequence. `ids` are prompt and committed output."""

    sequence: int
    plan: Plan
    ids: list[int] = field(init=False)
    totals: Totals = field(default_factory=Totals)
    target: Hashable | None = None
    draft: Hashable | None = None
    refused_by: set[Hashable] = field(default_factory=set)
    replays: int = 0
    drafting: bool = False  # as the target was told
    told_len: int = 0  # committed length that the draft was told of
    need_proposal: bool = False  # the target has nothing to verify in the coming round
    next_depth: int = 0  # length of the proposal now in flight
    resync: bool = False  # the draft asked for everything again

    def __post_init__(self) -> None:
        self.ids = list(self.plan.prompt)

    @property
    def length(self) -> int:
        """Committed length."""
        return len(self.ids)

    @property
    def may_speculate(self) -> bool:
        """Whether a draft token can be of use in the coming round: the last token of a generation is drawn without."""
        return self.draft is not None and self.plan.most_tokens - self.length > 1

    def has_reached(self, base_len: int) -> bool:
        """Whether a prediction made at base_len can be held against what was committed."""
        return len(self.plan.prompt) <= base_len <= self.length

    def target_open(self, max_k: int) -> target_pb2.TargetOpen:
        """Prompt and output so far: the target goes on behind the last emitted token."""
        return target_pb2.TargetOpen(
            sequence=self.sequence,
            ids=self.ids,
            prompt_len=len(self.plan.prompt),
            sampling=self.plan.sampling,
            limits=self.plan.limits,
            logprobs=self.plan.logprobs,
            mode=self.plan.mode,
            k=min(self.plan.k, max_k),
            drafting=self.drafting,
        )

    def draft_open(self, max_k: int) -> draft_pb2.DraftOpen:
        self.told_len, self.resync = self.length, False
        return draft_pb2.DraftOpen(
            sequence=self.sequence,
            ids=self.ids,
            prompt_len=len(self.plan.prompt),
            sampling=self.plan.sampling,
            limits=self.plan.limits,
            mode=self.plan.mode,
            k=min(self.plan.k, max_k),
            fan_out=self.plan.fan_out,
        )

    def draft_advance(self) -> draft_pb2.Advance:
        """Everything committed since the draft was last told."""
        base_len, self.told_len = self.told_len, self.length
        return draft_pb2.Advance(
            sequence=self.sequence,
            base_len=base_len,
            ids=self.ids[base_len:],
            need_proposal=self.need_proposal,
            next_depth=self.next_depth,
        )

    def draft_resync(self) -> draft_pb2.Resync:
        self.told_len, self.resync = self.length, False
        return draft_pb2.Resync(sequence=self.sequence, ids=self.ids, need_proposal=self.need_proposal)
