"""What lies between two steps that follow one another on the device: each token's draw is the next token of its row or
branch, one position further on.

`there` are a step's inputs on the device by name (int64; see ssd.runtime.static_step), changed in place. `results`
[chain, T, count] int64 holds the ids drawn at each step, best first; there["step"] [1] says at which the last ones are.
"""

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Protocol

import torch

NOWHERE = -1
"""The slot of a token that is not written."""
Inputs = Mapping[str, torch.Tensor]


class Advance(Protocol):
    """Can be captured in a CUDA graph, and waits for nothing."""

    def rows(self, there: Inputs, results: torch.Tensor, block_size: int, last_position: int) -> None:
        """One token to each row; tables [T, width]. Rows without a slot stay without, those of length 0 too."""
        ...

    def branches(self, there: Inputs, results: torch.Tensor, last_position: int) -> None:
        """suffix_slots [T, depth]. A branch without a slot for its next token is complete: it goes on for nobody, and
        writes nowhere."""
        ...


class TorchAdvance:
    """Reference, on any device."""

    def rows(self, there: Inputs, results: torch.Tensor, block_size: int, last_position: int) -> None:
        self._tokens(there, results, last_position)
        positions = there["positions"]
        held = (positions // block_size).clamp(max=there["tables"].shape[1] - 1)
        blocks = there["tables"].gather(1, held[:, None])[:, 0]
        slots = blocks * block_size + positions % block_size
        there["slots"].copy_(torch.where(there["slots"] < 0, NOWHERE, slots))
        lens = there["context_lens"]
        lens.copy_(torch.where(lens > 0, positions + 1, 0))

    def branches(self, there: Inputs, results: torch.Tensor, last_position: int) -> None:
        self._tokens(there, results, last_position)
        grown, held = there["suffix_len"] + 1, there["slots_held"]
        there["suffix_len"].copy_(torch.minimum(grown, held))
        newest = (there["suffix_len"] - 1).clamp(min=0)
        slots = there["suffix_slots"].gather(1, newest[:, None])[:, 0]
        there["slots"].copy_(torch.where(grown <= held, slots, NOWHERE))

    def _tokens(self, there: Inputs, results: torch.Tensor, last_position: int) -> None:
        drawn = results.index_select(0, there["step"])[0, :, 0]
        # What cannot be drawn ends the row on the host; until then any token will do.
        there["ids"].copy_(drawn.clamp(min=0))
        there["positions"].copy_((there["positions"] + 1).clamp(max=last_position))
        there["draw_positions"].add_(1)
        there["step"].add_(1)


def advance_on(device: torch.device) -> Advance:
    """One kernel on a GPU that has Triton, torch elsewhere."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return TorchAdvance()
    # Only now: Triton is not installed everywhere.
    kernels: Advance = importlib.import_module("ssd.kernels.advance").TritonAdvance()
    return kernels
