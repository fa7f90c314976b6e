"""`shipconf import`: the flat form and Triton's own cache, into records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from faulty import fill
from forked import Child
from packages import record, write
from projects import project
from test_flat import CONTENTS, GOLDEN, NAMES, text
from test_listing import shipconf

from shipconf.cli import main
from shipconf.records import parse

MOE = """
import triton
import triton.language as tl
from shipconf import shipped_autotune

@shipped_autotune(
    configs=[triton.Config({"BLOCK_M": block}) for block in (16, 64)],
    key=["E", "N", "dtype", "block_shape"], nearest=["M"], name="moe",
)
@triton.jit
def fused_moe_kernel(a_ptr, E, N, M, dtype: tl.constexpr, block_shape: tl.constexpr,
                     BLOCK_M: tl.constexpr):
    tl.store(a_ptr, BLOCK_M)
"""


def imported(folder: Path, *words: str | Path) -> int:
    return main(["import", *map(str, words), "--to", str(folder)])


def held(folder: Path) -> list:
    return [parse(path.read_bytes(), path) for path in sorted(folder.rglob("*.json"))]


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """A folder of flat files with all the odd names."""
    folder = tmp_path / "flat"
    folder.mkdir()
    for name in NAMES[:-2]:
        (folder / name).write_bytes(text(CONTENTS[1]))
    return folder


# --- the flat form ----------------------------------------------------------------------------


def test_odd_names_become_keys_devices_and_points(tmp_path, flat):
    assert imported(tmp_path / "out", flat, "--kernel", "moe", "--nearest", "T") == 0
    files = held(tmp_path / "out")
    keys = [file.key for file in files]
    assert {"E": 8, "N": 1024, "dtype": "fp8_w8a8", "block_shape": (128, 128)} in keys
    assert {"E": 8, "N": 1024, "dtype": "int8_w8a8", "block_shape": (128, 128)} in keys
    assert {"E": 8, "N": 1024, "per_channel_quant": True} in keys
    assert {file.device.name for file in files} == {
        "NVIDIA L4", "AMD Instinct MI300X", "NVIDIA H100 80GB HBM3", "NVIDIA H200",
    }  # fmt: skip
    for file in files:
        assert (file.kernel, file.nearest, file.dtypes) == ("moe", ("T",), None)
        (kept,) = file.records
        assert dict(kept.at) == {"T": 1} and kept.triton == "3.5.0"
        assert dict(kept.config) == CONTENTS[1]["1"]
        assert (file.device.arch, file.device.multiprocessors) == ("", 0)


def test_a_round_trip_gives_every_file_back_byte_for_byte(tmp_path, flat, capsys):
    for path in GOLDEN.glob("*.json"):
        (flat / path.name).write_bytes(path.read_bytes())
    assert imported(tmp_path / "mid", flat, "--kernel", "moe") == 0
    words = ["--from", str(tmp_path / "mid"), "--format", "flat"]
    assert main(["export", str(tmp_path / "out"), *words]) == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == {
        path.name: path.read_bytes() for path in flat.iterdir()
    }
    assert capsys.readouterr().err.count("added") == 2


def test_a_kernel_launches_with_what_was_imported_into_its_package(tmp_path):
    """The decorator's own order of the key, and its own lookup: for a device that flat names say
    in full, whatever its arch and the dtypes."""
    package = project(tmp_path / "project", name="importing")
    (package / "__init__.py").write_text("")
    (package / "moe.py").write_text(MOE)
    name = "E=8,N=7,device_name=NVIDIA_L4,block_shape=[128, 128],dtype=fp8_w8a8.json"
    (tmp_path / name).write_bytes(text({"1": {"BLOCK_M": 16}, "64": {"BLOCK_M": 64}}))
    assert imported(package, tmp_path / name, "--kernel", "moe") == 0
    path = next(package.rglob("*E=8*"))
    assert list(parse(path.read_bytes()).key) == ["E", "N", "dtype", "block_shape"]
    assert path.parent == package / "configs" / "moe" / "moe"

    def resolved(M: int) -> tuple[int, str, str]:
        sys.path.insert(0, str(package.parent))
        from importing.moe import fused_moe_kernel

        from shipconf import Device

        match = fused_moe_kernel.resolve_for(
            dtypes="float16", device=Device("cuda", "NVIDIA L4", "sm_89", 58), E=8, N=7, M=M,
            dtype="fp8_w8a8", block_shape=(128, 128),
        )  # fmt: skip
        return match.config["BLOCK_M"], match.rule, match.source

    assert Child(resolved, 64).result() == (64, "exact", "package")
    assert Child(resolved, 2).result() == (16, "nearest", "package")


def test_what_the_decorator_does_not_declare_is_refused(tmp_path, flat, capsys):
    package = project(tmp_path / "project", name="importing")
    (package / "moe.py").write_text(MOE)
    assert imported(package, flat, "--kernel", "moe") == 1
    printed = capsys.readouterr()
    assert "has key ['N', 'K']; the kernel declares ['E', 'N'" in printed.err
    assert "has key ['E', 'N', 'dtype']; the kernel" in printed.err
    assert [("dtype" in line, "block_shape" in line) for line in printed.out.splitlines()] == [
        (True, True), (True, True),
    ]  # fmt: skip


def test_a_drivers_name_with_underscores_of_its_own_can_be_told(tmp_path, flat):
    words = ["--device", "NVIDIA H100_80GB HBM3", "--arch", "sm_90", "--multiprocessors", "132"]
    assert imported(tmp_path / "out", flat, "--kernel", "moe", *words) == 0
    devices = {file.device.name: file.device for file in held(tmp_path / "out")}
    told = devices["NVIDIA H100_80GB HBM3"]
    assert (told.backend, told.arch, told.multiprocessors) == ("cuda", "sm_90", 132)
    assert devices["NVIDIA L4"].arch == ""


def test_faults_of_flat_files_are_told_with_their_place_and_the_rest_is_imported(
    tmp_path, flat, capsys
):
    bad = {
        "N=1,device_name=A.json": (b'{"1": {"num_warps": 3}}', "1.num_warps: must be a power"),
        "N=2,device_name=A.json": (b'{"x": {}}', "x: must be an integer"),
        "N=3,device_name=A.json": (b'{"1": {}', "not strict JSON"),
        "N=4,device_name=A.json": (b"[]", "must be an object"),
        "N=5.json": (b'{"1": {}}', "no device_name"),
        "notes.json": (b"{}", "no device_name"),
    }
    for name, (data, _) in bad.items():
        (flat / name).write_bytes(data)
    write(flat, record(8), name="own.json")
    assert imported(tmp_path / "out", flat, "--kernel", "moe") == 1
    printed = capsys.readouterr()
    for name, (_, what) in bad.items():
        assert any(name in line and what in line for line in printed.err.splitlines()), name
    assert "own.json: is a file of shipconf's own" in printed.err
    assert len(printed.out.splitlines()) == len(NAMES[:-2])


def test_five_hundred_broken_files_are_one_report_and_lose_nothing(tmp_path, flat, capsys):
    written = fill(flat, many=23)
    assert imported(tmp_path / "out", flat, "--kernel", "moe") == 1
    printed = capsys.readouterr()
    for path, data in written.items():
        assert f"{path}: " in printed.err and path.read_bytes() == data
    assert len(printed.out.splitlines()) == len(NAMES[:-2]) and "Traceback" not in printed.err


def test_a_flat_file_needs_the_name_of_its_kernel(tmp_path, flat, capsys):
    assert imported(tmp_path / "out", flat) == 1
    assert capsys.readouterr().err.count("name it by --kernel") == len(NAMES[:-2])
    assert not (tmp_path / "out").exists()


def test_importing_again_keeps_or_replaces_as_asked(tmp_path, capsys):
    name = "N=8,device_name=NVIDIA_L4.json"
    for block in (16, 64):
        (tmp_path / name).write_bytes(text({"1": {"BLOCK_M": block}}))
        assert imported(tmp_path / "out", tmp_path / name, "--kernel", "moe") == 0
    (file,) = held(tmp_path / "out")
    assert (
        file.records[0].config["BLOCK_M"] == 16 and "kept what is there" in capsys.readouterr().err
    )
    words = ["--kernel", "moe", "--on-conflict", "replace"]
    assert imported(tmp_path / "out", tmp_path / name, *words) == 0
    assert held(tmp_path / "out")[0].records[0].config["BLOCK_M"] == 64


# --- Triton's own cache -----------------------------------------------------------------------

TUNED = [
    [{"kwargs": {"BLOCK": 16}, "num_warps": 4, "num_ctas": 1, "num_stages": 3, "maxnreg": None,
      "pre_hook": None, "ir_override": None}, [0.5, 0.4, 0.6]],
    [{"kwargs": {"BLOCK": 32}, "num_warps": 8, "num_ctas": 1, "num_stages": 2, "maxnreg": 128,
      "pre_hook": None, "ir_override": None}, [0.25, 0.2, 0.3]],
    [{"kwargs": {"BLOCK": 64}, "num_warps": 4, "num_ctas": 1, "num_stages": 3, "maxnreg": None,
      "pre_hook": None, "ir_override": None}, [float("inf")] * 3],
]  # fmt: skip
KEY = [64, 8, True, None, [1, "a"], "torch.float16", "torch.float32"]
WORDS = [
    "--device", "NVIDIA H200", "--arch", "sm_90", "--multiprocessors", "132", "--triton", "3.6.0",
    "--keys", "M,N,FAST,BIAS,SHAPE", "--tensors", "a_ptr,b_ptr",
]  # fmt: skip


def cached(folder: Path, key=KEY, timings=TUNED, name: str = "gemm_kernel", **more) -> Path:
    """A file as Triton writes it, beside what else it keeps."""
    path = folder / "HASH" / f"{name}.autotune.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"key": key, "configs_timings": timings, **more}))
    (path.parent / f"__grp__{name}.json").write_text('{"child_paths": {}}')
    return path


def test_the_fastest_of_a_tuning_becomes_a_record(tmp_path):
    path = cached(tmp_path / "cache")
    os.utime(path, (1790000000, 1790000000))
    assert imported(tmp_path / "out", tmp_path / "cache", *WORDS) == 0
    (file,) = held(tmp_path / "out")
    assert file.kernel == "gemm_kernel" and file.nearest == ("M",)
    assert dict(file.key) == {"N": 8, "FAST": True, "BIAS": None, "SHAPE": (1, "a")}
    assert type(file.key["FAST"]) is bool
    assert dict(file.dtypes) == {"a_ptr": "float16", "b_ptr": "float32"}
    assert str(file.device) == "NVIDIA H200 (cuda, sm_90, 132 multiprocessors)"
    (kept,) = file.records
    assert dict(kept.at) == {"M": 64} and kept.triton == "3.6.0"
    assert dict(kept.config) == {
        "BLOCK": 32, "num_warps": 8, "num_stages": 2, "num_ctas": 1, "maxnreg": 128,
    }  # fmt: skip
    assert kept.time_ms == {"median": 0.25, "p20": 0.2, "p80": 0.3} and kept.candidates == 3
    assert kept.left_out == {
        "BLOCK=64, num_warps=4, num_stages=3, num_ctas=1": "did not run in Triton's tuning"
    }
    assert kept.tuned_at == "2026-09-21T14:13:20Z" and kept.fingerprint is None


def test_several_tunings_of_one_key_are_one_file_and_the_later_of_a_point_stays(tmp_path, capsys):
    cached(tmp_path / "cache" / "a", [16, *KEY[1:]])
    for number, (folder, slow) in enumerate([("b", 0.1), ("c", 0.9)]):
        path = cached(tmp_path / "cache" / folder, timings=[[TUNED[number][0], [slow] * 3]])
        os.utime(path, (1790000000 + number, 1790000000 + number))
    assert imported(tmp_path / "out", tmp_path / "cache", *WORDS) == 0
    (file,) = held(tmp_path / "out")
    assert {r.at["M"]: r.config["BLOCK"] for r in file.records} == {16: 32, 64: 32}
    assert "took the one tuned later" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"key": KEY[:-1]}, "has 6 entries"),
        ({"key": [*KEY, "torch.int32"]}, "has 8 entries"),
        ({"key": None}, "key: must be a list"),
        ({"key": ["64", *KEY[1:]]}, "nearest M must be an integer"),
        ({"key": [*KEY[:-1], 7]}, "key[6]: is no dtype"),
        ({"timings": []}, "no candidate ran"),
        ({"timings": TUNED[2:]}, "no candidate ran"),
        ({"timings": [[TUNED[0][0]]]}, "configs_timings[0]: must be a config"),
        ({"timings": [TUNED[0], [{"num_warps": 4}, [1.0]]]}, "configs_timings[1]: must be"),
        ({"timings": [[TUNED[0][0], ["fast"]]]}, "configs_timings[0]: must be"),
        ({"timings": [[{**TUNED[0][0], "num_warps": 3}, [1.0]]]}, "num_warps: must be a power"),
    ],
)  # fmt: skip
def test_a_file_that_does_not_fit_is_named_with_the_place(tmp_path, capsys, more, what):
    path = cached(tmp_path / "cache", **more)
    assert imported(tmp_path / "out", tmp_path / "cache", *WORDS) == 1
    printed = capsys.readouterr().err
    assert f"{path}: " in printed and what in printed and "Traceback" not in printed
    assert not (tmp_path / "out").exists()


def test_of_a_cache_of_many_kernels_only_the_one_that_is_asked_for_is_read(tmp_path):
    """No record of another kernel takes its name."""
    cached(tmp_path / "cache" / "a")
    cached(tmp_path / "cache" / "b", name="other_kernel", key=["nothing like it"])
    cached(tmp_path / "cache" / "c", name="x" * 150)
    out = tmp_path / "out"
    assert imported(out, tmp_path / "cache", "--kernel", "gemm_kernel", *WORDS) == 0
    assert [file.kernel for file in held(out)] == ["gemm_kernel"]
    words = ["--kernel", f"Layer.{'x' * 170}", "--as", "long", *WORDS]
    assert imported(out / "long", tmp_path / "cache", *words) == 0
    assert [file.kernel for file in held(out / "long")] == ["long"]


def test_the_device_must_be_told(tmp_path, capsys):
    cached(tmp_path / "cache")
    assert imported(tmp_path / "out", tmp_path / "cache", *WORDS[6:]) == 1
    assert "name it by --device" in capsys.readouterr().err


WRITER = """
import json, sys
import triton
from triton.runtime.autotuner import Autotuner, Config

