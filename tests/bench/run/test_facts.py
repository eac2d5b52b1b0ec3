"""What a result says of the way that laws took."""

import pytest

from bench.run.facts import plane_facts
from protos.ssd.v1 import admin_pb2, types_pb2


@pytest.mark.parametrize(
    ("plane", "said"),
    [
        ({"kind": types_pb2.PLANE_KIND_INLINE, "reason": "a CPU is at one end"}, "inline: a CPU is at one end"),
        (
            {"kind": types_pb2.PLANE_KIND_CUDA_IPC, "latency_us": 41.7, "bandwidth": 2.5e9, "fallbacks": 2},
            "cuda_ipc, 42 us one way, 2.50 GB/s, broke 2 times",
        ),
    ],
)
def test_a_plane_in_one_line(plane, said):
    assert plane_facts(admin_pb2.Plane(**plane)) == said
