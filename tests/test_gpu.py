"""What only a GPU can show: `TRITON_INTERPRET=0 pytest -m gpu`."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import shipconf
from shipconf import OfflineError, ShipconfWarning, shipped_autotune
from shipconf.bench import Call
from shipconf.cli import main
from shipconf.placement import Arguments, copies
from shipconf.sampler import CallFailed, Sampler
from shipconf.targets import load

pytestmark = pytest.mark.gpu

N = 4096


@triton.jit
def plus_one(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, x + 1, mask=offsets < n)


@triton.jit
def counted(total_ptr, n, BLOCK: tl.constexpr):
    tl.atomic_add(total_ptr, BLOCK)


@triton.jit
def dotted(a_ptr, b_ptr, c_ptr, k, BLOCK: tl.constexpr):
    """One tile of a matrix product: 256 wide and 8 stages deep, it fits no GPU's shared memory."""
    at, steps = tl.arange(0, BLOCK), tl.arange(0, 64)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, k, 64):
        a = tl.load(a_ptr + at[:, None] * k + start + steps[None, :])
        b = tl.load(b_ptr + (start + steps)[:, None] * BLOCK + at[None, :])
        total = tl.dot(a, b, total)
    tl.store(c_ptr + at[:, None] * BLOCK + at[None, :], total)


def configs(*blocks: int) -> list[triton.Config]:
    return [triton.Config({"BLOCK": block}) for block in blocks]


TOO_BIG = triton.Config({"BLOCK": 256}, num_warps=8, num_stages=8)


def grid(named: dict[str, Any]) -> tuple[int]:
    return (triton.cdiv(named["n"], named["BLOCK"]),)


def shipped(fn: Any = plus_one, **options: Any) -> Any:
    options.setdefault("configs", configs(128, 256, 1024))
    options.setdefault("key", ["n"])
    return shipped_autotune(**options)(fn)


def vectors() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.arange(N, device="cuda", dtype=torch.float32)
    return x, torch.zeros_like(x)


def tiles() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    a = torch.ones(256, 512, device="cuda", dtype=torch.float16)
    return a, torch.ones(512, 256, device="cuda", dtype=torch.float16), torch.zeros(
        256, 256, device="cuda"
    )  # fmt: skip


