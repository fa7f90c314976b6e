"""What a source holds: files, ages, speed-ups, and all faults at once."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone

import pytest
from faulty import FAULTS, fill
from packages import FILE, record, write

from shipconf.inventory import Fault, describe, speedups, take, tuning_times
from shipconf.keys import Dtype
from shipconf.records import ConfigFile, Device, Record, dump, parse
from shipconf.selection import Selection
from shipconf.sources import open_source


def test_each_fault_is_told_with_its_file_and_place_and_hides_no_other(tmp_path):
    written = fill(tmp_path)
    write(tmp_path / "good", record(8))
    inventory = take(open_source(tmp_path))
    assert [held.member.file_name for held in inventory.held] == [FILE]
    told = {fault.path: fault for fault in inventory.faults}
    assert set(told) == set(map(str, written))
    for path, (_, where, what) in zip(written, FAULTS.values()):
        assert told[str(path)].where == where, path.name
        assert re.search(what, told[str(path)].what), path.name


def test_a_file_with_two_faults_has_two_in_the_report(tmp_path):
    write(tmp_path, record(8, None), device={}, name="bad.json")
    faults = take(open_source(tmp_path)).faults
    assert {str(fault).removeprefix(f"{tmp_path}/bad.json: ") for fault in faults} == {
        "records[0].at: must have one integer for each of ['M']", "device.name: is missing",
    }  # fmt: skip


def test_a_fault_without_a_place_reads_well():
    assert str(Fault("a.json", "", "not UTF-8")) == "a.json: not UTF-8"


def test_a_file_that_cannot_be_read_is_a_fault(tmp_path):
    (tmp_path / "gone.json").symlink_to("nowhere")
    (fault,) = take(open_source(tmp_path)).faults
    assert (fault.path, fault.what) == (str(tmp_path / "gone.json"), "No such file or directory")


def test_the_flat_form_is_listed_beside_records(tmp_path):
    write(tmp_path / "tuned", record(8))
    path = (
        tmp_path / "tuned" / "E=8,N=2,device_name=AMD_Instinct_MI300X,block_shape=[128, 128].json"
    )
    path.write_text(json.dumps({"triton_version": "3.5.0", "1": {"BLOCK_M": 16}}))
    flat, own = take(open_source(tmp_path)).held
    assert (flat.flat, own.flat) == (True, False)
    assert flat.file.key == {"E": 8, "N": 2, "block_shape": (128, 128)}
    assert flat.file.device.name == "AMD Instinct MI300X" and flat.file.kernel == "tuned"
    assert describe(flat)["form"] == "flat" and describe(flat)["triton"] == ["3.5.0"]


def test_the_document_of_a_file_has_these_fields(tmp_path):
    """The shape is relied on by programs; what is not known is null or empty."""
    write(
        tmp_path,
        record(16, 8, time_ms={"median": 0.5}, default_ms=1.0, tuned_at="2026-11-01T00:00:00Z"),
        record(32, 4, time_ms={"median": 1.0}, default_ms=4.0, rigor="full", triton="3.6.0",
               torch="2.11.0", tuned_at="2026-11-02T00:00:00+01:00", fingerprint="1:aa"),
        key={"N": 8, "acc": {"dtype": "float32"}},
    )  # fmt: skip
    (held,) = take(open_source(tmp_path)).held
    content = describe(held, {"told": {"1:bb"}})
    assert content == {
        "path": str(tmp_path / FILE), "kernel": "told", "form": "records",
        "device": {"backend": "interpreter", "name": "interpreter", "arch": "interpreter",
                   "multiprocessors": 0, "shared_memory": 0},
        "key": {"N": 8, "acc": {"dtype": "float32"}}, "dtypes": {"out_ptr": "int32"},
        "nearest": ["M"], "points": [{"M": 4}, {"M": 8}],
        "tuned_at": ["2026-11-01T00:00:00Z", "2026-11-01T23:00:00Z"], "rigor": ["full"],
        "triton": ["3.6.0"], "torch": ["2.11.0"], "speedup": [2.0, 3.0, 4.0], "stale": 1,
    }  # fmt: skip
    shown = describe(held, with_records=True)
    assert shown["stale"] is None
    assert [entry["at"]["M"] for entry in shown["records"]] == [4, 8]


def test_an_unmeasured_record_has_no_speedup_and_no_age(tmp_path):
    write(tmp_path, record(8, time_ms={"median": 0.0}, default_ms=1.0, tuned_at="yesterday"))
    (held,) = take(open_source(tmp_path)).held
    assert speedups(held.file) is None and tuning_times(held.file) == []


# --- which records ----------------------------------------------------------------------------


def file_of(*records: Record, **fields) -> ConfigFile:
    return ConfigFile(
        kernel="told", device=Device(name="NVIDIA H20"), key={"N": 8, "acc": Dtype("float32")},
        nearest=("M",), records=records, **fields,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        ({}, True),
        ({"kernels": ("told",)}, True),
        ({"kernels": ("tol", "other")}, False),
        ({"devices": ("NVIDIA H20",)}, True),
        ({"devices": ("NVIDIA H200", "NVIDIA", "nvidia h20")}, False),
        ({"key": {"N": 8}}, True),
        ({"key": {"N": 8, "acc": Dtype("float32")}}, True),
        ({"key": {"N": 8.0}}, False),
        ({"key": {"N": True}}, False),
        ({"key": {"K": 8}}, False),
    ],
)
def test_a_file_is_asked_for_by_whole_names_and_typed_values(asked, fits):
    assert Selection(**asked).has_file(file_of()) == fits


def test_records_are_asked_for_by_age_and_rigor_and_unknown_ones_are_not():
    now = datetime.now(timezone.utc)
    times = [(now - timedelta(days=days)).isoformat() for days in (1, 10)]
    new, old = (Record(at={"M": i}, config={}, tuned_at=t) for i, t in enumerate(times))
    undated = Record(at={"M": 9}, config={})
    file = file_of(new, old, undated)
    day = 86400
    assert Selection(newer_than_s=5 * day).of(file).records == (new,)
    assert Selection(older_than_s=5 * day).of(file).records == (old,)
    assert Selection(newer_than_s=20 * day, older_than_s=1).of(file).records == (new, old)
    assert Selection(newer_than_s=1.0).of(file) is None
    rigors = [Record(at={"M": i}, config={}, rigor=r) for i, r in
              enumerate(["quick", "full", "verified", None, "odd"])]  # fmt: skip
    assert Selection(rigor="full").of(file_of(*rigors)).records == tuple(rigors[1:3])


def test_a_selection_keeps_all_else_of_the_file():
    file = file_of(Record(at={"M": 1}, config={}), extra={"portfolio": [1]})
    kept = Selection(kernels=("told",)).of(file)
    assert parse(dump(kept)) == parse(dump(file)) and kept.extra == {"portfolio": [1]}
