"""The configuration tree: sources, precedence, and errors that name the field."""

import dataclasses

import pytest

from ssd.config import DraftConfig, EngineConfig, RouterConfig, TargetConfig, load
from ssd.errors import FieldError


def test_defaults_hold_when_nothing_is_given():
    assert load(TargetConfig, "target", environment={}) == TargetConfig()


def test_command_line_beats_environment_beats_file(tmp_path):
    file = tmp_path / "ssd.toml"
    file.write_text('[target]\nlisten = "127.0.0.1:1"\nmax_k = 3\n[target.engine]\nthreads = 1\nblock_size = 8\n')
    config = load(
        TargetConfig,
        "target",
        file=file,
        environment={"SSD_TARGET_MAX_K": "5", "SSD_TARGET_ENGINE_THREADS": "2"},
        overrides={"max_k": 7, "listen": None, "engine": {"dtype": "float32", "threads": None}},
    )
    assert config.listen == "127.0.0.1:1"
    assert config.max_k == 7
    assert config.engine == EngineConfig(threads=2, block_size=8, dtype="float32")


def test_lists_come_from_toml_arrays_and_comma_separated_environment(tmp_path):
    file = tmp_path / "ssd.toml"
    file.write_text('[router]\ntargets = ["a:1", "b:2"]\n')
    assert load(RouterConfig, "router", file=file, environment={}).targets == ("a:1", "b:2")
    environment = {"SSD_ROUTER_DRAFTS": "c:3, d:4"}
    assert load(RouterConfig, "router", environment=environment).drafts == ("c:3", "d:4")
    assert load(RouterConfig, "router", environment={"SSD_ROUTER_DRAFTS": ""}).drafts == ()


@pytest.mark.parametrize(
    ("kind", "section", "overrides", "field"),
    [
        (TargetConfig, "target", {"listen": "nowhere"}, "target.listen"),
        (TargetConfig, "target", {"listen": "localhost:70000"}, "target.listen"),
        (TargetConfig, "target", {"proposal_wait_s": 0.0}, "target.proposal_wait_s"),
        (TargetConfig, "target", {"proposal_wait_s": -1.0}, "target.proposal_wait_s"),
        (TargetConfig, "target", {"proposal_wait_s": float("nan")}, "target.proposal_wait_s"),
        (TargetConfig, "target", {"engine": {"dtype": "int8"}}, "target.engine.dtype"),
        (TargetConfig, "target", {"engine": {"token_budget": 0}}, "target.engine.token_budget"),
        (TargetConfig, "target", {"engine": {"threads": "many"}}, "target.engine.threads"),
        (TargetConfig, "target", {"engine": {"block_size": 1.5}}, "target.engine.block_size"),
        (TargetConfig, "target", {"colour": "red"}, "target.colour"),
        (DraftConfig, "draft", {"max_branches": 0}, "draft.max_branches"),
        (RouterConfig, "router", {"targets": []}, "router.targets"),
        (RouterConfig, "router", {"mode": "fast"}, "router.mode"),
        (RouterConfig, "router", {"fan_out": 20}, "router.fan_out"),
        (RouterConfig, "router", {"peer_timeout_s": 0.1}, "router.peer_timeout_s"),
    ],
)
def test_bad_values_are_refused_with_the_field_named(kind, section, overrides, field):
    with pytest.raises(FieldError) as caught:
        load(kind, section, environment={}, overrides=overrides)
    assert caught.value.field == field


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(FieldError, match="no such file"):
        load(TargetConfig, "target", file=tmp_path / "absent.toml", environment={})
    broken = tmp_path / "broken.toml"
    broken.write_text("[target\n")
    with pytest.raises(FieldError, match="broken.toml"):
        load(TargetConfig, "target", file=broken, environment={})


def test_a_value_where_a_table_belongs_is_refused(tmp_path):
    file = tmp_path / "ssd.toml"
    file.write_text("target = 3\n")
    with pytest.raises(FieldError) as caught:
        load(TargetConfig, "target", file=file, environment={})
    assert caught.value.field == "target"
    with pytest.raises(FieldError) as caught:
        load(TargetConfig, "target", environment={}, overrides={"engine": 3})
    assert caught.value.field == "target.engine"


def test_configs_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TargetConfig().max_k = 3  # type: ignore[misc]


def test_the_tensor_plane_is_one_that_exists_and_meets_beside_the_target():
    with pytest.raises(FieldError, match="tensor_plane"):
        RouterConfig(tensor_plane="carrier pigeon")
    with pytest.raises(FieldError, match="plane_limit_s"):
        RouterConfig(plane_limit_s=0.0)
    with pytest.raises(FieldError, match="plane_listen"):
        TargetConfig(plane_listen="nowhere")
    assert TargetConfig(listen="10.0.0.3:50052").plane_address == "10.0.0.3:0"
    assert TargetConfig(plane_listen="0.0.0.0:6000").plane_address == "0.0.0.0:6000"


def test_an_unknown_variable_is_named_unless_kubernetes_sets_it():
    environment = {"SSD_ROUTER_MOED": "ar"}
    with pytest.raises(FieldError, match=r"SSD_ROUTER_MOED: no such setting; there are SSD_ROUTER_LISTEN"):
        load(RouterConfig, "router", environment=environment)
    with pytest.raises(FieldError, match="SSD_TARGET_ENGINE_TREADS: no such setting"):
        load(TargetConfig, "target", environment={"SSD_TARGET_ENGINE_TREADS": "2"})
    pods = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_GRPC", "PORT", "PORT_50051_TCP", "PORT_50051_TCP_ADDR")
    assert load(RouterConfig, "router", environment={f"SSD_ROUTER_{name}": "x" for name in pods}) == RouterConfig()
