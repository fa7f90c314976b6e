"""What people's kernels do that a memory for configs must not trip over."""

from __future__ import annotations

import enum
import shlex
import threading
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from forked import Child
from kernels import BLOCKS, Trial, configs, told, told_spelt
from packages import package, record, records_in, shelf, write

import shipconf
from shipconf import ShipconfWarning, shipped_autotune
from shipconf.cli import main
from shipconf.compiling import compile_all
from shipconf.records import Device


@triton.jit
def moded(out_ptr, N, M, MODE: tl.constexpr, BLOCK: tl.constexpr):
    tl.static_assert(MODE == "a" or MODE == "b", "mode must be a or b")
    tl.store(out_ptr, BLOCK)


@triton.jit
def plus_one(x):
    return x + 1


@triton.jit
def plus_two(x):
    return x + 2


@triton.jit
def with_function(out_ptr, N, M, FN: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(out_ptr, FN(BLOCK))


# --- whose fault a failure is -----------------------------------------------------------------


@pytest.mark.parametrize("offline", [False, True])
def test_a_wrong_call_costs_no_config_its_place(offline, store):
    """A bad constexpr fails with every config: the call is at fault, here and for other keys."""
    for n in (8, 16):
        Trial(moded).launch(n, 8, MODE="a")
    kept = records_in(store)
    trial = Trial(moded)
    for _ in range(2):
        if offline:
            with shipconf.offline(), pytest.raises(Exception, match="mode must be a or b"):
                trial.launch(8, 8, MODE="typo")
        else:
            with pytest.raises(Exception, match="mode must be a or b"):
                trial.launch(8, 8, MODE="typo")
    trial.measured.clear()
    assert [trial.launch(n, 8, MODE="a") for n in (8, 16)] == [64, 64]
    assert trial.measured == [] and records_in(store) == kept


# --- knobs of every kind ----------------------------------------------------------------------


def test_an_option_that_only_some_candidates_set_may_be_left_out():
    """A launch option that a record leaves out is Triton's default; it is not missing."""
    some = [
        triton.Config({"BLOCK": 16, "waves_per_eu": 2}), triton.Config({"BLOCK": 32}),
        triton.Config({"BLOCK": 64}),
    ]  # fmt: skip
    assert Trial(configs=some).launch(8, 8) == 64
    again = Trial(configs=some)
    assert again.launch(8, 8) == 64 and again.measured == []


def test_a_knob_that_is_a_function_is_served_as_that_very_function():
    """By its module and name: never another function whose Python text looks alike."""
    options: dict[str, Any] = {
        "configs": [triton.Config({"BLOCK": 16, "FN": plus_one}),
                    triton.Config({"BLOCK": 32, "FN": plus_two})],
        "times": {17: 2.0, 34: 1.0},
    }  # fmt: skip
    assert Trial(with_function, **options).launch(8, 8) == 34
    again = Trial(with_function, **options)
    assert again.launch(8, 8) == 34 and again.measured == []


def test_configs_that_differ_in_a_function_only_are_two():
    both = [triton.Config({"BLOCK": 16, "FN": fn}) for fn in (plus_one, plus_two)]
    trial = Trial(with_function, configs=both, times={17: 2.0, 18: 1.0})
    assert trial.launch(8, 8) == 18 and trial.measured == [17, 18]


@pytest.mark.parametrize("kind", [
    enum.IntEnum("Size", {"SMALL": 16, "LARGE": 32}),
    enum.Enum("Size", {"SMALL": 16, "LARGE": 32}, type=int),
])  # fmt: skip
def test_a_knob_that_is_an_enum_is_found_again(kind):
    options: dict[str, Any] = {"configs": [triton.Config({"BLOCK": size}) for size in kind]}
    assert Trial(**options).launch(8, 8) == 32
    again = Trial(**options)
    assert again.launch(8, 8) == 32 and again.measured == []


@pytest.mark.filterwarnings("ignore:no stored record")
def test_clusters_are_refused_where_the_device_has_none(tmp_path):
    """A file that names no architecture may come from a newer GPU."""
    kernel = shipped_autotune(configs=configs([16]), key=["N"], default=configs([32])[0],
                              configs_dir=tmp_path)(told)  # fmt: skip
    (tmp_path / "N=8,device_name=GPU.json").write_text(
        '{"schema": 1, "kernel": "told", "device": {"name": "GPU"}, "key": {"N": 8}, "nearest": [],'
        ' "records": [{"at": {}, "config": {"BLOCK": 64, "num_ctas": 2}}]}'
    )
    old, new = Device("cuda", "GPU", "sm_89"), Device("cuda", "GPU", "sm_90")
    served = kernel.resolve_for(dtypes="int32", device=new, N=8)
    assert served is not None and served.config["BLOCK"] == 64
    with shipconf.offline(), pytest.warns(ShipconfWarning, match="sm_89 has no clusters"):
        refused = kernel.resolve_for(dtypes="int32", device=old, N=8)
    assert refused is not None and refused.config["BLOCK"] == 32


# --- what is pruned, and keys of every kind ---------------------------------------------------


def test_a_near_record_that_pruning_forbids_here_does_not_serve():
    """`early_config_prune` may say what is right for a shape, not only what is fast."""

    def fits(some: list[Any], named: dict[str, Any], **more: Any) -> list[Any]:
        return [config for config in some if config.kwargs["BLOCK"] <= named["M"]]

    trial = Trial(prune_configs_by={"early_config_prune": fits})
    assert trial.launch(8, 64) == 64
    assert trial.launch(8, 32) == 32  # an octave away, and 64 is too large for it
    assert trial.launch(8, 100) == 64
    assert trial.measured == [16, 32, 64, 16, 32]


def test_one_config_is_not_pruned():
    trial = Trial(blocks=[32], prune_configs_by={"early_config_prune": lambda *args, **kwargs: []})
    assert trial.launch(8, 8) == 32 and trial.measured == []


def test_a_key_entry_that_the_configs_set_is_ignored():
    trial = Trial(key=["N", "BLOCK"])
    assert trial.launch(8, 8) == 64
    with pytest.raises(ValueError, match="not the string 'N'"):
        Trial(key="N")


@pytest.mark.filterwarnings("ignore:.*has a value that no file can hold")
@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, float("nan")])
def test_a_key_value_that_cannot_be_hashed_lives_in_memory(value, store):
    """A list, a dict, and NaN, which equals nothing: tuned once a process."""
    trial = Trial(key=[("S", lambda named: value)], nearest=[])
    assert [trial.launch(8, 8) for _ in range(3)] == [64, 64, 64]
    assert trial.measured == list(BLOCKS) and records_in(store) == []
    assert len(trial.kernel.cache) == 1


