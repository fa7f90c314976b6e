"""`shipconf export`: records of the user store into a package's source folder."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from pathlib import Path

import pytest
from faulty import fill
from forked import Child
from packages import TOLD, document, record, write
from projects import HATCHLING, SETUPTOOLS, project, wheel
from test_listing import MEASURED, shipconf

from shipconf import stores
from shipconf.cli import main
from shipconf.export import export
from shipconf.records import parse
from shipconf.sources import open_source

L4 = {"backend": "cuda", "name": "NVIDIA L4", "arch": "sm_89", "multiprocessors": 58}
ON_L4 = "N=8,dtypes=int32,device_name=NVIDIA_L4,arch=sm_89,mp=58.json"
IDENTITY = "v1/told-0123456789ab"
KERNELS = (
    TOLD
    + """
from shipconf import shipped_autotune

CONFIGS = [triton.Config({"BLOCK": block}) for block in (16, 32, 64)]
told = shipped_autotune(configs=CONFIGS, key=["N"], nearest=["M"])(told)
"""
)


def put(store: Path, *records: dict, name: str = ON_L4, identity: str = IDENTITY, **fields) -> Path:
    return write(store / identity, *records, name=name, **{"device": L4, **fields})


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The source folder of a package whose kernel ships a record for the interpreter."""
    folder = project(tmp_path / "project", name="exporting")
    (folder / "__init__.py").write_text("")
    (folder / "tile.py").write_text(KERNELS)
    return folder


@pytest.fixture
def shipped(package) -> Path:
    """Where a record for the L4 belongs."""
    return package / "configs" / "tile" / "told" / ON_L4


def records_of(path: Path) -> list[dict]:
    return json.loads(path.read_text())["records"]


def blocks(path: Path) -> dict[int, int]:
    return {r["at"]["M"]: r["config"]["BLOCK"] for r in records_of(path)}


def run(package: Path, *words: str) -> int:
    return main(["export", str(package), *words])


# --- where records go -------------------------------------------------------------------------


def test_records_go_where_the_decorator_says_and_are_found_there(package, shipped, store, capsys):
    put(store, record(32, 1, **MEASURED), record(64, 16, **MEASURED))
    assert run(package) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{shipped}\n" and "2 added" in printed.err
    assert blocks(shipped) == {1: 32, 16: 64}
    sys.modules.pop("exporting", None)


def test_the_project_of_the_package_is_a_target_too(package, shipped, store):
    put(store, record(32, 1))
    assert run(package.parent) == 0 and shipped.is_file()


def test_a_launch_in_a_fresh_process_takes_what_was_exported(package, tmp_path, store):
    """From a wheel of the package, through the kernel's own lookup."""
    put(store, record(64, 1), device=None, name="N=8,dtypes=int32,device_name=interpreter,arch="
        "interpreter,mp=0.json")  # fmt: skip
    assert run(package, "--device", "interpreter") == 0
    built = wheel(package.parent)
    site = tmp_path / "site"
    with zipfile.ZipFile(built) as archive:
        archive.extractall(site)
    put(store, record(16, 1), device=None)  # nothing of the user store is needed

    def resolved() -> tuple[int, str]:
        sys.path.insert(0, str(site))
        from exporting.tile import told

        match = told.resolve_for(dtypes="int32", N=8, M=1)
        return match.config["BLOCK"], match.source

    assert Child(resolved).result() == (64, "package")


@pytest.mark.parametrize("build", [HATCHLING, SETUPTOOLS], ids=["hatchling", "setuptools"])
def test_a_build_that_leaves_the_files_out_is_told_with_the_cure(tmp_path, store, capsys, build):
    """The warning ends when its line is added, and the wheel has the file then."""
    folder = project(tmp_path / "project", build, name="building")
    (folder / "tile.py").write_text(KERNELS)
    (folder.parent / ".gitignore").write_text("*.json\n")
    put(store, record(64, 1))
    assert run(folder, "--json") == 0
    (entry,) = json.loads(capsys.readouterr().out)["left_out_of_wheel"]
    assert entry["files"] == [f"building/configs/tile/told/{ON_L4}"]
    line = entry["line"].partition("\n")[2] if build is HATCHLING else entry["line"]
    path = Path(entry["config"])
    path.write_text(f"{path.read_text()}\n{line}\n")
    assert run(folder) == 0
    assert "warning" not in capsys.readouterr().err
    names = [member.file_name for member in open_source(wheel(folder.parent)).configs()]
    assert ON_L4 in names


