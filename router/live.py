"""One live sequence as the coordinator sees it, and what each of its peers was told of it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from protos.ssd.v1 import draft_pb2, target_pb2, types_pb2
from router.plan import Plan
from router.totals import Totals
from ssd.speculation.ngram import NGramIndex


@dataclass(frozen=True, slots=True)
class Failure:
    """Why no target goes on with a sequence. status is a google.rpc.Code number."""

    status: int
    message: str


@dataclass(slots=True)
class Link:
    """One draft of a sequence, and what it was told."""

    key: Hashable
    max_k: int
    told_len: int = 0  # committed length that the draft was told of
    asked_at: int = -1  # committed length at which it was last asked for a proposal
    part: tuple[int, int] = (0, 1)  # (part, parts)
    plan: draft_pb2.DraftPlan | None = None
    in_flight: tuple[int, ...] = ()  # the proposal that it takes to be in flight, as far as that is known here
    answered: bool = False
    resync: bool = False  # it asked for everything again
    target: int = 0  # the number of the target that it takes to have the sequence


@dataclass(slots=True)
class Live:
    """State of one sequence. `ids` are prompt and committed output."""

    sequence: int
    plan: Plan
    ids: list[int] = field(init=False)
    totals: Totals = field(default_factory=Totals)
    target: Hashable | None = None
    target_number: int = 0  # of the target that had it last; drafts send laws there
    links: list[Link] = field(default_factory=list)  # its drafts; the first one makes the just-in-time proposals
    refused_by: set[Hashable] = field(default_factory=set)
    replays: int = 0
    drafting: bool = False  # as the target was told
    fallback: types_pb2.Fallback = types_pb2.FALLBACK_UNSPECIFIED  # the governor's, as the target was told
    # What is wanted now: by the request, or by the governor.
    wants_drafts: bool = field(init=False)
    anticipates: bool = field(init=False)  # tables are built
    asks_after_miss: bool = field(init=False)
    wanted_fallback: types_pb2.Fallback = types_pb2.FALLBACK_UNSPECIFIED  # the governor's
    draft_plan: draft_pb2.DraftPlan | None = None  # the governor's, for all drafts
    need_proposal: bool = False  # the target has nothing to verify in the coming round, and a draft is to propose
    next_depth: int = 0  # length of the proposal now in flight
    next_source: types_pb2.ProposalSource = types_pb2.PROPOSAL_SOURCE_UNSPECIFIED
    in_flight: tuple[int, ...] = ()  # its ids, where they are known here
    _ngrams: NGramIndex | None = None

    def __post_init__(self) -> None:
        self.ids = list(self.plan.prompt)
        self.wants_drafts = self.plan.drafts_wanted > 0
        self.anticipates = self.plan.mode in (types_pb2.MODE_SSD, types_pb2.MODE_AUTO)
        self.asks_after_miss = self.plan.asks_after_miss

    @property
    def length(self) -> int:
        """Committed length."""
        return len(self.ids)

    @property
    def may_speculate(self) -> bool:
        """Whether a draft token can be of use in the coming round: the last token of a generation is drawn without."""
        return bool(self.links) and self.plan.most_tokens - self.length > 1

    @property
    def draftable(self) -> bool:
        """Whether the target may wait for a draft: after a change of drafts, only once one has answered. While it reads
        the whole prompt, nobody would gain by waiting."""
        return self.wants_drafts and any(link.answered for link in self.links)

    @property
    def needs_in_flight(self) -> bool:
        """Whether a draft may not know by itself what is in flight after a hit."""
        return len(self.links) > 1 or any(not link.answered for link in self.links)

    def has_reached(self, base_len: int) -> bool:
        """Whether a prediction made at base_len can be held against what was committed."""
        return len(self.plan.prompt) <= base_len <= self.length

    def link_to(self, key: Hashable) -> Link | None:
        return next((link for link in self.links if link.key == key), None)

    def put_in_flight(self, ids: Sequence[int], source: types_pb2.ProposalSource) -> None:
        """A proposal for the coming round is at the target, or on its way there."""
        self.in_flight, self.next_depth, self.next_source = tuple(ids), len(ids), source
        self.need_proposal = False

    def looked_up(self, count: int) -> tuple[int, ...]:
        """`count` tokens of prompt lookup after the committed ones: what the target found in the same text."""
        if self._ngrams is None:
            self._ngrams = NGramIndex()
        self._ngrams.extend(self.ids[len(self._ngrams) :])
        found = self._ngrams.propose(count)
        return found.ids if found is not None else ()

    # What the peers are told

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
            verification=self.plan.verification,
            fallback=self.fallback or self.plan.fallback,
        )

    def draft_open(self, link: Link) -> draft_pb2.DraftOpen:
        self._tell_all(link)
        part, parts = link.part = self._part(link)
        link.target = self.target_number
        return draft_pb2.DraftOpen(
            sequence=self.sequence,
            ids=self.ids,
            prompt_len=len(self.plan.prompt),
            sampling=self.plan.sampling,
            limits=self.plan.limits,
            mode=self.plan.mode if self.anticipates else types_pb2.MODE_SD,
            k=min(self.plan.k, link.max_k),
            fan_out=self.plan.fan_out,
            verification=self.plan.verification,
            saguaro_c=self.plan.saguaro_c,
            part=part,
            parts=parts,
            target=self.target_number,
        )

    def draft_advance(self, link: Link) -> draft_pb2.Advance | None:
        """Everything that is news to this draft; None when that is nothing."""
        base_len, news = link.told_len, self.length > link.told_len
        asks = self.need_proposal and link is self.links[0] and link.asked_at != self.length
        tell = self._tells_in_flight(link, news)
        # Only laws go straight to a target.
        moved = self.plan.verification == types_pb2.VERIFICATION_REJECTION and self.target_number != link.target
        if not (news or asks or tell or moved):
            return None
        advance = draft_pb2.Advance(
            sequence=self.sequence,
            base_len=base_len,
            ids=self.ids[base_len:],
            need_proposal=asks,
            next_depth=self.next_depth,
            next_source=self.next_source,
        )
        if tell:
            advance.in_flight.extend(self.in_flight)
        if self.draft_plan is not None and self.draft_plan is not link.plan:
            advance.plan.CopyFrom(_within(self.draft_plan, link.max_k))
            link.plan = self.draft_plan
        if moved:
            advance.target = link.target = self.target_number
        if (part := self._part(link)) != link.part:
            advance.part, advance.parts = link.part = part
        link.told_len, link.in_flight = self.length, self.in_flight
        if asks:
            link.asked_at = self.length
        return advance

    def draft_resync(self, link: Link) -> draft_pb2.Resync:
        self._tell_all(link)
        asks = self.need_proposal and link is self.links[0]
        if asks:
            link.asked_at = self.length
        return draft_pb2.Resync(sequence=self.sequence, ids=self.ids, need_proposal=asks)

    def _tell_all(self, link: Link) -> None:
        link.told_len, link.resync, link.in_flight = self.length, False, ()

    def _part(self, link: Link) -> tuple[int, int]:
        return self.links.index(link), len(self.links)

    def _tells_in_flight(self, link: Link, news: bool) -> bool:
        """Whether the proposal in flight is told: not to a lone draft, which has made it itself."""
        if not self.in_flight or (not news and link.in_flight == self.in_flight):
            return False
        lookup = self.next_source == types_pb2.PROPOSAL_SOURCE_NGRAM
        return lookup or len(self.links) > 1 or not link.answered


def _within(plan: draft_pb2.DraftPlan, max_k: int) -> draft_pb2.DraftPlan:
    """The plan for a draft that makes proposals of at most max_k tokens."""
    if max(plan.k, plan.depth) <= max_k:
        return plan
    fan_out = plan.fan_out if plan.depth <= max_k else [*plan.fan_out[:max_k], *plan.fan_out[-1:]]
    return draft_pb2.DraftPlan(mode=plan.mode, k=min(plan.k, max_k), depth=min(plan.depth, max_k), fan_out=fan_out)
