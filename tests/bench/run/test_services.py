"""The stack that is measured has room for the load, and says how its services share a GPU."""

import os

import pytest

from bench.datasets import Prompt
from bench.run.cases import Grid
from bench.run.program import RunOptions, fitted
from bench.run.services import APART, CPU, SLICED, ServiceOptions, build, environment, services, sharing_of


def options(grid, **services_):
    prompts = (Prompt("x", "a" * 1000),)
    return fitted(RunOptions(grid, prompts, ("x",), ServiceOptions(**services_), max_tokens=100))


def test_there_is_room_for_the_largest_batch():
    stack = build(options(Grid(batches=(1, 96), ks=(20,), budgets=(80,))))
    assert stack.router.max_live == stack.target.engine.max_sequences == 96
    assert stack.target.engine.kv_tokens >= 96 * (500 + 100 + 80 * 21)
    assert stack.target.max_k == stack.draft.max_k == 20
    assert stack.draft.max_branches == stack.router.max_branches == 80
    assert stack.target.engine.token_budget >= 96 * 21
    assert stack.router.metrics_listen


def test_a_small_run_changes_no_default():
    stack, plain = build(options(Grid(ks=(2,)))), build(ServiceOptions())
    for one, other in ((stack.target, plain.target), (stack.draft, plain.draft)):
        assert one.engine == other.engine
    assert stack.router.max_live == plain.router.max_live


@pytest.mark.parametrize(
    ("device", "draft_device", "sharing"),
    [
        (None, None, CPU),
        ("cuda", None, SLICED),
        ("cuda", "cuda:0", SLICED),
        ("cuda:0", "cuda:1", APART),
        ("cuda", "cpu", APART),
    ],
)
def test_devices_decide_how_a_gpu_is_shared(device, draft_device, sharing):
    stack = build(ServiceOptions(device=device, draft_device=draft_device, dtype="bfloat16", draft_dtype="float32"))
    assert sharing_of(stack) == sharing
    assert (stack.target.engine.dtype, stack.draft.engine.dtype) == ("bfloat16", "float32")
    if device is not None:
        assert stack.target.engine.threads == 0


def test_variables_are_as_they_were_afterwards(monkeypatch):
    monkeypatch.setenv("SSD_TEST_A", "old")
    monkeypatch.delenv("SSD_TEST_B", raising=False)
    with pytest.raises(RuntimeError), environment({"SSD_TEST_A": "new", "SSD_TEST_B": "new"}):
        assert os.environ["SSD_TEST_A"] == os.environ["SSD_TEST_B"] == "new"
        raise RuntimeError
    assert os.environ["SSD_TEST_A"] == "old" and "SSD_TEST_B" not in os.environ


def test_mps_without_a_gpu_or_without_a_daemon_is_said(monkeypatch):
    from contextlib import nullcontext

    class Fake:
        class supervisor:  # noqa: N801
            check_alive = staticmethod(lambda: None)

    monkeypatch.setattr("bench.run.services.running", lambda *_, **__: nullcontext(Fake))
    monkeypatch.setenv("PATH", "/nowhere")
    with services(ServiceOptions(mps=True)) as endpoint:
        assert endpoint.sharing == CPU and "nothing runs on a GPU" in endpoint.note
    with services(ServiceOptions(mps=True, device="cuda")) as endpoint:
        assert endpoint.sharing == SLICED
        assert endpoint.note == "--mps: nvidia-cuda-mps-control is not installed; the services are time-sliced"
