"""Decode attention on a GPU: our kernel against the physical limit, and against what others have published.

The limit is what must be read and computed (`parrot_kernels.gpu.limits`), at the copy bandwidth that is
measured in the same run. Times are those of CUDA graphs that are replayed, over layers that take turns over
more memory than the cache holds. Before anything is timed, outputs are checked against float64, and a graph
is replayed over plans it was not captured with. It needs a Hopper GPU, and exits with 2 where there is
none; what it compares with is left out where it isn't installed, and that is said.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from itertools import product
from typing import Any

import torch
import triton

from benchmarks.harness import Report, parser, print_table
from benchmarks.kernels.gpu_batch import BLOCK_TOKENS, HEAD_SIZE, PREFIX_BLOCKS, Batch, Setting
from benchmarks.kernels.gpu_checks import checks
from benchmarks.kernels.gpu_timing import captured, copy_bytes_per_second, replay_us
from benchmarks.kernels.gpu_ways import BASELINES, Layer, Ours
from parrot_kernels.gpu import Geometry
from parrot_kernels.gpu.limits import H200, Hardware, Work, limit_us

NEEDS = "this benchmark needs a Hopper GPU, of compute capability 9.x; "
NO_GPU = 2
HOPPER = 9
MHA_7B, MHA_13B, GQA = (32, 32), (40, 40), (32, 8)
PLANS = 50
SECTIONS = ("checks", "times")


def settings(quick: bool) -> list[Setting]:
    """The paper's models and batches, then groups; of as many groups as rows, nothing is shared."""
    if quick:
        shapes = [Setting(heads, rows, 200, 1) for heads in (MHA_7B, GQA) for rows in (16, 64)]
        return [*shapes, Setting(GQA, 64, 400, 4), Setting(GQA, 64, 400, 64)]
    rows, suffixes = (8, 16, 32, 64), (200, 800)
    shapes = [Setting(*each, 1) for each in product((MHA_7B, MHA_13B, GQA), rows, suffixes)]
    return shapes + [Setting(heads, 64, 400, groups) for heads in (MHA_7B, GQA) for groups in (4, 8, 16, 64)]


def limit(setting: Setting, hardware: Hardware) -> float:
    """Microseconds of a layer at least."""
    geometry = Geometry(*setting.heads, HEAD_SIZE, BLOCK_TOKENS, "bfloat16", "bfloat16")
    prefix = PREFIX_BLOCKS * BLOCK_TOKENS
    work = Work.of_groups(setting.rows, prefix, setting.suffix, setting.groups)
    return limit_us(geometry, work, hardware)


