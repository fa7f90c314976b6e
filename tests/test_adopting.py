"""Kernels that others decorated with `triton.autotune`, and programs that nobody changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from kernels import accumulated, told
from packages import records_in
from triton.runtime.autotuner import Autotuner

import shipconf
from shipconf import OfflineError, ShipconfWarning, ShippedKernel, adopt, adopt_all
from shipconf.adopting import Adoption, adopting
from shipconf.cli import main

CONFIGS = [triton.Config({"BLOCK": block}) for block in (16, 32, 64)]


def out() -> torch.Tensor:
    return torch.zeros(1, dtype=torch.int32)


def theirs(fn: Any = told, **options: Any) -> Any:
    """A kernel as others decorate it, with a benchmark by which 64 is the fastest."""
    measured: list[int] = []

    def do_bench(call: Any, quantiles: Any) -> list[float]:
        call()
        measured.append(len(measured))
        return [9.0 - len(measured)] * 3

    options.setdefault("configs", CONFIGS)
    kernel = triton.autotune(key=["N", "M"], do_bench=do_bench, **options)(fn)
    kernel.measured = measured
    return kernel


# --- adopt ------------------------------------------------------------------------------------


def test_an_adopted_kernel_tunes_once_and_another_one_is_served(store):
    first, second = theirs(), theirs()
    told_by = out()
    adopt(first)[(1,)](told_by, 8, 8)
    assert int(told_by) == 64 and len(first.measured) == 3
    (kept,) = records_in(store)
    assert kept["config"]["BLOCK"] == 64
    adopt(second)[(1,)](told_by.zero_(), 8, 8)
    assert int(told_by) == 64 and second.measured == []


def test_it_keeps_what_it_was_decorated_with(store):
    """Configs, key, pruning, benchmark; and it is the same kernel below."""
    pruned = {"early_config_prune": lambda configs, named, **more: configs[:2]}
    kernel = theirs(prune_configs_by=pruned)
    made = adopt(kernel)
    assert isinstance(made, ShippedKernel) and made.fn is kernel.fn
    assert (made.configs, made.keys) == (CONFIGS, ["N", "M"])
    made[(1,)](out(), 8, 8)
    assert len(kernel.measured) == 2
    assert isinstance(kernel, Autotuner) and kernel.cache == {}


def test_what_is_nearest_is_no_part_of_the_key(store):
    kernel = theirs()
    made = adopt(kernel, nearest=["M"])
    assert made.keys == ["N"]
    for m in (64, 65, 100):
        made[(1,)](out(), 8, m)
    assert len(kernel.measured) == 3


def test_hooks_are_its_own(store):
    """Tensors that it resets start each measurement at zero, and end as one launch leaves them."""
    total = torch.tensor([7], dtype=torch.int32)
    kernel = triton.autotune(
        configs=CONFIGS, key=["n"], reset_to_zero=["total_ptr"],
        do_bench=lambda call, quantiles: [(call(), 64 / int(result))[1]] * 3,
    )(accumulated)  # fmt: skip
    result = out()
    adopt(kernel)[(2,)](result, total, 8)
    assert int(total) == 7 + 2 * 64
    seen = []
    hooked = triton.autotune(
        configs=CONFIGS, key=["N"],
        pre_hook=lambda named, reset_only=False: seen.append(named["N"]),
        do_bench=lambda call, quantiles: (call(), 1.0)[1],
    )(told)  # fmt: skip
    adopt(hooked, name="hooked")[(1,)](out(), 8, 8)
    assert set(seen) == {8} and len(seen) >= 3


def test_times_that_triton_makes_a_benchmark_of_are_kept():
    with pytest.warns(DeprecationWarning):
        kernel = triton.autotune(configs=CONFIGS, key=["N"], warmup=3, rep=7)(told)
    made = adopt(kernel)
    assert (made.num_warmups, made.num_reps, made.flight.do_bench) == (3, 7, None)


def test_heuristics_above_stay_above_and_those_below_below(store):
    """What one below computes is no key entry, as in Triton, where it is left out in silence."""
    below = triton.heuristics({"M": lambda named: 5})(told)
    kernel = theirs(below)
    above = triton.heuristics({"N": lambda named: 8})(kernel)
    made = adopt(above)
    assert type(made) is type(above) and made is not above and above.fn is kernel
    assert isinstance(made.fn, ShippedKernel) and made.fn.keys == ["N"]
    result = out()
    made[(1,)](result)
    assert int(result) == 64
    (path,) = store.rglob("*.json")
    assert json.loads(path.read_text())["key"] == {"N": 8}


@pytest.mark.parametrize("other", [told, 7, None, lambda: 0])
def test_what_triton_did_not_autotune_is_refused(other):
    with pytest.raises(TypeError, match=r"triton\.autotune"):
        adopt(other)


# --- in place ---------------------------------------------------------------------------------


PACKAGE = {
    "__init__.py": "from .kernels import scale\n",
    "kernels.py": """