def test_a_folder_without_code_has_a_folder_for_each_kernel(tmp_path, store, monkeypatch, package):
    """As SHIPCONF_CONFIG_PATH has them: a launch finds the record there."""
    (tmp_path / "configs").mkdir()
    put(store, record(32, 1), device=None)
    words = ["--device", "interpreter", "--from", str(store)]
    assert run(tmp_path / "configs", *words) == 0
    (path,) = (tmp_path / "configs").rglob("*.json")
    assert path.parent == tmp_path / "configs" / "told"

    def resolved() -> str:
        sys.path.insert(0, str(package.parent))
        from exporting.tile import told

        return told.resolve_for(dtypes="int32", N=8, M=1).source

    monkeypatch.setenv("SHIPCONF_CONFIG_PATH", str(tmp_path / "configs"))
    assert Child(resolved).result() == "path"


def test_a_key_in_another_order_is_written_in_the_declared_one(package, store):
    (package / "tile.py").write_text(KERNELS.replace('key=["N"]', 'key=["N", "M2"]'))
    put(store, record(32, 1), key={"M2": 1, "N": 8})
    assert run(package) == 0
    (path,) = (package / "configs" / "tile" / "told").glob("*L4*")
    assert path.name.startswith("N=8,M2=1,") and list(parse(path.read_bytes()).key) == ["N", "M2"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"kernel": "unheard"}, "declares no kernel unheard"),
        ({"key": {"K": 8}}, "has key ['K']; the kernel declares ['N']"),
        ({"nearest": [], "records": [record(32, None)]}, "has nearest []"),
    ],
)
def test_what_no_lookup_would_find_is_not_written(package, store, capsys, change, why):
    path = store / IDENTITY / ON_L4
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**document([record(32, 1)], device=L4), **change}))
    assert run(package) == 1
    printed = capsys.readouterr()
    assert f"{path}: " in printed.err and why in printed.err and printed.out == ""


def test_a_name_that_is_taken_by_another_key_is_not_written_over(package, shipped, store):
    """The record goes to the next free name, where the lookup after the writing finds it."""
    put(store, record(32, 1))
    taken = [shipped, shipped.with_name(ON_L4.replace(".json", "~2.json"))]
    for path in taken:
        write(shipped.parent, record(8), name=path.name, device=L4, key={"N": True})
    before = [path.read_bytes() for path in taken]
    assert run(package) == 0
    assert [path.read_bytes() for path in taken] == before
    assert blocks(shipped.with_name(ON_L4.replace(".json", "~3.json"))) == {1: 32}


def test_a_writer_that_builds_another_key_than_the_reader_is_caught(
    package, shipped, store, capsys, monkeypatch
):
    """Everything is looked up again as a launch does: a miss is a finding."""
    monkeypatch.setattr(stores, "file_name", lambda key, device: ON_L4.replace("N=8", "N=4")[:-5])
    put(store, record(32, 1), record(32, 2))
    assert run(package) == 1
    lines = capsys.readouterr().err.splitlines()
    assert f"{shipped.parent}: {{'M': 1}}: a lookup does not find it" in lines
    assert f"{shipped.parent}: {{'M': 2}}: a lookup does not find it" in lines


def test_two_kernels_of_one_name_are_told_apart_by_their_source_file(package, store, capsys):
    (package / "other.py").write_text(KERNELS)
    put(store, record(32, 1))
    assert run(package) == 1
    assert "choose by --source-file" in capsys.readouterr().err
    assert run(package, "--source-file", "other.py") == 0
    assert (package / "configs" / "other" / "told" / ON_L4).is_file()


def test_two_kernels_of_one_name_are_told_apart_by_the_module_they_were_tuned_in(package, store):
    """Each has versions of its own. Only the user store says the module: a folder tells it."""
    (package / "other.py").write_text(KERNELS)
    for module, block in (("tile", 32), ("other", 64)):
        put(store, record(block, 1, fingerprint=f"1:{module}"), module=f"exporting.{module}",
            identity=f"v1/told-{module}")  # fmt: skip
    assert run(package) == 0
    for module, block in (("tile", 32), ("other", 64)):
        written = package / "configs" / module / "told" / ON_L4
        assert blocks(written) == {1: block} and "module" not in json.loads(written.read_text())


def test_a_module_that_the_package_does_not_have_chooses_nothing(package, shipped, store, capsys):
    """The package was renamed since."""
    put(store, record(32, 1), module="earlier.kernels")
    assert run(package) == 0 and blocks(shipped) == {1: 32}
    (package / "other.py").write_text(KERNELS)
    assert run(package) == 1
    assert "choose by --source-file" in capsys.readouterr().err