def measured(setting: Setting, hardware: Hardware, device: torch.device, quick: bool) -> dict[str, Any]:
    """One setting: microseconds a layer of each way, taking turns, and how far their outputs differ."""
    batch = Batch(setting, device, torch.cuda.get_device_properties(device).L2_cache_size)
    ours = Ours(batch, shared=True)
    ways, missing = {"ours": captured_layers(ours, batch)}, {}
    reference = output(ours, batch)
    differs = {}
    for name, make in BASELINES.items():
        try:
            layer = make(batch)
            differs[name] = float((output(layer, batch) - reference).abs().max())
            ways[name] = captured_layers(layer, batch)
        except Exception as error:  # noqa: BLE001  (others' code: that it can't run is a result)
            missing[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    rounds, replays = (3, 10) if quick else (8, 20)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, graph in ways.items():
            times[name] += [each / batch.layers for each in replay_us(graph, replays)]
    least = limit(setting, hardware)
    us = {name: statistics.median(found) for name, found in times.items()}
    return {
        "setting": setting.label,
        "shared": setting.groups < setting.rows,
        "layers": batch.layers,
        "limit_us": least,
        "us": us,
        "us_min": {name: min(found) for name, found in times.items()},
        "limit_fraction": least / us["ours"],
        "plan_us": ours.plan_us(PLANS),
        "differs": differs,
        "missing": missing,
    }


def captured_layers(layer: Layer, batch: Batch) -> torch.cuda.CUDAGraph:
    """All layers, one after another, as one graph."""

    def work() -> None:
        for number in range(batch.layers):
            layer(number)

    return captured(work)


def output(layer: Layer, batch: Batch) -> torch.Tensor:
    """What comes out of the first layer."""
    batch.out.fill_(torch.nan)
    layer(0)
    return batch.out.float().clone()


def checked(device: torch.device, quick: bool, report: Report) -> None:
    """All checks, into the report."""
    outcomes = list(checks(device, quick))
    done = [each for each in outcomes if not each.skipped]
    table = [
        (each.name, f"{each.error:.1e}", f"{each.bound:.0e}", "FAILED" if each.failed else "")
        for each in done
    ]
    print_table(["check", "differs by", "bound", ""], table)
    for each in outcomes:
        if each.skipped:
            print(f"not checked: {each.name} ({each.skipped})")
    report.samples += [
        {"check": each.name, "error": each.error, "failed": each.failed, "skipped": each.skipped}
        for each in outcomes
    ]
    report.summary["checks"] = len(done)
    report.summary["checks_failed"] = sum(each.failed for each in done)


def timed(device: torch.device, quick: bool, report: Report) -> None:
    """All settings, into the report."""
    speed = copy_bytes_per_second(device)
    hardware = Hardware(bytes_per_s=speed, flops_per_s=H200.flops_per_s)
    report.summary["copy_gb_per_s"] = speed / 1e9
    print(f"\ncopy bandwidth {speed / 1e12:.2f} TB/s; microseconds a layer, medians")
    samples = []
    for setting in settings(quick):
        found = measured(setting, hardware, device, quick)
        samples.append(found)
        print(_line(found), flush=True)
        torch.cuda.empty_cache()
    report.samples += samples
    report.summary |= {f"limit_fraction_{each['setting']}": each["limit_fraction"] for each in samples}
    report.summary |= _ratios(samples)
    report.summary["plan_us"] = statistics.median(each["plan_us"] for each in samples)
    for name, reason in {n: why for each in samples for n, why in each["missing"].items()}.items():
        print(f"not compared with everywhere: {name} ({reason})")


def _ratios(samples: list[dict[str, Any]]) -> dict[str, float]:
    """Of each baseline, its time over ours: median and least where prefixes are shared; least where not."""
    made: dict[str, float] = {}
    for name in BASELINES:
        of = [
            (each["us"][name] / each["us"]["ours"], each["shared"]) for each in samples if name in each["us"]
        ]
        sharing, apart = ([ratio for ratio, shared in of if shared is kind] for kind in (True, False))
        if sharing:
            made |= {f"ratio_{name}": statistics.median(sharing), f"ratio_{name}_min": min(sharing)}
        if apart:
            made[f"ratio_{name}_unshared"] = min(apart)
    return made


def _line(found: dict[str, Any]) -> str:
    ways = "  ".join(f"{name} {us:.1f}" for name, us in found["us"].items())
    differ = max(found["differs"].values(), default=0.0)
    return (
        f"{found['setting']:24} limit {found['limit_us']:.1f}  {ways}  "
        f"{found['limit_fraction']:.0%} of the limit  differ by {differ:.1e}"
    )


def lacking() -> str:
    """Why it can't run here; empty: it can."""
    if not torch.cuda.is_available():
        return f"{NEEDS}PyTorch {torch.__version__} sees none"
    found = torch.cuda.get_device_capability()
    if found[0] != HOPPER:
        return f"{NEEDS}{torch.cuda.get_device_name()} has {found[0]}.{found[1]}"
    return ""


def measure(arguments: argparse.Namespace) -> Report:
    """The whole benchmark."""
    device = torch.device("cuda")
    config = {
        "gpu": torch.cuda.get_device_name(),
        "l2_bytes": torch.cuda.get_device_properties(device).L2_cache_size,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
    }
    report = Report("kernels/gpu", config)
    if "checks" in arguments.only:
        checked(device, arguments.quick, report)
    if "times" in arguments.only:
        timed(device, arguments.quick, report)
    return report


def main() -> None:
    """Checks, measures and reports; exits with 1 where a check failed, and with 2 where there is no GPU."""
    made = parser(__doc__)
    made.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="part of it")
    arguments = made.parse_args()
    if reason := lacking():
        print(reason, file=sys.stderr)
        sys.exit(NO_GPU)
    report = measure(arguments)
    report.show(arguments.json)
    sys.exit(bool(report.summary.get("checks_failed")))


if __name__ == "__main__":
    main()
