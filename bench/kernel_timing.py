"""Timing of GPU work inside CUDA graphs, with inputs that the L2 cache does not hold."""

import statistics
from collections.abc import Callable, Sequence

import torch

Call = Callable[[], object]

# Inputs are rotated over at least this much, several times the L2 of the largest cards.
ROTATED_BYTES = 400 << 20
_MOST_COPIES = 64
_REPLAYS = 7
# A graph of less work than this would time its own start.
_GRAPH_MICROSECONDS = 400.0
_MOST_CALLS = 256


def copies(size: int) -> int:
    """How many inputs of `size` bytes have to take turns so that each comes from memory."""
    return max(1, min(_MOST_COPIES, -(-ROTATED_BYTES // max(1, size))))


def microseconds(calls: Sequence[Call]) -> float:
    """Time of one call: the median over replays of a graph that makes all of them in turn, as often as it takes.

    What a call allocates belongs to the graph and is the same at every replay.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # Compiles, and fills the allocator.
        for call in calls[:2]:
            call()
        stream.synchronize()
        once = _elapsed(lambda: [call() for call in calls], stream) / len(calls)
        rounds = max(1, min(_MOST_CALLS // len(calls), round(_GRAPH_MICROSECONDS / (max(once, 2.0) * len(calls)))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(rounds):
                for call in calls:
                    call()
        graph.replay()
        times = [_elapsed(graph.replay, stream) for _ in range(_REPLAYS)]
    torch.cuda.current_stream().wait_stream(stream)
    return statistics.median(times) / (rounds * len(calls))


def _elapsed(work: Call, stream: torch.cuda.Stream) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record(stream)
    work()
    end.record(stream)
    end.synchronize()
    return begin.elapsed_time(end) * 1000.0


def copy_bandwidth(device: torch.device) -> float:
    """Bytes per second of a copy on the device, read and written ones counted."""
    source = torch.empty(2 << 30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / (microseconds([lambda: target.copy_(source)]) * 1e-6)