class Cache:
    def get_file(self, name): return None
    def put(self, data, name, binary): open(sys.argv[1] + "/" + name, "w").write(data)

import triton.runtime.autotuner as module
import triton.runtime.cache as older  # where Triton 3.4 takes it from
module.get_cache_manager = older.get_cache_manager = lambda key: Cache()
module.driver = type("Driver", (), {"active": type("Active", (), {
    "get_current_target": staticmethod(lambda: None)})})
import triton.compiler.compiler as compiler
compiler.make_backend = lambda target: type("Backend", (), {"hash": lambda self: "cpu"})()

@triton.jit
def tuned_kernel(x_ptr, N, BLOCK: triton.language.constexpr):
    pass

tuner = Autotuner.__new__(Autotuner)
tuner.fn, tuner.cache = tuned_kernel, {}
def bench():
    tuner.configs_timings = {
        Config({"BLOCK": 16}, num_warps=2): [0.5, 0.4, 0.6],
        Config({"BLOCK": 32, "CACHE": ".cg"}, num_stages=5, maxnreg=64): [0.2, 0.1, 0.3],
        Config({"BLOCK": 64}): [float("inf")] * 3,
    }
tuner.check_disk_cache((4096, "torch.bfloat16"), list(), bench)
"""


def test_what_triton_itself_writes_is_read(tmp_path):
    """By its own `check_disk_cache`, in the version that is installed."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    (tmp_path / "write.py").write_text(WRITER)
    subprocess.run([sys.executable, tmp_path / "write.py", tmp_path], check=True, env=environment)
    words = ["--device", "NVIDIA L4", "--keys", "N", "--nearest", "", "--tensors", "x_ptr"]
    assert imported(tmp_path / "out", tmp_path / "tuned_kernel.autotune.json", *words) == 0
    (file,) = held(tmp_path / "out")
    assert dict(file.key) == {"N": 4096} and dict(file.dtypes) == {"x_ptr": "bfloat16"}
    (kept,) = file.records
    assert dict(kept.config) == {
        "BLOCK": 32, "CACHE": ".cg", "num_warps": 4, "num_stages": 5, "num_ctas": 1, "maxnreg": 64,
    }  # fmt: skip
    assert kept.left_out is not None and len(kept.left_out) == 1


def test_import_imports_neither_torch_nor_triton(tmp_path, flat):
    cached(tmp_path / "cache")
    for source, words in ((flat, ["--kernel", "moe"]), (tmp_path / "cache", WORDS)):
        done = shipconf("import", source, "--to", tmp_path / "out", *words)
        assert done.returncode == 0 and done.stdout, done.stderr
