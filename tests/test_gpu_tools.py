"""What profilers and hooks see of launches on a GPU: `TRITON_INTERPRET=0 pytest -m gpu`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hooked import bytes_written, hooked
from triton.runtime.jit import JITFunction

from shipconf import shipped_autotune

pytestmark = pytest.mark.gpu


def filled(out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, BLOCK, mask=offsets < n)


def test_hooks_are_told_of_a_launch_as_of_a_bare_kernel_s():
    """At the first launch after a tuning, and at one that memory serves."""
    bare, tuned = (JITFunction(filled, launch_metadata=bytes_written) for _ in range(2))
    configs = [triton.Config({"BLOCK": block}) for block in (64, 128)]
    kernel = shipped_autotune(configs=configs, key=["n"])(tuned)
    out = torch.zeros(64, device="cuda", dtype=torch.int32)
    config = dict(kernel.prepare(out, 64, grid=(1,)).config)
    bare[(1,)](out, 64, **config)
    with hooked(bare) as expected:
        for _ in range(2):
            bare[(1,)](out, 64, **config)
    with hooked(tuned) as events:
        for _ in range(2):
            kernel[(1,)](out, 64)
    assert events == expected
    assert [event[0] for event in events] == ["run", "launch_enter_hook", "launch_exit_hook"] * 2
    assert set(out.tolist()) == {config["BLOCK"]}


def profiled(tool: str, folder: Path) -> dict[str, dict[str, Any]]:
    """What the tool sees of a bare kernel, and of shipconf's; skips where it sees no bare one."""
    pytest.importorskip("triton.profiler")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("profiled.py")), tool, str(folder)],
        cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    if not any(name.startswith("plus_one") for name in seen["bare"]):
        pytest.skip(f"{tool} sees no bare kernel here: {seen['bare']}")
    return seen


def test_proton_sees_a_launch_as_a_bare_kernel_s(tmp_path):
    """Under the kernel's own name, with what its `launch_metadata` says, in the caller's scope."""
    seen = profiled("proton", tmp_path)
    assert seen["shipped"] == seen["bare"] and "launches" in seen["shipped"]
    assert any(name.startswith("plus_one of ") for name in seen["shipped"])
    assert 3 in [frame.get("count") for frame in seen["shipped"].values()]


def test_proton_measures_inside_a_kernel_as_inside_a_bare_one(tmp_path):
    """It compiles the kernel anew, with its own instructions in it."""
    language = pytest.importorskip("triton.profiler.language")
    if not hasattr(language, "enable_semantic"):
        pytest.skip("Triton 3.4 has no such scopes")
    seen = profiled("instrumented", tmp_path)
    assert seen["shipped"] == seen["bare"] and "adding" in seen["shipped"]


def test_torch_s_profiler_sees_a_launch_as_a_bare_kernel_s(tmp_path):
    """The kernel by its name, once for each launch, and nothing else on the GPU."""
    seen = profiled("torch", tmp_path)
    assert seen["shipped"] == seen["bare"]
    assert seen["shipped"]["plus_one"] == 3 and "launches" in seen["shipped"]
