"""Row-wise kernels between the matrix products: RMS norm, residual sum with RMS norm, SiLU times up.

16-bit inputs are computed in float32 and rounded where torch rounds; float32 and float64 stay what they are.
"""

# mypy: allow-untyped-defs
import triton
import triton.language as tl

from ssd.kernels.dependent import let_next_start, wait_for_previous


@triton.jit
def widened(x):
    """x in the precision that it is computed in."""
    return x if x.dtype == tl.float64 else x.to(tl.float32)


@triton.jit
def normalise(x, weight_of, weight_mask, width: tl.constexpr, eps):
    """x / rms(x) * weight for one row in its computing precision; lanes past `width` are zero."""
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / width + eps)
    weight = widened(tl.load(weight_of, mask=weight_mask, other=0.0))
    return x * scale * weight


@triton.jit
def rms_norm_rows(x, weight, out, x_stride, eps, width: tl.constexpr, width_wide: tl.constexpr, early: tl.constexpr):
    """Grid (rows). x [rows, width] with rows x_stride apart → out [rows, width]."""
    wait_for_previous(early)
    let_next_start(early)
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, width_wide)
    mask = index < width
    values = widened(tl.load(x + row * x_stride + index, mask=mask, other=0.0))
    result = normalise(values, weight + index, mask, width, eps)
    tl.store(out + row * width + index, result.to(out.dtype.element_ty), mask=mask)


@triton.jit
def add_rms_norm_rows(
    x,
    residual,
    weight,
    out,
    total,
    x_stride,
    residual_stride,
    eps,
    width: tl.constexpr,
    width_wide: tl.constexpr,
    early: tl.constexpr,
):
    """Grid (rows). total = x + residual, rounded to its dtype, and out = norm(total): [rows, width] each."""
    wait_for_previous(early)
    let_next_start(early)
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, width_wide)
    mask = index < width
    values = widened(tl.load(x + row * x_stride + index, mask=mask, other=0.0))
    values += widened(tl.load(residual + row * residual_stride + index, mask=mask, other=0.0))
    rounded = values.to(total.dtype.element_ty)
    tl.store(total + row * width + index, rounded, mask=mask)
    result = normalise(widened(rounded), weight + index, mask, width, eps)
    tl.store(out + row * width + index, result.to(out.dtype.element_ty), mask=mask)


@triton.jit
def silu_mul_rows(gate_up, out, stride, width: tl.constexpr, block: tl.constexpr, early: tl.constexpr):
    """Grid (rows, width / block). gate_up [rows, 2 width] → silu(gate) * up, silu rounded to the dtype first."""
    wait_for_previous(early)
    let_next_start(early)
    row = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1) * block + tl.arange(0, block)
    mask = index < width
    gate = widened(tl.load(gate_up + row * stride + index, mask=mask, other=0.0))
    up = widened(tl.load(gate_up + row * stride + width + index, mask=mask, other=0.0))
    silu = widened((gate / (1.0 + tl.exp(-gate))).to(out.dtype.element_ty))
    tl.store(out + row * width + index, (silu * up).to(out.dtype.element_ty), mask=mask)
