"""What a profiler sees of launches: `python profiled.py TOOL FOLDER`, for the tests on a GPU.

Prints, for a bare kernel and for one of shipconf with the same config, by name what was seen, as
JSON: `{"bare": …, "shipped": …}`. A process of its own: two profilers in one get in each other's
way.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
import triton.profiler as proton
import triton.profiler.language as pl
from hooked import bytes_written
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function
from triton.runtime.jit import JITFunction

from shipconf import shipped_autotune

N = 4096
LAUNCHES = 3  # the first is looked up, the others are remembered


def plus_one(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, x + 1, mask=offsets < n)


def plus_one_in_scope(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """As `plus_one`, with a scope that proton measures inside the kernel."""
    pl.enter_scope("adding")
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, x + 1, mask=offsets < n)
    pl.exit_scope("adding")


def frames(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("children", []):
        yield from frames(child)


def by_proton(launch: Callable[[], Any], path: Path, **options: Any) -> dict[str, Any]:
    """What was measured for each frame, and how often and how much, where that is the same each
    time."""
    session = proton.start(str(path), **options)
    with proton.scope("launches"):
        for _ in range(LAUNCHES):
            launch()
    torch.cuda.synchronize()
    proton.finalize(session)
    seen: dict[str, Any] = {}
    for root in json.loads(path.with_name(f"{path.name}.hatchet").read_text()):
        for frame in frames(root) if "frame" in root else ():
            metrics = frame.get("metrics", {})
            same = {name: metrics[name] for name in ("count", "bytes") if name in metrics}
            seen[frame["frame"]["name"]] = {"measured": sorted(metrics), **same}
    return seen


def by_torch(launch: Callable[[], Any], path: Path) -> dict[str, Any]:
    """How often each kernel ran, and each range of the host's."""
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities) as profiled, record_function("launches"):
        for _ in range(LAUNCHES):
            launch()
        torch.cuda.synchronize()
    names = [
        event.name for event in profiled.events()
        if event.device_type == DeviceType.CUDA or event.name == "launches"
    ]  # fmt: skip
    return dict(Counter(names))


TOOLS: dict[str, tuple[Any, Callable[[Callable[[], Any], Path], dict[str, Any]]]] = {
    "proton": (plus_one, lambda launch, path: by_proton(launch, path, hook="triton")),
    "instrumented": (
        plus_one_in_scope, lambda launch, path: by_proton(launch, path, backend="instrumentation")
    ),
    "torch": (plus_one, by_torch),
}  # fmt: skip


def main(tool: str, folder: Path) -> None:
    fn, seen_by = TOOLS[tool]
    bare, tuned = (JITFunction(fn, launch_metadata=bytes_written) for _ in range(2))
    configs = [triton.Config({"BLOCK": block}) for block in (128, 256)]
    kernel = shipped_autotune(configs=configs, key=["n"])(tuned)
    x = torch.arange(N, device="cuda", dtype=torch.float32)
    out = torch.zeros_like(x)

    def grid(named: dict[str, Any]) -> tuple[int]:
        return (triton.cdiv(named["n"], named["BLOCK"]),)

    config = dict(kernel.prepare(x, out, N, grid=grid).config)  # tunes
    bare.warmup(x, out, N, grid=grid, **config)
    if tool == "instrumented":
        pl.enable_semantic("triton")
    launches = {
        "bare": lambda: bare[grid](x, out, N, **config), "shipped": lambda: kernel[grid](x, out, N),
    }  # fmt: skip
    for launch in launches.values():  # what a first launch alone does is not profiled
        launch()
    torch.cuda.synchronize()
    seen = {name: seen_by(launch, folder / name) for name, launch in launches.items()}
    assert torch.equal(out, x + 1)
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
