"""One sequence on the target: its tokens, how much of their KV is computed, and the proposal that comes next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protos.ssd.v1 import types_pb2
from ssd.runtime.blocks import BlockPool, BlockTable
from ssd.speculation.finish import StopRules
from ssd.speculation.sampling import DrawRow, SamplingParams, TokenHistory, block_rows
from target_service.patience import Patience


@dataclass(frozen=True, slots=True)
class Terms:
    """What a sequence was opened with."""

    params: SamplingParams
    rules: StopRules
    prompt_len: int
    mode: types_pb2.Mode
    k: int


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
    computed: int = 0  # tokens whose KV is in the table
    proposal: tuple[int, ...] = ()  # to be verified next, after the last of ids
    cached_tokens: int | None = None  # prompt tokens found in the prefix index when it first ran; None = has not run
    rounds: int = 0
    last_step: int = 0
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

    def draw_rows(self, proposal: tuple[int, ...]) -> list[DrawRow]:
        """One row for each token drawn when `proposal` is verified."""
        return block_rows(self.terms.params, self.history, proposal, self.terms.rules)

    def start(self) -> None:
        """Take up what the prefix index knows of the tokens."""
        self.computed = self.table.share(self.ids)

    def runs_in(self, step: int) -> None:
        """The step with this number has a row of the sequence."""
        self.last_step = step
        self.patience.end()
        if self.cached_tokens is None:
            self.cached_tokens = min(self.computed, self.terms.prompt_len)

    def set_back(self) -> None:
        """Give all blocks back and keep all tokens; their KV is computed again later."""
        self.table.release()
        self.computed = 0
        self.proposal = ()
        self.patience.end()

    def set_drafting(self, drafting: bool) -> None:
        """Whether a draft serves the sequence at the moment; a new one gets its chance."""
        self.drafting = drafting
        self.patience.timeouts = 0
        if not drafting:
            self.patience.end()

    def propose(self, ids: tuple[int, ...]) -> None:
        """Verify `ids` next, as far as they are wanted."""
        self.proposal = ids[: self.appetite]
        self.patience.answered()

    def advance(self, pool: BlockPool, computed: int, emitted: Sequence[int] = ()) -> None:
        """Commit `emitted`; the KV of the first `computed` committed tokens is now written."""
        self.ids.extend(emitted)
        self.history.extend(emitted)
        self.computed = computed
        self.proposal = ()
        pool.publish(self.table, self.ids, computed)
        # Blocks that only refused tokens reached are of more use to others.
        self.table.trim(self.length)
