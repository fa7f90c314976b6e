"""The example packages: right results, clear refusals, and a second run that tunes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from shipconf_gemm import gemm, gemm_kernel
from shipconf_gemm.kernel import arguments as gemm_arguments
from shipconf_gemm.kernel import grid as gemm_grid
from shipconf_gemm.kernel import workload as gemm_workload
from shipconf_gemm.reference import compare as compare_gemm
from shipconf_gemv import gemv, gemv_kernel
from shipconf_gemv.kernel import arguments as gemv_arguments
from shipconf_gemv.kernel import grid as gemv_grid
from shipconf_gemv.kernel import workload as gemv_workload
from shipconf_gemv.reference import compare as compare_gemv

import shipconf

GEMM_CONFIG = {
    "BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 32, "GROUP_M": 2, "num_warps": 4, "num_stages": 2,
}  # fmt: skip
GEMV_CONFIG = {"BLOCK_N": 8, "BLOCK_K": 64, "num_warps": 4, "num_stages": 2}

Layout = Callable[[torch.Tensor], torch.Tensor]

# Triton's interpreter converts one-element arrays as NumPy dislikes it, up to Triton 3.6.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

dtypes = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


@pytest.fixture(autouse=True)
def _untuned() -> Iterator[None]:
    """Small tiles, so that every test has several in each dimension, and nothing is tuned."""
    with (
        shipconf.override(gemm_kernel, GEMM_CONFIG),
        shipconf.override(gemv_kernel, GEMV_CONFIG),
    ):
        yield


def random(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype)


def poison(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """NaN everywhere: what a kernel leaves out, or reads from outside, shows."""
    return torch.full(shape, float("nan"), dtype=dtype)


def inside_poison(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as a view with a storage offset and gaps, with NaN all around."""
    view = poison(*(2 * size + 3 for size in tensor.shape), dtype=tensor.dtype)[
        tuple(slice(1, 2 * size + 1, 2) for size in tensor.shape)
    ]
    return view.copy_(tensor)


def transposed(matrix: torch.Tensor) -> torch.Tensor:
    """The same values, stored column by column."""
    return matrix.t().contiguous().t()


# --- gemm -------------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize(
    ("M", "N", "K"),
    [
        (32, 64, 64), (37, 45, 53), (1, 40, 70), (40, 1, 70), (40, 70, 1), (1, 1, 1), (100, 33, 17),
    ],
)  # fmt: skip
def test_gemm_is_right_for_any_size(M: int, N: int, K: int, dtype: torch.dtype) -> None:
    """Whole tiles, odd sizes, one row, one column and one step are within rounding."""
    a, b = random(M, K, dtype=dtype), random(K, N, dtype=dtype)
    out = gemm(a, b)
    assert (out.shape, out.dtype) == ((M, N), dtype)
    assert compare_gemm(out, a, b).correct


@dtypes
@pytest.mark.parametrize("layout", [transposed, inside_poison])
@pytest.mark.parametrize("which", ["a", "b", "out"])
def test_gemm_takes_any_strides(which: str, layout: Layout, dtype: torch.dtype) -> None:
    """Each of a, b and out may be transposed, or a view with gaps and a storage offset."""
    assert callable(layout)
    a, b, out = (
        random(37, 45, dtype=dtype),
        random(45, 53, dtype=dtype),
        poison(37, 53, dtype=dtype),
    )
    tensors = {"a": a, "b": b, "out": out}
    tensors[which] = layout(tensors[which])
    gemm(**tensors)
    assert compare_gemm(tensors["out"], a, b).correct


def test_gemm_takes_a_row_that_is_repeated_by_a_stride_of_zero() -> None:
    """An expanded input is read as it is."""
    a, b = random(1, 45).expand(20, 45), random(45, 1).expand(45, 33)
    assert compare_gemm(gemm(a, b), a, b).correct


def test_gemm_writes_out_and_nothing_around_it() -> None:
    """`out` is written and returned; memory between and around its elements stays."""
    a, b = random(37, 45), random(45, 53)
    storage = poison(40, 60)
    out = storage[1:38, 2:55]
    assert gemm(a, b, out=out) is out
    assert compare_gemm(out, a, b).correct
    assert int(storage.isnan().sum()) == storage.numel() - out.numel()


@pytest.mark.parametrize(("M", "N", "K"), [(0, 4, 5), (4, 0, 5), (0, 0, 0)])
def test_gemm_of_no_rows_or_columns_is_empty(M: int, N: int, K: int) -> None:
    """Nothing is launched for an empty result."""
    assert gemm(random(M, K), random(K, N)).shape == (M, N)


def test_gemm_over_no_steps_is_zero() -> None:
    """A sum of nothing is 0, in a given `out` too."""
    out = poison(4, 5)
    assert gemm(random(4, 0), random(0, 5), out=out) is out
    assert torch.equal(out, torch.zeros_like(out))


