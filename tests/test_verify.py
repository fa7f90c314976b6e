"""`shipconf verify`: all that is wrong with what a package ships, in one report."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faulty import FAULTS, fill
from packages import FILE, INTERPRETER, TOLD, record, write
from projects import HATCHLING, SETUPTOOLS, project, wheel

from shipconf import vendor
from shipconf.cli import main
from shipconf.inventory import Fault
from shipconf.sources import open_source
from shipconf.verify import Checks, Report, verify

ROOT = Path(__file__).parents[1]
SOURCE = (
    "from shipconf import Launch, shipped_autotune\nimport torch\nTIMES = {}\n"
    + TOLD.replace(
        "@triton.jit\ndef told",
        """
def do_bench(fn, quantiles):
    fn()
    return [TIMES[int(OUT[0])]] * 3

OUT = torch.zeros(1, dtype=torch.int32)

@shipped_autotune(
    configs=[triton.Config({"BLOCK": block}) for block in (16, 32)], key=["N"], nearest=["M"],
    default=triton.Config({"BLOCK": 16}), do_bench=do_bench,
)
@triton.jit
def told""",
    )
    + """
@told.workload
def workload(N, M, dtypes):
    return Launch((1,), (OUT, N, M))
"""
)
_names = (f"verified_{number}" for number in itertools.count())


class Package:
    """A package in a folder of its own name, with one kernel that ships one good record."""

    def __init__(self, root: Path, source: str = SOURCE) -> None:
        self.folder = root / next(_names)
        self.folder.mkdir(parents=True)
        (self.folder / "__init__.py").write_text("")
        self.module = self.folder / "tile.py"
        self.module.write_text(source)
        self.shelf = self.folder / "configs" / "tile" / "told"
        self.good = write(self.shelf, record(32))

    def report(self, **checks: bool) -> Report:
        return verify(open_source(self.folder), Checks(**checks))

    def faults(self, **checks: bool) -> list[tuple[str, str, str]]:
        """Each fault, with the path below the package."""
        found = self.report(**checks).faults
        return [(str(Path(f.path).relative_to(self.folder)), f.where, f.what) for f in found]


@pytest.fixture
def package(tmp_path) -> Package:
    return Package(tmp_path)


def on_shelf(name: str = FILE) -> str:
    return f"configs/tile/told/{name}"


def test_a_good_package_has_no_faults(package):
    report = package.report()
    assert (report.files, report.records, report.faults) == (1, 1, [])
    assert [note.what for note in report.notes] == [
        "1 of 1 records name no fingerprint: they may be stale"
    ]


# --- what the files tell ----------------------------------------------------------------------

SECOND = FILE.replace(".json", "~2.json")
AT_16 = FILE.replace("N=8", "N=16")
# What is written beside the good record, and the one fault it is: path, place, words.
BROUGHT: dict[str, tuple[Callable[[Package], Any], str, str, str]] = {
    "in the folder of no kernel": (
        lambda p: write(p.folder / "configs" / "tile", record(16)),
        f"configs/tile/{FILE}", "", "no kernel looks in this folder"),
    "deeper than any kernel looks": (
        lambda p: write(p.shelf / "deeper", record(16)),
        f"configs/tile/told/deeper/{FILE}", "", "no kernel looks in this folder"),
    "outside of configs": (
        lambda p: write(p.folder / "tile", record(16)),
        f"tile/{FILE}", "", "no kernel looks in this folder"),
    "under a name that no lookup builds": (
        lambda p: write(p.shelf, record(16), name="N=8.json"),
        on_shelf("N=8.json"), "", f"no lookup builds its name, which should be {FILE}"),
    "under the name of another key": (
        lambda p: write(p.shelf, record(16), name=AT_16),
        on_shelf(AT_16), "", "no lookup builds its name"),
    "under the name of another device": (
        lambda p: write(p.shelf, record(16), device={**INTERPRETER, "name": "H20"}, name=SECOND),
        on_shelf(SECOND), "", "device_name=H20"),
    "under the name of another slice of the device": (
        lambda p: write(p.shelf, record(16), device={**INTERPRETER, "multiprocessors": 7},
                        name=SECOND),
        on_shelf(SECOND), "device.multiprocessors", "is 7, and the file's name says 0"),
    "under the name of another dtype": (
        lambda p: write(p.shelf, record(16), dtypes={"out_ptr": "int64"}, name=SECOND),
        on_shelf(SECOND), "dtypes", "is int64, and the file's name says int32"),
    "of another kernel": (
        lambda p: write(p.shelf, record(16), kernel="other", name=SECOND),
        on_shelf(SECOND), "", "holds records of kernel other, and told looks here"),
    "of other key entries": (
        lambda p: write(p.shelf, record(16), key={"N": 8, "K": 1}, name=SECOND),
        on_shelf(SECOND), "", "has key ['N', 'K']; the kernel declares ['N']"),
    "of other nearest entries": (
        lambda p: write(p.shelf, record(16, M=None), nearest=[], name=SECOND),
        on_shelf(SECOND), "", "has nearest []; the kernel declares ['M']"),
    "the same point once more": (
        lambda p: write(p.shelf, record(16), name=SECOND),
        on_shelf(SECOND), "records[0]", f"is in {{shelf}}/{FILE} too, which serves first"),
    "of the flat form": (
        lambda p: (p.shelf / "N=8,device_name=H20.json").write_text('{"8": {"BLOCK": 16}}'),
        on_shelf("N=8,device_name=H20.json"), "", "the flat form is read only in a folder"),
    "an alias of nothing": (
        lambda p: (p.folder / "configs" / "aliases.json").write_text('{"A": "B", "C": 1}'),
        "configs/aliases.json", "A", "borrows from B, which has no records"),
    "aliases that are none": (
        lambda p: (p.shelf / "aliases.json").write_text('["A"]'),
        on_shelf("aliases.json"), "", "must map device names"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROUGHT)
def test_a_file_that_serves_for_nothing_is_a_fault(kind, package):
    """Cases 4 and 6: unreachable, misnamed, doubled."""
    bring, path, where, what = BROUGHT[kind]
    bring(package)
    faults = package.faults(kernel=False, gaps=False)
    assert (path, where) in [fault[:2] for fault in faults]
    (said,) = (fault[2] for fault in faults if fault[:2] == (path, where))
    assert what.format(shelf=package.shelf) in said
    assert all(fault[0] == path for fault in faults)


def test_every_fault_of_every_file_is_in_one_report(package, capsys):
    """Case 21, 500 files of it: no traceback, nothing lost, and each fault with its place."""
    written = fill(package.shelf, many=23)
    assert len(written) > 500
    assert main(["verify", str(package.folder)]) == 1
    lines = capsys.readouterr().out.splitlines()
    for path in written:
        name = path.name.rpartition("_")[0].replace("_", " ")
        _, where, _ = FAULTS[name]
        start = f"{path}: {where}: " if where else f"{path}: "
        assert any(line.startswith(start) for line in lines), start
    assert {path: path.read_bytes() for path in written} == written


def test_files_whose_names_say_less_are_reached_and_no_fault(package):
    """A name without arch and multiprocessors is found, as long as it says nothing else."""
    name = "N=9,dtypes=int32,device_name=interpreter.json"
    write(package.shelf, record(32), name=name, key={"N": 9}, device={"name": "interpreter"})
    assert package.faults(gaps=False) == []


def test_flat_files_are_checked_by_their_names(tmp_path):
    """Where the kernel names the folder: a field that it does not declare never serves."""
    source = SOURCE.replace('nearest=["M"],', 'nearest=["M"], configs_dir="flat",')
    package = Package(tmp_path, source)
    shutil.rmtree(package.folder / "configs")
    flat = package.folder / "flat"
    flat.mkdir()
    for name in ("N=8,device_name=NVIDIA_L4.json", "K=1,N=8,device_name=NVIDIA_L4.json"):
        (flat / name).write_text('{"8": {"BLOCK": 16, "kpack": 2}, "16": {"BLOCK": "x"}}')
    assert package.faults() == [
        ("flat/K=1,N=8,device_name=NVIDIA_L4.json", "",
         "has key ['K', 'N']; the kernel declares ['N']"),
        ("flat/N=8,device_name=NVIDIA_L4.json", "16.config", 'BLOCK must be int, not "x"'),
    ]  # fmt: skip
    assert any("kpack: left out" in note.what for note in package.report().notes)


# --- what the kernel tells --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"BLOCK": 16, "GROUP": 8}, "GROUP is no parameter of the kernel"),
        ({"num_warps": 4}, "BLOCK is missing"),
        ({"BLOCK": "16"}, 'BLOCK must be int, not "16"'),
    ],
)
def test_knobs_are_held_against_the_kernels_signature(package, config, what):
    """Case 15."""
    write(package.shelf, record(32), {"at": {"M": 16}, "config": config})
    ((path, where, said),) = package.faults()
    assert (path, where) == (on_shelf(), "records[1].config") and what in said
    assert package.faults(kernel=False) == []


def test_a_stale_record_is_a_fault_and_a_current_one_is_not(tmp_path):
    """Case 19: a constant that the kernel reads changed; a comment did not count."""
    first = Package(tmp_path)
    from shipconf.declared import current_fingerprints

    (current,) = current_fingerprints(open_source(first.folder))["told"]
    write(first.shelf, record(32, fingerprint=current))
    assert first.report().faults == [] == first.report().notes
    changed = SOURCE.replace("tl.store(out_ptr, BLOCK)", "tl.store(out_ptr, BLOCK + 1)")
    for source, stale in ((f"{SOURCE}# more\n", False), (changed, True)):
        again = Package(tmp_path, source)
        write(again.shelf, record(32, fingerprint=current))
        faults = again.faults()
        assert bool(faults) is stale
        if stale:
            assert faults[0][:2] == (on_shelf(), "records[0].fingerprint")
            assert current in faults[0][2] and "is stale" in faults[0][2]


def test_another_version_of_triton_is_noted(package):
    write(package.shelf, record(32, triton="2.0.0"))
    notes = [note.what for note in package.report().notes]
    assert any(note.startswith("tuned with Triton 2.0.0; this is") for note in notes)


def test_a_kernel_that_cannot_be_imported_is_a_fault_and_the_rest_is_checked(tmp_path):
    """CI must not pass because nothing could be looked at."""
    package = Package(tmp_path, "import nothing_of_this_name\n" + SOURCE)
    write(package.shelf, record(16), name="N=8.json")
    faults = package.faults()
    assert [fault[:2] for fault in faults] == [(on_shelf("N=8.json"), ""), ("tile.py", "told")]
    assert "nothing_of_this_name" in faults[1][2] and "not checked" in faults[1][2]


def test_a_package_of_a_vendored_module_is_verified_too(tmp_path):
    """Its kernels are of another class, and their records are the same."""
    package = Package(tmp_path, SOURCE.replace("from shipconf import", "from ._shipconf import"))
    vendor.write(package.folder)
    gained = {"time_ms": {"median": 1.0}, "default_ms": 2.0}
    write(package.shelf, record(32, fingerprint="1:old", **gained),
          {"at": {"M": 16}, "config": {"BLOCK": "x"}})  # fmt: skip
    assert [fault[1] for fault in package.faults()] == [
        "records[0].fingerprint", "records[1].config",
    ]  # fmt: skip
    notes = [note.what for note in package.report(measure=True).notes]
    assert any("vendored module, which does not measure" in note for note in notes)


# --- gaps -------------------------------------------------------------------------------------


def test_gaps_in_the_tuned_grid_are_faults_or_notes(package):
    """A key that another device has, a point that another key has, neighbours too far apart."""
    write(package.shelf, record(32, M=1), record(32, M=8), record(32, M=4096))
    write(package.shelf, record(32, M=8), record(32, M=64), name=AT_16, key={"N": 16})
    other = {**INTERPRETER, "name": "other"}
    write(package.shelf, record(32, M=8), device=other,
          name="N=16,dtypes=int32,device_name=other,arch=interpreter,mp=0.json",
          key={"N": 16})  # fmt: skip
    shelf = str(package.shelf.relative_to(package.folder))
    assert package.faults(kernel=False) == [
        (shelf, "other (interpreter, interpreter)",
         "gap: has no records for N=8 int32, as others have"),
        (on_shelf(AT_16), "records", "gap: is not tuned at M=1, M=4096, as others are"),
        (on_shelf(), "records",
         "gap: M=181 is more than 2 octaves from M=8 and M=4096"),
        (on_shelf(), "records", "gap: is not tuned at M=64, as others are"),
    ]  # fmt: skip
    report = package.report(kernel=False, gaps=False)
    assert report.faults == [] and len(report.notes) == 4


def test_the_kernels_own_max_distance_decides_what_is_too_far(tmp_path):
    for limit, far in ((4.5, False), (4.4, True)):
        source = SOURCE.replace('nearest=["M"],', f'nearest=["M"], max_distance={limit},')
        package = Package(tmp_path, source)
        write(package.shelf, record(32, M=8), record(32, M=4096))
        assert bool(package.faults()) is far


def test_neighbours_with_no_value_between_are_no_gap(tmp_path):
    package = Package(tmp_path, SOURCE.replace('nearest=["M"],', 'nearest=["M"], max_distance=0,'))
    write(package.shelf, record(32, M=1), record(32, M=2))
    assert package.faults() == []


# --- wheels -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("build", "lost"), [(SETUPTOOLS, True), (HATCHLING, False)])
def test_case_25_a_wheel_without_its_records_is_a_fault(build, lost, tmp_path):
    """Built for real by a back end that drops JSON, and by one that takes it along."""
    name = next(_names)
    folder = project(tmp_path, build, name=name)
    (folder / "__init__.py").write_text("")
    (folder / "tile.py").write_text(SOURCE)
    built = wheel(tmp_path)
    report = verify(open_source(built))
    if lost:
        (fault,) = report.faults
        assert fault.path == f"{built}/{name}/configs/tile/told"
        assert "no records of told are in the wheel" in fault.what
    else:
        assert report.faults == [] and (report.files, report.records) == (1, 1)


@pytest.mark.parametrize(("build", "lost"), [(SETUPTOOLS, True), (HATCHLING, False)])
def test_case_25_a_project_whose_build_drops_its_records_is_told_before_it_is_built(
    build, lost, tmp_path
):
    """With the line to add."""
    folder = project(tmp_path, build, name=next(_names))
    (folder / "tile.py").write_text(SOURCE)
    report = verify(open_source(tmp_path), Checks(kernel=False))
    assert [fault.path for fault in report.faults] == (
        [str(tmp_path / "pyproject.toml")] if lost else []
    )
    assert all("1 files of records out of the wheel" in f.what for f in report.faults)
    assert all("package-data" in fault.what for fault in report.faults)


def test_the_kernels_of_a_wheel_are_imported_from_the_wheel(tmp_path):
    name = next(_names)
    folder = project(tmp_path, name=name)
    (folder / "__init__.py").write_text("")
    (folder / "tile.py").write_text(SOURCE)
    write(folder / "configs" / "tile" / "told", record(32, fingerprint="1:old"))
    built = wheel(tmp_path)
    shutil.rmtree(folder)
    ((path, where, what),) = [(f.path, f.where, f.what) for f in verify(open_source(built)).faults]
    assert path == f"{built}/{name}/configs/tile/told/{FILE}"
    assert where == "records[0].fingerprint" and "1:old was tuned" in what


# --- measuring --------------------------------------------------------------------------------


@pytest.mark.parametrize(("now", "fault"), [(2.0, False), (2.09, False), (2.2, True), (5.0, True)])
def test_a_record_that_gains_less_than_it_did_is_a_fault(package, now, fault):
    """It was twice as fast as the default, which takes 4 ms now too; 5 % less is too little."""
    write(package.shelf, record(32, time_ms={"median": 1.0}, default_ms=2.0))
    package.module.write_text(SOURCE.replace("TIMES = {}", f"TIMES = {{16: 4.0, 32: {now}}}"))
    report = package.report(measure=True)
    assert [(m.where, m.ratio, m.recorded) for m in report.measured] == [
        ("records[0]", 4.0 / now, 2.0)
    ]
    assert bool(report.faults) is fault
    if fault:
        assert report.faults[0].what.endswith("2.000 when it was tuned")


def test_what_cannot_be_measured_is_noted(package, store, monkeypatch):
    """Another device's records, and those that do not say what they gained; nothing is written."""
    write(package.shelf, record(32, time_ms={"median": 1.0}, default_ms=2.0),
          device={**INTERPRETER, "name": "other"},
          name="N=8,dtypes=int32,device_name=other,arch=interpreter,mp=0.json")  # fmt: skip
    report = package.report(measure=True)
    notes = {note.what for note in report.notes}
    assert "not measured: it does not say what it gained" in notes
    assert any("tuned on other" in note for note in notes) and report.measured == []
    assert os.listdir(store) == []


