"""The decorator and what it returns: a drop-in, the key, and what tools expect."""

from __future__ import annotations

import inspect
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import kernels
import numpy as np
import pytest
import torch
import triton
from forked import Child
from kernels import BLOCKS, Trial, configs
from packages import files_in, records_in
from triton.runtime.jit import JITFunction, KernelInterface

import shipconf
from shipconf import ShipconfWarning, ShippedKernel, shipped_autotune

# --- a drop-in --------------------------------------------------------------------------------


def test_every_parameter_of_triton_autotune_is_taken_in_its_place():
    """Replacing the decorator's name is a whole migration, also for positional arguments."""
    theirs = inspect.signature(triton.autotune).parameters
    ours = inspect.signature(shipped_autotune).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    for name, parameter in theirs.items():
        assert ours[name].default == parameter.default
        assert ours[name].kind == parameter.kind
    assert all(ours[n].kind is inspect.Parameter.KEYWORD_ONLY for n in list(ours)[len(theirs) :])


def test_cache_results_is_accepted_and_ignored():
    """Results are always kept: both spellings leave one record of one kernel."""
    assert Trial(cache_results=False).launch(8, 8) == 64
    again = Trial(cache_results=True)
    assert again.launch(8, 8) == 64
    assert again.measured == []


@pytest.mark.parametrize("what", ["key", "nearest", "reset_to_zero", "restore_value"])
def test_a_misspelt_name_raises_at_decoration_and_names_the_valid_ones(what: str):
    options: dict[str, Any] = {"key": ["N"], what: ["Nn"]}
    with pytest.raises(ValueError, match=rf"{what}.*'Nn'.*out_ptr, N, M, BLOCK"):
        shipped_autotune(configs=configs(), **options)(kernels.told)


def test_one_name_cannot_be_both_exact_and_near():
    with pytest.raises(ValueError, match="both in key and in nearest: N"):
        shipped_autotune(configs=configs(), key=["N"], nearest=["N"])(kernels.told)


def test_no_configs_are_one_config_without_knobs():
    """As in Triton, a kernel without configs is launched with the default launch options."""
    trial = Trial(configs=[], do_bench=None)
    assert trial.launch(8, 8, BLOCK=16) == 16
    assert trial.kernel.configs == [triton.Config({})]


def _decorated_in_silence() -> list[str]:
    for name in ("HOME", "SHIPCONF_CACHE_DIR", "XDG_CACHE_HOME"):
        os.environ.pop(name, None)
    touched: list[str] = []
    watched = ("open", "os.", "shutil.", "subprocess.", "ctypes.dlopen", "socket.")

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event.startswith(watched) and listening:
            touched.append(f"{event} {args[:1]}")

    listening = False
    sys.addaudithook(hook)
    listening = True
    shipped_autotune(
        configs(), ["N"], nearest=["M"], default=configs()[0], name="silent", configs_dir="shipped"
    )(kernels.told)
    listening = False
    return touched


def test_decoration_touches_no_driver_no_file_and_no_home():
    """A kernel module imports on a machine with no GPU, no HOME and no writable directory."""
    assert Child(_decorated_in_silence).result() == []


# --- what tools expect ------------------------------------------------------------------------


def test_the_kernel_is_what_tools_take_an_autotuned_kernel_for():
    kernel = Trial().kernel
    stock = triton.autotune(configs=configs(), key=["N"])(kernels.told)
    assert isinstance(kernel, KernelInterface) and isinstance(kernel, ShippedKernel)
    assert kernel.fn is kernels.told and kernel.base_fn is stock.base_fn
    assert kernel.arg_names == stock.arg_names
    assert kernel.keys == stock.keys and kernel.configs == stock.configs
    assert kernel.__name__ == "told"
    assert kernel.__doc__ == stock.base_fn.__doc__
    assert kernel.__module__ == "kernels"
    assert kernel.cache == {} and kernel.configs_timings == {}
    assert not hasattr(kernel, "best_config")  # as in Triton, before the first launch


def test_the_jit_function_is_found_by_walking_fn():
    """Triton's own tools walk `.fn` until they meet the JIT function."""
    kernel: Any = Trial().kernel
    steps = 0
    while not isinstance(kernel, (JITFunction, type(kernels.told))):
        kernel, steps = kernel.fn, steps + 1
    assert kernel is kernels.told and steps == 1


