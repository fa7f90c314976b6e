"""What runs around measured calls, and what the tensors hold after a tuned launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import kernels
import pytest
import torch
import triton
from forked import Child
from kernels import BLOCKS, Trial, configs
from packages import files_in, records_in
from torch import Tensor

from shipconf import ShipconfWarning, TuningError


class Accumulating(Trial):
    """A split-K-like kernel on one or two programs, which adds to an integer total."""

    def __init__(self, **options: Any) -> None:
        self.total = torch.tensor([7], dtype=torch.int32)
        super().__init__(kernels.accumulated, key=["n"], nearest=[], **options)

    def run(self, programs: int = 2) -> int:
        self.kernel[(programs,)](self.out, self.total, 8)
        return int(self.total[0])


class InPlace(Trial):
    """`x = x * 3 + 1` on eight integers."""

    def __init__(self, **options: Any) -> None:
        self.x = torch.arange(8, dtype=torch.int32)
        super().__init__(kernels.in_place, key=["n"], nearest=[], **options)

    def run(self, bias: Tensor | None = None) -> list[int]:
        self.kernel[(1,)](self.out, self.x, bias, 8)
        return self.x.tolist()


ONCE = [3 * i + 1 for i in range(8)]


# --- the tensors after a tuned launch ---------------------------------------------------------


@pytest.mark.parametrize("bench", ["own", "user's"])
def test_reset_to_zero_leaves_what_one_launch_from_a_file_leaves(bench):
    """Case 34: the total is what it was, plus one launch of the winner, bit for bit.

    A deliberate difference from Triton, which zeroes on the tuning launch only.
    """
    options = {"do_bench": None} if bench == "own" else {}
    tuned = Accumulating(reset_to_zero=["total_ptr"], **options)
    total = tuned.run()
    served = Accumulating(reset_to_zero=["total_ptr"], **options)
    assert served.run() == total == 7 + 2 * int(served.out[0])
    assert served.measured == []
    assert tuned.run() == total + 2 * int(served.out[0])


@pytest.mark.parametrize("bench", ["own", "user's"])
def test_restore_value_leaves_what_one_launch_from_a_file_leaves(bench):
    """Case 34, for a kernel that works in place."""
    options = {"do_bench": None} if bench == "own" else {}
    tuned = InPlace(restore_value=["x_ptr"], **options)
    assert tuned.run() == ONCE
    served = InPlace(restore_value=["x_ptr"], **options)
    assert served.run() == ONCE
    assert served.measured == []


def test_every_measured_call_starts_from_the_same_tensors():
    """Zeroed where they accumulate, restored where they are read and written."""
    seen: list[Any] = []

    class Watched(InPlace):
        def do_bench(self, fn: Any, quantiles: Sequence[float]) -> list[float]:
            for _ in range(3):
                seen.append(self.x.tolist())
                fn()
            return super().do_bench(fn, quantiles)

    assert Watched(restore_value=["x_ptr"]).run() == ONCE
    assert seen == [list(range(8))] * 9

    totals: list[int] = []

    class Zeroed(Accumulating):
        def do_bench(self, fn: Any, quantiles: Sequence[float]) -> list[float]:
            fn()
            totals.append(int(self.total[0]))
            fn()
            totals.append(int(self.total[0]))
            return super().do_bench(fn, quantiles)

    Zeroed(reset_to_zero=["total_ptr"]).run(programs=1)
    assert totals == [16, 16, 32, 32, 64, 64]


def test_without_these_names_measured_calls_pile_up():
    """Documented: `x += 1` with two candidates and no `restore_value` runs more than once."""
    assert InPlace().run() != ONCE


@pytest.mark.parametrize("what", ["reset_to_zero", "restore_value"])
def test_a_name_whose_argument_is_none_is_skipped(what):
    """Case 34: an optional tensor that is absent."""
    trial = InPlace(**{what: ["bias_ptr"], "restore_value": ["x_ptr", "bias_ptr"]})
    assert trial.run(bias=None) == ONCE
    assert len(trial.measured) == 3


def test_the_tensors_are_restored_after_a_tuning_that_fails():
    """A candidate that raises between its writes leaves nothing behind either."""

    class Broken(InPlace):
        def do_bench(self, fn: Any, quantiles: Sequence[float]) -> list[float]:
            fn()
            self.x.fill_(-1)
            raise RuntimeError("out of memory, says this clock")

    trial = Broken(restore_value=["x_ptr"], default=configs([32])[0])
    with pytest.warns(ShipconfWarning) as caught:
        assert trial.run() == ONCE
    assert any("out of memory" in str(warning.message) for warning in caught)
    broken = Broken(restore_value=["x_ptr"], name="other")
    with pytest.raises(RuntimeError, match="says this clock"):
        broken.run()
    assert broken.x.tolist() == list(range(8))


# --- the user's hooks -------------------------------------------------------------------------


def test_the_user_s_hooks_run_around_each_measured_call_and_replace_the_default_ones():
    """As in Triton: the pre-hook gets the named arguments and knobs; and once more, with
    `reset_only=True`, before the launch itself."""
    calls: list[tuple[Any, ...]] = []

    def pre_hook(named: dict[str, Any], reset_only: bool = False) -> None:
        calls.append(("pre", named.get("BLOCK"), reset_only, named["n"]))
        named["total_ptr"].fill_(100)

    def post_hook(named: dict[str, Any], exception: Exception | None) -> None:
        calls.append(("post", named["BLOCK"], exception, int(named["total_ptr"][0])))

    trial = Accumulating(pre_hook=pre_hook, post_hook=post_hook)
    assert trial.run() == 100 + 2 * 64
    assert calls == [
        ("pre", 16, False, 8), ("post", 16, None, 132), ("pre", 32, False, 8),
        ("post", 32, None, 164), ("pre", 64, False, 8), ("post", 64, None, 228),
        ("pre", 64, True, 8),
    ]  # fmt: skip
    calls.clear()
    assert trial.run() == 100 + 4 * 64
    assert calls == []  # a launch that is not measured has no hooks, as in Triton


def test_the_post_hook_is_told_of_the_exception():
    told: list[tuple[int, Any]] = []
    trial = Trial(
        kernels.picky, post_hook=lambda named, exception: told.append((named["BLOCK"], exception))
    )
    assert trial.launch(8, 8, BAD=16) == 64
    assert [(block, error is None) for block, error in told] == [
        (16, False), (32, True), (64, True),
    ]  # fmt: skip
    assert "this block fails" in str(told[0][1])


def test_a_hook_that_fails_hides_no_kernel_s_error(store):
    def post_hook(named: dict[str, Any], exception: Exception | None) -> None:
        raise KeyError("the hook")

    trial = Trial(kernels.picky, post_hook=post_hook)
    with pytest.raises(TuningError) as caught:
        trial.launch(8, 8, BAD=16)
    assert "this block fails" in next(iter(caught.value.reasons.values()))
    assert "the hook" in list(caught.value.reasons.values())[1]


# --- a Config's own pre_hook ------------------------------------------------------------------


def hooked(told: list[Any], blocks: Sequence[int] = BLOCKS) -> list[triton.Config]:
    """Configs each of which has a hook of its own."""

    def hook(block: int) -> Any:
        return lambda named: told.append((block, named["BLOCK"], named["N"], named["num_warps"]))

    return [triton.Config({"BLOCK": b}, pre_hook=hook(b)) for b in blocks]


def _launched_in_a_new_process() -> tuple[list[Any], list[int]]:
    told: list[Any] = []
    trial = Trial(configs=hooked(told))
    assert [trial.launch(8, 8), trial.launch(8, M=9), trial.launch(M=9, N=8)] == [64, 64, 64]
    return told, trial.measured


def test_a_config_s_pre_hook_runs_when_its_record_is_served_in_a_new_process():
    """Case 35: a record is matched to the live `Config` by its knobs; then on each launch."""
    told: list[Any] = []
    trial = Trial(configs=hooked(told))
    assert trial.launch(8, 8) == 64
    assert told[-1] == (64, 64, 8, 4)
    assert [block for block, *_ in told] == [16, 32, 64, 64]
    assert Child(_launched_in_a_new_process).result() == ([(64, 64, 8, 4)] * 3, [])


def test_a_hook_that_all_configs_share_runs_for_any_record(store):
    told: list[int] = []

    def hook(named: dict[str, Any]) -> None:
        told.append(named["BLOCK"])

    def trial(blocks: Sequence[int]) -> Trial:
        return Trial(configs=[triton.Config({"BLOCK": b}, pre_hook=hook) for b in blocks])

    trial(BLOCKS).launch(8, 8)
    told.clear()
    fewer = trial(BLOCKS[:2])
    assert fewer.launch(8, 8) == 64 and fewer.measured == []
    assert told == [64]


def test_a_record_that_equals_no_live_config_is_a_miss_where_hooks_differ():
    """Nobody can tell which hook its launch needs."""
    Trial(configs=hooked([])).launch(8, 8)
    told: list[Any] = []
    fewer = Trial(configs=hooked(told, BLOCKS[:2]))
    with pytest.warns(ShipconfWarning, match="equals no live config"):
        assert fewer.launch(8, 8) == 32
    assert fewer.measured == [16, 32]


def test_a_config_s_pre_hook_runs_for_a_warmup_on_real_arguments_alone():
    """As in Triton: it may set what is compiled. Dtypes in the place of tensors it is spared."""
    told: list[Any] = []
    trial = Trial(configs=hooked(told))
    trial.launch(8, 8)
    told.clear()
    trial.kernel.warmup(torch.int32, 8, 8, grid=(1,))
    assert told == []
    trial.kernel.run(trial.out, 8, 8, grid=(1,), warmup=True)
    assert len(told) == 1


def test_pre_hook_of_the_winner_runs_before_the_launch_that_tuned():
    """A hook that clears the output: the tuned launch leaves what a served one does."""

    def clear(named: dict[str, Any]) -> None:
        named["total_ptr"].zero_()

    options = {"configs": [triton.Config({"BLOCK": b}, pre_hook=clear) for b in BLOCKS]}
    tuned = Accumulating(**options)
    served = Accumulating(**options)
    assert tuned.run() == served.run() == 2 * 64


# --- check ------------------------------------------------------------------------------------


def test_a_candidate_whose_output_is_wrong_is_left_out_with_the_reason(store):
    """`check` sees what the candidate wrote, before it is restored; False or an exception."""

    def check(named: dict[str, Any]) -> bool:
        assert named["x_ptr"].tolist() == ONCE
        if named["BLOCK"] == 32:
            raise ValueError("thirty-two is off")
        return bool(named["BLOCK"] != 64)

    trial = InPlace(check=check, restore_value=["x_ptr"])
    assert trial.run() == ONCE
    assert int(trial.out[0]) == 16
    (kept,) = records_in(store)
    assert kept["config"]["BLOCK"] == 16
    assert list(kept["left_out"].values()) == [
        "ValueError: thirty-two is off", "check says that its output is wrong",
    ]  # fmt: skip


def test_a_check_that_says_nothing_is_content():
    """None is no False: an assertion-style check returns nothing."""
    assert Trial(check=lambda named: None).launch(8, 8) == 64


def test_check_is_not_called_by_launches_that_are_served():
    calls: list[int] = []
    trial = Trial(check=lambda named: calls.append(named["BLOCK"]))
    trial.launch(8, 8)
    assert sorted(calls) == list(BLOCKS)
    trial.launch(8, 8)
    Trial(check=lambda named: calls.append(named["BLOCK"])).launch(8, 8)
    assert len(calls) == 3


def test_where_no_candidate_is_right_tuning_fails(store):
    with pytest.raises(TuningError, match="check says that its output is wrong"):
        Trial(check=lambda named: False).launch(8, 8)
    assert records_in(store) == []


# --- pruning ----------------------------------------------------------------------------------


def test_early_config_prune_is_called_as_triton_calls_it():
    """With the configs, the positional arguments by name, and the keywords with grid."""
    calls: list[tuple[Any, Any, Any]] = []

    def prune(live: list[Any], named: dict[str, Any], **kwargs: Any) -> list[Any]:
        calls.append((list(live), named, kwargs))
        return live[:2]

    trial = Trial(prune_configs_by={"early_config_prune": prune})
    assert trial.launch(8, M=8) == 32
    assert trial.measured == [16, 32]
    live, named, kwargs = calls[0]
    assert live == trial.kernel.configs
    assert set(named) == {"out_ptr", "N"} and named["N"] == 8
    assert kwargs["M"] == 8 and kwargs["grid"] == (1,)


@pytest.mark.parametrize(("top_k", "measured"), [(2, [32, 64]), (0.7, [32, 64]), (9, [16, 32, 64])])
def test_perf_model_keeps_the_best_of_its_estimates(top_k, measured):
    """`top_k` is a number of candidates, or a share of them as a float."""

    def model(**named: Any) -> float:
        assert named["N"] == 8 and named["num_warps"] == 4 and "grid" in named
        return 1 / float(named["BLOCK"])

    trial = Trial(prune_configs_by={"perf_model": model, "top_k": top_k})
    assert trial.launch(8, 8) == 64
    assert sorted(trial.measured) == measured


def test_a_share_that_rounds_to_none_keeps_one():
    prune = {"perf_model": lambda **named: named["BLOCK"], "top_k": 0.1}
    trial = Trial(prune_configs_by=prune)
    assert trial.launch(8, 8) == 16
    assert trial.measured == []


def test_both_prunings_work_together():
    prune = {
        "early_config_prune": lambda live, named, **kwargs: live[:2],
        "perf_model": lambda **named: -named["BLOCK"],
        "top_k": 1,
    }
    trial = Trial(prune_configs_by=prune)
    assert trial.launch(8, 8) == 32
    assert trial.measured == []


def test_a_top_k_that_is_neither_raises_as_in_triton():
    trial = Trial(prune_configs_by={"perf_model": lambda **named: 1.0, "top_k": 1.5})
    with pytest.raises(TypeError, match="top_k"):
        trial.launch(8, 8)


def test_one_candidate_left_is_launched_not_measured_and_not_written(store):
    """Case 32: there is nothing to choose."""
    prune = {"early_config_prune": lambda live, named, **kwargs: live[1:2]}
    trial = Trial(prune_configs_by=prune)
    assert trial.resolve(8, 8).source == "default"
    assert [trial.launch(8, m) for m in (8, 8, 4096)] == [32, 32, 32]
    assert trial.measured == [] and files_in(store) == []


def test_pruning_that_leaves_none_raises_and_writes_nothing(store):
    """Case 31."""
    prune = {"early_config_prune": lambda live, named, **kwargs: []}
    with pytest.raises(TuningError, match="pruning left no candidate"):
        Trial(prune_configs_by=prune).launch(8, 8)
    assert records_in(store) == []


def test_pruning_keeps_the_default_and_the_incumbent_among_the_candidates():
    """They are what a tuning must beat."""
    prune = {"early_config_prune": lambda live, named, **kwargs: live[:1]}
    trial = Trial(prune_configs_by=prune, default=configs([128])[0])
    assert trial.launch(8, 8) == 128
    assert trial.measured == [128, 16]


# --- the user's do_bench ----------------------------------------------------------------------


def test_the_user_s_do_bench_is_called_as_triton_calls_it():
    """`do_bench(fn, quantiles=(0.5, 0.2, 0.8))`, and `fn` is one launch on the user's grid."""
    calls: list[Any] = []

    def do_bench(fn: Any, **kwargs: Any) -> list[float]:
        before = int(trial.total[0])
        fn()
        calls.append((kwargs, int(trial.total[0]) - before))
        return [1.0, 0.9, 1.1]

    trial = Accumulating(do_bench=do_bench)
    trial.kernel[(2,)](trial.out, trial.total, 8)
    assert calls == [({"quantiles": (0.5, 0.2, 0.8)}, 2 * block) for block in BLOCKS]


