"""`shipconf merge`: folders and cache trees into one."""

from __future__ import annotations

import itertools
import json
import os
import threading
from pathlib import Path

import pytest
from faulty import fill
from packages import FILE, INTERPRETER, document, record, write
from projects import project
from test_listing import shipconf

from shipconf import files
from shipconf.cli import main
from shipconf.merge import merge
from shipconf.records import parse
from shipconf.sources import open_source

KERNEL = "v1/told-0123456789ab"


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith(".lock")
    }


def merged(tmp_path: Path, *sources: Path, name: str = "out", **more):
    return merge([open_source(source) for source in sources], tmp_path / name, **more)


def records_of(path: Path) -> list[dict]:
    return json.loads(path.read_text())["records"]


@pytest.fixture
def ranks(tmp_path) -> list[Path]:
    """Three cache trees that share a key, and have others of their own."""
    folders = [tmp_path / f"rank{n}" for n in range(3)]
    for n, folder in enumerate(folders):
        own, shared = record(16, 2**n), record(8 * 2**n, 512, tuned_at=f"2026-01-0{n + 1}")
        write(folder / KERNEL, own, shared)
        write(folder / KERNEL, own, key={"N": n}, name=FILE.replace("N=8", f"N={n}"))
        device = {**INTERPRETER, "name": f"GPU {n}"}
        write(
            folder / KERNEL,
            own,
            device=device,
            name=FILE.replace("name=interpreter", f"name=GPU_{n}"),
        )
    return folders  # fmt: skip


def test_ranks_become_one_tree_whatever_their_order(tmp_path, ranks):
    outcomes = []
    for n, order in enumerate(itertools.permutations(ranks)):
        report = merged(tmp_path, *order, name=f"out{n}")
        assert report.read == 9 and len(report.written) == 7 and report.faults == []
        outcomes.append(tree(tmp_path / f"out{n}"))
    assert all(outcome == outcomes[0] for outcome in outcomes)
    shared = records_of(tmp_path / "out0" / KERNEL / FILE)
    assert [(kept["at"]["M"], kept["config"]["BLOCK"]) for kept in shared] == [
        (1, 16), (2, 16), (4, 16), (512, 32),
    ]  # fmt: skip


def test_merging_twice_or_into_a_source_changes_nothing_more(tmp_path, ranks):
    merged(tmp_path, *ranks)
    once = tree(tmp_path / "out")
    assert merged(tmp_path, *ranks).written == []
    assert merged(tmp_path, tmp_path / "out", ranks[1]).written == []
    assert tree(tmp_path / "out") == once
    merged(tmp_path, *ranks, name="rank0")
    assert {name: parse(data) for name, data in tree(tmp_path / "rank0").items()} == {
        name: parse(data) for name, data in once.items()
    }


def test_the_sources_stay_as_they_are(tmp_path, ranks):
    before = [tree(folder) for folder in ranks]
    merged(tmp_path, *ranks)
    assert [tree(folder) for folder in ranks] == before


def test_unknown_fields_survive(tmp_path):
    write(tmp_path / "a", record(8, 1, occupancy={"blocks": 2}), portfolio=[1])
    write(tmp_path / "b", record(8, 2), device={**INTERPRETER, "clock_mhz": 9})
    merged(tmp_path, tmp_path / "a", tmp_path / "b")
    content = json.loads((tmp_path / "out" / FILE).read_text())
    assert content["portfolio"] == [1] and content["device"]["clock_mhz"] == 9
    assert content["records"][0]["occupancy"] == {"blocks": 2}


def test_two_values_of_an_unknown_field_lie_in_two_files_and_stay_there(tmp_path):
    write(tmp_path / "a", record(8, 1), portfolio=[1])
    write(tmp_path / "b", record(8, 2), portfolio=[2])
    write(tmp_path / "c", record(8, 4))
    sources = [tmp_path / name for name in "abc"]
    merged(tmp_path, *sources)
    once = tree(tmp_path / "out")
    assert set(once) == {FILE, FILE.replace(".json", "~2.json")}
    assert merged(tmp_path, *sources).written == [] and tree(tmp_path / "out") == once
    # A file without the field may join either, but must not carry one into the other's place.
    write(tmp_path / "late", record(8, 9))
    merged(tmp_path, tmp_path / "late", name="late_out")
    merged(tmp_path, *sources, name="late_out")
    held = [json.loads(data) for data in tree(tmp_path / "late_out").values()]
    assert sorted(content["portfolio"] for content in held) == [[1], [2]]
    assert sorted(r["at"]["M"] for content in held for r in content["records"]) == [1, 2, 4, 9]