# --- hooks ------------------------------------------------------------------------------------


def test_a_config_s_hook_sees_defaults_at_every_launch():
    """At the second launch too, which memory serves."""
    told_of: list[Any] = []
    hooked = [triton.Config({"BLOCK": b}, pre_hook=lambda named: told_of.append(named["K"]))
              for b in (16, 32)]  # fmt: skip
    out = torch.zeros(1, dtype=torch.int32)
    kernel = shipped_autotune(configs=hooked, key=["N"], do_bench=lambda fn, quantiles: 1.0)(
        told_spelt
    )
    for _ in range(3):
        kernel[(1,)](out, 8)
    assert told_of == [64, 64, 64]


def test_a_hook_runs_before_its_config_is_compiled():
    """It may set what is compiled, as for tensor descriptors; then one is compiled at a time."""
    order: list[Any] = []

    class Compiled:
        metadata = None

    def warm_up(name: str) -> Compiled:
        order.append((name, threading.current_thread() is threading.main_thread()))
        return Compiled()

    done = compile_all(["a", "b"], warm_up, None, Device(), in_turn=True)
    assert list(done) == [("a", None), ("b", None)]
    assert order == [("a", True), ("b", True)]


# --- tools ------------------------------------------------------------------------------------


def test_best_config_is_that_of_the_latest_launch():
    """From memory too, as tools read it after a launch."""
    trial = Trial(nearest=[], times={16: 3.0, 32: 1.0, 64: 2.0})
    trial.launch(8, 8)
    trial.times.update({64: 0.5})
    trial.launch(16, 8)
    trial.launch(8, 8)
    assert trial.kernel.best_config.kwargs == {"BLOCK": 32}


def test_warmup_returns_a_list_always():
    trial = Trial()
    assert len(trial.kernel.warmup(torch.int32, 8, 8, grid=(1,))) == 3
    trial.launch(8, 8)
    assert len(trial.kernel.warmup(torch.int32, 8, 8, grid=(1,))) == 1


# --- memory and locks -------------------------------------------------------------------------


def test_out_of_memory_is_over_when_it_is_over():
    """What served in the place of a tuning that had no memory is not kept."""
    times: dict[int, Any] = {16: RuntimeError("CUDA out of memory")}
    trial = Trial(times=times, default=configs([64])[0], blocks=(16, 32))
    with pytest.warns(ShipconfWarning):
        assert trial.launch(8, 8) == 64
    times[16] = 0.1
    assert trial.launch(8, 8) == 16


