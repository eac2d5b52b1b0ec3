"""Drawn cases: requests, models and settings in every combination that must not matter to the output."""

from dataclasses import dataclass

from hypothesis import strategies as st

from protos.ssd.v1 import types_pb2
from router.plan import Plan, uniform
from tests import toy
from tests.world.build import UNRELATED
from tests.world.network import Chaos

AR, SD, SSD = types_pb2.MODE_AR, types_pb2.MODE_SD, types_pb2.MODE_SSD
BLOCK = 8


@dataclass(frozen=True)
class Request:
    """One generation, apart from its mode."""

    prompt: tuple[int, ...]
    sampling: types_pb2.SamplingParameters
    limits: types_pb2.TokenLimits
    logprobs: int
    stops: tuple[str, ...]
    k: int
    fan_out: int

    def plan(self, mode: types_pb2.Mode) -> Plan:
        return Plan(self.prompt, self.sampling, self.limits, self.logprobs, mode, self.k, uniform(self.fan_out))


@dataclass(frozen=True)
class Settings:
    """How a run is set up: nothing of it may show in the output."""

    token_budget: int
    spare_blocks: int  # KV room beyond what the largest request needs alone
    draft_blocks: int
    draft_step_s: float
    arrivals: tuple[int, ...]  # events that pass before each further request comes


@dataclass(frozen=True)
class Case:
    family: str
    noise: float
    requests: tuple[Request, ...]
    settings: tuple[Settings, ...]  # one for SD, one for SSD, one for SSD on a bad network
    chaos: Chaos
    seed: int


@st.composite
def _sampling(draw: st.DrawFn) -> types_pb2.SamplingParameters:
    message = types_pb2.SamplingParameters(
        temperature=draw(st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.5])), seed=draw(st.integers(0, 2**64 - 1))
    )
    if draw(st.booleans()):
        message.top_k = draw(st.sampled_from([1, 2, 5, 40]))
    if draw(st.booleans()):
        message.top_p = draw(st.sampled_from([0.1, 0.5, 0.9, 0.99]))
    if draw(st.integers(0, 3)) == 0:
        message.min_p = draw(st.sampled_from([0.01, 0.1, 0.5]))
    if draw(st.integers(0, 2)) == 0:
        message.repetition_penalty = draw(st.sampled_from([0.8, 1.3, 2.0]))
    if draw(st.integers(0, 2)) == 0:
        message.presence_penalty = draw(st.sampled_from([-1.0, 0.5, 2.0]))
    if draw(st.integers(0, 2)) == 0:
        message.frequency_penalty = draw(st.sampled_from([-0.5, 0.5, 2.0]))
    if draw(st.integers(0, 3)) == 0:
        for token in draw(st.lists(st.integers(0, toy.VOCAB - 1), max_size=3, unique=True)):
            message.logit_bias[token] = draw(st.sampled_from([-100.0, -2.0, 3.0]))
    return message


@st.composite
def _limits(draw: st.DrawFn) -> types_pb2.TokenLimits:
    most = draw(st.integers(1, 20))
    return types_pb2.TokenLimits(
        max_tokens=most,
        min_tokens=draw(st.sampled_from([0, 0, 0, 3, most])) if most > 3 else 0,
        ignore_eos=draw(st.booleans()),
        # Many stop ids, so that some lie inside an accepted block.
        stop_ids=draw(st.sampled_from([(), (), tuple(range(0, toy.VOCAB, 17)), tuple(range(3, toy.VOCAB, 41))])),
    )


@st.composite
def _request(draw: st.DrawFn, shared: tuple[int, ...]) -> Request:
    own = tuple(draw(st.lists(st.integers(0, toy.VOCAB - 1), min_size=1, max_size=12)))
    if draw(st.integers(0, 9)) == 0:
        own = (draw(st.integers(0, 255)),) * draw(st.integers(1, 48))  # one word over and over
    prompt = shared[: draw(st.integers(0, len(shared)))] + own
    # One- and two-character texts, so that a byte-level model completes them now and then, within and across tokens.
    letters = st.text(st.characters(min_codepoint=32, max_codepoint=0x24F), min_size=1, max_size=2)
    return Request(
        prompt=prompt,
        sampling=draw(_sampling()),
        limits=draw(_limits()),
        logprobs=draw(st.sampled_from([-1, 0, 3])),
        stops=tuple(draw(st.lists(letters, max_size=3))),
        k=draw(st.integers(1, 8)),
        fan_out=draw(st.integers(1, 5)),
    )


_settings = st.builds(
    Settings,
    token_budget=st.sampled_from([1, 2, 3, 7, 16, 64, 512]),
    spare_blocks=st.sampled_from([0, 0, 1, 3, 200]),
    draft_blocks=st.sampled_from([4, 12, 40, 400, 400]),
    draft_step_s=st.sampled_from([0.0005, 0.002, 0.004, 0.02, 0.2]),
    arrivals=st.tuples(*[st.sampled_from([0, 0, 5, 40])] * 4),
)

_chaos = st.builds(
    Chaos,
    lose=st.sampled_from([0.0, 0.05, 0.3, 0.9]),
    double=st.sampled_from([0.0, 0.2, 0.5]),
    delay=st.sampled_from([0.0, 0.01, 0.05, 0.5]),
)


@st.composite
def cases(draw: st.DrawFn, family: str) -> Case:
    shared = tuple(draw(st.lists(st.integers(0, toy.VOCAB - 1), max_size=24)))
    return Case(
        family=family,
        noise=draw(st.sampled_from([0.0, 0.0, 0.02, 0.02, 0.05, UNRELATED])),
        requests=tuple(draw(st.lists(_request(shared), min_size=1, max_size=3))),
        settings=draw(st.tuples(_settings, _settings, _settings)),
        chaos=draw(_chaos),
        seed=draw(st.integers(0, 2**32)),
    )
