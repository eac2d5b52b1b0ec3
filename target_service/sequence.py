"""One sequence on the target: its tokens, how much of their KV is computed, and the proposal that comes next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protos.ssd.v1 import types_pb2
from ssd.runtime.blocks import BlockPool, BlockTable
from ssd.speculation.cache import Found
from ssd.speculation.finish import StopRules
from ssd.speculation.proposal import Continuation, Proposal, Source
from ssd.speculation.sampling import DrawRow, SamplingParams, TokenHistory, block_rows
from target_service.fallback import CHOICES, Fallback
from target_service.patience import Patience

NO_PROPOSAL = Proposal(0, ())


@dataclass(frozen=True, slots=True)
class Terms:
    """What a sequence was opened with."""

    params: SamplingParams
    rules: StopRules
    prompt_len: int
    mode: types_pb2.Mode
    k: int
    rejection: bool  # proposals are weighed by their laws, not compared with the target's own draws
    fallback: types_pb2.Fallback  # at the beginning

    @property
    def anticipates(self) -> bool:
        """Outcomes may be there before they happen."""
        return self.mode in (types_pb2.MODE_SSD, types_pb2.MODE_AUTO)


@dataclass(slots=True, eq=False)
class LiveSequence:
    """State of one sequence between steps. `number` grows with arrival and is never used twice, so that nothing that is
    kept under it can reach a later sequence which was given the same id."""

    stream: int
    id: int
    number: int
    terms: Terms
    ids: list[int]
    table: BlockTable
    patience: Patience
    drafting: bool
    fallback: Fallback
    computed: int = 0  # tokens whose KV is in the table
    proposal: Proposal = NO_PROPOSAL  # to be verified next, after the last of ids
    proposal_from: int = -1  # base of the answer that the proposal was taken from
    verified_from: int = -1  # of the one that the last step verified
    cached_tokens: int | None = None  # prompt tokens found in the prefix index when it first ran; None = has not run
    rounds: int = 0
    last_step: int = 0
    waited_s: float = 0.0  # before the step that runs
    lacking_at: int = -1  # committed length at which the laws of a prediction were not to be had
    history: TokenHistory = field(init=False)

    def __post_init__(self) -> None:
        self.history = TokenHistory(self.ids[: self.terms.prompt_len], self.ids[self.terms.prompt_len :])

    @property
    def length(self) -> int:
        """Committed tokens, prompt included: n."""
        return len(self.ids)

    @property
    def generated(self) -> int:
        return len(self.ids) - self.terms.prompt_len

    @property
    def pending(self) -> int:
        """Committed tokens that have to be run before the next one can be drawn; at least 1."""
        return len(self.ids) - self.computed

    @property
    def holds_blocks(self) -> bool:
        return bool(self.table.blocks)

    @property
    def decoding(self) -> bool:
        """Nothing but the last committed token is left to run."""
        return self.holds_blocks and self.pending == 1

    @property
    def appetite(self) -> int:
        """Longest proposal worth verifying: within k, and such that even full acceptance stays within the limits."""
        if self.terms.mode == types_pb2.MODE_AR:
            return 0
        return max(0, min(self.terms.k, self.terms.rules.limit - self.generated - 1))

    @property
    def waits(self) -> bool:
        """Whether the row would wait for a just-in-time proposal."""
        return self.drafting and self.fallback.waits and not self.patience.exhausted

    def draw_rows(self, proposal: Sequence[int]) -> list[DrawRow]:
        """One row for each token drawn when `proposal` is verified."""
        return block_rows(self.terms.params, self.history, proposal, self.terms.rules)

    def start(self) -> None:
        """Take up what the prefix index knows of the tokens."""
        self.computed = self.table.share(self.ids)

    def runs_in(self, step: int, now: float) -> None:
        """The step with this number, which begins now, has a row of the sequence."""
        self.last_step = step
        self.waited_s += self.patience.ran(now)
        if self.cached_tokens is None:
            self.cached_tokens = min(self.computed, self.terms.prompt_len)

    def set_back(self) -> None:
        """Give all blocks back and keep all tokens; their KV is computed again later."""
        self.table.release()
        self.computed = 0
        self.proposal = NO_PROPOSAL
        self.patience.end()
        self.patience.since = None

    def set_drafting(self, drafting: bool, fallback: types_pb2.Fallback) -> None:
        """Whether a draft serves the sequence at the moment; a new one gets its chance. What to do after a miss:
        as before, unless `fallback` names something."""
        if drafting and not self.drafting:
            self.patience.timeouts = 0
        self.drafting = drafting
        if fallback in CHOICES:
            self.fallback.choice = fallback
        if not (drafting and self.fallback.waits):
            self.patience.end()

    def propose(self, proposal: Proposal, base_len: int = -1) -> None:
        """Verify this next, as far as it is wanted; base_len: of the answer that it was taken from."""
        self.hold(proposal, base_len)
        self.patience.end()

    def hold(self, proposal: Proposal, base_len: int) -> None:
        """Verify this if a step begins, but begin none for it."""
        self.proposal, self.proposal_from = proposal.cut(self.appetite), base_len

    def came_late(self, found: Found) -> bool:
        """Whether this is what is left of a just-in-time proposal that came while the row rode along without it.

        It begins no step where a new one is worth waiting for: else rows that rode along would go on taking turns with
        those that did not, each in a step that the other half has no proposal for.
        """
        late = found.source is Source.PROPOSAL and found.base_len < self.length
        return late and found.base_len != self.verified_from

    def fall_back(self, *, busy: bool) -> None:
        """After a miss: look the text up, or begin to wait. busy: another row runs in any case."""
        count, draft = self.appetite, self.waits
        found = self.fallback.look_up(self.ids, count, draft=draft, busy=busy) if count else None
        if found is not None:
            self.propose(found)
        elif draft and count:
            self.patience.begin()

    def learn(self, proposal: Proposal, accepted: int, step_s: float | None) -> None:
        """What a round brought, and what the wait before it cost in steps of typically step_s seconds."""
        self.fallback.observe(proposal.source, accepted, len(proposal.ids))
        if self.waited_s and step_s:
            self.fallback.waited(self.waited_s / step_s)
        self.waited_s = 0.0

    def deepen(self, found: Continuation) -> None:
        """The proposal in flight is known further than it was: verify more, if it is still the same."""
        held = self.proposal
        deeper = Continuation(held.ids, held.laws).extended(found)
        if deeper is not None and held.source is not Source.NGRAM:
            self.proposal = Proposal(held.base_len, deeper.ids, deeper.laws, held.source).cut(self.appetite)

    def advance(self, pool: BlockPool, computed: int, emitted: Sequence[int] = ()) -> None:
        """Commit `emitted`; the KV of the first `computed` committed tokens is now written."""
        self.ids.extend(emitted)
        self.history.extend(emitted)
        self.computed = computed
        self.proposal, self.verified_from, self.proposal_from = NO_PROPOSAL, self.proposal_from, -1
        pool.publish(self.table, self.ids, computed)
        # Blocks that only refused tokens reached are of more use to others.
        self.table.trim(self.length)
