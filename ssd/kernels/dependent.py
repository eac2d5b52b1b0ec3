"""Programmatic dependent launch: a kernel may be placed on the GPU while the one before it still runs."""

# mypy: allow-untyped-defs
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def let_next_start(early: tl.constexpr):
    """Allows the next kernel onto the GPU as soon as every program of this one has come here: after its own wait, so
    that no more than one kernel waits there at a time and takes room from the one that works."""
    if early:
        gdc_launch_dependents()


@triton.jit
def wait_for_previous(early: tl.constexpr):
    """Waits until the kernel before this one has ended and its results are visible.

    Every program of a kernel launched early must come here before it reads what a kernel wrote, and before it writes:
    then each kernel ends after all kernels before it, and nothing but constant weights is touched too soon.
    """
    if early:
        gdc_wait()