@pytest.mark.parametrize(
    ("a", "b", "out", "got"),
    [
        (random(4), random(4, 5), None, r"\(4,\) and \(4, 5\)"),
        (random(3, 4), random(1, 4, 5), None, r"\(3, 4\) and \(1, 4, 5\)"),
        (random(3, 4), random(5, 4), None, r"\(3, 4\) and \(5, 4\)"),
        (random(3, 4).float(), random(4, 5).float(), None, "got torch.float32 and torch.float32"),
        (random(3, 4), random(4, 5).bfloat16(), None, "got torch.float16 and torch.bfloat16"),
        (random(3, 4), random(4, 5).to("meta"), None, "got cpu and meta"),
        (random(3, 4), random(4, 5), random(5, 3), r"shape \(3, 5\), got \(5, 3\)"),
        (random(3, 4), random(4, 5), random(15), r"shape \(3, 5\), got \(15,\)"),
        (random(3, 4), random(4, 5), random(3, 5).float(), "like a and b, got torch.float32"),
        (random(3, 4), random(4, 5), random(3, 5).to("meta"), "like a and b, got meta"),
    ],
)
def test_gemm_refuses_what_it_cannot_do(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, got: str
) -> None:
    """Wrong ranks, shapes, dtypes and devices raise ValueError with what was given."""
    with pytest.raises(ValueError, match=got):
        gemm(a, b, out)


@dtypes
def test_the_gemm_workload_builds_what_it_is_asked_for(dtype: torch.dtype) -> None:
    """The launch has the sizes and dtype asked for, and computes a product when launched."""
    launch = gemm_workload(M=20, N=33, K=45, dtypes=dtype)
    a, b, out, M, N, K = launch.args[:6]
    assert (a.shape, b.shape, out.shape, M, N, K) == ((20, 45), (45, 33), (20, 33), 20, 33, 45)
    assert a.dtype == b.dtype == out.dtype == dtype
    gemm_kernel[launch.grid](*launch.args, **launch.kwargs)
    assert compare_gemm(out, a, b).correct


# --- gemv -------------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize(("N", "K"), [(16, 128), (37, 201), (1, 300), (40, 1), (1, 1), (300, 17)])
def test_gemv_is_right_for_any_size(N: int, K: int, dtype: torch.dtype) -> None:
    """Whole tiles, odd sizes, one row and one column are within rounding."""
    w, x = random(N, K, dtype=dtype), random(K, dtype=dtype)
    out = gemv(w, x)
    assert (out.shape, out.dtype) == ((N,), dtype)
    assert compare_gemv(out, w, x).correct


@dtypes
@pytest.mark.parametrize("which", ["w", "x", "out"])
def test_gemv_takes_views_with_gaps(which: str, dtype: torch.dtype) -> None:
    """Each of w, x and out may be a view with gaps and a storage offset."""
    w, x, out = random(37, 201, dtype=dtype), random(201, dtype=dtype), poison(37, dtype=dtype)
    tensors = {"w": w, "x": x, "out": out}
    tensors[which] = inside_poison(tensors[which])
    gemv(**tensors)
    assert compare_gemv(tensors["out"], w, x).correct


@dtypes
def test_gemv_takes_a_transposed_matrix(dtype: torch.dtype) -> None:
    """w may be stored column by column."""
    w, x = transposed(random(37, 201, dtype=dtype)), random(201, dtype=dtype)
    assert compare_gemv(gemv(w, x), w, x).correct


def test_gemv_writes_out_and_nothing_around_it() -> None:
    """`out` is written and returned; memory around it stays."""
    w, x, storage = random(37, 201), random(201), poison(80)
    out = storage[3:77:2]
    assert gemv(w, x, out=out) is out
    assert compare_gemv(out, w, x).correct
    assert int(storage.isnan().sum()) == storage.numel() - out.numel()


def test_gemv_of_size_zero_is_empty_or_zero() -> None:
    """No rows give an empty result, no columns give zeros."""
    assert gemv(random(0, 4), random(4)).shape == (0,)
    out = poison(4)
    assert gemv(random(4, 0), random(0), out=out) is out
    assert torch.equal(out, torch.zeros_like(out))