def the_record(store: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The only file of the user store, and its only record."""
    (path,) = store.rglob("*.json")
    file = json.loads(path.read_text())
    (record,) = file["records"]
    return file, record


# --- tuning -----------------------------------------------------------------------------------


def test_a_launch_tunes_and_the_record_tells_all(store):
    """Device, times, resources, and a signature that is enough to compile the launch again."""
    kernel = shipped(default=triton.Config({"BLOCK": 16}, num_warps=1))
    x, out = vectors()
    kernel[grid](x, out, N)
    assert torch.equal(out, x + 1)
    file, record = the_record(store)
    properties = torch.cuda.get_device_properties(0)
    assert file["device"]["backend"] == triton.runtime.driver.active.get_current_target().backend
    assert file["device"]["name"] == torch.cuda.get_device_name(0)
    assert file["device"]["multiprocessors"] == properties.multi_processor_count
    assert file["device"]["shared_memory"] > 0 and file["device"]["arch"]
    assert file["key"] == {"n": N} and file["dtypes"] == {"x_ptr": "float32", "out_ptr": "float32"}
    assert record["candidates"] == 4 and record["left_out"] == {} and record["rigor"] == "full"
    assert 0 < record["time_ms"]["p20"] <= record["time_ms"]["median"] <= record["time_ms"]["p80"]
    assert record["default_ms"] > 0
    assert record["resources"]["registers"] > 0 and record["resources"]["spills"] == 0
    assert record["resources"]["shared"] >= 0
    types = record["signature"]["types"]
    assert types["x_ptr"] == "*fp32" and types["n"] == "i32" and types["BLOCK"] == "constexpr"
    assert record["config"]["BLOCK"] in record["signature"]["constexprs"].values()
    assert "tt.divisibility" in json.dumps(record["signature"]["attrs"])
    assert record["triton"] == triton.__version__ and record["torch"] == torch.__version__


def test_the_next_kernel_object_serves_from_the_file(store):
    x, out = vectors()
    shipped()[grid](x, out, N)
    again = shipped(do_bench=lambda *args, **kwargs: pytest.fail("measured again"))
    with shipconf.offline(strict=True):
        again[grid](x, out.zero_(), N)
    assert torch.equal(out, x + 1)
    assert again.resolve(x, out, N).source == "user"


def test_a_user_s_do_bench_measures_real_launches(store):
    calls: list[Any] = []

    def do_bench(fn: Any, quantiles: Any) -> list[float]:
        out.zero_()
        fn()
        calls.append((quantiles, torch.equal(out, x + 1)))
        return [1.0, 1.0, 1.0]

    x, out = vectors()
    kernel = shipped(do_bench=do_bench)
    kernel[grid](x, out, N)
    assert len(calls) >= 3 and set(calls) == {((0.5, 0.2, 0.8), True)}


def test_a_candidate_out_of_resources_is_left_out_with_its_reason(store):
    """Dropped before a launch, by what its compiled kernel says that it needs."""
    kernel = shipped(dotted, key=["k"], configs=[*configs(32, 64), TOO_BIG])
    a, b, c = tiles()
    kernel[(1,)](a, b, c, 512)
    assert float(c[0, 0]) == 512.0
    _, record = the_record(store)
    ((name, why),) = record["left_out"].items()
    assert name.startswith("BLOCK=256") and "num_stages=8" in name
    assert "shared memory" in why
    assert record["config"]["BLOCK"] in (32, 64) and record["resources"]["shared"] > 0


def test_a_stored_config_out_of_resources_gives_way_with_one_warning(tmp_path, monkeypatch):
    """Written for a bigger GPU, say: the default serves, and no launch dies of a bad file."""
    a, b, c = tiles()
    kernel = shipped(dotted, key=["k"], configs=configs(32, 64), default=configs(64)[0])
    words = kernel.explain(a, b, c, 512)
    found = re.search(r"looked for: (.*)", words)
    assert found is not None
    folder = tmp_path / "dotted"
    folder.mkdir()
    dtypes = {"a_ptr": "float16", "b_ptr": "float16", "c_ptr": "float32"}
    config = {"BLOCK": 256, "num_warps": 8, "num_stages": 8, "num_ctas": 1}
    (folder / Path(found[1]).name).write_text(json.dumps({
        "schema": 1, "kernel": "dotted", "device": {"name": torch.cuda.get_device_name(0)},
        "key": {"k": 512}, "dtypes": dtypes, "nearest": [],
        "records": [{"at": {}, "config": config}],
    }))  # fmt: skip
    monkeypatch.setenv("SHIPCONF_CONFIG_PATH", str(tmp_path))
    kernel = shipped(dotted, key=["k"], configs=configs(32, 64), default=configs(64)[0])
    assert kernel.resolve(a, b, c, 512).source == "path"
    with pytest.warns(ShipconfWarning, match=r"BLOCK=256.*fails and is not used again") as caught:
        for _ in range(3):
            kernel[(1,)](a, b, c, 512)
    assert len(caught) == 1
    assert float(c[0, 0]) == 512.0
    assert kernel.resolve(a, b, c, 512).config["BLOCK"] == 64


def test_a_tuned_launch_leaves_what_a_served_one_leaves():
    """Bit for bit, for a kernel that accumulates."""
    totals = []
    for _ in range(2):
        total = torch.full((1,), 7, device="cuda", dtype=torch.int32)
        kernel = shipped(counted, reset_to_zero=["total_ptr"])
        kernel[(2,)](total, N)
        totals.append(int(total))
    assert totals[0] == totals[1] == 7 + 2 * kernel.best_config.kwargs["BLOCK"]


def test_warmup_compiles_all_candidates_on_a_miss_and_the_resolved_one_on_a_hit(store):
    kernel = shipped()
    compiled = kernel.warmup(torch.float32, torch.float32, N, grid=(1,))
    assert len(compiled) == 3 and not list(store.rglob("*.json"))
    x, out = vectors()
    kernel[grid](x, out, N)
    assert len(kernel.warmup(x, out, N, grid=(1,))) == 1


# --- measuring --------------------------------------------------------------------------------


def call_of(size: int, before: Any = lambda: None) -> Call:
    x = torch.arange(size, device="cuda", dtype=torch.float32)
    out = torch.zeros_like(x)

    def launch() -> None:
        before()
        plus_one[(triton.cdiv(size, 1024),)](x, out, size, BLOCK=1024)

    launch()
    return Call(launch)


def test_a_slow_host_is_not_measured():
    """The GPU is held back until the launches are queued: else each would last 2 ms."""
    (times,) = Sampler().sample([call_of(N, lambda: time.sleep(0.002))], 5)
    assert len(times) == 5 and max(times) < 0.5


def test_the_cache_is_cold_in_every_measurement():
    """16 MB read from memory, though they would fit the cache; and as do_bench finds it."""
    call = call_of(2**22)
    sampler = Sampler()
    sampler.warm_up(call, 50)
    (times,) = sampler.sample([call], 20)
    reference = triton.testing.do_bench(call.launch, return_mode="median")
    assert statistics.median(times) == pytest.approx(reference, rel=0.25)


def test_very_short_launches_are_timed_from_graphs():
    """Without the 2 µs that a pair of events adds."""
    sampler, call = Sampler(), call_of(N)
    sampler.warm_up(call, 50)
    (with_events,) = sampler.sample([call], 20)
    (replayed,) = sampler.replay([sampler.graph_of(call.launch)], sampler.graph_of(None), 20)
    assert 0.0003 < statistics.median(replayed) < statistics.median(with_events) < 0.010


def test_a_launch_that_cannot_be_captured_leaves_the_device_working():
    sampler = Sampler()
    with pytest.raises(RuntimeError):
        sampler.graph_of(torch.cuda.synchronize)
    (times,) = sampler.sample([call_of(N)], 3)
    assert len(times) == 3


def test_a_launch_that_raises_is_named():
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(CallFailed) as caught:
        Sampler().sample([call_of(N), Call(fail)], 2)
    assert caught.value.index == 1 and isinstance(caught.value.__cause__, ValueError)


def test_copies_lie_elsewhere_and_share_memory_as_the_tensors_do():
    whole = torch.arange(64, device="cuda", dtype=torch.float32).reshape(8, 8)
    part, other = whole[2:, ::2], torch.ones(3, device="cuda")
    named = {"whole": whole, "part": part, "other": other, "n": 8, "none": None}
    made = copies(Arguments((whole, part, 8), {"other": other}, named))
    assert len(made) > 1
    for copy in made:
        new_whole, new_part, n = copy.args
        assert n == 8 and copy.named["whole"] is new_whole and copy.named["none"] is None
        assert torch.equal(new_part, part) and new_part.stride() == part.stride()
        assert new_whole.data_ptr() != whole.data_ptr()
        assert new_part.data_ptr() - new_whole.data_ptr() == part.data_ptr() - whole.data_ptr()
        assert copy.kwargs["other"] is copy.named["other"] is not other
    assert copies(Arguments(((whole, part),), {}, {"pair": (whole, part)})) == []


def test_one_kernel_is_as_fast_at_every_place_in_the_queue():
    """Of calls that are all alike none leads another, though places differ by 5 % of a launch."""
    x = torch.ones(1 << 21, device="cuda")
    out = torch.empty_like(x)
    call = Call(lambda: plus_one[(2048,)](x, out, x.numel(), BLOCK=1024))
    call()
    sampler = Sampler()
    sampler.warm_up(call, 100)
    rounds = [sampler.sample([call] * 4, 8) for _ in range(40)]
    means = [statistics.fmean(statistics.median(times[i]) for times in rounds) for i in range(4)]
    assert max(means) / min(means) < 1.01


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_current_device_is_launched_on_and_devices_of_a_kind_share_a_record(store):
    kernel = shipped(do_bench=lambda call, quantiles: (call(), [1.0] * 3)[1])
    for index in (1, 0):
        with torch.cuda.device(index):
            x = torch.arange(N, device="cuda", dtype=torch.float32)
            out = torch.zeros_like(x)
            for _ in range(2):
                kernel[grid](x, out, N)
            assert out.device.index == index
            torch.testing.assert_close(out, x + 1)
            assert kernel.resolve(x, out, N).source in ("tuned", "user")
    alike = torch.cuda.get_device_name(0) == torch.cuda.get_device_name(1)
    assert len(list(store.rglob("*.json"))) == (1 if alike else 2)


def test_warmup_and_rep_are_times_in_ms(monkeypatch):
    """How long the GPU is kept busy first, and how much of each finalist is measured at least."""
    warmed: list[float] = []
    summed: list[float] = []

    class Watched(Sampler):
        def warm_up(self, call: Call, ms: float) -> None:
            warmed.append(ms)
            super().warm_up(call, ms)

        def sample(self, calls: Any, turns: int) -> list[list[float]]:
            times = super().sample(calls, turns)
            summed.append(sum(map(sum, times)))
            return times

    monkeypatch.setattr("shipconf.gpu_bench.Sampler", Watched)
    x, out = (torch.zeros(2**24, device="cuda") for _ in range(2))
    plain = {"configs": configs(32, 1024), "key": ["n"], "warmup": 7}
    shipped(**plain)[grid](x, out, 2**24)
    least = sum(summed)
    summed.clear()
    shipped(**plain, rep=50, name="longer")[grid](x, out, 2**24)
    assert warmed == [7, 7]
    assert sum(summed) > 50 > least


# --- processes that die -----------------------------------------------------------------------

HEADER = """
import sys
import torch, triton, triton.language as tl
from triton import Config
from shipconf import shipped_autotune
"""

WILD_KERNEL = (
    HEADER
    + """
@shipped_autotune(
    configs=[Config({"BLOCK": 64, "FAR": 0}), Config({"BLOCK": 128, "FAR": 1 << 40}),
             Config({"BLOCK": 256, "FAR": 0})],
    key=["n"],
)
@triton.jit
def wild(out_ptr, n, BLOCK: tl.constexpr, FAR: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets + FAR, offsets, mask=offsets < n)
"""
)

WILD = (
    WILD_KERNEL
    + """
out = torch.zeros(4096, device="cuda", dtype=torch.int32)
wild[lambda named: (triton.cdiv(4096, named["BLOCK"]),)](out, 4096)
assert torch.equal(out, torch.arange(4096, device="cuda", dtype=torch.int32))
"""
)

HOT = (
    HEADER
    + """
@shipped_autotune(configs=[Config({"BLOCK": 64}), Config({"BLOCK": 128})], key=["n"])
@triton.jit
def hot(out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, offsets, mask=offsets < n)

out = torch.zeros(128, device="cuda", dtype=torch.int32)
hot[(2,)](out, 128)
hot[(2,)](out, 128)
opened, listening = [], True
sys.addaudithook(lambda event, args: opened.append(event) if listening and (
    event == "open" or event.startswith("os.")) else None)
launch = hot[(2,)]
for _ in range(10_000):
    launch(out, 128)
listening = False
torch.cuda.synchronize()
print("opened", opened)
"""
)

COLD = (
    HEADER
    + """
@shipped_autotune(configs=[Config({"BLOCK": b}) for b in (64, 128, 256)], key=["n"])
@triton.jit
def cold(out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, offsets, mask=offsets < n)

out = torch.zeros(128, device="cuda", dtype=torch.int32)
sys.stdin.readline()
cold[(2,)](out, 128)
print("timings", len(cold.configs_timings), "block", cold.best_config.kwargs["BLOCK"])
"""
)


def environment(store: Path) -> dict[str, str]:
    root = str(Path(shipconf.__file__).parents[1])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "SHIPCONF_CACHE_DIR": str(store), "TRITON_INTERPRET": "0",
            "PYTHONPATH": path}  # fmt: skip


def run(folder: Path, script: str, store: Path) -> subprocess.CompletedProcess[str]:
    """The script in a process of its own, from a file: kernels need their source."""
    path = folder / "script.py"
    path.write_text(script)
    return subprocess.run(
        [sys.executable, str(path)], env=environment(store), capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip


def test_a_candidate_that_writes_out_of_bounds_is_named_and_left_out_next_time(tmp_path, store):
    """Case 33: fatal, nothing persisted from that run, and the next process tunes without it."""
    first = run(tmp_path, WILD, store)
    assert first.returncode != 0
    assert "TuningError" in first.stderr and "FAR=1099511627776" in first.stderr, first.stderr
    assert "broke the device's context" in first.stderr
    assert list(store.rglob("*.json")) == []
    second = run(tmp_path, WILD, store)
    assert second.returncode == 0, second.stderr
    _, record = the_record(store)
    ((name, why),) = record["left_out"].items()
    assert "FAR=1099511627776" in name and why.startswith("ended its process:")
    assert record["config"]["FAR"] == 0


WILD_MODULE = (
    WILD_KERNEL
    + """
from shipconf import Launch

@wild.workload
def workload(n, dtypes):
    out = torch.zeros(n, device="cuda", dtype=dtypes)
    return Launch(lambda named: (triton.cdiv(n, named["BLOCK"]),), (out, n))
"""
)

TUNES = """
import logging, torch, wildly
logging.basicConfig(level=logging.INFO, format="%(message)s")
record = wildly.wild.tune(n=4096, dtypes=torch.int32)
out = torch.zeros(4096, device="cuda", dtype=torch.int32)
wildly.wild[lambda named: (wildly.triton.cdiv(4096, named["BLOCK"]),)](out, 4096)
assert torch.equal(out, torch.arange(4096, device="cuda", dtype=torch.int32))
print(record.config["FAR"], list(record.left_out), len(wildly.wild.configs_timings))
"""


def test_a_tuning_on_purpose_loses_one_candidate_to_one_bad_candidate(tmp_path, store):
    """A worker measures, and another goes on where it ended: this process can launch."""
    (tmp_path / "wildly.py").write_text(WILD_MODULE)
    done = run(tmp_path, TUNES, store)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0 ['BLOCK=128, FAR=1099511627776"), done.stdout
    assert done.stdout.rstrip().endswith(" 2")
    assert "goes on in a new process" in done.stderr
    _, record = the_record(store)
    ((name, why),) = record["left_out"].items()
    assert "FAR=1099511627776" in name and why.startswith("ended its process:")


def test_launches_of_a_known_key_open_no_file(tmp_path, store):
    """Case 40, with the real launcher."""
    done = run(tmp_path, HOT, store)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "opened []"


def test_of_four_processes_one_tunes_and_all_use_its_config(tmp_path, store):
    """Case 26, on one GPU."""
    path = tmp_path / "cold.py"
    path.write_text(COLD)
    processes = [
        subprocess.Popen([sys.executable, str(path)], env=environment(store), text=True,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(4)
    ]  # fmt: skip
    outputs = []
    for process in processes:  # all are started, and wait for their line
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        outputs.append(process.communicate(timeout=300)[0])
        assert process.returncode == 0
    lines = sorted(output.splitlines()[-1].split() for output in outputs)
    assert [line[1] for line in lines] == ["0", "0", "0", "3"]
    assert len({line[3] for line in lines}) == 1
    the_record(store)


# --- CUDA graphs ------------------------------------------------------------------------------


def test_a_graph_of_a_prepared_key_replays_the_stored_config():
    """Case 38: known before the capture, nothing is said, measured or compiled in it."""
    kernel = shipped()
    x, out = vectors()
    assert kernel.prepare(x, out, N, grid=grid).rule == "exact"
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel[grid](x, out, N)
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, x + 1)


def test_a_graph_of_a_cold_key_takes_the_default_with_one_warning(store):
    """Case 38: no tuning, a working launch, nothing remembered or written."""
    kernel = shipped(default=configs(512)[0])
    x, out = vectors()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.warns(ShipconfWarning, match=r"plus_one\.prepare\(") as caught,
        torch.cuda.graph(graph),
    ):
        kernel[grid](x, out, N)
        kernel[grid](x, out, N)
    assert len(caught) == 1
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, x + 1)
    assert list(store.rglob("*.json")) == [] and kernel.cache == {}
    kernel[grid](x, out, N)  # outside it tunes
    assert len(list(store.rglob("*.json"))) == 1


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_graph_of_a_cold_key_with_nothing_to_launch_is_an_error_that_names_prepare():
    kernel = shipped()
    x, out = vectors()
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.warns(ShipconfWarning),
        pytest.raises(OfflineError, match=r"plus_one\.prepare\("),
        torch.cuda.graph(graph),
    ):
        kernel[grid](x, out, N)
    kernel[grid](x, out, N)
    assert torch.equal(out, x + 1)


# --- records held against the default ---------------------------------------------------------

SHIPS = (
    HEADER
    + """
from shipconf import Launch

@shipped_autotune(
    configs=[Config({"BLOCK": 512}), Config({"BLOCK": 1024}), Config({"BLOCK": 2048})], key=["n"],
    default=Config({"BLOCK": 32}, num_warps=1),
)
@triton.jit
def shipped_sum(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, x + 1, mask=offsets < n)

@shipped_sum.workload
def workload(n, dtypes):
    x = torch.randn(n, device="cuda", dtype=dtypes)
    return Launch(lambda named: (triton.cdiv(n, named["BLOCK"]),), (x, torch.empty_like(x), n))
"""
)


def test_a_tuned_exported_and_verified_record_still_beats_the_default(
    tmp_path, monkeypatch, capsys
):
    """From the user store into a source folder, and measured there again."""
    folder = tmp_path / "shipping"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "sums.py").write_text(SHIPS)
    monkeypatch.syspath_prepend(tmp_path)
    kernel = load("shipping.sums:shipped_sum")
    record = kernel.tune(n=2**22, dtypes=torch.float32)
    assert record.default_ms > 2 * record.time_ms["median"]
    assert main(["export", str(folder)]) == 0
    capsys.readouterr()
    assert main(["verify", str(folder), "--measure", "--json"]) in (0, 1)
    told = json.loads(capsys.readouterr().out)
    (measured,) = told["measured"]
    assert measured["ratio"] == pytest.approx(measured["recorded"], rel=0.15)
    assert all("times as fast" in fault["what"] for fault in told["faults"])


# --- a portfolio -----------------------------------------------------------------------------

SWEPT = (
    HEADER
    + """
from shipconf import Launch

@shipped_autotune(
    configs=[Config({"ROWS": rows}) for rows in (1, 8, 64)], key=["N"], nearest=["M"],
)
@triton.jit
def weighted(x_ptr, out_ptr, M, N, ROWS: tl.constexpr):
    # Each program computes the weights first: where there are many rows, few programs are
    # faster, and where there are few rows, many.
    columns = tl.arange(0, 1024)
    weights = columns * 0.001
    for _ in range(200):
        weights = weights * 0.5 + 1.0
    for i in range(ROWS):
        row = tl.program_id(0) * ROWS + i
        x = tl.load(x_ptr + row * N + columns, mask=(row < M) & (columns < N), other=0.0)
        tl.store(out_ptr + row, tl.sum(x * weights, 0), mask=row < M)

def grid(named):
    return (triton.cdiv(named["M"], named["ROWS"]),)

@weighted.workload
def workload(M, N, dtypes):
    x = torch.randn(M, N, device="cuda", dtype=dtypes)
    return Launch(grid, (x, torch.empty(M, device="cuda", dtype=dtypes), M, N))
"""
)


def test_a_tuning_over_several_points_leaves_a_portfolio_that_launches_choose_by(
    tmp_path, monkeypatch, capsys, store
):
    """Measured by the worker; and what it wrote is exported, verified, and its quality told."""
    folder = tmp_path / "sweeping"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "rows.py").write_text(SWEPT)
    monkeypatch.syspath_prepend(tmp_path)
    kernel = load("sweeping.rows:weighted")
    points = [16, 256, 4096, 65536]
    records = kernel.tune(N=1024, M=points, dtypes=torch.float32)
    assert len({record.config["ROWS"] for record in records}) > 1
    (path,) = store.rglob("*.json")
    (table,) = json.loads(path.read_text())["portfolios"]
    assert [row["at"]["M"] for row in table["rows"]] == points
    rows = [config["ROWS"] for config in table["configs"]]
    for row in table["rows"]:
        m = row["at"]["M"]
        assert row["programs"] == [triton.cdiv(m, of) for of in rows] and min(row["time_ms"]) > 0
    for resources in table["resources"]:
        assert resources["registers"] > 0 and resources["warps"] == 4
    for record, row in zip(records, table["rows"], strict=True):
        assert min(row["time_ms"]) == pytest.approx(record.time_ms["median"], rel=0.5)
    m = 1000
    x = torch.randn(m, 1024, device="cuda")
    out = torch.empty(m, device="cuda")

    def given(named: dict[str, Any]) -> tuple[int]:
        return (triton.cdiv(m, named["ROWS"]),)

    match = kernel.resolve(x, out, m, 1024, grid=given)
    assert match.rule == "predicted" and match.config["ROWS"] in rows
    assert match.prediction.waves >= 1 and match.prediction.time_ms > 0
    kernel[given](x, out, m, 1024)
    torch.testing.assert_close(out, 2 * x.sum(1), rtol=1e-3, atol=1e-2)
    again = kernel.tune(N=1024, M=points, dtypes=torch.float32)
    assert [record.config for record in again] == [record.config for record in records]
    assert json.loads(path.read_text())["portfolios"] == [table]
    assert main(["export", str(folder)]) == 0
    assert main(["verify", str(folder)]) == 0, capsys.readouterr()
    capsys.readouterr()
    assert main(["quality", str(folder), "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["portfolios"]
    assert told["predicted"]["count"] == len(points) and told["configs"] == len(rows)
