"""The records that the examples ship: found by a lookup, and enough to compile again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from shipconf_gemm.kernel import gemm_kernel
from shipconf_gemv.kernel import gemv_kernel

import shipconf
from shipconf import Device

H200 = Device("cuda", "NVIDIA H200", "sm_90", 132, 232448)
ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("n", [4096, 14336])
@pytest.mark.parametrize("m", [1, 16, 64, 256, 1024, 4096])
def test_gemm_ships_a_current_record_for(n, m):
    """Every tuned shape is found exactly on an H200, offline, and is of this very kernel."""
    with shipconf.offline(strict=True):
        match = gemm_kernel.resolve_for(dtypes=torch.float16, device=H200, M=m, N=n, K=4096)
    assert match is not None and (match.source, match.rule) == ("package", "exact")
    record = match.record
    assert record is not None and record.rigor == "full"
    assert record.default_ms is not None and record.time_ms is not None
    assert record.time_ms["median"] < record.default_ms
    assert record.left_out is not None and record.candidates is not None
    assert record.resources is not None and record.resources["spills"] == 0
    assert "changed" not in gemm_kernel.explain_for(
        dtypes=torch.float16, device=H200, M=m, N=n, K=4096
    )


@pytest.mark.parametrize("n", [4096, 14336])
def test_gemv_ships_a_current_record_for(n):
    """As above, for the kernel without nearest values."""
    match = gemv_kernel.resolve_for(dtypes=torch.float16, device=H200, N=n, K=4096)
    assert match is not None and (match.source, match.rule) == ("package", "exact")
    assert "changed" not in gemv_kernel.explain_for(dtypes="float16", device=H200, N=n, K=4096)


@pytest.mark.parametrize("package", ["shipconf_gemm", "shipconf_gemv"])
def test_a_shipped_record_says_enough_to_compile_its_launch_again(package):
    """`verify` finds no fault in what ships; each record compiles from its signature alone,
    without a GPU, and its shared memory comes out close to what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "shipconf", "verify", package, "--compile", "--json"],
        env={**os.environ, "TRITON_INTERPRET": "0"}, cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["faults"] == [] and len(report["compiled"]) == report["records"] > 0
    for compiled in report["compiled"]:
        index = int(compiled["where"].removeprefix("records[").removesuffix("]"))
        record = json.loads(Path(compiled["path"]).read_text())["records"][index]
        # Other versions of Triton lay shared memory out a little differently.
        assert abs(compiled["shared"] - record["resources"]["shared"]) <= 4096
        assert compiled["spills"] == record["resources"]["spills"] == 0


@pytest.mark.parametrize("example", ["gemm", "gemv"])
def test_case_25_the_wheel_holds_the_records(example, tmp_path):
    """All that the source folder has, even where git is told to ignore JSON."""
    source = tmp_path / example
    shutil.copytree(ROOT / "examples" / example, source, ignore=shutil.ignore_patterns(".venv"))
    (source / ".gitignore").write_text("*.json\n")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(build, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    shipped = {path.relative_to(source).as_posix() for path in source.rglob("*.json")}
    assert len(shipped) == 2 and shipped <= set(zipfile.ZipFile(wheel).namelist())
