"""Every value that cannot be honoured is refused with the name of its field."""

from __future__ import annotations

import math
import pickle

import pytest

from ssd.errors import FieldError
from ssd.speculation.params import SamplingParams

BAD = [
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", -0.1),
    ("temperature", 100.5),
    ("top_k", -1),
    ("top_p", 0.0),
    ("top_p", 1.01),
    ("top_p", math.nan),
    ("min_p", -0.01),
    ("min_p", 1.01),
    ("min_p", math.nan),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", 10.5),
    ("repetition_penalty", math.nan),
    ("presence_penalty", 2.1),
    ("presence_penalty", math.nan),
    ("frequency_penalty", -2.1),
    ("frequency_penalty", math.inf),
    ("logit_bias", ((100, 1.0),)),
    ("logit_bias", ((-1, 1.0),)),
    ("logit_bias", ((1, math.nan),)),
    ("logit_bias", ((1, -math.inf),)),
    ("logit_bias", ((1, 101.0),)),
    ("logit_bias", ((1, 1.0), (1, 2.0))),
    ("seed", -1),
    ("seed", 2**64),
    ("logprobs", -2),
    ("logprobs", 21),
    ("min_tokens", -1),
]


@pytest.mark.parametrize(("field", "value"), BAD)
def test_values_out_of_range_name_their_field(field, value):
    with pytest.raises(FieldError) as caught:
        SamplingParams(**{field: value}).validate(100)
    assert caught.value.field == field
    assert caught.value.message and str(caught.value).startswith(field)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.0, top_k=10**9, top_p=1e-9, min_p=1.0, seed=2**64 - 1, logprobs=20),
        SamplingParams(temperature=100.0, repetition_penalty=10.0, presence_penalty=-2.0, frequency_penalty=2.0),
        SamplingParams(logit_bias=((0, -100.0), (99, 100.0)), logprobs=0),
    ],
)
def test_the_ends_of_the_ranges_are_allowed(params):
    params.validate(100)


def test_field_errors_survive_a_process_boundary():
    error = pickle.loads(pickle.dumps(FieldError("top_p", "bad")))
    assert (error.field, error.message, str(error)) == ("top_p", "bad", "top_p: bad")
