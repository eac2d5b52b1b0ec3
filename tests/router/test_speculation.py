"""SpeculationParameters as they are resolved: what is given, and the server's defaults for the rest."""

from dataclasses import replace

import pytest

from protos.ssd.v1 import inference_pb2, types_pb2
from router.plan import uniform
from router.speculation import check, defaults
from ssd.config import RouterConfig
from ssd.errors import FieldError

FanOut = types_pb2.FanOut
GEOMETRIC, MEASURED = types_pb2.FAN_OUT_RULE_GEOMETRIC, types_pb2.FAN_OUT_RULE_MEASURED
EXPLICIT = types_pb2.FAN_OUT_RULE_EXPLICIT
AUTO, SD = types_pb2.MODE_AUTO, types_pb2.MODE_SD
REJECTION = types_pb2.VERIFICATION_REJECTION


def resolved(config=None, max_k=8, max_branches=64, **fields):
    message = inference_pb2.SpeculationParameters(**fields)
    return check(message, config or RouterConfig(), max_k, max_branches)


def test_nothing_given_is_the_servers_defaults():
    found = resolved()
    assert (found.mode, found.k, found.fan_out, found.drafts) == (types_pb2.MODE_SSD, 4, uniform(3), 1)
    assert (found.verification, found.saguaro_c) == (types_pb2.VERIFICATION_COUPLED, 1.0)
    assert found.fallback == types_pb2.FALLBACK_AUTO


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (FanOut(fan_out=5), uniform(5)),
        (FanOut(rule=MEASURED), FanOut(rule=MEASURED, budget=16)),
        (FanOut(rule=MEASURED, budget=64), FanOut(rule=MEASURED, budget=64)),
        (FanOut(rule=GEOMETRIC, budget=9), FanOut(rule=GEOMETRIC, budget=9, acceptance=0.8, exponent=1.0)),
        (
            FanOut(rule=GEOMETRIC, acceptance=0.0, exponent=2.0),
            FanOut(rule=GEOMETRIC, budget=16, acceptance=0.0, exponent=2.0),
        ),
        (FanOut(rule=EXPLICIT, after_hit=[4, 0, 2]), FanOut(rule=EXPLICIT, after_hit=[4, 0, 2])),
    ],
)
def test_every_field_of_a_rule_is_resolved(given, expected):
    assert resolved(fan_out_rule=given).fan_out == expected


def test_sd_means_proposals_of_the_draft_unless_another_fallback_is_asked_for():
    assert resolved(RouterConfig(fallback="none"), mode=SD).fallback == types_pb2.FALLBACK_JIT
    assert resolved(mode=SD, fallback=types_pb2.FALLBACK_NGRAM).fallback == types_pb2.FALLBACK_NGRAM


def test_auto_is_bounded_by_the_request_or_by_the_server():
    assert (resolved(mode=AUTO).k, resolved(mode=AUTO).max_budget) == (8, 48)
    assert resolved(mode=AUTO, max_branches=20).max_budget == 20
    found = resolved(mode=AUTO, k=3, fan_out_rule=FanOut(budget=10))
    assert (found.k, found.max_budget, found.fan_out) == (3, 10, FanOut(rule=MEASURED, budget=10))
    assert resolved(RouterConfig(mode="auto"), fan_out_rule=FanOut(budget=10)).max_budget == 10


def test_saguaro_of_the_server_is_for_rejection_only():
    config = RouterConfig(verification="rejection", saguaro_c=0.5)
    assert resolved(config).saguaro_c == 0.5
    assert resolved(config, saguaro_c=0.0).saguaro_c == 0.0
    assert resolved(config, verification=types_pb2.VERIFICATION_COUPLED).saguaro_c == 1.0
    assert resolved(verification=REJECTION).saguaro_c == 1.0


def test_small_drafts_and_targets_bound_the_defaults():
    assert resolved(RouterConfig(fan_out_rule="measured"), max_branches=5).fan_out.budget == 5
    assert resolved(max_k=2).k == 2


@pytest.mark.parametrize(
    "config",
    [
        RouterConfig(),
        RouterConfig(mode="auto", fan_out_rule="measured", drafts_per_sequence=2),
        RouterConfig(verification="rejection", saguaro_c=0.25, fan_out_rule="geometric", fallback="none"),
    ],
)
def test_the_defaults_that_are_shown_are_those_that_are_used(config):
    shown = defaults(config, 8, 64)
    used, again = check(inference_pb2.SpeculationParameters(), config, 8, 64), check(shown, RouterConfig(), 8, 64)
    assert again == (used if used.mode != AUTO else replace(used, fan_out=again.fan_out))


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("mode", {"mode": "fast"}),
        ("verification", {"verification": "hope"}),
        ("fallback", {"fallback": "panic"}),
        ("fan_out_rule", {"fan_out_rule": "explicit"}),
        ("saguaro_c", {"saguaro_c": 0.5}),
        ("saguaro_c", {"verification": "rejection", "saguaro_c": 2.0}),
        ("budget", {"budget": 65}),
        ("auto_budget", {"auto_budget": 65}),
        ("drafts_per_sequence", {"drafts_per_sequence": 5}),
        ("fan_out_exponent", {"fan_out_exponent": 0.0}),
        ("metrics_listen", {"metrics_listen": "9090"}),
    ],
)
def test_bad_settings_of_the_server_are_named(field, values):
    with pytest.raises(FieldError) as caught:
        RouterConfig(**values)
    assert caught.value.field == field