def test_a_tuning_leaves_what_triton_s_autotuner_leaves():
    """`best_config`, `cache` and `configs_timings` hold live `Config`s and milliseconds."""
    trial = Trial()
    trial.launch(8, 8)
    best = trial.kernel.configs[2]
    assert trial.kernel.best_config == best
    assert list(trial.kernel.cache.values()) == [best]
    assert trial.kernel.configs_timings == {
        config: [64 / block] * 3 for config, block in zip(trial.kernel.configs, BLOCKS)
    }
    assert trial.kernel.bench_time is not None


def test_best_config_is_that_of_the_latest_lookup():
    trial = Trial()
    trial.launch(8, 8)
    trial.times.update({16: 0.1})
    trial.launch(9, 8)
    assert trial.kernel.best_config == trial.kernel.configs[0]
    assert len(trial.kernel.cache) == 2


@pytest.mark.skipif(
    not hasattr(triton.knobs.autotuning, "listener"), reason="Triton has it from 3.7 on"
)
def test_triton_s_listener_is_told_of_a_tuning_and_of_no_launch(monkeypatch):
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(triton.knobs.autotuning, "listener", lambda **news: told.append(news))
    trial = Trial()
    trial.launch(8, 8)
    trial.launch(8, 8)
    trial.launch(8, 9)
    (news,) = told
    assert news["fn"] is kernels.told
    assert news["best_config"] == trial.kernel.configs[2]
    assert news["configs_timings"] == trial.kernel.configs_timings
    assert news["cache_hit"] is False and news["duration"] >= 0
    assert "N" in str(news["key"])


def test_triton_print_autotuning_prints_what_triton_users_expect(monkeypatch, capsys):
    monkeypatch.setenv("TRITON_PRINT_AUTOTUNING", "1")
    Trial().launch(8, 8)
    printed = capsys.readouterr().out
    assert "Triton autotuning for function told" in printed
    assert "best config selected: BLOCK: 64, num_warps: 4" in printed


def test_without_that_variable_nothing_is_printed(capsys):
    Trial().launch(8, 8)
    assert capsys.readouterr() == ("", "")


def test_only_run_is_overridden():
    """Triton's tools patch `KernelInterface.__getitem__`: it must still be the one in use."""
    assert ShippedKernel.__getitem__ is KernelInterface.__getitem__
    trial = Trial()
    launcher = trial.kernel[(1,)]
    launcher(trial.out, 8, 8)
    assert int(trial.out[0]) == 64


# --- what a launch passes ---------------------------------------------------------------------


def test_a_launch_that_passes_a_tuned_knob_raises_and_names_it():
    """By keyword or by position, cold or known: the same error as on the first launch."""
    trial = Trial()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"told.*'BLOCK'"):
            trial.launch(8, 8, BLOCK=16)
        with pytest.raises(ValueError, match=r"told.*'BLOCK'"):
            trial.launch(8, 8, 16)
        with pytest.raises(ValueError, match=r"told.*'num_warps'"):
            trial.launch(8, 8, num_warps=8)
        assert trial.launch(8, 8) == 64


def test_a_launch_may_pass_an_option_that_no_config_sets(monkeypatch):
    """`maxnreg`, say: it reaches every measured call and every launch."""
    runs: list[Any] = []
    run = kernels.told.run
    monkeypatch.setattr(
        kernels.told, "run",
        lambda *args, **kw: (runs.append(kw["maxnreg"]), run(*args, **kw)), raising=False,
    )  # fmt: skip
    trial = Trial()
    assert trial.launch(8, 8, maxnreg=64) == 64
    assert trial.launch(8, 8, maxnreg=64) == 64
    assert runs == [64] * 5 and len(trial.measured) == 3
    assert trial.resolve(8, 8, maxnreg=64).rule == "exact"


def test_a_launch_with_a_missing_argument_fails_as_a_call_does():
    with pytest.raises(TypeError, match="N"):
        Trial().launch()
    with pytest.raises(TypeError):
        Trial().launch(8, 8, nothing=1, M=8)


# --- the key ----------------------------------------------------------------------------------


