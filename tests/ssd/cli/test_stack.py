import socket
from pathlib import Path

import pytest

from ssd import config
from ssd.cli import stack as stacks
from ssd.cli.errors import CliError
from ssd.cli.stack import StackOptions
from ssd.config import DraftConfig, RouterConfig, TargetConfig
from ssd.errors import FieldError


def test_the_written_file_reads_back_as_the_same_configurations(tmp_path: Path) -> None:
    stack = stacks.build(StackOptions(port=0, target_model='odd "name"\\ü', dtype="float64", deterministic=True, k=3))
    file = tmp_path / "config.toml"
    stacks.write(stack, file)
    assert config.load(TargetConfig, "target", file=file, environment={}) == stack.target
    assert config.load(DraftConfig, "draft", file=file, environment={}) == stack.draft
    assert config.load(RouterConfig, "router", file=file, environment={}) == stack.router


def test_the_services_know_each_other() -> None:
    stack = stacks.build(StackOptions(port=0, target_model="some-model"))
    assert stack.draft is not None
    assert stack.router.targets == (stack.target.listen,)
    assert stack.router.drafts == (stack.draft.listen,)
    assert stack.router.model == stack.draft.target_model == "some-model"
    assert len({stack.target.listen, stack.draft.listen, stack.router.listen}) == 3


def test_without_a_draft_there_are_two_services(tmp_path: Path) -> None:
    stack = stacks.build(StackOptions(port=0, drafts=0))
    assert stack.router.drafts == ()
    assert [s.name for s in stacks.specs(stack, tmp_path / "config.toml")] == ["target", "router"]
    stacks.write(stack, tmp_path / "config.toml")
    assert config.load(RouterConfig, "router", file=tmp_path / "config.toml", environment={}) == stack.router


def test_several_drafts_share_a_table_of_settings_and_have_addresses_of_their_own(tmp_path: Path) -> None:
    stack = stacks.build(StackOptions(port=0, drafts=3))
    specs = stacks.specs(stack, tmp_path / "config.toml")
    assert [spec.name for spec in specs] == ["target", "draft", "draft2", "draft3", "router"]
    assert tuple(spec.address for spec in specs[1:4]) == stack.router.drafts
    assert len({spec.address for spec in specs}) == 5
    assert all(spec.command[-2:] == ("--listen", spec.address) for spec in specs[1:4])
    assert stack.router.drafts_per_sequence == 3


def test_threads_are_shared_between_target_and_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "cores", lambda: 2)
    assert stacks.build(StackOptions(port=0)).target.engine.threads == 1
    monkeypatch.setattr(stacks, "cores", lambda: 16)
    assert stacks.build(StackOptions(port=0)).target.engine.threads == 8
    shared = stacks.build(StackOptions(port=0, drafts=2))
    assert shared.draft is not None
    assert (shared.target.engine.threads, shared.draft.engine.threads) == (8, 4)
    assert stacks.build(StackOptions(port=0, threads=3)).target.engine.threads == 3


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[router]\nk = 2\nfan_out = 2\n[target.engine]\ndtype = "float64"\n')
    monkeypatch.setenv("SSD_ROUTER_K", "5")
    assert stacks.build(StackOptions(port=0, file=file)).router.k == 5
    stack = stacks.build(StackOptions(port=0, file=file, k=6))
    assert (stack.router.k, stack.router.fan_out, stack.target.engine.dtype) == (6, 2, "float64")


def test_children_do_not_see_settings_that_are_in_their_file_already() -> None:
    environment = {"SSD_ROUTER_K": "5", "SSD_TARGET_ENGINE_DTYPE": "float64", "SSD_CACHE": "/c", "PATH": "/bin"}
    assert stacks.child_environment(environment) == {"SSD_CACHE": "/c", "PATH": "/bin", "PYTHONUNBUFFERED": "1"}


def test_k_above_what_the_services_take_is_refused() -> None:
    with pytest.raises(FieldError, match=r"router\.k: is 17, above target\.max_k = 16"):
        stacks.build(StackOptions(port=0, k=17))


def test_a_port_in_use_is_refused_with_its_purpose() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        with pytest.raises(CliError, match=rf"127\.0\.0\.1:{port} \(router\): address already in use.*--port"):
            stacks.build(StackOptions(port=port))


def test_ports_past_the_last_one_are_refused() -> None:
    with pytest.raises(FieldError, match="65535"):
        stacks.build(StackOptions(port=65534))


@pytest.mark.parametrize(
    ("options", "field"),
    [({"fan_out_rule": "uniform", "budget": 9}, "budget"), ({"fan_out_rule": "measured", "fan_out": 3}, "fan_out")],
)
def test_a_number_that_the_fan_out_rule_does_not_use_is_refused(options: dict[str, object], field: str) -> None:
    with pytest.raises(FieldError, match="means nothing") as refused:
        stacks.build(StackOptions(port=0, **options))  # type: ignore[arg-type]
    assert refused.value.field == field


def test_a_budget_alone_means_the_measured_rule() -> None:
    assert stacks.build(StackOptions(port=0, budget=9)).router.fan_out_rule == "measured"
