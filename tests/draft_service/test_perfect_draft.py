"""A draft that equals its target must never be wrong: positions, noise, histories and branch attention all agree."""

import pytest

from ssd.models.loader import LoadedModel
from tests.draft_service.harness import Reference, Request, Wire, make_engine, serve_truth

PROMPTS = ((17, 4, 99, 250, 17, 31), tuple(range(60, 80)))
SAMPLING = {
    "plain": {},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.6},
    "filters": {"top_k": 30, "top_p": 0.92, "min_p": 0.01},
}
OUTPUT = 40


@pytest.mark.parametrize("prompt", PROMPTS, ids=["short", "long"])
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0, 1.5])
def test_everything_is_accepted_and_every_outcome_is_anticipated(
    wire: Wire, reference: Reference, temperature: float, sampling: str, prompt: tuple[int, ...]
) -> None:
    request = Request(prompt, {"temperature": temperature, "seed": 99, **SAMPLING[sampling]}, k=4, fan_out=1)
    tally = serve_truth(wire, request, reference.continuation(request, prompt, OUTPUT))
    assert tally.accepted == tally.proposed > 0
    assert tally.hits == tally.rounds >= OUTPUT // 5
    assert not wire.proposals and not wire.refused and not wire.need_resync


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_a_slow_draft_is_late_but_never_wrong(loaded: LoadedModel, reference: Reference, steps: int) -> None:
    request = Request(PROMPTS[0], {"temperature": 1.0}, k=4, fan_out=1)
    wire = Wire(make_engine(loaded))
    tally = serve_truth(wire, request, reference.continuation(request, request.prompt, OUTPUT), steps_a_round=steps)
    assert tally.accepted == tally.proposed
    assert (tally.hits == tally.rounds) == (steps >= 3), "root and two depths make the first half of a table"