def test_positional_keyword_and_default_spellings_are_one_key():
    """Case 7: one tuning serves every way to write the launch."""
    trial = Trial(
        kernels.told_spelt, key=["N", "K", "bias_ptr"], nearest=[],
        configs=[triton.Config({"BLOCK": b}) for b in BLOCKS],
    )  # fmt: skip
    assert trial.launch(8) == 64
    assert trial.launch(N=8) == 64
    assert trial.launch(8, 64) == 64
    assert trial.launch(8, 64, None) == 64
    assert trial.launch(K=64, N=8) == 64
    assert trial.launch(bias_ptr=None, K=64, N=8) == 64
    trial.kernel[(1,)](N=8, out_ptr=trial.out)
    assert len(trial.measured) == 3
    trial.launch(8, 65)
    assert len(trial.measured) == 6


def test_spellings_are_one_key_in_a_new_process_too():
    first = Trial(kernels.told_spelt, key=["N", "K"], nearest=[])
    first.launch(K=64, N=8)
    again = Trial(kernels.told_spelt, key=["N", "K"], nearest=[])
    assert again.launch(8) == 64 and again.measured == []


def test_a_pair_reads_its_value_off_the_named_arguments():
    """A fused-MoE kernel's E is a tensor's shape; it stands in files like any other entry."""
    trial = Trial(key=[("E", lambda a: a["out_ptr"].shape[0]), "N"])
    assert trial.launch(8, 8) == 64
    assert [path for path in files_in(Path(os.environ["SHIPCONF_CACHE_DIR"])) if "E=1,N=8" in path]
    trial.out = torch.zeros(2, dtype=torch.int32)
    trial.launch(8, 8)
    assert len(trial.measured) == 6
    match = trial.kernel.resolve_for(E=2, N=8, M=8, dtypes=torch.int32)
    assert match is not None and match.rule == "exact"


