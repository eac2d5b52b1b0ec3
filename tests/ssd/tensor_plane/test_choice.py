"""Which kind two processes use, and why not another."""

import subprocess
import sys

import pytest

from ssd.tensor_plane.ability import ability, host_id
from ssd.tensor_plane.choice import Ability, Choice, Kind, ability_message, ability_of, choose, kind_number, kind_of

ALL = frozenset({Kind.GLOO, Kind.CUDA_IPC, Kind.NCCL})
CPU = Ability("a", (), frozenset({Kind.GLOO}))
GPU = Ability("a", ("GPU-1",), ALL)
OTHER_GPU = Ability("a", ("GPU-2",), ALL)
OTHER_HOST = Ability("b", ("GPU-3",), ALL)
FOUR_GPUS = Ability("a", ("GPU-1", "GPU-2", "GPU-4", "GPU-5"), ALL)
NOTHING = Ability()


APART = "cuda_ipc needs both ends on one host and in one IPC namespace"


def inline(reason: str) -> Choice:
    return Choice(Kind.INLINE, reason)


@pytest.mark.parametrize(
    ("target", "draft", "wanted", "choice"),
    [
        (CPU, CPU, "auto", inline("a CPU is at one end")),
        (GPU, CPU, "auto", inline("a CPU is at one end")),
        (NOTHING, NOTHING, "auto", inline("a CPU is at one end")),
        (GPU, GPU, "auto", Choice(Kind.CUDA_IPC)),
        (GPU, OTHER_GPU, "auto", Choice(Kind.NCCL)),
        (GPU, OTHER_HOST, "auto", Choice(Kind.NCCL)),
        (FOUR_GPUS, OTHER_GPU, "auto", Choice(Kind.CUDA_IPC)),
        (FOUR_GPUS, OTHER_HOST, "auto", Choice(Kind.NCCL)),
        (GPU, Ability("a", ("GPU-2",), frozenset({Kind.GLOO})), "auto", inline("the draft cannot do nccl")),
        (Ability("a", ("GPU-1",)), GPU, "auto", inline("the target cannot do cuda_ipc")),
        (GPU, GPU, "inline", inline("asked for")),
        (CPU, CPU, "gloo", Choice(Kind.GLOO)),
        (GPU, CPU, "gloo", Choice(Kind.GLOO)),
        (NOTHING, CPU, "gloo", inline("the target cannot do gloo")),
        (GPU, GPU, "nccl", inline("nccl needs a GPU for each end, and both are on GPU-1")),
        (GPU, OTHER_GPU, "nccl", Choice(Kind.NCCL)),
        (GPU, CPU, "nccl", inline("the draft cannot do nccl")),
        (Ability("a", (), ALL), GPU, "nccl", inline("nccl needs a GPU at each end")),
        (GPU, OTHER_GPU, "cuda_ipc", inline("cuda_ipc needs both ends on one GPU")),
        (GPU, Ability("c", ("GPU-1",), ALL), "cuda_ipc", inline(APART)),
        (Ability("", ("GPU-1",), ALL), Ability("", ("GPU-1",), ALL), "auto", inline(APART)),
    ],
)  # fmt: skip
def test_choice(target, draft, wanted, choice):
    assert choose(target, draft, wanted) == choice


@pytest.mark.parametrize("one", [CPU, GPU, FOUR_GPUS, NOTHING])
def test_abilities_travel(one):
    assert ability_of(ability_message(one)) == one


def test_kinds_of_a_later_version_are_ignored():
    message = ability_message(CPU)
    message.kinds.append(99)
    assert ability_of(message) == CPU
    assert kind_of(99) is None
    assert all(kind_of(kind_number(kind)) is kind for kind in Kind)


def test_a_process_on_the_cpu_can_do_gloo_and_knows_its_host():
    assert ability("cpu") == Ability(host_id(), (), frozenset({Kind.GLOO}))
    again = "from ssd.tensor_plane.ability import host_id; print(host_id())"
    assert subprocess.run([sys.executable, "-c", again], check=True, capture_output=True, text=True).stdout.strip() == (
        host_id()
    )


def test_the_router_chooses_without_torch():
    code = "import sys, router.planes, router.coordinator; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
