"""How long GPU work takes: by CUDA graphs that are replayed, between events on the device's own clock."""

from __future__ import annotations

from collections.abc import Callable

import torch

WARM_UPS = 3


def captured(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """A graph of the work, after it has run a few times: kernels are compiled when they first run."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def replay_us(graph: torch.cuda.CUDAGraph, times: int) -> list[float]:
    """Microseconds of each replay."""
    begins, ends = ([_event() for _ in range(times)] for _ in range(2))
    for begin, end in zip(begins, ends, strict=True):
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) * 1e3 for begin, end in zip(begins, ends, strict=True)]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def copy_bytes_per_second(device: torch.device, size_bytes: int = 4 << 30, times: int = 20) -> float:
    """What a copy on the device moves, bytes read and bytes written counted each; the best of several."""
    source = torch.empty(size_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)

    return 2 * size_bytes / (min(replay_us(captured(copy), times)) * 1e-6)