def test_a_nearest_pair_reads_its_value_off_the_named_arguments():
    trial = Trial(nearest=[("rows", lambda a: a["M"] // 2)])
    trial.launch(8, 16)
    match = trial.resolve(8, 32)
    assert match.record.at == {"rows": 8} and match.distance == 1.0


def test_a_constexpr_may_be_in_the_key():
    trial = Trial(kernels.told_mode, key=["MODE", "N"], nearest=[])
    trial.launch("fast", 8)
    trial.launch("fast", 8)
    trial.launch(MODE="slow", N=8)
    assert len(trial.measured) == 6
    again = Trial(kernels.told_mode, key=["MODE", "N"], nearest=[])
    again.launch(N=8, MODE="slow")
    assert again.measured == []


VALUES = [torch.float16, (16, (True, "x")), None, True, 1, 1.0, "1", np.int64(3), np.float32(0.5)]


def test_values_of_every_type_are_kept_apart_and_found_again(store):
    """Case 8: typed round trip through files; `True` is not `1`, and NumPy's 3 is 3."""
    first = Trial(kernels.told_value, key=["V"], nearest=[])
    for number, value in enumerate(VALUES):
        first.times.update({block: 1.0 + (block != BLOCKS[number % 3]) for block in BLOCKS})
        assert first.launch(value) == BLOCKS[number % 3]
    assert len(first.measured) == 3 * len(VALUES)
    assert len(records_in(store)) == len(VALUES)
    again = Trial(kernels.told_value, key=["V"], nearest=[])
    for number, value in enumerate(VALUES):
        assert again.launch(value) == BLOCKS[number % 3]
    assert again.launch(3) == BLOCKS[VALUES.index(3) % 3]
    assert again.measured == []


def test_values_that_python_calls_equal_are_kept_apart_in_memory():
    """Case 8: `1`, `True` and `1.0` are one key of a dict, and three of a kernel."""
    trial = Trial(kernels.told_value, key=["V"], nearest=[])
    for block, value in zip(BLOCKS, (1, True, 1.0)):
        trial.times.update({b: 1.0 + (b != block) for b in BLOCKS})
        assert trial.launch(value) == block
    assert [trial.launch(value) for value in (1, True, 1.0)] == list(BLOCKS)
    assert len(trial.measured) == 9


@pytest.mark.parametrize("value", [float("nan"), kernels.told], ids=["NaN", "JIT function"])
def test_a_value_that_no_file_can_hold_stays_in_memory_with_one_warning(value: Any, store):
    """Case 8: tuned once in this process; nothing is written, not even a lock or a journal."""
    trial = Trial(kernels.told_value, key=["V"], nearest=[])
    with pytest.warns(ShipconfWarning, match="told_value.*memory") as caught:
        assert trial.launch(value) == 64
        assert trial.launch(value) == 64
    assert len(caught) == 1
    assert trial.measured == list(BLOCKS)
    assert files_in(store) == []


def test_the_dtypes_of_tensors_belong_to_the_key():
    """Case 5: tuned in int32, launched in int64: another key, which tunes."""
    trial = Trial()
    trial.launch(8, 8)
    trial.out = trial.out.to(torch.int64)
    assert trial.resolve(8, 8) is None
    trial.launch(8, 8)
    assert len(trial.measured) == 6


def test_an_absent_optional_tensor_is_told_from_a_present_one(store):
    trial = Trial(kernels.told_spelt, key=["N"], nearest=[])
    trial.launch(8)
    trial.launch(8, bias_ptr=torch.zeros(1))
    trial.launch(8, bias_ptr=None)
    trial.launch(8, bias_ptr=torch.zeros(1))
    assert len(trial.measured) == 6
    names = [name for name in files_in(store) if name.endswith(".json")]
    assert any("dtypes=int32-none," in name for name in names)
    assert any("dtypes=int32-float32," in name for name in names)


def test_a_kernel_without_tensors_and_without_nearest_is_tuned_and_found_again():
    def bench(fn: Any, quantiles: Any) -> list[float]:
        fn()
        measured.append(1)
        return [1.0 / len(measured)] * 3

    measured: list[int] = []
    for _ in range(2):
        kernel = shipped_autotune(configs(), ["N"], do_bench=bench)(kernels.no_tensors)
        kernel[(1,)](8)
    assert len(measured) == 3
    match = kernel.resolve_for(N=8, dtypes=None)
    assert match is not None and match.config["BLOCK"] == 64


# --- heuristics -------------------------------------------------------------------------------


def test_heuristics_below_work():
    fn = triton.heuristics({"MODE": lambda a: a["N"] > 4})(kernels.told_mode)
    trial = Trial(fn, key=["N"], nearest=[])
    assert trial.launch(N=8) == 64
    assert trial.launch(N=8) == 64
    assert len(trial.measured) == 3
    assert trial.kernel.base_fn is kernels.told_mode.fn
    again = Trial(fn, key=["N"], nearest=[])
    assert again.launch(N=8) == 64 and again.measured == []


def test_heuristics_above_work_and_may_compute_a_key_entry():
    trial = Trial(kernels.told_mode, key=["MODE", "N"], nearest=[])
    above = triton.heuristics({"MODE": lambda a: a["N"] > 4})(trial.kernel)
    for n in (8, 8, 2):
        above[(1,)](trial.out, N=n)
        assert int(trial.out[0]) == 64
    assert len(trial.measured) == 6
    assert trial.kernel.resolve(trial.out, True, 8).rule == "exact"


def test_a_knob_that_a_heuristic_below_sets_too_raises_and_names_both():
    fn = triton.heuristics({"BLOCK": lambda a: 16})(kernels.told)
    with pytest.raises(ValueError, match="'BLOCK' is set by a heuristic and by the configs"):
        Trial(fn).launch(8, 8)


def test_a_knob_that_a_heuristic_above_sets_too_raises_and_names_it():
    trial = Trial()
    above = triton.heuristics({"BLOCK": lambda a: 16})(trial.kernel)
    with pytest.raises(ValueError, match=r"'BLOCK'.*configs"):
        above[(1,)](trial.out, 8, 8)
    trial.launch(8, 8)
    with pytest.raises(ValueError, match=r"'BLOCK'.*configs"):
        above[(1,)](trial.out, 8, 8)


def test_a_key_entry_that_a_heuristic_below_computes_raises_and_names_both():
    fn = triton.heuristics({"MODE": lambda a: True})(kernels.told_mode)
    trial = Trial(fn, key=["MODE"], nearest=[])
    with pytest.raises(ValueError, match="key entry 'MODE' is computed by a heuristic"):
        trial.kernel[(1,)](trial.out, N=8)


# --- the rest ---------------------------------------------------------------------------------


def test_repr_names_the_module_and_the_kernel():
    assert "kernels:told" in repr(Trial().kernel)


def test_the_public_names_are_there():
    assert {"shipped_autotune", "ShippedKernel", "Match", "Launch", "offline", "override"} <= set(
        shipconf.__all__
    )
    for name in shipconf.__all__:
        assert getattr(shipconf, name) is not None


def test_a_match_pickles():
    """Callers hand matches to other processes."""
    trial = Trial()
    trial.launch(8, 8)
    match = trial.resolve(8, 8)
    assert pickle.loads(pickle.dumps(match)) == match
