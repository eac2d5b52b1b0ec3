"""An engine on a bench: a fake clock, a model whose next token depends on every token that its KV cache really holds,
and the plain loop that any run must equal."""

import zlib
from collections.abc import Sequence

import numpy as np
import torch

from protos.ssd.v1 import target_pb2, types_pb2
from ssd.config import EngineConfig, TargetConfig
from ssd.models.config import ModelConfig
from ssd.proto_convert import proposal_message, sampling_params, stop_rules
from ssd.runtime.blocks import BlockPool
from ssd.speculation.finish import FinishReason, cut
from ssd.speculation.law import SparseLaw
from ssd.speculation.proposal import Proposal
from ssd.speculation.sampling import Draw, TokenHistory, draw, row_after
from ssd.tensor_plane.planes import LawReceiver
from target_service.engine import TargetEngine

AR, SD, SSD, AUTO = types_pb2.MODE_AR, types_pb2.MODE_SD, types_pb2.MODE_SSD, types_pb2.MODE_AUTO
VOCAB = 24
EOS = 23
MAX_POSITION = 256
STREAM = 1


def law(ids: Sequence[int], vocab: int = VOCAB) -> torch.Tensor:
    """Logits [vocab], float64, after these tokens: a fixed random function of all of them."""
    seed = zlib.crc32(np.asarray(ids, np.int64).tobytes())
    return torch.from_numpy(np.random.default_rng(seed).normal(scale=2.0, size=vocab))


class MemoryRunner:
    """Stands in for ModelRunner. Its KV cache remembers tokens, and logits follow from what the row's slots hold, so a
    wrong slot, a stale block or a missing prefill shows as another token."""

    draws = False

    def __init__(self, blocks: int, block_size: int) -> None:
        self.slots = [-1] * (blocks * block_size)
        self.steps: list[list[tuple[int, int, int]]] = []  # (start, query tokens, logits) of each row of each step

    def run(self, rows):
        self.steps.append([(row.start, len(row.ids), row.logits) for row in rows])
        logits = []
        for row in rows:
            end = row.start + len(row.ids)
            for slot, token in zip(row.table.slots(row.start, end), row.ids, strict=True):
                self.slots[slot] = token
        for row in rows:
            end = row.start + len(row.ids)
            held = [self.slots[slot] for slot in row.table.slots(0, end)]
            logits += [law(held[:stop]) for stop in range(end - row.logits + 1, end + 1)]
        return torch.stack(logits) if logits else torch.empty((0, VOCAB), dtype=torch.float64)


def model_config(max_position: int = MAX_POSITION, eos: tuple[int, ...] = (EOS,)) -> ModelConfig:
    return ModelConfig.from_dict(
        {
            "model_type": "llama",
            "vocab_size": VOCAB,
            "hidden_size": 8,
            "intermediate_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "max_position_embeddings": max_position,
            "eos_token_id": list(eos),
        }
    )


def opening(
    sequence: int,
    ids: Sequence[int],
    *,
    mode: int = SSD,
    k: int = 4,
    drafting: bool = True,
    prompt_len: int | None = None,
    logprobs: int = -1,
    sampling: dict | None = None,
    rejection: bool = False,
    fallback: int = types_pb2.FALLBACK_UNSPECIFIED,
    **limits,
) -> target_pb2.TargetOpen:
    """A TargetOpen; greedy, 12 tokens and no EOS unless told otherwise."""
    return target_pb2.TargetOpen(
        sequence=sequence,
        ids=ids,
        prompt_len=len(ids) if prompt_len is None else prompt_len,
        sampling=types_pb2.SamplingParameters(**({"temperature": 0.0, "seed": 7} | (sampling or {}))),
        limits=types_pb2.TokenLimits(**({"max_tokens": 12, "ignore_eos": True} | limits)),
        logprobs=logprobs,
        mode=mode,
        k=k,
        drafting=drafting,
        verification=types_pb2.VERIFICATION_REJECTION if rejection else types_pb2.VERIFICATION_COUPLED,
        fallback=fallback,
    )


def plain(message: target_pb2.TargetOpen, context: int = MAX_POSITION) -> tuple[list[Draw], FinishReason | None]:
    """One token at a time, the whole text anew for each: what the sequence must give."""
    rules = stop_rules(message.limits, eos_ids=(EOS,), vocab_size=VOCAB, prompt_len=message.prompt_len, max_len=context)
    params = sampling_params(message.sampling, vocab_size=VOCAB, logprobs=message.logprobs, min_tokens=rules.min_tokens)
    ids, drawn = list(message.ids), []
    while True:
        history = TokenHistory(ids[: message.prompt_len], ids[message.prompt_len :])
        (one,) = draw(law(ids)[None], [row_after(params, history, (), rules)])
        end = cut([one.id], len(ids) - message.prompt_len, rules)
        drawn.append(one)
        ids.append(one.id)
        if end.reason is not None:
            return drawn, end.reason


