"""Launches that torch traces into graphs: one stored config, nothing tuned, few graphs."""

from __future__ import annotations

import builtins
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import configs
from packages import files_in, load, package, record, shelf, write
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from traced import H200, H200_FILE, Graphs, compiled, h200

import shipconf
from shipconf import OfflineError, ShipconfWarning, ShippedKernel, shipped_autotune, tracing, vendor
from shipconf.ranges import representative

MODES = [False, True, None]


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    with h200():
        yield


def never(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("this must not be called")


@pytest.fixture
def module(tmp_path: Any) -> Any:
    return package(tmp_path / "package")


def shipped(
    module: Any, records: dict[int, Sequence[dict[str, Any]]], name: str = "told", **options: Any
) -> ShippedKernel:
    """The kernel of the package with records for these N, in the eyes of a compiler."""
    for n, found in records.items():
        write(shelf(module, name), *found, name=H200_FILE.format(N=n), key={"N": n}, device=H200,
              kernel=name)  # fmt: skip
    options.setdefault("configs", configs((16, 32, 64)))
    options.setdefault("key", ["N"])
    options.setdefault("nearest", ["M"])
    return shipped_autotune(do_bench=never, **options)(compiled(getattr(module, name)))


def told(kernel: ShippedKernel) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function of a tensor of N columns and M rows, which tells the block it ran with."""

    def function(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(1, dtype=torch.int32)
        m, n = x.shape
        kernel[lambda named: (triton.cdiv(m, named["BLOCK"]),)](out, n, m)
        return out

    return function


def stored(kernel: ShippedKernel, n: int, m: int) -> int:
    """The block that an eager launch takes for the shape."""
    match = kernel.resolve_for(dtypes="int32", N=n, M=m)
    assert match is not None
    block: int = match.config["BLOCK"]
    return block


RECORDS = {
    8: [record(16, M=8), record(32, M=128), record(64, M=1024)],
    24: [record(64, M=8), record(16, M=64), record(32, M=512)],
}
SHAPES = [(m, n) for n in (8, 24) for m in (5, 9, 40, 51, 900)]


# --- every mode -------------------------------------------------------------------------------


@pytest.mark.parametrize("aot", [False, True])
@pytest.mark.parametrize("dynamic", MODES)
def test_a_compiled_launch_uses_the_stored_config(module, store, dynamic, aot):
    """In one graph; equal to eager; nothing is tuned or written; a known key is not traced
    again, and where the compiled code runs, no file is opened and no variable read."""
    kernel = shipped(module, RECORDS)
    graphs = Graphs(aot=aot)
    with torch._dynamo.config.patch(recompile_limit=32):
        function = graphs.compile(told(kernel), dynamic)
        for m, n in SHAPES:
            assert int(function(torch.zeros(m, n))) == stored(kernel, n, m), (m, n)
        traces = len(graphs.traced)
        graphs.launched.clear()
        with (
            mock.patch.object(builtins, "open", never),
            mock.patch.object(os, "listdir", never),
            mock.patch.object(kernel.resolver, "near", never),
        ):
            for m, n in SHAPES:
                function(torch.zeros(m, n))
    assert len(graphs.traced) == traces <= len(SHAPES)
    assert len(graphs.launched) == len(SHAPES)
    for launched, (m, n) in zip(graphs.launched, SHAPES):
        assert launched["BLOCK"] == stored(kernel, n, m) and launched["num_warps"] == 4
    assert files_in(store) == []


def test_with_dynamic_shapes_a_graph_serves_a_range(module):
    """At most as many graphs as there are records, however many values of M come."""
    kernel = shipped(module, {8: RECORDS[8]})
    graphs = Graphs()
    function = graphs.compile(told(kernel), dynamic=True)
    for m in (7, 31, 32, 33, 100, 361, 362, 363, 2000, 9, 500, 129, 64, 5, 4000, 17, 3000):
        assert int(function(torch.zeros(m, 8))) == stored(kernel, 8, m), m
    assert len(graphs.traced) == 3


def test_two_kernels_and_a_repeated_one_in_a_graph(module):
    one = shipped(module, {8: [record(16)]})
    other = shipped(module, {8: [record(64)]}, "picky", key=["N"])
    graphs = Graphs()

    def function(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(3, dtype=torch.int32)
        one[(1,)](out, 8, x.shape[0])
        other[(1,)](out[1:], 8, x.shape[0])
        one[(1,)](out[2:], 8, x.shape[0])
        return out

    assert graphs.compile(function)(torch.zeros(8)).tolist() == [16, 64, 16]
    assert len(graphs.traced) == 1


def test_keyword_and_default_spellings_have_one_key(module):
    kernel = shipped(module, RECORDS)

    def function(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(2, dtype=torch.int32)
        kernel[(1,)](out, N=8, M=x.shape[0])
        kernel.run(M=x.shape[0], out_ptr=out[1:], N=8, grid=(1,), warmup=False)
        return out

    for dynamic in MODES:
        assert Graphs().compile(function, dynamic)(torch.zeros(100)).tolist() == [32, 32]


def test_an_eager_launch_between_makes_no_graph_stale(module):
    """What eager launches remember is no part of the graph's guards."""
    kernel = shipped(module, RECORDS)
    graphs = Graphs()
    function = graphs.compile(told(kernel))
    x = torch.zeros(9, 8)
    function(x)
    with mock.patch.object(type(kernel.fn), "run", lambda *args, **kwargs: None):
        kernel[(1,)](torch.zeros(1, dtype=torch.int32), 8, 9)
    assert kernel.latest is not None
    function(x)
    assert len(graphs.traced) == 1


# --- keys -------------------------------------------------------------------------------------


@triton.jit
def keyed(out_ptr, x_ptr, N, FAST: tl.constexpr, MODE: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(out_ptr, BLOCK)


@pytest.mark.parametrize("dynamic", MODES)
def test_key_values_keep_their_types_in_a_graph(dynamic):
    """Integers, booleans, strings, None and the value of a function, as in an eager launch."""
    seen = []

    def default(named: dict[str, Any]) -> triton.Config:
        seen.append({name: named[name] for name in ("FAST", "MODE", "rows", "N")})
        return configs([32])[0]

    key = ["N", "FAST", "MODE", ("rows", lambda named: named["x_ptr"].shape[0] * 2)]
    kernel = shipped_autotune(configs=configs((16, 64)), key=key, default=default, do_bench=never)(
        compiled(keyed)
    )

    def function(x: torch.Tensor, fast: Any, mode: Any) -> torch.Tensor:
        out = torch.zeros(1, dtype=torch.int32)
        kernel[(1,)](out, x, x.shape[1], fast, mode)
        return out

    run = Graphs().compile(function, dynamic)
    with pytest.warns(ShipconfWarning, match="while torch traces"):
        for fast, mode in ((True, "tf32"), (1, None)):
            assert int(run(torch.zeros(3, 5), fast, mode)) == 32
    expected = {"rows": 6, "N": 5}
    for fast, mode in ((True, "tf32"), (1, None)):
        found = [s for s in seen if s == {"FAST": fast, "MODE": mode, **expected}]
        assert found and all(type(s["FAST"]) is type(fast) for s in found[:1])
    assert all(type(s["N"]) is int and type(s["rows"]) is int for s in seen)


@triton.jit
def typed(out_ptr, N, T: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(out_ptr, BLOCK)


def test_a_dtype_is_a_key_value_in_a_graph_too():
    kernel = shipped_autotune(configs=configs([16]), key=["N", "T"], do_bench=never)(
        compiled(typed)
    )

    def function(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(1, dtype=torch.int32)
        kernel[(1,)](out, x.shape[0], tl.float16)
        return out

    assert int(Graphs().compile(function, dynamic=True)(torch.zeros(5))) == 16


@triton.jit
def two_near(out_ptr, M, B, BLOCK: tl.constexpr):
    tl.store(out_ptr, BLOCK)


def test_several_nearest_values_are_constants_of_the_graph(tmp_path, monkeypatch):
    kernel = shipped_autotune(
        configs=configs((16, 32)), key=[], nearest=["M", "B"], name="two", do_bench=never,
    )(compiled(two_near))  # fmt: skip
    monkeypatch.setenv("SHIPCONF_CONFIG_PATH", str(tmp_path))
    near = [{**record(16), "at": {"M": 8, "B": 8}}, {**record(32), "at": {"M": 64, "B": 2}}]
    name = "dtypes=int32,device_name=NVIDIA_H200,arch=sm_90,mp=132.json"
    write(tmp_path / "two", *near, kernel="two", key={}, nearest=("M", "B"), device=H200, name=name)

    def function(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(1, dtype=torch.int32)
        kernel[(1,)](out, x.shape[0], x.shape[1])
        return out

    graphs = Graphs()
    run = graphs.compile(function, dynamic=True)
    for m, b, block in ((9, 7, 16), (50, 3, 32), (9, 7, 16)):
        assert int(run(torch.zeros(m, b))) == block
    assert len(graphs.traced) == 2


# --- ranges -----------------------------------------------------------------------------------

POINTS = st.lists(
    st.tuples(st.integers(1, 3000), st.sampled_from([16, 32, 64]), st.booleans()), max_size=6,
    unique_by=lambda point: point[0],
)  # fmt: skip


@settings(deadline=None, max_examples=50)
@given(points=POINTS, max_distance=st.sampled_from([0.0, 0.3, 1.0, 2.0]), strict=st.booleans())
def test_ranges_agree_with_the_lookup_of_every_value(
    tmp_path_factory, points, max_distance, strict
):
    """Whatever is stored, current or stale: each value gets the config that eager gives it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShipconfWarning)
        found = [
            record(block, M=m, **({"fingerprint": "1:0"} if stale else {}))
            for m, block, stale in points
        ]
        kernel = shipped(
            package(tmp_path_factory.mktemp("package")), {8: found} if found else {},
            max_distance=max_distance, default=configs([48])[0],
        )  # fmt: skip
        tracer = kernel._tracer
        assert tracer is not None
        here = (None, ("out_ptr", "N", "M"), (("out_ptr", torch.int32), ("N", ""), ("M", "")), ())
        with shipconf.offline(strict):
            ranges = tracer.ranges(here, 8)
            values = {0, 1, 2, *range(1, 9000, 37)}
            values |= {last + i for last, _, _ in ranges if last is not None for i in (0, 1)}
            for m in values:
                use = representative(ranges, m)  # as for a concrete M
                assert stored(kernel, 8, use) == stored(kernel, 8, m), (m, use, ranges)
            blocks = [stored(kernel, 8, use) for _, use, _ in ranges[1:]]
    assert all(one != other for one, other in pairwise(blocks)), "neighbours with one config"


# --- misses -----------------------------------------------------------------------------------


def test_a_miss_takes_the_default_and_warns_once(module, store):
    kernel = shipped(module, {}, default=configs([32])[0])
    run = Graphs().compile(told(kernel), dynamic=True)
    with pytest.warns(ShipconfWarning) as caught:
        assert [int(run(torch.zeros(m, 8))) for m in (9, 8000)] == [32, 32]
    (warning,) = caught
    assert "prepare(…, grid=…), before it is compiled" in str(warning.message)
    assert "no record near N=8" in str(warning.message)
    assert files_in(store) == []


@pytest.mark.parametrize("dynamic", [False, None])
def test_a_miss_takes_the_nearest_however_far_and_warns(module, dynamic):
    kernel = shipped(module, RECORDS, max_distance=1.0)
    with pytest.warns(ShipconfWarning, match=r"nothing can be tuned; the graph uses BLOCK=64"):
        assert int(Graphs().compile(told(kernel), dynamic)(torch.zeros(9000, 8))) == 64


def test_a_miss_with_nothing_to_take_says_how_to_tune_before(module, store):
    kernel = shipped(module, {})
    with pytest.raises(Exception, match=r"prepare\(…, grid=…\), before it is compiled") as raised:
        Graphs().compile(told(kernel))(torch.zeros(9, 8))
    chain, error = [], raised.value
    while error is not None:
        chain.append(type(error))
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    assert OfflineError in chain
    assert files_in(store) == []


def test_a_miss_in_a_graph_is_noted(module, tmp_path, monkeypatch):
    monkeypatch.setenv("SHIPCONF_MISSES", str(tmp_path / "misses"))
    kernel = shipped(module, {}, default=configs([32])[0])
    with pytest.warns(ShipconfWarning):
        Graphs().compile(told(kernel))(torch.zeros(9, 8))
    assert '"N": 8' in (tmp_path / "misses").read_text()


def test_a_graph_traced_after_a_tuning_has_what_was_tuned(module):
    kernel = shipped(module, {})
    out = torch.zeros(1, dtype=torch.int32)
    request = kernel._request((out, 8, 9), {})
    choice = kernel.resolver.knobs.live[2]
    tuned = shipconf.Record(at={"M": 9}, config=choice.document)
    kernel.resolver.add(request.query.key, request.query.device, tuned, None)
    assert int(Graphs().compile(told(kernel))(torch.zeros(9, 8))) == 64


# --- what else decides ------------------------------------------------------------------------


def test_an_override_beats_the_lookup_in_its_block_only(module):
    kernel = shipped(module, RECORDS)
    run = Graphs().compile(told(kernel), dynamic=True)
    x = torch.zeros(9, 8)
    assert int(run(x)) == 16
    with shipconf.override(kernel, {"BLOCK": 128}):
        assert int(run(x)) == 128
        with shipconf.override(kernel, triton.Config({"BLOCK": 256})):
            assert int(run(x)) == 256
    with shipconf.override(kernel, {"BLOCK": 64}):
        assert int(run(x)) == 64
    assert int(run(x)) == 16


def test_a_knob_that_the_launch_passes_is_refused_as_in_an_eager_launch(module):
    kernel = shipped(module, RECORDS)

    def function(x: torch.Tensor) -> torch.Tensor:
        kernel[(1,)](x, 8, 8, BLOCK=16)
        return x

    with pytest.raises(Exception, match="the launch passes 'BLOCK', which the configs set"):
        Graphs().compile(function)(torch.zeros(1, dtype=torch.int32))


@pytest.mark.parametrize("dropped", [{"num_ctas": 2}, {"maxnreg": 128}])
def test_it_tells_what_inductor_drops(module, dropped):
    kernel = shipped(module, {8: [{"at": {"M": 8}, "config": {"BLOCK": 16, **dropped}}]})
    ((name, value),) = dropped.items()
    with pytest.warns(ShipconfWarning, match=f"Inductor compiles without {name}={value}"):
        assert int(Graphs().compile(told(kernel))(torch.zeros(8, 8))) == 16


def test_a_config_with_a_hook_of_its_own_is_refused_and_not_launched_without_it(module):
    """Torch runs no hook in a graph."""
    hooked = configs([16], pre_hook=never)
    kernel = shipped(module, {8: [record(16)]}, configs=hooked)
    with pytest.raises(Exception, match="pre_hook and post_hook are not supported"):
        Graphs().compile(told(kernel))(torch.zeros(8, 8))


def test_the_marks_are_those_of_torch(module):
    """`assume_constant_result` imports Dynamo, so its mark is set by hand."""

    def function() -> None: ...

    torch.compiler.assume_constant_result(function)
    for method in (tracing.Tracer.ranges, tracing.Tracer.launcher):
        assert vars(method) == vars(function)


@pytest.mark.parametrize("dynamic", MODES)
def test_a_record_whose_config_pruning_drops_for_the_shape_does_not_serve(module, dynamic):
    """`early_config_prune` sees the arguments, shapes and dtypes of the tensors, in a graph too."""
    seen = []

    def prune(live: Any, named: dict[str, Any], **rest: Any) -> Any:
        seen.append((tuple(named["out_ptr"].shape), named["out_ptr"].dtype, named["M"]))
        return [config for config in live if config.kwargs["BLOCK"] <= named["M"]]

    kernel = shipped(module, {8: RECORDS[8]}, prune_configs_by={"early_config_prune": prune})
    run = Graphs().compile(told(kernel), dynamic)
    for m, block in ((100, 32), (31, 16), (33, 32), (64, 32)):
        assert int(run(torch.zeros(m, 8))) == block
    assert set(seen) >= {((1,), torch.int32, 100), ((1,), torch.int32, 31)}


def test_the_only_candidate_that_pruning_leaves_needs_no_record(module, store):
    kernel = shipped(
        module, {}, prune_configs_by={"early_config_prune": lambda live, *a, **k: live[1:2]}
    )
    assert int(Graphs().compile(told(kernel), True)(torch.zeros(9, 8))) == 32


@pytest.mark.parametrize("dynamic", MODES)
def test_a_default_that_is_computed_is_that_of_the_value(module, dynamic):
    """A function of M may have bounds of its own."""
    kernel = shipped(
        module, {8: [record(64, M=1000)]}, max_distance=1.0,
        default=lambda named: configs([16 if named["M"] < 77 else 32])[0],
    )  # fmt: skip
    run = Graphs().compile(told(kernel), dynamic)
    with shipconf.offline(strict=True), pytest.warns(ShipconfWarning, match="the graph uses"):
        assert [int(run(torch.zeros(m, 8))) for m in (76, 77, 900)] == [16, 32, 64]


# --- around the kernel ------------------------------------------------------------------------


@triton.jit
def computed(out_ptr, N, M, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(out_ptr, BLOCK + EVEN)


@pytest.mark.parametrize("dynamic", MODES)
@pytest.mark.parametrize("above", [False, True])
def test_heuristics_above_and_below(dynamic, above):
    """A constexpr that a heuristic sets from a block, or before the lookup from the arguments."""
    fn: Any = compiled(computed)
    if not above:
        fn = triton.heuristics({"EVEN": lambda named: named["BLOCK"] % 32 == 0})(fn)
    kernel: Any = shipped_autotune(
        configs=configs((16, 32)), key=["N"], nearest=["M"], default=configs([32])[0],
        do_bench=never,
    )(fn)  # fmt: skip
    if above:
        kernel = triton.heuristics({"EVEN": lambda named: named["N"] == 8})(kernel)
    with pytest.warns(ShipconfWarning, match="the graph uses BLOCK=32"):
        assert int(Graphs().compile(told(kernel), dynamic)(torch.zeros(9, 8))) == 33


@triton.jit
def scaled(x_ptr, out_ptr, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, x * FACTOR, mask=offsets < n)


scaling = shipped_autotune(configs=configs([16]), key=["FACTOR"], nearest=["n"], do_bench=never)(
    compiled(scaled)
)


def scale(x: torch.Tensor, factor: int) -> torch.Tensor:
    out = torch.empty_like(x)
    n = x.numel()
    scaling[lambda named: (triton.cdiv(n, named["BLOCK"]),)](x, out, n, factor)
    return out


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return scale(x, 3)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return scale(gradient.contiguous(), 5)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo's
@pytest.mark.parametrize("aot", [False, True])
@pytest.mark.parametrize("dynamic", MODES)
def test_a_training_step(dynamic, aot):
    """An `autograd.Function` with a launch in its forward and one in its backward."""
    graphs = Graphs(aot=aot)
    step = graphs.compile(lambda x: Scale.apply(x).sum(), dynamic)
    for n in (7, 40):
        x = torch.arange(float(n), requires_grad=True)
        if aot:  # the bare graph has no gradient of a launch; AOT traces the backward
            loss = step(x)
            loss.backward()
            assert x.grad is not None and x.grad.tolist() == [5.0] * n
        else:
            with torch.no_grad():
                loss = step(x)
        assert float(loss.detach()) == 3 * sum(range(n))


def test_the_vendored_decorator_traces_too(tmp_path, module):
    """The module that `shipconf vendor` writes has the same code under other names."""
    shipped(module, RECORDS)
    path = tmp_path / "vendored.py"
    path.write_text(vendor.source())
    kernel = load(path).shipped_autotune(configs=configs(), key=["N"], nearest=["M"])(
        compiled(module.told)
    )
    graphs = Graphs()
    run = graphs.compile(told(kernel), dynamic=True)
    for m, block in ((9, 16), (100, 32), (900, 64), (10, 16)):
        assert int(run(torch.zeros(m, 8))) == block
    assert len(graphs.traced) == 3


# --- triton_op, fake tensors, make_fx, export -------------------------------------------------


@pytest.fixture
def operator() -> Iterator[Any]:
    """A `triton_op` around a launch."""
    with torch.library._scoped_library("shipconf_test", "FRAGMENT"):

        @torch.library.triton_op("shipconf_test::triple", mutates_args={})
        def triple(x: torch.Tensor) -> torch.Tensor:
            return scale(x, 3)  # type: ignore[no-any-return]

        yield triple


@pytest.mark.parametrize("dynamic", MODES)
def test_a_triton_op_is_traced_into(operator, dynamic):
    graphs = Graphs(aot=True)
    run = graphs.compile(lambda x: operator(x) + 1, dynamic)
    for n in (7, 40):
        assert run(torch.ones(n)).tolist() == [4.0] * n
    assert graphs.configs() and all(c["BLOCK"] == 16 for c in graphs.configs())


def test_make_fx_sees_the_launch(operator):
    graphs = Graphs()
    graph = make_fx(scale, tracing_mode="fake")(torch.ones(7), 3)
    assert graphs.runnable(graph)(torch.ones(7), 3).tolist() == [3.0] * 7
    assert graphs.configs() == [] and [c["BLOCK"] for c in graphs.launched] == [16]


def test_a_launch_on_fake_tensors_only_tells_shapes(module):
    """Nothing is launched, also after the very key was launched with real ones."""
    with mock.patch.object(triton.JITFunction, "run", lambda *args, **kwargs: None):
        scale(torch.ones(7), 3)
    with FakeTensorMode(), mock.patch.object(triton.JITFunction, "run", never):
        assert scale(torch.ones(7), 3).shape == (7,)


class Told(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("strict", [False, True])
def test_export(module, strict, dynamic):
    """The exported program holds the launch with its config; a dynamic M has the range's bounds."""
    kernel = shipped(module, {8: [record(32, M=128)]})
    shapes = {"x": {0: torch.export.Dim("m", min=2)}} if dynamic else None
    exported = torch.export.export(
        Told(told(kernel)), (torch.zeros(100, 8),), dynamic_shapes=shapes, strict=strict
    )
    graphs = Graphs()
    run = graphs.runnable(exported.module())
    assert int(run(torch.zeros(100, 8))) == 32
    if dynamic:
        assert int(run(torch.zeros(4000, 8))) == 32
    assert [c["BLOCK"] for c in graphs.launched] == [32] * (1 + dynamic)


@pytest.mark.parametrize("strict", [False, True])
def test_export_of_a_triton_op(operator, strict):
    """The operator stays one node, as torch means it to."""
    exported = torch.export.export(Told(operator), (torch.ones(7),), strict=strict)
    assert "shipconf_test.triple" in str(exported.graph)
