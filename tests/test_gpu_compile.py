"""Graphs of torch on a GPU, by Inductor and by AOT eager: `TRITON_INTERPRET=0 pytest -m gpu`."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import triton
import triton.language as tl
from packages import files_in, record, write
from torch._dynamo.utils import counters

import shipconf
from shipconf import ShipconfWarning, ShippedKernel, shipped_autotune
from shipconf import device as devices
from shipconf.keys import escape

# torch and Inductor warn of their own doings as they compile: here only our warnings are errors.
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default", "error::shipconf.ShipconfWarning"),
]

BACKENDS = ["inductor", "aot_eager"]
MODES = [False, True, None]
COLUMNS = 64
RECORDS = {8: 64, 128: 128, 1024: 256}  # M → block


@triton.jit
def plus_one(x_ptr, out_ptr, told_ptr, N, M, BLOCK: tl.constexpr):
    """`x + 1`, and the block it runs with."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < M * N
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=inside) + 1, mask=inside)
    if tl.program_id(0) == 0:
        tl.store(told_ptr, BLOCK)


@triton.jit
def plus_even(x_ptr, out_ptr, told_ptr, N, M, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    """As `plus_one`, with a constexpr that a heuristic sets: it adds `EVEN`."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < M * N
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=inside) + EVEN, mask=inside)
    if tl.program_id(0) == 0:
        tl.store(told_ptr, BLOCK)


def never(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("this must not be called")


@pytest.fixture(autouse=True)
def no_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def graphs() -> int:
    """How many graphs Dynamo has traced in this test."""
    return int(counters["stats"]["unique_graphs"])


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of the kernels for this device, at three M."""
    device = devices.current(plus_one)
    known = {"backend": device.backend, "name": device.name, "arch": device.arch,
             "multiprocessors": device.multiprocessors}  # fmt: skip
    file = (
        f"N={COLUMNS},dtypes=float32-float32-int32,device_name={escape(device.name)},"
        f"arch={device.arch},mp={device.multiprocessors}.json"
    )
    for kernel in ("plus_one", "plus_even"):
        write(
            tmp_path / kernel, *(record(block, M=m) for m, block in RECORDS.items()), name=file,
            kernel=kernel, key={"N": COLUMNS}, device=known,
            dtypes={"x_ptr": "float32", "out_ptr": "float32", "told_ptr": "int32"},
        )  # fmt: skip
    monkeypatch.setenv("SHIPCONF_CONFIG_PATH", str(tmp_path))


def shipped(fn: Any = plus_one, **options: Any) -> ShippedKernel:
    configs = [triton.Config({"BLOCK": block}) for block in (64, 128, 256, 512)]
    return shipped_autotune(
        configs=configs, key=["N"], nearest=["M"], do_bench=never, **options
    )(fn)  # fmt: skip


def added(kernel: Any) -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """A function that launches the kernel on M rows: the sums, and the block it ran with."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, told = torch.empty_like(x), torch.zeros(1, dtype=torch.int32, device=x.device)
        m, n = x.shape
        kernel[lambda named: (triton.cdiv(m * n, named["BLOCK"]),)](x, out, told, n, m)
        return out * 2, told

    return function


def rows(m: int) -> torch.Tensor:
    return torch.arange(m * COLUMNS, device="cuda", dtype=torch.float32).reshape(m, COLUMNS)


def check(function: Any, m: int, block: int | None = None) -> None:
    """The function doubles `x + 1`, with the block that an eager launch takes."""
    x = rows(m)
    out, told = function(x)
    torch.testing.assert_close(out, (x + 1) * 2)
    if block is None:
        _, expected = added(shipped())(x)
        block = int(expected)
    assert int(told) == block, m


# --- torch.compile ----------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_launch_uses_the_stored_config(stored, store, backend, dynamic):
    """It measures, opens and writes nothing, and traces a known shape once."""
    function = torch.compile(added(shipped()), backend=backend, fullgraph=True, dynamic=dynamic)
    sizes = (5, 9, 100, 900, 2000)
    for m in sizes:
        check(function, m)
    traced = graphs()
    with mock.patch.object(builtins, "open", never):
        for m in sizes:
            function(rows(m))
        torch.cuda.synchronize()
    assert graphs() == traced <= len(sizes)
    assert files_in(store) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_with_dynamic_shapes_a_graph_serves_a_range(stored, backend):
    function = torch.compile(added(shipped()), backend=backend, fullgraph=True, dynamic=True)
    for m in (7, 31, 33, 100, 361, 362, 363, 2000, 9, 500, 129, 65, 5, 4000):
        check(function, m)
    assert graphs() == len(RECORDS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_miss_launches_the_default_with_a_warning(store, backend):
    kernel = shipped(default=triton.Config({"BLOCK": 512}))
    function = torch.compile(added(kernel), backend=backend, fullgraph=True)
    with pytest.warns(ShipconfWarning, match=r"plus_one\.prepare\(…, grid=…\), before it is"):
        check(function, 100, block=512)
    assert files_in(store) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_override_is_compiled_in_its_block_only(stored, backend):
    kernel = shipped()
    function = torch.compile(added(kernel), backend=backend, fullgraph=True)
    check(function, 100)
    with shipconf.override(kernel, {"BLOCK": 512, "num_warps": 8}):
        check(function, 100, block=512)
    check(function, 100)


@pytest.mark.parametrize("dynamic", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("above", [False, True])
def test_heuristics_above_and_below(stored, backend, dynamic, above):
    heuristics = triton.heuristics({"EVEN": lambda named: int(named["N"] % 2 == 0)})
    kernel = heuristics(shipped(plus_even)) if above else shipped(heuristics(plus_even))
    function = torch.compile(added(kernel), backend=backend, fullgraph=True, dynamic=dynamic)
    for m, block in ((9, 64), (100, 128)):
        check(function, m, block)


@pytest.mark.parametrize("backend", BACKENDS)
def test_keyword_arguments(stored, backend):
    kernel = shipped()

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, told = torch.empty_like(x), torch.zeros(1, dtype=torch.int32, device=x.device)
        m, n = x.shape
        grid = (triton.cdiv(m * n, 64),)
        kernel[grid](M=m, N=n, told_ptr=told, out_ptr=out, x_ptr=x)
        return out * 2, told

    check(torch.compile(function, backend=backend, fullgraph=True), 100)


class Added(torch.autograd.Function):
    """`x + 1` in the forward; in the backward the gradient plus one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return _sum(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return _sum(gradient.contiguous())


trained = shipped()


def _sum(x: torch.Tensor) -> torch.Tensor:
    out, told = torch.empty_like(x), torch.zeros(1, dtype=torch.int32, device=x.device)
    m, n = x.shape
    trained[lambda named: (triton.cdiv(m * n, named["BLOCK"]),)](x, out, told, n, m)
    return out


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo's
@pytest.mark.parametrize("dynamic", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_training_step(stored, backend, dynamic):
    step = torch.compile(
        lambda x: Added.apply(x).sum(), backend=backend, fullgraph=True, dynamic=dynamic
    )
    for m in (9, 100):
        x = rows(m).requires_grad_()
        loss = step(x)
        loss.backward()
        torch.testing.assert_close(loss.detach(), (x.detach() + 1).sum())
        assert x.grad is not None and bool((x.grad == 2).all())


# --- triton_op, export ------------------------------------------------------------------------


@pytest.fixture
def operator() -> Iterator[Any]:
    with torch.library._scoped_library("shipconf_gpu", "FRAGMENT"):

        @torch.library.triton_op("shipconf_gpu::added", mutates_args={})
        def operator(x: torch.Tensor) -> torch.Tensor:
            return _sum(x)

        yield operator


@pytest.mark.parametrize("dynamic", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_triton_op(stored, operator, backend, dynamic):
    """Eager and compiled; Inductor sees the launch inside."""
    function = torch.compile(
        lambda x: operator(x) * 2, backend=backend, fullgraph=True, dynamic=dynamic
    )
    for m in (9, 100):
        torch.testing.assert_close(operator(rows(m)), rows(m) + 1)
        torch.testing.assert_close(function(rows(m)), (rows(m) + 1) * 2)


class Module(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("strict", [False, True])
def test_export(stored, strict, dynamic):
    """The exported program launches the config of the range that it was exported for."""
    shapes = {"x": {0: torch.export.Dim("m", min=40, max=300)}} if dynamic else None
    exported = torch.export.export(
        Module(added(shipped())), (rows(100),), dynamic_shapes=shapes, strict=strict
    )
    for m in (100, 200) if dynamic else (100,):
        check(exported.module(), m, block=128)


@pytest.mark.parametrize("strict", [False, True])
def test_export_of_a_triton_op(stored, operator, strict):
    exported = torch.export.export(Module(operator), (rows(100),), strict=strict)
    torch.testing.assert_close(exported.module()(rows(100)), rows(100) + 1)


# --- CUDA graphs ------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, None])
def test_cuda_graphs_of_inductor(stored, dynamic):
    """`mode="reduce-overhead"` records and replays the launch; none is skipped."""
    function = torch.compile(
        added(shipped()), mode="reduce-overhead", fullgraph=True, dynamic=dynamic
    )
    for m in (9, 100):
        for _ in range(4):  # a warm-up, a recording, replays
            torch.compiler.cudagraph_mark_step_begin()
            check(function, m)
    assert counters["inductor"]["cudagraph_skips"] == 0


def test_prepare_leaves_nothing_to_compile_or_load(stored):
    """The first launch after it runs what is there."""
    kernel = shipped()
    x = rows(100)
    out, told = torch.empty_like(x), torch.zeros(1, dtype=torch.int32, device="cuda")
    grid = (triton.cdiv(x.numel(), 128),)
    assert kernel.prepare(x, out, told, COLUMNS, 100, grid=grid).source == "path"
    utils = triton.runtime.driver.active.utils
    with (
        mock.patch("triton.compiler.compiler.compile", never),
        mock.patch.object(triton.JITFunction, "_do_compile", never, create=True),
        mock.patch.object(utils, "load_binary", never),
    ):
        kernel[grid](x, out, told, COLUMNS, 100)
        torch.cuda.synchronize()
    torch.testing.assert_close(out, x + 1)
    assert int(told) == 128


def test_a_prepared_kernel_is_captured_at_its_first_launch(stored):
    kernel = shipped()
    x = rows(100)
    out, told = torch.empty_like(x), torch.zeros(1, dtype=torch.int32, device="cuda")
    grid = (triton.cdiv(x.numel(), 128),)
    kernel.prepare(x, out, told, COLUMNS, 100, grid=grid)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel[grid](x, out, told, COLUMNS, 100)
    x.fill_(41)
    graph.replay()
    torch.cuda.synchronize()
    assert bool((out == 42).all()) and int(told) == 128
