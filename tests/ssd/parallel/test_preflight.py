"""Each thing that may be missing is said in a sentence of its own, and the doctor's exit status tells."""

import socket
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from ssd.cli.app import app
from ssd.config import EngineConfig
from ssd.errors import FieldError
from ssd.models.cache import cache_root, made_once
from ssd.parallel import findings, preflight
from ssd.parallel.findings import Findings, Gpu, look
from ssd.parallel.preflight import GIB, MIB, checks, require

H200 = Gpu("NVIDIA H200", 139 * GIB, 140 * GIB)
NODE = Findings(gpus=(H200,) * 5, shared_memory=32 * GIB, backends=("gloo", "nccl"), versions={"torch": "2.11"})
FOUR = EngineConfig(device="cuda", kv_tokens=1024, tp=4)


def failures(found, engine=FOUR):
    return [f"{check.name}: {check.message}" for check in checks(found, engine) if not check.ok]


def test_a_whole_node_passes():
    done = checks(NODE, FOUR)
    assert not failures(NODE)
    assert [check.name for check in done] == ["backends", "GPUs", *["memory"] * 4, "peer access", "shared memory"]
    assert done[1].message == "5 found, using cuda:0, cuda:1, cuda:2, cuda:3"


@pytest.mark.parametrize(
    ("found", "engine", "message"),
    [
        (replace(NODE, gpus=()), FOUR, "GPUs: torch finds no GPU, and 4 from cuda:0 on are asked for: lower tp"),
        (NODE, replace(FOUR, device="cuda:2"), "GPUs: torch finds 5 GPUs, and 4 from cuda:2 on are asked for"),
        (
            replace(NODE, gpus=(H200, replace(H200, free=GIB // 2), *[H200] * 2)),
            FOUR,
            "memory: cuda:1 (NVIDIA H200) has 0.5 of 140.0 GiB free: end the process that holds the rest",
        ),
        (
            replace(NODE, apart=((0, 3), (3, 0))),
            replace(FOUR, all_reduce="one_shot"),
            "peer access: cuda:0 and cuda:3 cannot reach each other's memory: use all_reduce = group",
        ),
        (replace(NODE, shared_memory=64 * MIB), FOUR, "shared memory: /dev/shm has 64 MiB, NCCL wants 256"),
        (replace(NODE, backends=("gloo",)), FOUR, "backends: this torch comes without nccl"),
        (replace(NODE, backends=()), EngineConfig(tp=2), "backends: this torch comes without gloo"),
        (
            replace(NODE, taken={"127.0.0.1:50052": "address already in use"}),
            FOUR,
            "port: cannot listen on 127.0.0.1:50052: address already in use; is this system running already?",
        ),
    ],
)
def test_what_is_missing_is_said(found, engine, message):
    (said,) = failures(found, engine)
    assert said.startswith(message)


def test_gpus_that_cannot_reach_each_other_are_slower_but_work():
    found = replace(NODE, apart=((0, 3), (3, 0), (4, 0), (0, 4)))
    assert not failures(found)
    assert any("cuda:0 and cuda:3" in check.message and "cuda:4" not in check.message for check in checks(found, FOUR))


def test_a_target_does_not_start_without_it(monkeypatch):
    monkeypatch.setattr(preflight, "look", lambda **_: replace(NODE, gpus=(H200,)))
    with pytest.raises(FieldError, match=r"engine\.tp: is 4, but torch finds 1 GPU, and 4 from cuda:0 on"):
        require(FOUR)


def test_a_taken_port_is_found():
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        assert look([address]).taken == {address: "address already in use"}
    assert look().versions["torch"]


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_a_free_ipv6_address_is_not_taken():
    assert look(["[::1]:0"]).taken == {}


def test_a_device_that_names_no_gpu_is_refused_by_its_name():
    with pytest.raises(FieldError, match=r"^engine\.device: is 'cuda:abc', must be cpu, cuda or cuda:N$"):
        checks(NODE, replace(FOUR, device="cuda:abc"))


def test_the_doctor_says_what_it_finds_and_what_it_will_use(monkeypatch):
    monkeypatch.setattr(findings, "look", lambda _: NODE)
    result = CliRunner().invoke(app, ["doctor", "--tp", "4"])
    assert result.exit_code == 0
    assert "found  cuda:4  NVIDIA H200, 139.0 of 140.0 GiB free" in result.output
    assert "uses   device cuda, tp 4" in result.output and result.output.endswith("ready\n")


def test_the_doctors_status_is_not_0_when_something_fails(monkeypatch):
    monkeypatch.setattr(findings, "look", lambda _: NODE)
    result = CliRunner().invoke(app, ["doctor", "--tp", "8"])
    assert result.exit_code == 2
    assert "FAILED GPUs: torch finds 5 GPUs, and 8 from cuda:0 on" in result.output
    assert result.output.endswith("not ready: 1 of 9 checks failed\n")


def test_converted_models_are_found_where_they_are_put(tmp_path, monkeypatch):
    monkeypatch.setenv("SSD_CACHE", str(tmp_path))
    assert look(memory=False).models == ()

    def make(folder):
        (folder / "config.json").write_text("{}")

    made_once(cache_root() / "models" / "toy-1", make)
    assert look(memory=False).models == ("toy-1",)