def test_two_kernels_of_one_name_do_not_share_a_folder_without_code(tmp_path, store, capsys):
    """It has one for each name: nothing there would tell one's records from the other's."""
    for module in ("tile", "other"):
        put(store, record(32, 1, fingerprint=f"1:{module}"), module=f"exporting.{module}",
            identity=f"v1/told-{module}")  # fmt: skip
    folder = tmp_path / "shared"
    folder.mkdir()
    assert run(folder) == 1 and list(folder.rglob("*.json")) == []
    assert "records of 2 versions" in capsys.readouterr().err
    assert run(folder, "--fingerprint", "1:tile") == 0


def test_a_kernel_that_nothing_declares_goes_beside_its_module(package, store):
    put(store, record(32, 1), kernel="made", module="exporting.tile")
    assert run(package) == 0
    assert (package / "configs" / "tile" / "made" / ON_L4).is_file()


def test_a_kernel_that_nothing_declares_goes_beside_the_file_that_is_named(package, store):
    put(store, record(32, 1), kernel="adopted")
    assert run(package) == 1
    assert run(package, "--source-file", "tile.py") == 0
    assert (package / "configs" / "tile" / "adopted" / ON_L4).is_file()


def test_the_target_is_listed_once_for_all_that_is_looked_up_again(store, package, monkeypatch):
    for n in range(8):
        put(store, record(16, 1), key={"N": n}, name=ON_L4.replace("N=8", f"N={n}"))
    listed: list[Path] = []
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(path) or listdir(path))
    assert main(["export", str(package)]) == 0
    assert listed.count(package / "configs" / "tile" / "told") == 1


# --- which records ----------------------------------------------------------------------------


def test_filters_choose_records(package, shipped, store):
    put(store, record(16, 1, **MEASURED), record(32, 2, rigor="quick"))
    put(store, record(32, 1), name="N=9.json", key={"N": 9})
    put(store, record(32, 1), name="H200.json", device={**L4, "name": "NVIDIA H200"})
    words = ["--rigor", "full", "--device", "NVIDIA L4", "-k", "N=8", "--kernel", "told"]
    assert run(package, *words) == 0
    assert len(list(package.rglob("*.json"))) == 2 and blocks(shipped) == {1: 16}


def test_records_of_the_interpreter_are_left_out_unless_named(package, store, capsys):
    put(store, record(16, 1), device=None)
    assert run(package) == 0
    assert "1 files of the interpreter are left out" in capsys.readouterr().err
    assert run(package, "--device", "interpreter") == 0
    assert "1 added" in capsys.readouterr().err


def test_records_of_two_versions_of_a_kernel_are_a_choice_to_make(package, shipped, store, capsys):
    put(store, record(16, 1, fingerprint="1:old"))
    put(store, record(32, 1, fingerprint="1:new"), identity="v1/told-ba9876543210")
    assert run(package) == 1
    printed = capsys.readouterr()
    assert "records of 2 versions, 1 of 1:old, 1 of 1:new" in printed.err and not printed.out
    assert run(package, "--fingerprint", "1:new") == 0
    assert blocks(shipped) == {1: 32}


def test_importing_takes_the_present_version_and_asks_the_kernel_itself(package, shipped, store):
    """A record of another version is left out, and so is one that the kernel would not take."""

    def exported() -> dict:
        from shipconf.declared import current_fingerprints

        (now,) = current_fingerprints(open_source(package))["told"]
        put(store, record(16, 1, fingerprint=now), record(48, 2, fingerprint=now),
            record(8, 4, fingerprint="1:old"))  # fmt: skip
        put(store, record(16, 1, fingerprint="1:old"), name="N=9.json", key={"N": 9})
        broken = {"at": {"M": 8}, "config": {"BLOCKS": 1}, "fingerprint": now}
        put(store, broken, name="N=7.json", key={"N": 7})
        inventory = [
            (path.name, parse(path.read_bytes())) for path in sorted(store.rglob("*.json"))
        ]
        report = export(inventory, open_source(package), importing=True)
        return {fault.path.rpartition("/")[2]: fault.what for fault in report.faults}

    faults = Child(exported).result()
    assert blocks(shipped) == {1: 16, 2: 48}
    assert "of another version of the kernel" in faults["N=9.json"]
    assert "the kernel itself does not take it; instead: it would tune" in faults["told"]


# --- conflicts --------------------------------------------------------------------------------

FASTER = {**MEASURED, "time_ms": {"median": 0.25}}


