"""From logits to ranked candidates, for a batch of rows of any sequences."""

from collections.abc import Sequence

from torch import Tensor

from ssd.speculation.sampling import DrawRow, top_candidates


def ranked(logits: Tensor, rows: Sequence[DrawRow], count: int, vocab: int) -> list[list[int]]:
    """The `count` best ids of each row [N][count], the first being the row's own draw; fewer if `vocab` has fewer.

    logits [N, V >= vocab]; ids from `vocab` on are padding of the embedding and never drawn. A row that cannot be drawn
    from (its parameters drive a logit out of range) gets an empty list, and the other rows get theirs.
    """
    common = logits[:, :vocab]
    count = min(count, common.shape[1])
    try:
        return top_candidates(common, rows, count).tolist()
    except ValueError:
        if len(rows) == 1:
            return [[]]
    return [ranked(common[i : i + 1], [row], count, vocab)[0] for i, row in enumerate(rows)]
