"""A draft engine without IO, the slow reference it must agree with, and a target that only knows the truth."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from draft_service.engine import DraftEngine
from protos.ssd.v1 import draft_pb2, types_pb2
from ssd.config import DraftConfig, EngineConfig
from ssd.layers.attention_torch import TorchAttention
from ssd.models.loader import LoadedModel
from ssd.proto_convert import outcome_table, sampling_params, stop_rules
from ssd.runtime.blocks import BlockPool, BlockTable
from ssd.runtime.kv_cache import KVCache
from ssd.runtime.runner import ModelRunner, RunRow
from ssd.speculation.outcomes import OutcomeTable
from ssd.speculation.sampling import TokenHistory, row_after, top_candidates
from ssd.tensor_plane.planes import LawSender

BLOCK = 4
STREAM = 1


def make_engine(
    loaded: LoadedModel, *, blocks: int = 256, planes: LawSender | None = None, **engine: int
) -> DraftEngine:
    """A draft over this model; keyword arguments are engine settings, `max_branches` and `max_k`."""
    own = {name: engine.pop(name) for name in ("max_branches", "max_k") if name in engine}
    config = DraftConfig(engine=EngineConfig(block_size=BLOCK, kv_tokens=blocks * BLOCK, **engine), **own)
    pool = BlockPool(blocks, BLOCK)
    return DraftEngine(make_runner(loaded, blocks), pool, loaded.config, config, types_pb2.ModelInfo(), planes=planes)


def make_runner(loaded: LoadedModel, blocks: int) -> ModelRunner:
    kv = KVCache.allocate(loaded, blocks=blocks, block_size=BLOCK)
    return ModelRunner(loaded.model, loaded.config, kv, TorchAttention())


@dataclass
class Request:
    """What a sequence is opened with."""

    prompt: tuple[int, ...]
    sampling: dict = field(default_factory=dict)
    limits: dict = field(default_factory=dict)
    k: int = 4
    fan_out: int | types_pb2.FanOut = 2
    mode: types_pb2.Mode = types_pb2.MODE_SSD
    more: dict = field(default_factory=dict)  # further fields of the open

    def message(self, sequence: int = 1, output: Sequence[int] = (), *, need: bool = False) -> draft_pb2.DraftOpen:
        return draft_pb2.DraftOpen(
            sequence=sequence,
            ids=[*self.prompt, *output],
            prompt_len=len(self.prompt),
            sampling=self.parameters,
            limits=self.token_limits,
            mode=self.mode,
            k=self.k,
            fan_out=uniform(self.fan_out) if isinstance(self.fan_out, int) else self.fan_out,
            need_proposal=need,
            **self.more,
        )

    @property
    def parameters(self) -> types_pb2.SamplingParameters:
        return types_pb2.SamplingParameters(**({"temperature": 0.0, "seed": 7} | self.sampling))

    @property
    def token_limits(self) -> types_pb2.TokenLimits:
        return types_pb2.TokenLimits(**({"max_tokens": 200, "ignore_eos": True} | self.limits))


def uniform(fan_out: int) -> types_pb2.FanOut:
    return types_pb2.FanOut(rule=types_pb2.FAN_OUT_RULE_UNIFORM, fan_out=fan_out)


class Reference:
    """Plain sequential drafting: one whole forward without any cache for every token."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.config = loaded.config
        self.pool = BlockPool(256, BLOCK)
        self.runner = make_runner(loaded, 256)
        self._known: dict[tuple, list[int]] = {}

    def candidates(self, request: Request, ids: Sequence[int], count: int = 8) -> list[int]:
        """Ranked ids for the token after `ids` (prompt included); the first one is drawn."""
        key = (
            request.parameters.SerializeToString(),
            request.token_limits.SerializeToString(),
            request.prompt,
            tuple(ids),
        )
        if len(self._known.get(key, ())) < count:
            self._known[key] = self._compute(request, ids, count)
        return self._known[key][:count]

    def _compute(self, request: Request, ids: Sequence[int], count: int) -> list[int]:
        rules = self.rules(request)
        vocab = self.config.vocab_size
        params = sampling_params(request.parameters, vocab_size=vocab, min_tokens=rules.min_tokens)
        table = BlockTable(self.pool)
        table.ensure(len(ids))
        logits = self.runner.run([RunRow(list(ids), 0, table, 1)])
        table.release()
        history = TokenHistory(ids[: len(request.prompt)], ids[len(request.prompt) :])
        with torch.inference_mode():
            return top_candidates(logits, [row_after(params, history, (), rules)], count)[0].tolist()

    def rules(self, request: Request):
        prompt_len = len(request.prompt)
        vocab, eos_ids = self.config.vocab_size, self.config.eos_ids
        return stop_rules(request.token_limits, eos_ids=eos_ids, vocab_size=vocab, prompt_len=prompt_len)

    def continuation(self, request: Request, ids: Sequence[int], count: int) -> tuple[int, ...]:
        """`count` tokens after `ids`, fewer where the generation ends."""
        text, ending = list(ids), self.rules(request).ending_ids
        while len(text) < len(ids) + count and (len(text) == len(ids) or text[-1] not in ending):
            text.append(self.candidates(request, text)[0])
        return tuple(text[len(ids) :])


