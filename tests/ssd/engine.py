"""A small engine around ModelRunner for tests: one cache, one pool, greedy generation in any mixture of rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ssd.layers.attention_torch import TorchAttention
from ssd.models.loader import LoadedModel, load_model
from ssd.runtime.blocks import BlockPool, BlockTable
from ssd.runtime.kv_cache import KVCache
from ssd.runtime.runner import ModelRunner, RunRow


class Engine:
    def __init__(self, loaded: LoadedModel, *, blocks: int = 128, block_size: int = 16) -> None:
        self.loaded = loaded
        self.pool = BlockPool(blocks, block_size)
        self.kv = KVCache.allocate(loaded, blocks=blocks, block_size=block_size)
        backend = TorchAttention(deterministic=loaded.deterministic)
        self.runner = ModelRunner(loaded.model, loaded.config, self.kv, backend)

    @classmethod
    def load(cls, path: Path, *, blocks: int = 128, block_size: int = 16, **options: Any) -> "Engine":
        return cls(load_model(path, **options), blocks=blocks, block_size=block_size)

    def table(self, length: int) -> BlockTable:
        table = BlockTable(self.pool)
        table.ensure(length)
        return table

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Logits of every token of one sequence, run in one piece: [T, vocab]."""
        table = self.table(len(ids))
        logits = self.runner.run([RunRow(list(ids), 0, table, len(ids))])
        table.release()
        return logits

    def generate(self, prompts: Sequence[Sequence[int]], count: int, *, chunk: int = 16) -> list[list[int]]:
        """Greedy continuations of `count` tokens; prompts are prefilled in chunks beside rows that already decode."""
        ids = [list(prompt) for prompt in prompts]
        tables = [self.table(len(prompt) + count) for prompt in prompts]
        computed = [0] * len(ids)
        while live := [i for i in range(len(ids)) if len(ids[i]) < len(prompts[i]) + count]:
            ends = {i: min(len(ids[i]), computed[i] + chunk) for i in live}
            rows = [RunRow(ids[i][computed[i] : ends[i]], computed[i], tables[i]) for i in live]
            drawn = self.runner.run(rows).argmax(-1).tolist()
            for i, token in zip(live, drawn, strict=True):
                computed[i] = ends[i]
                if computed[i] == len(ids[i]):
                    ids[i].append(token)
        for table in tables:
            table.release()
        return [tokens[len(prompt) :] for tokens, prompt in zip(ids, prompts, strict=True)]


def random_ids(count: int, seed: int, vocab: int = 256) -> list[int]:
    return torch.randint(vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