@pytest.mark.parametrize(
    ("policy", "there", "new", "block", "why"),
    [
        ("keep", MEASURED, FASTER, 16, "--on-conflict keep"),
        ("replace", FASTER, MEASURED, 32, ""),
        ("faster", MEASURED, FASTER, 32, "0.25 ms against 0.5 ms"),
        ("faster", FASTER, MEASURED, 16, "0.5 ms against 0.25 ms"),
        ("faster", MEASURED, MEASURED, 16, "0.5 ms against 0.5 ms"),
        ("faster", {**MEASURED, "triton": "3.5.0"}, FASTER, 16, "one Triton version"),
        ("faster", {**MEASURED, "fingerprint": "1:other"}, FASTER, 16, "one version of the kernel"),
        ("faster", {}, {}, 16, "not comparable"),
        ("faster", {**MEASURED, "time_ms": None}, FASTER, 16, "without a time"),
    ],
)
def test_a_conflict_is_settled_as_asked(package, shipped, store, capsys, policy, there, new, block,
                                        why):  # fmt: skip
    there = {name: value for name, value in there.items() if value is not None}
    write(shipped.parent, record(16, 1, **there), name=ON_L4, device=L4)
    put(store, record(32, 1, **new))
    assert run(package, "--on-conflict", policy, "--json") == 0
    (decision,) = json.loads(capsys.readouterr().out)["records"]
    assert decision["outcome"] == ("kept" if block == 16 else "replaced")
    assert why in decision["why"] and blocks(shipped) == {1: block}


def test_records_of_another_device_are_never_compared(package, shipped, store):
    write(shipped.parent, record(16, 1, **FASTER), name=ON_L4, device={**L4, "multiprocessors": 60})
    put(store, record(32, 1, **MEASURED))
    assert run(package, "--on-conflict", "faster") == 0
    assert blocks(shipped) == {1: 16}
    assert blocks(shipped.with_name(ON_L4.replace(".json", "~2.json"))) == {1: 32}


def test_what_the_target_has_besides_is_kept(package, shipped, store):
    write(shipped.parent, record(16, 1, odd=1), record(16, 2), name=ON_L4, device=L4, portfolio=[1])
    put(store, record(32, 1), record(32, 4))
    assert run(package) == 0
    content = json.loads(shipped.read_text())
    assert content["portfolio"] == [1] and content["records"][0]["odd"] == 1
    assert blocks(shipped) == {1: 16, 2: 16, 4: 32}


def test_exporting_twice_changes_nothing_more(package, shipped, store, capsys):
    put(store, record(32, 1, supersedes=True), record(32, 4))
    assert run(package) == 0
    before = shipped.read_bytes()
    assert b"supersedes" not in before  # it sets a user's record above a shipped one
    capsys.readouterr()
    for policy in ("keep", "replace", "faster"):
        assert run(package, "--on-conflict", policy) == 0
        printed = capsys.readouterr()
        assert printed.out == "" and "2 same" in printed.err and shipped.read_bytes() == before


def test_a_dry_run_shows_the_diff_file_by_file_and_writes_nothing(package, shipped, store, capsys):
    write(shipped.parent, record(16, 1), name=ON_L4, device=L4)
    before = shipped.read_bytes()
    put(store, record(32, 1), record(32, 4))
    put(store, record(8, 1), name="N=9.json", key={"N": 9})
    assert run(package, "--dry-run", "--on-conflict", "replace") == 0
    printed = capsys.readouterr()
    assert f"--- {shipped}\n+++ {shipped}\n" in printed.out
    assert '+      "at": {"M": 4},' in printed.out.splitlines()
    assert printed.out.count("--- /dev/null") == 1 and "would be 2 added, 1 replaced" in printed.err
    assert shipped.read_bytes() == before and len(list(package.rglob("*.json"))) == 2


# --- targets and faults -----------------------------------------------------------------------


def test_an_installed_or_zipped_package_is_refused_with_the_reason(
    package, tmp_path, store, capsys
):
    put(store, record(32, 1))
    built = wheel(package.parent)
    site = tmp_path / "site-of-somebody"
    with zipfile.ZipFile(built) as archive:
        archive.extractall(site)
    for target, why in ((site / "exporting", "is installed, by exporting-1"), (built, "is zipped")):
        assert run(target) == 2
        assert why in capsys.readouterr().err
    assert not list(site.rglob("*L4*"))


def test_a_target_that_is_not_there_is_refused(tmp_path, capsys):
    assert run(tmp_path / "nowhere") == 2
    assert "nowhere" in capsys.readouterr().err