def test_a_kernel_that_fails_while_it_is_measured_is_a_fault(package):
    write(package.shelf, record(32, time_ms={"median": 1.0}, default_ms=2.0))
    package.module.write_text(SOURCE.replace("TIMES = {}", "TIMES = {16: 4.0}"))
    (fault,) = package.report(measure=True).faults
    assert fault.where == "records[0]" and "KeyError" in fault.what


def test_offline_nothing_is_measured(package, monkeypatch, capsys):
    monkeypatch.setenv("SHIPCONF_OFFLINE", "1")
    assert main(["verify", str(package.folder), "--measure"]) == 2
    assert "SHIPCONF_OFFLINE" in capsys.readouterr().err


# --- compiling --------------------------------------------------------------------------------


def test_records_are_compiled_for_their_own_device_without_a_gpu(tmp_path):
    """In one process: a record as tuned; one that needs more shared memory than its device has;
    one that spills; one with too few registers for its instructions; one whose knobs were
    changed; one whose signature is none; and one without."""
    folder = tmp_path / "shipconf_gemm"
    shutil.copytree(ROOT / "examples" / "gemm" / "shipconf_gemm", folder)
    shelf = folder / "configs" / "kernel" / "gemm_kernel"
    (path,) = shelf.glob("N=4096,*.json")
    file = json.loads(path.read_text())
    for other in shelf.iterdir():
        other.unlink()
    large = max(file["records"], key=lambda r: r["resources"]["shared"])
    kinds = {
        "good": {}, "starved": {"config": {**large["config"], "maxnreg": 32}},
        "changed": {"config": {**large["config"], "BLOCK_M": 48}}, "none": {"signature": None},
        "unreadable": {"signature": {"types": 3}},
    }  # fmt: skip
    records = [
        {name: entry for name, entry in {**large, **fields, "at": {"M": 2**i}}.items() if entry}
        for i, fields in enumerate(kinds.values())
    ]
    path.write_text(json.dumps({**file, "records": records}))
    l4 = {"backend": "cuda", "name": "NVIDIA L4", "arch": "sm_89", "multiprocessors": 58}
    small = path.with_name(path.name.replace("NVIDIA_H200,arch=sm_90,mp=132",
                                             "NVIDIA_L4,arch=sm_89,mp=58"))  # fmt: skip
    blocks = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 32, "num_stages": 2, "maxnreg": 32}
    spilling = {**large, "at": {"M": 1}, "config": {**large["config"], **blocks}}
    small.write_text(json.dumps({**file, "device": l4, "records": [spilling, large]}))
    done = subprocess.run(
        [sys.executable, "-m", "shipconf", "verify", str(folder), "--compile", "--json",
         "--allow-gaps"], capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    compiled = {(Path(c["path"]).name, c["where"]): c for c in report["compiled"]}
    good = compiled[path.name, "records[0]"]
    assert good["limit"] == file["device"]["shared_memory"] and good["spills"] == 0
    assert abs(good["shared"] - large["resources"]["shared"]) <= 4096
    spilled = compiled[small.name, "records[0]"]
    assert spilled["spills"] > 0 and spilled["registers"] == 32 and spilled["limit"] == 101376
    faults = {(Path(f["path"]).name, f["where"]): f["what"] for f in report["faults"]}
    assert "the device has 101376" in faults.pop((small.name, "records[1]"))
    assert "PTXASError: ptxas" in faults.pop((path.name, "records[1]"))
    assert "does not compile for sm_90" in faults.pop((path.name, "records[2]"))
    assert "signature cannot be read" in faults.pop((path.name, "records[4]"))
    assert faults == {}
    notes = [note["what"] for note in report["notes"]]
    assert "1 of 5 records carry no signature: not compiled" in notes
    assert any(note.startswith("spills ") for note in notes)


def test_under_the_interpreter_nothing_can_be_compiled(package, capsys):
    assert main(["verify", str(package.folder), "--compile"]) == 2
    assert "unset TRITON_INTERPRET" in capsys.readouterr().err


# --- the command ------------------------------------------------------------------------------


def test_the_command_s_lines_and_json(package, capsys):
    write(package.shelf, record(16), name="N=8.json")
    expected = Fault(str(package.shelf / "N=8.json"), "", f"no lookup builds its name, which "
                     f"should be {FILE}")  # fmt: skip
    assert main(["verify", str(package.folder)]) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0] == str(expected)
    assert printed.out.splitlines()[1].startswith("note: ")
    assert "importing the kernels" in printed.err
    assert "2 files, 2 records: 1 faults, 1 notes" in printed.err
    assert main(["verify", str(package.folder), "--json", "--no-import"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["source"] == {"kind": "folder", "path": str(package.folder)}
    assert report["faults"] == [vars(expected)]
    assert (report["files"], report["records"], report["compiled"]) == (2, 2, [])
    (package.shelf / "N=8.json").unlink()
    assert main(["verify", str(package.folder)]) == 0


@pytest.mark.parametrize("arguments", [["/nowhere"], ["shipconf", "--no-import", "--compile"]])
def test_wrong_usage_exits_with_2(arguments, capsys):
    assert main(["verify", *arguments]) == 2
    assert capsys.readouterr().err


def test_without_the_import_neither_torch_nor_triton_is_imported(package):
    """In a real process; the package cannot be imported at all."""
    (package.folder / "__init__.py").write_text("raise ImportError('importing me is a fault')\n")
    program = (
        "import sys\nfrom shipconf.cli import main\n"
        f"code = main(['verify', {str(package.folder)!r}, '--no-import'])\n"
        "assert not {'torch', 'triton', 'filelock'} & sys.modules.keys()\nsys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          check=False, cwd=ROOT)  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