@pytest.mark.parametrize(
    ("w", "x", "out", "got"),
    [
        (random(4), random(4), None, r"\(4,\) and \(4,\)"),
        (random(3, 4), random(4, 1), None, r"\(3, 4\) and \(4, 1\)"),
        (random(3, 4), random(3), None, r"\(3, 4\) and \(3,\)"),
        (random(3, 4).float(), random(4).float(), None, "got torch.float32 and torch.float32"),
        (random(3, 4), random(4).bfloat16(), None, "got torch.float16 and torch.bfloat16"),
        (random(3, 4), random(4).to("meta"), None, "got cpu and meta"),
        (random(3, 4), random(4), random(4), r"shape \(3,\), got \(4,\)"),
        (random(3, 4), random(4), random(3).float(), "like w and x, got torch.float32"),
        (random(3, 4), random(4), random(3).to("meta"), "like w and x, got meta"),
    ],
)
def test_gemv_refuses_what_it_cannot_do(
    w: torch.Tensor, x: torch.Tensor, out: torch.Tensor | None, got: str
) -> None:
    """Wrong ranks, shapes, dtypes and devices raise ValueError with what was given."""
    with pytest.raises(ValueError, match=got):
        gemv(w, x, out)


@dtypes
def test_the_gemv_workload_builds_what_it_is_asked_for(dtype: torch.dtype) -> None:
    """The launch has the sizes and dtype asked for, and computes a product when launched."""
    launch = gemv_workload(N=33, K=145, dtypes=dtype)
    w, x, out, N, K = launch.args[:5]
    assert (w.shape, x.shape, out.shape, N, K) == ((33, 145), (145,), (33,), 33, 145)
    assert w.dtype == x.dtype == out.dtype == dtype
    gemv_kernel[launch.grid](*launch.args, **launch.kwargs)
    assert compare_gemv(out, w, x).correct


# --- the candidates ---------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [gemm_kernel, gemv_kernel], ids=lambda kernel: kernel.name)
def test_candidates_are_distinct_and_few(kernel: shipconf.ShippedKernel) -> None:
    """At most a hundred candidates, none twice."""
    texts = {str(config) for config in kernel.configs}
    assert len(texts) == len(kernel.configs) <= 100


# --- python -m --------------------------------------------------------------------------------


def run_example(module: str, cache: Path, *options: str) -> str:
    """Run the example in a process of its own, which must succeed; return what it printed."""
    # It is the entry point that must choose the interpreter where there is no GPU.
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SHIPCONF_", "TRITON_INT"))}
    result = subprocess.run(
        [sys.executable, "-m", module, *options],
        env={**kept, "SHIPCONF_CACHE_DIR": str(cache)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("module", ["shipconf_gemm", "shipconf_gemv"])
def test_the_second_run_tunes_nothing(module: str, tmp_path: Path) -> None:
    """The first process tunes and says so; the second finds what it kept, and changes nothing."""
    sizes = ("--n", "96", "--k", "80")  # no package ships records for these
    first = run_example(module, tmp_path, *sizes)
    assert "source   tuned now" in first and "within rounding" in first
    records = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    assert len(records) == 1
    second = run_example(module, tmp_path, *sizes)
    assert "source   from the user store" in second and "within rounding" in second
    assert str(next(iter(records))) in second
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == records


def test_importing_an_example_leaves_triton_and_the_environment_alone() -> None:
    """Only the entry point chooses the interpreter, and it can: the package imports no triton."""
    program = (
        "import os, sys; before = dict(os.environ); import shipconf_gemm, shipconf_gemv; "
        "assert 'triton' not in sys.modules and dict(os.environ) == before"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


# --- offsets past 2**31 -----------------------------------------------------------------------


def far_apart(rows: int, columns: int) -> torch.Tensor:
    """A matrix whose second row begins 2**31 elements after the first; it has no data."""
    return torch.empty_strided((rows, columns), (2**31, 1), dtype=torch.float16, device="meta")


def test_offsets_that_pass_32_bits_are_said_to_be_wide() -> None:
    """Of any of the three tensors; ordinary ones stay narrow, which is 5 % faster on a GPU."""
    near = random(4, 4)
    assert gemm_arguments(near, near, near)[-1] is False
    for at in range(3):
        tensors = [near, near, near]
        tensors[at] = far_apart(4, 4)
        assert gemm_arguments(*tensors)[-1] is True
    vector = random(4)
    assert gemv_arguments(near, vector, vector)[-1] is False
    assert gemv_arguments(far_apart(4, 4), vector, vector)[-1] is True


@dtypes
def test_wide_offsets_give_the_same_results(dtype: torch.dtype) -> None:
    a, b = inside_poison(random(37, 53, dtype=dtype)), random(53, 45, dtype=dtype)
    out, narrow = poison(37, 45, dtype=dtype), gemm(a, b)
    gemm_kernel[gemm_grid](*gemm_arguments(a, b, out)[:-1], True)
    assert torch.equal(out, narrow)
    w, x = inside_poison(random(37, 100, dtype=dtype)), random(100, dtype=dtype)
    y, narrow = poison(37, dtype=dtype), gemv(w, x)
    gemv_kernel[gemv_grid](*gemv_arguments(w, x, y)[:-1], True)
    assert torch.equal(y, narrow)