def test_a_newer_schema_is_reported_and_neither_merged_nor_moved_nor_written_over(tmp_path):
    newer = document([record(8)], schema=2)
    for name in ("a", "out"):
        (tmp_path / name).mkdir()
        (tmp_path / name / FILE).write_text(json.dumps(newer))
    write(tmp_path / "b", record(8))
    report = merged(tmp_path, tmp_path / "a", tmp_path / "b")
    assert [(fault.path, fault.where) for fault in report.faults] == [
        (str(tmp_path / "a" / FILE), "schema")
    ]
    assert json.loads((tmp_path / "out" / FILE).read_text()) == newer
    assert records_of(tmp_path / "out" / FILE.replace(".json", "~2.json")) == [record(8)]


def test_five_hundred_broken_files_lose_nothing(tmp_path, capsys):
    """In the sources and in the target: every byte stays, and one report names them all."""
    written = fill(tmp_path / "a", many=23) | fill(tmp_path / "out", many=1)
    write(tmp_path / "a", record(8), name="empty_0.json")
    written.pop(tmp_path / "a" / "empty_0.json")
    assert main(["merge", str(tmp_path / "a"), "--to", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr()
    assert printed.out == f"{tmp_path / 'out' / 'empty_0~2.json'}\n"
    for path, data in written.items():
        assert path.read_bytes() == data
        assert path.parent.name == "out" or f"{path}: " in printed.err
    assert main(["merge", str(tmp_path / "a"), "--to", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().out == ""


def test_the_flat_form_is_reported_with_the_command_that_reads_it(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "N=8,device_name=NVIDIA_L4.json").write_text('{"1": {"BLOCK": 16}}')
    (fault,) = merged(tmp_path, tmp_path / "a").faults
    assert "shipconf import" in fault.what and not (tmp_path / "out").exists()


def test_the_user_store_keeps_its_layout(tmp_path, store):
    write(store / KERNEL, record(8))
    merge([open_source(None)], tmp_path / "out")
    assert list(tree(tmp_path / "out")) == [f"{KERNEL}/{FILE}"]


def test_a_file_is_locked_as_tuners_lock_it_and_read_again(tmp_path, store, monkeypatch):
    """A record that a tuner keeps between the reading and the writing is not lost."""
    write(tmp_path / "a" / KERNEL, record(8, 1))
    write(store / KERNEL, record(8, 2))
    monkeypatch.setenv("SHIPCONF_LOCK_TIMEOUT", "60")
    planned = threading.Event()
    lock = files.lock

    def told(*words):
        planned.set()
        return lock(*words)

    merging = threading.Thread(target=lambda: merge([open_source(tmp_path / "a")], store))
    with lock("tuner", store / KERNEL / f"{FILE}.lock", 60):
        monkeypatch.setattr(files, "lock", told)
        merging.start()
        assert planned.wait(60)
        tuned = json.dumps(document([record(8, 3)])).encode()
        files.replace(store / KERNEL / FILE, tuned)
    merging.join()
    assert [kept["at"]["M"] for kept in records_of(store / KERNEL / FILE)] == [1, 3]


def test_a_lock_that_is_held_costs_that_file_only(tmp_path, store, monkeypatch):
    write(tmp_path / "a" / KERNEL, record(8, 1))
    write(tmp_path / "a" / "v1" / "other-0123456789ab", record(8, 1))
    monkeypatch.setenv("SHIPCONF_LOCK_TIMEOUT", "0.1")
    (store / KERNEL).mkdir(parents=True)
    held = threading.Event()
    free = threading.Event()

    def hold() -> None:
        with files.lock("tuner", store / KERNEL / f"{FILE}.lock", 60):
            held.set()
            free.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    report = merge([open_source(tmp_path / "a")], store)
    free.set()
    holder.join()
    assert [written.path.parent.name for written in report.written] == ["other-0123456789ab"]
    (fault,) = report.faults
    assert fault.path == str(store / KERNEL / FILE) and "held" in fault.what


def test_what_cannot_be_written_is_told_and_the_rest_is_written(tmp_path, ranks):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "v1").write_text("in the way of a folder")
    write(ranks[0] / "other", record(8))
    report = merged(tmp_path, *ranks)
    assert [written.path.parent.name for written in report.written] == ["other"]
    assert len(report.faults) == 7 and all("not written: " in f.what for f in report.faults)


def test_a_bad_setting_exits_with_2_and_names_it(tmp_path, ranks, monkeypatch, capsys):
    monkeypatch.setenv("SHIPCONF_LOCK_TIMEOUT", "soon")
    assert main(["merge", *map(str, ranks), "--to", str(tmp_path / "out")]) == 2
    assert "SHIPCONF_LOCK_TIMEOUT='soon'" in capsys.readouterr().err


def test_a_dry_run_shows_the_diff_and_writes_nothing(tmp_path, ranks, capsys):
    write(tmp_path / "out" / KERNEL, record(64, 1))
    before = tree(tmp_path / "out")
    words = ["merge", *map(str, ranks), "--to", str(tmp_path / "out"), "--dry-run"]
    assert main(words) == 0
    printed = capsys.readouterr()
    path = tmp_path / "out" / KERNEL / FILE
    assert f"--- {path}\n+++ {path}\n" in printed.out and "--- /dev/null\n" in printed.out
    assert '+      "at": {"M": 512},' in printed.out.splitlines()
    assert tree(tmp_path / "out") == before and not (tmp_path / "out" / "locks").exists()


def test_conflicts_are_told_and_in_json(tmp_path, ranks, capsys):
    words = ["merge", *map(str, ranks), "--to", str(tmp_path / "out")]
    assert main([*words, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["read"] == 9 and content["faults"] == [] and not content["dry_run"]
    assert {entry["new"] for entry in content["written"]} == {True}
    assert len(content["conflicts"]) == 2
    last = content["conflicts"][-1]
    assert last["at"] == {"M": 512} and last["why"] == "tuned later"
    assert last["kept"]["BLOCK"] == 32


def test_a_package_that_is_installed_or_zipped_is_no_target(tmp_path, capsys):
    write(tmp_path / "a", record(8))
    assert main(["merge", str(tmp_path / "a"), "--to", str(Path(pytest.__file__).parent)]) == 2
    assert "is installed, by pytest-" in capsys.readouterr().err
    archive = tmp_path / "x.whl"
    archive.write_bytes(b"PK")
    assert main(["merge", str(tmp_path / "a"), "--to", str(archive)]) == 2
    assert "is no folder" in capsys.readouterr().err


def test_packages_merge_by_their_folders(tmp_path):
    for name in "ab":
        project(tmp_path / name)
    write(tmp_path / "b" / "tiles" / "configs" / "tile" / "told", record(16, 2))
    merged(tmp_path, tmp_path / "a", tmp_path / "b")
    (path,) = (tmp_path / "out").rglob("*.json")
    assert path.relative_to(tmp_path / "out").parts[:4] == ("tiles", "configs", "tile", "told")
    assert [kept["at"]["M"] for kept in records_of(path)] == [2, 8]


def test_merge_imports_neither_torch_nor_triton(tmp_path, ranks):
    done = shipconf("merge", *ranks, "--to", tmp_path / "out")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 7


def table(*points: int, **fields) -> dict:
    """A portfolio of two blocks, measured at values of M."""
    rows = [{"at": {"M": m}, "time_ms": [1.0 * m, 2.0], "programs": [m, 1]} for m in points]
    configs = [{"BLOCK": 16}, {"BLOCK": 32}]
    return {"fingerprint": "1:a", "triton": "3.6.0", "configs": configs, "resources": [{}, {}],
            "rows": rows, **fields}  # fmt: skip


def test_only_what_replaces_a_file_waits_for_the_disk(tmp_path, monkeypatch):
    """What a new file holds is still in its source; an old file's own records are nowhere else."""
    write(tmp_path / "a", record(8, 1))
    write(tmp_path / "a", record(8, 1), key={"N": 1}, name=FILE.replace("N=8", "N=1"))
    write(tmp_path / "out", record(8, 2))
    synced: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(file) or fsync(file))
    report = merged(tmp_path, tmp_path / "a")
    assert [written.before is None for written in report.written] == [True, False]
    assert len(synced) == 1


def test_portfolios_of_one_version_become_one_and_others_stand_beside(tmp_path):
    write(tmp_path / "a", record(8, 1), portfolios=[table(1, 16)])
    write(tmp_path / "b", record(8, 2), portfolios=[table(16, 64)])
    write(tmp_path / "c", record(8, 4), portfolios=[table(1, triton="3.5.0")])
    merged(tmp_path, *(tmp_path / name for name in "abc"))
    merged(tmp_path, *(tmp_path / name for name in "cab"), name="other")
    once = tree(tmp_path / "out")
    assert set(once) == {FILE} and tree(tmp_path / "other") == once
    held = json.loads(once[FILE])
    assert [record["at"]["M"] for record in held["records"]] == [1, 2, 4]
    points = {one["triton"]: [row["at"]["M"] for row in one["rows"]] for one in held["portfolios"]}
    assert points == {"3.6.0": [1, 16, 64], "3.5.0": [1]}
    merged(tmp_path, tmp_path / "out", tmp_path / "a")
    assert tree(tmp_path / "out") == once


def test_a_portfolio_of_another_device_stays_with_its_device(tmp_path):
    write(tmp_path / "a", record(8, 1), portfolios=[table(1)])
    name = FILE.replace("name=interpreter", "name=GPU_1")
    write(tmp_path / "b", record(8, 1), device={**INTERPRETER, "name": "GPU 1"}, name=name,
          portfolios=[table(64)])  # fmt: skip
    merged(tmp_path, tmp_path / "a", tmp_path / "b")
    held = {path: json.loads(data)["portfolios"] for path, data in tree(tmp_path / "out").items()}
    assert held == {FILE: [table(1)], name: [table(64)]}
