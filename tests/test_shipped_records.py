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

# Compiles each record given on standard input from nothing but its file: no GPU, no arguments.
COMPILE = """
import importlib, json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from shipconf import keys, records

for path, module, name, at in json.load(sys.stdin):
    file = records.parse(open(path, "rb").read(), path)
    (record,) = [r for r in file.records if dict(r.at) == at]
    signature = record.signature
    fn = getattr(importlib.import_module(module), name).fn
    place = lambda text: tuple(map(int, text.split(".")))
    source = ASTSource(
        fn, signature["types"],
        {place(p): keys.from_json(v) for p, v in signature["constexprs"].items()},
        {place(p): attrs for p, attrs in signature["attrs"].items()},
    )
    options = {k: v for k, v in record.config.items() if k in records.OPTIONS}
    target = GPUTarget("cuda", int(file.device.arch.removeprefix("sm_")), 32)
    compiled = triton.compile(source, target=target, options=options)
    print(json.dumps({"shared": compiled.metadata.shared, "warps": compiled.metadata.num_warps}))
"""


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


def test_a_shipped_record_says_enough_to_compile_its_launch_again():
    """From its signature alone, without a GPU; shared memory comes out close to what it says."""
    asked = []
    for kernel, module, values in (
        (gemm_kernel, "shipconf_gemm.kernel", {"M": 1, "N": 4096, "K": 4096}),
        (gemm_kernel, "shipconf_gemm.kernel", {"M": 4096, "N": 14336, "K": 4096}),
        (gemv_kernel, "shipconf_gemv.kernel", {"N": 4096, "K": 4096}),
    ):
        match = kernel.resolve_for(dtypes="float16", device=H200, **values)
        assert match is not None and match.record is not None
        asked.append((match, [str(match.path), module, kernel.name, dict(match.record.at)]))
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], input=json.dumps([line for _, line in asked]),
        env={**os.environ, "TRITON_INTERPRET": "0"}, cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(asked)
    for (match, _), result in zip(asked, results):
        assert result["warps"] == match.config["num_warps"]
        # Other versions of Triton lay shared memory out a little differently.
        assert abs(result["shared"] - match.record.resources["shared"]) <= 4096


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