import triton
import triton.language as tl

def do_bench(call, quantiles):
    call()
    measured.append(1)
    return 9.0 - len(measured)

measured = []
configs = [triton.Config({"BLOCK": block}) for block in (16, 32, 64)]

@triton.autotune(configs=configs, key=["N", "M"], do_bench=do_bench)
@triton.jit
def scale(out_ptr, N, M, BLOCK: tl.constexpr):
    tl.store(out_ptr, BLOCK)

@triton.heuristics({"M": lambda named: 3})
@triton.autotune(configs=configs, key=["N"], do_bench=do_bench)
@triton.jit
def shift(out_ptr, N, M, BLOCK: tl.constexpr):
    tl.store(out_ptr, BLOCK + 1)
""",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "theirs_in_place").mkdir()
    for name, text in PACKAGE.items():
        (tmp_path / "theirs_in_place" / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield "theirs_in_place"
    for name in [n for n in sys.modules if n.startswith("theirs_in_place")]:
        del sys.modules[name]


def test_all_of_a_package_are_diverted_where_they_are(package, store):
    """Whoever holds a kernel already launches with a memory; options go by the kernel's name."""
    import importlib

    module = importlib.import_module(package)
    held = module.scale
    diverted = adopt_all(package, scale={"nearest": ["M"]})
    assert {kernel.base_fn.__name__ for kernel in diverted} == {"scale", "shift"}
    for m in (64, 80):
        result = out()
        held[(1,)](result, 8, m)
        assert int(result) == 64
    assert module.kernels.measured == [1, 1, 1] and len(records_in(store)) == 1
    module.kernels.shift[(1,)](result, 8)
    assert int(result) == 65 and len(records_in(store)) == 2


class Counting(Autotuner):
    """A subclass with a launch of its own, as flash-linear-attention has one."""

    launches = 0

    def run(self, *args: Any, **kwargs: Any) -> Any:
        type(self).launches += 1
        return super().run(*args, **kwargs)


def test_a_subclass_is_diverted_too(store):
    with adopting(Adoption()):
        kernel = Counting(told, told.arg_names, CONFIGS, ["N"], None, None,
                          do_bench=lambda call, quantiles: (call(), 1.0)[1])  # fmt: skip
    kernel[(1,)](out(), 8, 8)
    assert isinstance(kernel, Counting) and Counting.launches == 0
    assert len(records_in(store)) == 1


def test_only_kernels_of_the_prefixes_are_diverted():
    with adopting(Adoption(("no.such.package",))):
        kernel = theirs()
    assert "run" not in vars(kernel)
    with adopting(Adoption((told.fn.__module__,))):
        kernel = theirs()
    assert "run" in vars(kernel)
    assert "run" not in vars(theirs()), "the block is over"


