"""Where a rank belongs is read from torchrun's variables, and what cannot be is refused with the setting's name."""

import re

import pytest

from ssd.config import DraftConfig, EngineConfig, TargetConfig, load
from ssd.errors import FieldError
from ssd.parallel.place import Place, device_of
from ssd.parallel.plan import Plan
from ssd.parallel.serving import place_of
from ssd.runtime.step_sizes import Demand
from tests.toy import make_toy

WHOLE = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"}


def test_torchruns_variables_make_a_place():
    place = Place.from_environment(WHOLE)
    assert place == Place(5, 8, 1, "10.0.0.7", 29500)
    assert Place.from_environment(place.environment) == place
    assert Place.from_environment({}) is None
    assert Place.from_environment(WHOLE | {"TORCHELASTIC_USE_AGENT_STORE": "True"}).torchrun_holds


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "8"}, "RANK: is 8, must be in 0..7"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR: is not set"),
        ({"MASTER_PORT": ""}, "MASTER_PORT: is ''"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE: is 'many'"),
        ({"RANK": "²"}, "RANK: is '²'"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT: is 99999, must be in 1..65535"),
        ({"SSD_RANK_PARENT": "me"}, "SSD_RANK_PARENT: is 'me'"),
    ],
)
def test_half_of_a_place_is_refused(change, message):
    with pytest.raises(FieldError, match=re.escape(message)):
        Place.from_environment(WHOLE | change)


def test_as_many_ranks_must_be_started_as_asked_for(monkeypatch):
    for name, value in WHOLE.items():
        monkeypatch.setenv(name, value)
    assert place_of(EngineConfig(tp=8)) == Place(5, 8, 1, "10.0.0.7", 29500)
    assert place_of(EngineConfig()) is None, "a model in one process asks nobody"
    with pytest.raises(FieldError, match=r"engine\.tp: is 4, but WORLD_SIZE is 8"):
        place_of(EngineConfig(tp=4))


def test_ranks_run_on_gpus_in_a_row():
    assert [device_of("cuda", rank) for rank in range(2)] == ["cuda:0", "cuda:1"]
    assert [device_of("cuda:4", rank) for rank in range(2)] == ["cuda:4", "cuda:5"]
    assert device_of("cpu", 3) == "cpu"


@pytest.mark.parametrize(
    ("kind", "engine", "message"),
    [
        (TargetConfig, {"tp": 0}, "target.engine.tp: is 0, must be in 1..8"),
        (TargetConfig, {"tp": 9}, "target.engine.tp: is 9, must be in 1..8"),
        (DraftConfig, {"tp": 4}, "draft.engine.tp: is 4, must be in 1..2 for a draft"),
        (TargetConfig, {"all_reduce": "one_shot"}, "target.engine.all_reduce: one_shot is for GPUs"),
        (TargetConfig, {"tp": 2, "compile": "on"}, "target.engine.compile: is for one rank; tp is 2"),
        (TargetConfig, {"rank_silence_s": 0}, "target.engine.rank_silence_s: is 0.0, must be a positive"),
    ],
)
def test_settings_that_cannot_be_are_refused(kind, engine, message):
    section = message.partition(".")[0]
    with pytest.raises(FieldError, match=re.escape(message)):
        load(kind, section, environment={}, overrides={"engine": engine})


def test_a_model_that_cannot_be_split_is_refused(tmp_path):
    directory = make_toy(tmp_path / "toy")
    with pytest.raises(
        FieldError, match=r"engine\.tp: is 3, but toy: attention heads = 4 cannot be split over 3 ranks"
    ):
        Plan(directory, EngineConfig(tp=3), Demand()).check()
    with pytest.raises(
        FieldError, match=r"engine\.tp: is 8, but toy: attention heads = 4 cannot be split over 8 ranks"
    ):
        Plan(directory, EngineConfig(tp=8), Demand()).check()
    Plan(directory, EngineConfig(tp=4), Demand()).check()


def test_a_plan_survives_the_journey(tmp_path):
    plan = Plan(tmp_path, EngineConfig(tp=2, device="cuda", kv_tokens=512), Demand(chain=3), True, tmp_path / "lender")
    assert Plan.from_json(plan.to_json()) == plan
    assert Plan.from_json(Plan(tmp_path, EngineConfig(), Demand()).to_json()) == Plan(
        tmp_path, EngineConfig(), Demand()
    )


def test_a_model_with_other_files_at_the_same_path_is_refused(tmp_path):
    directory = make_toy(tmp_path / "toy")
    text = Plan(directory, EngineConfig(tp=2), Demand()).to_json()
    assert Plan.from_json(text).directory == directory
    make_toy(directory, layers=2)
    with pytest.raises(FieldError, match=re.escape(f"model: {directory} is not the same here as for rank 0")):
        Plan.from_json(text)