def test_five_hundred_broken_files_on_either_side_lose_nothing(package, shipped, store, capsys):
    written = fill(store / IDENTITY, many=23) | fill(shipped.parent, many=1)
    put(store, record(32, 1))
    shipped.write_text(json.dumps(document([record(1)], device=L4, schema=2)))
    written[shipped] = shipped.read_bytes()
    assert run(package) == 1
    printed = capsys.readouterr()
    assert printed.out == f"{shipped.with_name(ON_L4.replace('.json', '~2.json'))}\n"
    for path, data in written.items():
        assert path.read_bytes() == data
        assert path.is_relative_to(package) or f"{path}: " in printed.err


def test_export_imports_neither_torch_nor_triton(package, store):
    put(store, record(32, 1))
    done = shipconf("export", package)
    assert done.returncode == 0 and ON_L4 in done.stdout, done.stderr


# --- portfolios --------------------------------------------------------------------------------


def table(*points: int, **fields) -> dict:
    rows = [{"at": {"M": m}, "time_ms": [1.0, 2.0]} for m in points]
    configs = [{"BLOCK": 16}, {"BLOCK": 32}]
    return {"fingerprint": "1:a", "triton": "3.6.0", "configs": configs, "resources": [{}, {}],
            "rows": rows, **fields}  # fmt: skip


def shipped_tables(path: Path) -> list[tuple[str, list[int]]]:
    held = json.loads(path.read_text()).get("portfolios", [])
    return [(one["fingerprint"], [row["at"]["M"] for row in one["rows"]]) for one in held]


def test_a_portfolio_goes_along_and_joins_what_is_shipped(package, shipped, store):
    """Even where every record that is there is kept."""
    put(store, record(32, 1, fingerprint="1:a"), portfolios=[table(1, 16)])
    assert run(package) == 0
    assert shipped_tables(shipped) == [("1:a", [1, 16])]
    put(store, record(16, 1, fingerprint="1:a"), portfolios=[table(64)])
    assert run(package) == 0
    assert blocks(shipped) == {1: 32}
    assert shipped_tables(shipped) == [("1:a", [1, 16, 64])]
    assert run(package) == 0 and shipped_tables(shipped) == [("1:a", [1, 16, 64])]


OTHERS = [{"BLOCK": 16}, {"BLOCK": 64}]


@pytest.mark.parametrize(("there", "exported", "policy", "kept"), [
    ([1, 16], [1, 16, 64], "keep", ["exported"]),  # which extends it
    ([1, 16, 64], [1, 16], "replace", ["there"]),
    ([1, 16], [1, 16], "keep", ["there"]),
    ([1, 16], [1, 16], "replace", ["exported"]),
    ([1, 16], [16, 64], "replace", ["there", "exported"]),
])  # fmt: skip
def test_a_portfolio_takes_the_place_of_one_whose_points_it_has(
    there, exported, policy, kept, package, shipped, store
):
    """Though of other configs: else both would stand there, and each predict otherwise."""
    put(store, record(32, 1, fingerprint="1:a"), portfolios=[table(*there)])
    assert run(package) == 0
    put(store, record(32, 1, fingerprint="1:a"), portfolios=[table(*exported, configs=OTHERS)])
    assert run(package, "--on-conflict", policy) == 0
    tables = json.loads(shipped.read_text())["portfolios"]
    found = ["exported" if one["configs"] == OTHERS else "there" for one in tables]
    assert sorted(found) == sorted(kept)


def test_only_the_portfolio_of_the_version_asked_for_is_exported(package, shipped, store):
    put(store, record(32, 1, fingerprint="1:a"), record(16, 64, fingerprint="1:b"),
        portfolios=[table(1), table(64, fingerprint="1:b")])  # fmt: skip
    assert run(package, "--fingerprint", "1:b") == 0
    assert blocks(shipped) == {64: 16} and shipped_tables(shipped) == [("1:b", [64])]


def test_a_malformed_portfolio_that_is_shipped_stays_as_it_is(package, shipped, store):
    write(shipped.parent, record(16, 1), device=L4, name=shipped.name, portfolios=[7])
    put(store, record(32, 1), record(32, 64), portfolios=[table(1)])
    run(package)
    assert json.loads(shipped.read_text())["portfolios"] == [7]
    beside = shipped.with_name(shipped.name.replace(".json", "~2.json"))
    assert blocks(beside) == {64: 32} and shipped_tables(beside) == [("1:a", [1])]


def test_importing_the_kernels_leaves_portfolios_of_other_versions_behind(package, shipped, store):
    unmarked = {name: value for name, value in table(64).items() if name != "fingerprint"}
    put(store, record(32, 1), portfolios=[table(1), unmarked])
    assert run(package, "--import") == 0
    held = json.loads(shipped.read_text())["portfolios"]
    assert [one.get("fingerprint") for one in held] == [None]