def test_tuning_on_purpose_raises_the_device_s_own_error():
    trial = Trial(times={16: torch.cuda.OutOfMemoryError("CUDA out of memory")})
    trial.kernel.workload(lambda N, M, dtypes: shipconf.Launch((1,), (trial.out, N, M)))
    with pytest.raises(torch.cuda.OutOfMemoryError):
        trial.kernel.tune(N=8, M=8, dtypes="int32")


@pytest.mark.filterwarnings("ignore:no stored record")
def test_a_launch_of_the_same_key_inside_its_own_tuning_does_not_wait(monkeypatch):
    """A check that launches the kernel itself, say: the default serves, at once."""
    monkeypatch.setenv("SHIPCONF_LOCK_TIMEOUT", "600")
    inner: list[int] = []
    trial = Trial(default=configs([32])[0])
    other = Trial(default=configs([32])[0])
    trial.during = lambda block: inner.append(other.launch(8, 8))
    with pytest.warns(ShipconfWarning, match="this thread"):
        trial.launch(8, 8)
    assert set(inner) == {32}


def test_a_child_forked_during_a_launch_can_launch():
    """The interpreter's lock belongs to a thread that the child does not have."""
    trial = Trial(nearest=[])
    trial.launch(8, 8)
    launching, done = threading.Event(), threading.Event()

    def busy(named: Any) -> tuple[int]:
        launching.set()
        done.wait(60)
        return (1,)

    thread = threading.Thread(target=lambda: trial.kernel[busy](trial.out, 8, 8))
    thread.start()
    assert launching.wait(60)
    try:
        assert Child(lambda: trial.launch(8, 8)).result(30) == 64
    finally:
        done.set()
        thread.join()


def test_times_of_another_triton_do_not_count(store, monkeypatch):
    """An interrupted tuning is resumed, but by the same Triton only."""

    class StoppedError(KeyboardInterrupt):
        pass

    def stop(block: int) -> None:
        if block == 32:
            raise StoppedError

    first = Trial(times={16: 0.001}, during=stop)
    with pytest.raises(StoppedError):
        first.launch(8, 8)
    monkeypatch.setattr(triton, "__version__", "99.0")
    second = Trial()
    assert second.launch(8, 8) == 64 and second.measured == list(BLOCKS)


# --- the command that a message names ---------------------------------------------------------


STRINGS = """
import torch, triton, triton.language as tl
import shipconf

@shipconf.shipped_autotune(
    configs=[triton.Config({"BLOCK": block}) for block in (16, 32)], key=["MODE"],
)
@triton.jit
def kernel(out_ptr, MODE: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(out_ptr, BLOCK)

@kernel.workload
def workload(MODE, dtypes):
    return shipconf.Launch((1,), (torch.zeros(1, dtype=dtypes), MODE))
"""


@pytest.mark.parametrize("value", ["8", "true", "null", "1.5", "relu"])
def test_the_named_command_fills_the_gap_of_a_string(tmp_path, value):
    """A string that looks like a number is quoted, so that it is read back as a string."""
    kernel = package(tmp_path, STRINGS).kernel
    words = kernel.explain_for(dtypes="int32", MODE=value)
    _, *arguments = shlex.split(words.splitlines()[-1].partition(": ")[2])
    assert main(arguments) == 0
    found = kernel.resolve_for(dtypes="int32", MODE=value)
    assert found is not None and found.rule == "exact"


def test_the_named_command_has_the_module_s_name_for_the_kernel(tmp_path):
    """`gemm = shipped_autotune(…)(_gemm)`: the command line finds `gemm`, not `_gemm`."""
    module = package(tmp_path)
    module.tuned = shipped_autotune(configs=configs(), key=["N"])(module.told)
    assert f"{module.__name__}:tuned " in module.tuned.explain_for(dtypes="int32", N=8)


def test_a_record_of_a_near_point_still_serves_without_pruning(tmp_path):
    module = package(tmp_path)
    write(shelf(module), record(32, M=8))
    trial = Trial(module.told)
    assert trial.launch(8, 16) == 32 and trial.measured == []


def test_a_default_that_won_is_found_again_among_configs_with_hooks():
    """It equals no config of the list, and its record serves all the same."""
    hooked = [triton.Config({"BLOCK": b}, pre_hook=lambda named, b=b: None) for b in (16, 32)]
    options: dict[str, Any] = {"configs": hooked, "default": configs([64])[0]}
    assert Trial(**options).launch(8, 8) == 64
    again = Trial(**options)
    assert again.launch(8, 8) == 64 and again.measured == []