class Wire:
    """One stream to an engine; what it answered is kept, by kind."""

    def __init__(self, engine: DraftEngine, stream: int = STREAM) -> None:
        self.engine = engine
        self.stream = stream
        self.tables: list[OutcomeTable] = []
        self.table_messages: list[types_pb2.OutcomeTable] = []
        self.proposals: list[types_pb2.Proposal] = []
        self.refused: list[types_pb2.Refused] = []
        self.need_resync: list[draft_pb2.NeedResync] = []
        self.closed: list[int] = []

    def send(self, **fields) -> None:
        self.engine.handle(self.stream, draft_pb2.DraftServiceServeRequest(**fields))

    def open(self, request: Request, sequence: int = 1, output: Sequence[int] = (), *, need: bool = False) -> None:
        self.send(opens=[request.message(sequence, output, need=need)])

    def advance(
        self, base_len: int, ids: Sequence[int], sequence: int = 1, *, need: bool = False, depth: int = 0, **more
    ) -> None:
        """`more`: further fields of the message."""
        self.send(
            advances=[
                draft_pb2.Advance(
                    sequence=sequence, base_len=base_len, ids=ids, need_proposal=need, next_depth=depth, **more
                )
            ]
        )

    def resync(self, ids: Sequence[int], sequence: int = 1, *, need: bool = False) -> None:
        self.send(resyncs=[draft_pb2.Resync(sequence=sequence, ids=ids, need_proposal=need)])

    def step(self) -> bool:
        """One step, if the engine wants one; the books are checked after it."""
        if self.engine.wake_at(0.0) is None:
            return False
        before = self.engine.load().steps
        responses = self.engine.step(0.0)
        assert self.engine.load().steps - before <= 1
        self.engine.check()
        if (response := responses.get(self.stream)) is not None:
            self.take(response)
        return True

    def take(self, response: draft_pb2.DraftServiceServeResponse) -> None:
        """Keep what the engine says."""
        vocab = self.engine.limits.vocab_size
        self.table_messages.extend(response.tables)
        self.tables.extend(outcome_table(table, vocab_size=vocab) for table in response.tables)
        self.proposals.extend(response.proposals)
        self.refused.extend(response.refused)
        self.need_resync.extend(response.need_resync)
        self.closed.extend(response.closed)

    def run(self, most: int = 2000) -> None:
        """Steps until there is nothing to do."""
        for _ in range(most):
            if not self.step():
                return
        raise AssertionError(f"the engine is still busy after {most} steps")


@dataclass
class Tally:
    """What a target that draws the reference's own tokens made of a draft."""

    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    hits: int = 0


def serve_truth(wire: Wire, request: Request, truth: Sequence[int], *, steps_a_round: int | None = None) -> Tally:
    """Verify what the draft says against `truth`, the tokens after the prompt, until they are used up.

    steps_a_round: how far the draft gets while the target verifies; None = as far as it likes.
    """
    tally, base, in_flight = Tally(), len(request.prompt), ()
    wire.open(request)
    while base + request.k + 1 <= len(request.prompt) + len(truth):
        for _ in range(2000 if steps_a_round is None else steps_a_round):
            if not wire.step():
                break
        ahead = truth[base - len(request.prompt) :]
        accepted = common_prefix(in_flight, ahead)
        emitted = ahead[: accepted + 1]
        tally.rounds += 1
        tally.proposed += len(in_flight)
        tally.accepted += accepted
        answers = [table.lookup(emitted) for table in wire.tables if table.base_len == base]
        found = max((answer for answer in answers if answer), key=len, default=())
        if found:
            tally.hits += 1
            wire.advance(base, emitted, depth=len(found))
        else:
            wire.advance(base, emitted, need=True)
            while not any(proposal.base_len == base + len(emitted) for proposal in wire.proposals):
                assert wire.step(), "the draft owes a proposal and does nothing"
            found = tuple(wire.proposals[-1].ids)
        base, in_flight = base + len(emitted), found
    return tally


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    pairs = zip(one, other, strict=False)
    return next((i for i, pair in enumerate(pairs) if pair[0] != pair[1]), min(len(one), len(other)))
