import json
import re
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.system.command import Command, all_gone
from tests.system.services import Toys
from tests.toy import make_toy

STOPS_WITHIN_S = 5.0
SERVICES = ("target", "draft", "router")


def arguments(toys: Toys, *more: str) -> list[str]:
    models = ["--target-model", str(toys.target), "--draft-model", str(toys.draft)]
    return ["up", *models, "--dtype", "float32", "--threads", "1", *(more or ("--port", "0"))]


def wait_ready(up: Command) -> dict[str, str]:
    """Addresses by service, from the lines that say so."""
    up.wait_line("^try: ssd chat")
    lines = (re.fullmatch(r"(\w+) +ready at (\S+:\d+)", line) for line in up.out)
    return {match[1]: match[2] for match in lines if match}


def test_up_prints_a_line_for_each_service_and_ctrl_c_ends_all_in_time(toys: Toys) -> None:
    with Command(*arguments(toys)) as up:
        addresses = wait_ready(up)
        assert sorted(addresses) == sorted(SERVICES)
        assert len(up.out) == 4
        children = up.children()
        assert len(children) == 3
        begun = time.monotonic()
        up.interrupt()
        assert up.wait_end() == 0
        assert time.monotonic() - begun < STOPS_WITHIN_S
        assert all_gone(children, 0.1)


def test_generate_works_against_up_and_all_modes_agree(toys: Toys) -> None:
    with Command(*arguments(toys)) as up:
        address = wait_ready(up)["router"]
        ids = []
        for mode in ("ar", "sd", "ssd"):
            options = ["--mode", mode, "--temperature", "0.8", "--seed", "11", "--max-tokens", "40", "--json"]
            with Command("generate", "hello", "--address", address, *options) as generate:
                assert generate.wait_end() == 0, generate.transcript()
                answer = json.loads(generate.out[0])
            assert answer["usage"]["mode"] == mode
            assert answer["usage"]["completion_tokens"] == len(answer["ids"]) > 0
            ids.append(answer["ids"])
        assert ids[0] == ids[1] == ids[2]


