"""What tools that know Triton's kernels make of shipconf's: hooks, profilers, copies, pickles."""

from __future__ import annotations

import copy
import io
import pickle
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from hooked import bytes_written, hooked, set_hook
from kernels import Trial, configs, told
from packages import record, records_in, write
from torch.profiler import ProfilerActivity, profile, record_function
from traced import H200, H200_FILE, Launching, h200
from triton.runtime.autotuner import Heuristics
from triton.runtime.jit import JITFunction

from shipconf import ShippedKernel, TuningError, shipped_autotune


@shipped_autotune(configs=configs(), key=["N"])
@triton.jit
def importable(out_ptr, N, M, BLOCK: triton.language.constexpr):
    """Found under its name in this module."""
    triton.language.store(out_ptr, BLOCK)


# --- hooks ------------------------------------------------------------------------------------


@contextmanager
def launching(*jits: JITFunction[Any]) -> Iterator[None]:
    """On an H200 that launches nothing."""
    with h200(Launching()):
        try:
            yield
        finally:
            for jit in jits:
                jit.device_caches.clear()  # what is loaded asks the driver to unload it


def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], ShippedKernel]:
    """A kernel with a record for an H200, in the eyes of Triton's compiler; and its config."""
    found = record(32, M=8)
    write(tmp_path / "told", found, name=H200_FILE.format(N=8), device=H200)
    monkeypatch.setenv("SHIPCONF_CONFIG_PATH", str(tmp_path))
    jit = JITFunction(told.fn, launch_metadata=bytes_written)
    kernel = shipped_autotune(configs=configs(), key=["N"], nearest=["M"])(jit)
    return found["config"], kernel


def test_hooks_are_told_of_a_launch_as_of_a_bare_kernel_s(tmp_path, monkeypatch):
    """At the first launch, which compiles and loads, and at one that memory serves."""
    config, kernel = stored(tmp_path, monkeypatch)
    bare = JITFunction(told.fn, launch_metadata=bytes_written)
    out = torch.zeros(1, dtype=torch.int32)
    with launching(bare, kernel.fn):
        with hooked(bare) as expected:
            for _ in range(2):
                bare[(1,)](out, 8, 8, **config)
        with hooked(kernel.fn) as events:
            for _ in range(2):
                kernel[(1,)](out, 8, 8)
    assert events == expected
    assert [event[0] for event in events].count("launch_enter_hook") == 2
    assert ("launch_exit_hook", "told of 32", 4) in events


def test_after_prepare_a_launch_tells_no_hook_of_compiling_or_loading(tmp_path, monkeypatch):
    _, kernel = stored(tmp_path, monkeypatch)
    out = torch.zeros(1, dtype=torch.int32)
    with launching(kernel.fn):
        kernel.prepare(out, 8, 8, grid=(1,))
        with hooked(kernel.fn) as events:
            kernel[(1,)](out, 8, 8)
    assert [event[0] for event in events] == ["run", "launch_enter_hook", "launch_exit_hook"]


def test_where_a_hook_keeps_triton_from_compiling_nothing_is_measured(store):
    """A launch would run nothing, in no time."""
    kernel = shipped_autotune(
        configs=configs(), key=["N"], do_bench=lambda call, quantiles: [1.0] * 3
    )(JITFunction(told.fn))
    with (
        launching(kernel.fn),
        set_hook("jit_cache_hook", lambda **_: True),
        pytest.raises(TuningError, match="jit_cache_hook kept it from compiling"),
    ):
        kernel[(1,)](torch.zeros(1, dtype=torch.int32), 8, 8)
    assert records_in(store) == []


def test_torch_s_profiler_sees_nothing_but_the_launch():
    """The lookup in memory calls nothing of torch."""
    trial = Trial()
    trial.launch(8, 8)
    seen = []
    for kernel, config in ((told, {"BLOCK": 64}), (trial.kernel, {})):
        with (
            profile(activities=[ProfilerActivity.CPU]) as profiled,
            record_function("a launch"),
        ):
            kernel[(1,)](trial.out, 8, 8, **config)
        seen.append(Counter(event.name for event in profiled.events()))
    assert seen[0] == seen[1] and seen[0]["a launch"] == 1


# --- copies and pickles -----------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_kernel_pickles_by_its_import_path(protocol):
    """As a function does: for workers, data loaders, and caches that hash their arguments."""
    data = pickle.dumps({"kernel": importable}, protocol)
    assert pickle.loads(data)["kernel"] is importable
    assert b"test_tools" in data and len(data) < 80


def test_torch_saves_a_module_that_holds_a_kernel():
    layer = torch.nn.Linear(1, 1)
    layer.kernel = importable
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=False).kernel is importable
    assert copy.deepcopy(layer).kernel is importable


def test_a_kernel_that_has_no_import_path_does_not_pickle():
    """Its name belongs to another object: never that one in its place."""
    with pytest.raises(pickle.PicklingError, match=r"not the same object as kernels\.told"):
        pickle.dumps(Trial().kernel)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_of_a_kernel_is_the_kernel(copied):
    """With what it remembers; and so below heuristics, which are copied."""
    kernel = Trial().kernel
    assert copied(kernel) is kernel
    above = copied(Heuristics(kernel, kernel.arg_names, {"M": lambda named: 8}))
    assert above.fn is kernel
