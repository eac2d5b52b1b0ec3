"""`python compiled.py` compiles kernels for compute capability 9, on a machine with or without a GPU.

The interpreter accepts what the compiler does not, and knows nothing of registers and shared memory.
"""

import sys
from dataclasses import replace

from triton import compile as triton_compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ssd.kernels.attention import attend_tiles, merge_parts
from ssd.kernels.linear import TALL_ROWS, skinny_linear
from ssd.kernels.tiles import TALL_TILE, TILES, LinearTile

SHARED_BYTES = 227 << 10
TARGET = GPUTarget("cuda", 90, 32)
FLOATS = {"sums", "squares", "total_squares", "parts", "stats"}
LONGS = {"query_starts", "context_lens", "tables", "trunk_rows", "prefix_lens", "suffix_slots", "suffix_lens"}
BFLOATS = {"x", "weight", "bias", "out", "stream", "norm", "total", "q", "cache_k", "cache_v"}
ALIGNED = {"x_stride", "weight_stride", "stream_stride", "q_stride", "key_stride", "value_stride"}


def kind_of(name: str) -> str:
    """The type of an argument that is not a constant."""
    if name in FLOATS | LONGS | BFLOATS | {"arrivals"}:
        return "*fp32" if name in FLOATS else "*i64" if name in LONGS else "*bf16" if name in BFLOATS else "*i32"
    return "fp32" if name in {"eps", "scale"} else "i32"


def check(kernel, warps: int, stages: int, **constants: object) -> None:
    """Compiles one variant; exits with a message where it spills or does not fit."""
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else kind_of(name) for name in names}
    attributes = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(names)
        if signature[name].startswith("*") or name in ALIGNED
    }
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=attributes)
    options = {"num_warps": warps, "num_stages": stages, "launch_pdl": True}
    made = triton_compile(source, target=TARGET, options=options)
    shared, spills = made.metadata.shared, made.asm["ptx"].count(".local")
    print(kernel.__name__, "shared", shared, constants, flush=True)
    if shared > SHARED_BYTES or spills:
        sys.exit(f"{kernel.__name__} takes {shared} bytes of shared memory and has {spills} locals: {constants}")


def check_linear(shape: tuple[int, int], height: int = 32, tile: LinearTile | None = None, **flags: object) -> None:
    tile = tile or dict(TILES)[shape]
    plain = {"biased": False, "square_tiles": 0, "gated": False, "added": False}
    check(
        skinny_linear,
        tile.warps,
        tile.stages,
        outputs=shape[0],
        inputs=shape[1],
        height=height,
        tile_outputs=tile.outputs,
        tile_inputs=tile.inputs,
        splits=tile.splits,
        early=True,
        **{**plain, **flags},
    )


def check_attention(*, branch: bool) -> None:
    heads = {"dim": 128, "dim_wide": 128, "branch": branch, "rows_wide": 1, "early": True}
    check(
        attend_tiles,
        4,
        3,
        kv_heads=8,
        fold=2,
        block_size=16,
        tile=64,
        step=64,
        least_chunk=64,
        fixed_chunk=False,
        search=False,
        in_parts=True,
        tokens_wide=32 if branch else 1,
        precision="tf32",
        **heads,
    )
    check(merge_parts, 4, 3, heads=16, group=64, **heads)


if __name__ == "__main__":
    check_linear((10240, 5120), square_tiles=80, biased=True)
    check_linear((5120, 8192), added=True)
    check_linear((6144, 1024), square_tiles=16, gated=True)
    check_linear((2048, 8192), TALL_ROWS, replace(TALL_TILE, splits=4))
    check_attention(branch=False)
    check_attention(branch=True)