def test_a_kernel_that_cannot_be_adopted_keeps_triton_s_autotuner(store):
    """One config: Triton measures nothing, so it can launch here too."""
    clashing = triton.heuristics({"BLOCK": lambda named: 32})(told)
    with adopting(Adoption()):
        kernel = triton.autotune(configs=CONFIGS[:1], key=["N"])(clashing)
    result = out()
    with pytest.warns(ShipconfWarning, match="told keeps Triton's own autotuner"):
        kernel[(1,)](result, 8, 8)
    assert int(result) == 32 and records_in(store) == []


# --- programs ---------------------------------------------------------------------------------


PROGRAM = """
import sys
import torch
from theirs_in_place import scale
from theirs_in_place.kernels import measured

out = torch.zeros(1, dtype=torch.int32)
scale[(1,)](out, 8, int(sys.argv[1]))
print(int(out), len(measured), sys.argv[1:], __name__)
sys.exit(3)
"""


def ran(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(cwd), *sys.path])
    return subprocess.run(
        [sys.executable, "-m", "shipconf", "run", *words], capture_output=True, text=True,
        check=False, cwd=cwd, env={**os.environ, "PYTHONPATH": path, **environment},
    )  # fmt: skip


def test_a_program_runs_unchanged_and_its_kernels_have_a_memory(package, tmp_path, store):
    """Its arguments, its name and its exit code are its own; the second run measures nothing,
    though `M` is another, since that is nearest."""
    (tmp_path / "program.py").write_text(PROGRAM)
    near = ["--adopt", "theirs_in_place", "--nearest", "scale=M"]
    first = ran(*near, "--", "program.py", "64", "--flag", cwd=tmp_path)
    assert first.stdout == "64 3 ['64', '--flag'] __main__\n", first.stderr
    assert first.returncode == 3
    second = ran(*near, "--", "-m", "program", "80", cwd=tmp_path, SHIPCONF_OFFLINE="1")
    assert second.stdout == "64 0 ['80'] __main__\n", second.stderr
    assert len(records_in(store)) == 1


def test_what_a_program_tuned_ships_in_the_package_that_it_belongs_to(package, tmp_path, store):
    """Nothing in the package says that shipconf will adopt its kernels."""
    (tmp_path / "program.py").write_text(PROGRAM)
    assert ran("--", "program.py", "64", cwd=tmp_path).stdout.startswith("64 3 ")
    folder = tmp_path / package
    assert main(["export", str(folder), "--device", "interpreter"]) == 0
    (shipped,) = (folder / "configs" / "kernels" / "scale").glob("*.json")
    offline = {"SHIPCONF_OFFLINE": "strict", "SHIPCONF_CACHE_DIR": str(tmp_path / "empty")}
    assert ran("--", "program.py", "64", cwd=tmp_path, **offline).stdout.startswith("64 0 ")
    assert main(["verify", str(folder)]) == 0
    assert main(["list", str(folder), "--import"]) == 0
    shipped.write_text(shipped.read_text().replace('"BLOCK": 64', '"BLOCKS": 64'))
    assert main(["verify", str(folder)]) == 1


def test_offline_a_program_s_kernel_without_a_record_fails_and_says_why(
    package, store, monkeypatch
):
    monkeypatch.setenv("SHIPCONF_OFFLINE", "1")
    import importlib

    module = importlib.import_module(package)
    adopt_all(package)
    with pytest.raises(OfflineError, match="scale"):
        module.scale[(1,)](out(), 8, 8)


@pytest.mark.parametrize("program", [[], ["--"], ["--", "-m"], ["--", "no_such_file.py"]])
def test_without_a_program_it_exits_with_2(program, capsys):
    assert main(["run", *program]) == 2
    assert "shipconf: " in capsys.readouterr().err


def test_adopt_is_public():
    assert shipconf.adopt is adopt and {"adopt", "adopt_all"} <= set(shipconf.__all__)
