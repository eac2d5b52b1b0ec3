"""The KV of one sequence's committed tokens and of the proposal after them."""

from collections.abc import Sequence

from ssd.runtime.blocks import BlockPool, BlockTable
from ssd.runtime.runner import RunRow


class Trunk:
    """Follows a text whose end may change: the longest part that stays the same keeps its KV, the rest is run again.

    `ids` are the tokens whose KV is written, from index 0. The last committed token is run anew each round because its
    logits are needed then; only what lies before it is ever published, so that no shared block is written.
    """

    def __init__(self, pool: BlockPool, committed: Sequence[int]) -> None:
        """Takes up what the prefix index knows of `committed`."""
        self.table = BlockTable(pool)
        self.ids: list[int] = []
        self._settled = 0
        self.restart(committed)

    def restart(self, committed: Sequence[int]) -> None:
        """Begin again with other committed tokens."""
        self.release()
        self._settled = self.table.share(committed)
        self.ids = list(committed[: self._settled])

    def release(self) -> None:
        """Give every block back."""
        self.table.release()
        self.ids = []
        self._settled = 0

    def follow(self, committed: Sequence[int], ahead: Sequence[int]) -> None:
        """Forget the KV from the first token on that is not of the text `committed` + `ahead`.

        `committed` must begin with what was committed at the last call: committed tokens never change.
        """
        text = [*committed[self._settled :], *ahead]
        written = self.ids[self._settled :]
        same = next((i for i, pair in enumerate(zip(written, text, strict=False)) if pair[0] != pair[1]), None)
        kept = min(len(written), len(text)) if same is None else same
        del self.ids[self._settled + kept :]
        self._settled = min(len(self.ids), len(committed))

    def row(self, committed: Sequence[int], ahead: Sequence[int], wanted: int, budget: int) -> RunRow | None:
        """The next tokens of `committed` + `ahead` to run, at most `budget` of them; None when the budget is too small.

        The last row of a text holds the `wanted` tokens whose logits are needed, all at once; rows before it (chunks of
        a prefill) have none. Call `follow` first.
        """
        total = len(committed) + len(ahead)
        first_wanted = total - wanted
        start = min(len(self.ids), first_wanted)
        if total - start <= budget:
            stop, logits = total, wanted
        else:
            stop, logits = min(start + budget, first_wanted), 0
        if stop <= start:
            return None
        ids = [*committed[start:stop], *ahead[max(0, start - len(committed)) : max(0, stop - len(committed))]]
        return RunRow(ids, start, self.table, logits)

    def wrote(self, row: RunRow, committed: Sequence[int]) -> None:
        """The row has been run: its KV is there, and full blocks of committed tokens may be shared."""
        del self.ids[row.start :]
        self.ids.extend(row.ids)
        self._settled = min(len(self.ids), len(committed))
        self.table.pool.publish(self.table, committed, min(self._settled, len(committed) - 1))