def plain_ids(message: target_pb2.TargetOpen) -> list[int]:
    return [one.id for one in plain(message)[0]]


class Rig:
    """The engine, its pool and its clock; every step checks the books of the pool."""

    def __init__(
        self,
        *,
        blocks: int = 64,
        block_size: int = 4,
        budget: int = 512,
        max_sequences: int = 16,
        max_k: int = 8,
        wait_s: float = 1.0,
        max_context: int = 0,
        planes: LawReceiver | None = None,
    ) -> None:
        engine = EngineConfig(
            block_size=block_size,
            kv_tokens=blocks * block_size,
            token_budget=budget,
            max_sequences=max_sequences,
            max_context=max_context,
        )
        config = TargetConfig(max_k=max_k, proposal_wait_s=wait_s, engine=engine)
        self.budget = budget
        self.pool = BlockPool(blocks, block_size)
        self.runner = MemoryRunner(blocks, block_size)
        info = types_pb2.ModelInfo(name="bench")
        self.engine = TargetEngine(self.runner, self.pool, model_config(), config, info, planes=planes)
        self.now = 100.0
        self.outcomes: dict[int, list[target_pb2.StepOutcome]] = {}
        self.refused: dict[int, types_pb2.Refused] = {}
        self.closed: list[int] = []
        self.timings: list[target_pb2.StepTiming] = []

    def send(self, stream: int = STREAM, **fields) -> None:
        """Hand a request with these fields to the engine."""
        self.engine.handle(stream, target_pb2.TargetServiceServeRequest(**fields))

    def open(self, *messages: target_pb2.TargetOpen, stream: int = STREAM) -> None:
        self.send(stream, opens=messages)

    def propose(self, sequence: int, base_len: int, ids: Sequence[int], laws: Sequence[SparseLaw] = ()) -> None:
        made = Proposal(base_len, tuple(ids), tuple(laws))
        self.send(proposals=[proposal_message(sequence, made)])

    def table(self, sequence: int, base_len: int, proposal: Sequence[int], *branches: tuple) -> None:
        """branches: (accepted, id, ids[, rank])."""
        made = [types_pb2.Branch(accepted=k, id=token, ids=ids, rank=sum(rank)) for k, token, ids, *rank in branches]
        self.send(
            tables=[types_pb2.OutcomeTable(sequence=sequence, base_len=base_len, proposal=proposal, branches=made)]
        )

    def step(self, seconds: float = 0.0) -> list[target_pb2.StepOutcome]:
        """One step, `seconds` later; its outcomes."""
        self.now += seconds
        self.engine.begin(self.now)
        return self.finish()

    def finish(self, seconds: float = 0.0) -> list[target_pb2.StepOutcome]:
        """The end of a step that has begun, `seconds` later; its outcomes."""
        self.now += seconds
        responses = self.engine.finish(self.now)
        self.timings += [response.timing for response in responses.values() if response.HasField("timing")]
        self.pool.check(sequence.table for sequence in self.engine.roster.live.values())
        for rows in self.runner.steps[-1:]:
            assert sum(tokens for _, tokens, _ in rows) <= self.budget
        outcomes = []
        for response in responses.values():
            for outcome in response.outcomes:
                self.outcomes.setdefault(outcome.sequence, []).append(outcome)
                outcomes.append(outcome)
            self.refused |= {one.sequence: one for one in response.refused}
            self.closed += response.closed
        return outcomes

    def run(self, most: int = 2000) -> None:
        """Steps until nothing is left to do; the clock jumps to where the engine wants to be woken."""
        for _ in range(most):
            wake_at = self.engine.wake_at(self.now)
            if wake_at is None:
                return
            self.now = max(self.now, wake_at)
            self.step()
        raise AssertionError(f"not done after {most} steps")

    def ids(self, sequence: int) -> list[int]:
        """Everything emitted for a sequence, which must fit together without gap or overlap."""
        emitted: list[int] = []
        outcomes = self.outcomes.get(sequence, [])
        for before, after in zip(outcomes, outcomes[1:], strict=False):
            assert after.base_len == before.base_len + len(before.ids)
        for outcome in outcomes:
            assert outcome.finish or len(outcome.ids) == outcome.accepted + 1
            emitted += outcome.ids
        return emitted

    def last(self, sequence: int) -> target_pb2.StepOutcome:
        return self.outcomes[sequence][-1]