def test_a_do_bench_that_returns_one_number_or_a_tensor_will_do(store):
    for number, answer in enumerate((1.5, torch.tensor([1.5, 1.4, 1.6]))):
        Trial(do_bench=lambda fn, quantiles, answer=answer: answer, name=f"b{number}").launch(8, 8)
    assert {kept["time_ms"]["median"] for kept in records_in(store)} == {1.5}


@pytest.mark.parametrize("answer", [float("nan"), float("inf"), -1.0, [1.0], [1.0, 2.0]])
def test_a_time_that_is_none_is_a_candidate_s_reason(answer, store):
    """Case 31: no infinity and no null reaches a file. Triton marks failures by infinity."""

    def do_bench(fn: Any, quantiles: Any) -> Any:
        fn()
        return answer if int(trial.out[0]) == 64 else 1.0

    trial = Trial(do_bench=do_bench)
    assert trial.launch(8, 8) == 16
    (kept,) = records_in(store)
    (why,) = kept["left_out"].values()
    assert why.startswith("ValueError: do_bench returned")


def test_a_user_s_do_bench_tells_options_apart_under_the_interpreter(store):
    """Its times may depend on anything, so nothing counts as one."""
    options = [triton.Config({"BLOCK": 16}, num_warps=w) for w in (1, 2, 4)]
    trial = Trial(configs=options)
    trial.launch(8, 8)
    assert trial.measured == [16, 16, 16]
    (kept,) = records_in(store)
    assert kept["candidates"] == 3 and kept["rigor"] == "full"