def test_a_trace_shows_what_each_service_did(toys: Toys, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    with Command(*arguments(toys, "--port", "0", "--trace", str(file))) as up:
        options = ["--address", wait_ready(up)["router"], "--max-tokens", "400", "--ignore-eos", "--mode", "ssd"]
        with Command("generate", "hello", *options) as generate:
            assert generate.wait_end() == 0, generate.transcript()
        up.interrupt()
        assert up.wait_end() == 0
    with Command("bench", "trace", "merge", str(file)) as merge:
        assert merge.wait_end() == 0, merge.transcript()
    events = json.loads(file.read_text())
    service = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    seen = {(service[one["pid"]], one["name"]) for one in events if one["ph"] != "M"}
    assert seen >= {("target", name) for name in ("step", "plan", "forward", "draw", "finish", "wait", "table")}
    assert seen >= {("draft", name) for name in ("trunk", "tree", "publish", "finish", "wait")}
    assert seen >= {("router", f"{way} {peer}") for way in ("from", "to") for peer in ("target", "draft")}


def test_ctrl_c_ends_all_in_time_while_an_answer_streams(toys: Toys) -> None:
    with Command(*arguments(toys)) as up:
        address = wait_ready(up)["router"]
        options = ["--raw", "--max-tokens", "900", "--ignore-eos"]
        with Command("generate", "x" * 40, "--address", address, *options) as generate:
            begun = time.monotonic()
            up.interrupt()
            assert up.wait_end() == 0, up.transcript()
            assert time.monotonic() - begun < STOPS_WITHIN_S
            generate.wait_end()
            assert "Traceback" not in generate.transcript()


@pytest.mark.parametrize("started", [1, 3])
def test_sigterm_while_starting_ends_all(toys: Toys, started: int) -> None:
    with Command(*arguments(toys, "--port", "0", "--verbose")) as up:
        deadline = time.monotonic() + 60
        while len(children := up.children()) < started and time.monotonic() < deadline:
            time.sleep(0.001)
        up.process.send_signal(signal.SIGTERM)
        assert up.wait_end(STOPS_WITHIN_S) == 0, up.transcript()
        assert all_gone(children, 0.1)


@pytest.mark.parametrize("victim", SERVICES)
def test_a_killed_child_ends_the_rest_and_is_named(toys: Toys, victim: str) -> None:
    with Command(*arguments(toys)) as up:
        wait_ready(up)
        children = up.children()
        up.child(victim).kill()
        assert up.wait_end(10) == 1
        assert f"the {victim} ended with signal 9 (SIGKILL)" in up.transcript()
        assert all_gone(children, 0.1)


def test_children_end_when_up_itself_is_killed(toys: Toys) -> None:
    with Command(*arguments(toys)) as up:
        wait_ready(up)
        children = up.children()
        up.process.kill()
        assert all_gone(children, 10)


def test_a_port_in_use_is_said_at_once(toys: Toys) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = str(held.getsockname()[1])
        with Command(*arguments(toys, "--port", port)) as up:
            assert up.wait_end() == 2
            assert up.err == [
                f"error: cannot listen on 127.0.0.1:{port} (router): address already in use; choose another with --port"
            ]


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_says_when_its_port_is_in_use(toys: Toys, service: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with Command(service, "--listen", address, "--model", str(toys.target)) as one:
            assert one.wait_end() == 2
            assert any(line.startswith("error: ") and address in line for line in one.err), one.transcript()
            assert "Traceback" not in one.transcript()


def test_a_missing_model_directory_is_named(toys: Toys, tmp_path: Path) -> None:
    missing = tmp_path / "not-there"
    with Command("up", "--port", "0", "--target-model", str(missing), "--draft-model", str(toys.draft)) as up:
        assert up.wait_end() == 2
        errors = [line for line in up.err if line.startswith("error: ")]
        assert len(errors) == 1
        assert str(missing) in errors[0]
        assert "Traceback" not in up.transcript()


def test_a_draft_with_another_tokenizer_is_refused_and_both_are_named(toys: Toys, tmp_path: Path) -> None:
    other = make_toy(tmp_path / "other", "llama", seed=5)
    vocabulary = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(vocabulary.replace("<|reserved_3|>", "<|something-else|>"))
    with Command(*arguments(Toys(toys.target, other))) as up:
        assert up.wait_end() not in (0, None)
        said = up.transcript()
        assert str(toys.target) in said
        assert str(other) in said
        assert "tokenizer" in said
        assert "Traceback" not in said


def test_without_a_draft_two_services_are_enough(toys: Toys) -> None:
    with Command("up", "--port", "0", "--target-model", str(toys.target), "--no-draft", "--threads", "1") as up:
        addresses = wait_ready(up)
        assert sorted(addresses) == ["router", "target"]
        with Command("generate", "hello", "--address", addresses["router"], "--max-tokens", "4") as generate:
            assert generate.wait_end() == 0, generate.transcript()
        up.interrupt()
        assert up.wait_end() == 0


def test_logs_and_configuration_are_kept_where_asked(toys: Toys, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Command(*arguments(toys, "--port", "0", "--log-dir", str(folder))) as up:
        wait_ready(up)
        up.interrupt()
        assert up.wait_end() == 0
    assert sorted(p.name for p in folder.iterdir()) == ["config.toml", "draft.log", "router.log", "target.log"]
    shutil.rmtree(folder)


def test_the_demo_compares_the_modes_and_exits_cleanly(toys: Toys) -> None:
    models = ["--target-model", str(toys.target), "--draft-model", str(toys.draft)]
    with Command("demo", *models, "--max-tokens", "24", "--threads", "1") as demo:
        assert demo.wait_end() == 0, demo.transcript()
        said = demo.transcript()
    assert "at temperature 0: identical in AR, SD and SSD for 3 of 3 prompts" in said
    assert "at temperature 0.8 with seed 1234: identical in AR, SD and SSD for 3 of 3 prompts" in said
    assert re.search(r"^SSD +0.8( +\S+)+$", said, re.M)
