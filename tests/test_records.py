"""Files of records: golden bytes, strict parse, exact dump, and the flat form."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shipconf.errors import ConfigFileError
from shipconf.keys import Dtype, typed
from shipconf.portfolio import Portfolio, Row, from_list
from shipconf.records import (
    ConfigFile,
    Device,
    NewerSchema,
    Record,
    dump,
    flat_fields,
    flat_text,
    from_document,
    from_flat,
    parse,
    parse_json,
)

GOLDEN = Path(__file__).with_name("golden")

# What tests/golden/schema1.json says, field by field.
EVERYTHING = ConfigFile(
    kernel="gemm_kernel",
    device=Device("cuda", "NVIDIA L4", "sm_89", 58, 101376),
    key={
        "N": 4096, "fast": True, "scale": 1.0, "act": "relu é", "bias": None,
        "acc": Dtype("float32"), "block_shape": (128, (True, "x")),
    },
    dtypes={"a_ptr": "float16", "bias_ptr": "none", "scales": ["float8_e4m3fn", "float32"]},
    nearest=("M", "L"),
    records=(
        Record(at={"M": 16, "L": 2}, config={"BLOCK_M": 16, "num_warps": 4}),
        Record(
            at={"M": 1024, "L": 1},
            config={
                "BLOCK_M": 128, "EVEN": True, "CACHE": ".cg", "SCALE": 0.5, "EXTRA": None,
                "ACC": {"dtype": "float32"}, "num_warps": 4, "num_stages": 3, "num_ctas": 1,
            },
            time_ms={"median": 0.5, "p20": 0.49, "p80": 0.51},
            default_ms=0.71,
            candidates=96,
            left_out={"BLOCK_M=256": "needs 262144 bytes", "BLOCK_M=512": "wrong"},
            rigor="full",
            resources={"shared": 98304, "registers": 168, "spills": 0},
            signature={"types": {"a_ptr": "*fp16"}, "attrs": {"0": [["tt.divisibility", 16]]}},
            fingerprint="1:0123456789abcdef",
            triton="3.6.0",
            torch="2.11.0",
            tuned_at="2026-11-29T14:00:00Z",
            supersedes=True,
            extra={"occupancy": {"blocks": 2}},
        ),
    ),
    extra={"portfolio": [1, 2]},
)  # fmt: skip

MINIMAL = {
    "schema": 1, "kernel": "k", "device": {"name": "NVIDIA L4"}, "key": {"N": 1}, "nearest": ["M"],
    "records": [{"at": {"M": 1}, "config": {"BLOCK": 16, "num_warps": 4}}],
}  # fmt: skip


def document(**changes: Any) -> dict[str, Any]:
    """The smallest whole file, with fields replaced; None removes one."""
    found = json.loads(json.dumps({**MINIMAL, **changes}))
    return {name: value for name, value in found.items() if value is not None}


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def with_config(**config: Any) -> bytes:
    return encoded(document(records=[{"at": {"M": 1}, "config": config}]))


def faults(data: bytes) -> list[str]:
    """Where the file is at fault."""
    with pytest.raises(ConfigFileError) as caught:
        parse(data, "/p.json")
    assert caught.value.path == "/p.json" and "/p.json" in str(caught.value)
    assert all(what for _, what in caught.value.faults)
    return [where for where, _ in caught.value.faults]


# --- golden -----------------------------------------------------------------------------------


def test_the_golden_file_is_written_byte_for_byte():
    """Files are reviewed in pull requests: a change of their form is a change of the format."""
    assert dump(EVERYTHING).decode() == (GOLDEN / "schema1.json").read_text(encoding="utf-8")


def test_the_golden_file_is_read_field_by_field():
    file = parse((GOLDEN / "schema1.json").read_bytes())
    assert file == EVERYTHING
    assert {n: typed(v) for n, v in file.key.items()} == {
        n: typed(v) for n, v in EVERYTHING.key.items()
    }
    assert list(file.key) == list(EVERYTHING.key)
    config = file.records[1].config
    assert [type(value) for value in config.values()] == [
        int, bool, str, float, type(None), dict, int, int, int,
    ]  # fmt: skip


TABLES = ConfigFile(
    kernel="gemm_kernel", device=Device("cuda", "NVIDIA L4", "sm_89", 58, 101376),
    key={"N": 4096}, dtypes={"a_ptr": "float16"}, nearest=("M", "L"),
    records=(Record(at={"M": 16, "L": 2}, config={"BLOCK_M": 16, "num_warps": 4}),),
    portfolios=(
        Portfolio(
            fingerprint="1:0123456789abcdef", triton="3.6.0",
            configs=({"BLOCK_M": 16, "num_warps": 4}, {"BLOCK_M": 64, "num_warps": 8}),
            resources=(
                {"shared": 16384, "registers": 64, "spills": 0}, {"shared": 98304, "warps": 12},
            ),
            rows=(
                Row(at={"M": 16, "L": 2}, time_ms=(0.0125, 0.02), programs=(256, 64)),
                Row(at={"M": 64, "L": 1}, time_ms=(0.04, None), programs=(512, 64),
                    extra={"host": "a"}),
            ),
            extra={"measured_by": "somebody"},
        ),
        Portfolio(configs=({"BLOCK_M": 16},), resources=({},), rows=(
            Row(at={"M": 1, "L": 1}, time_ms=(1,)),
        )),
    ),
)  # fmt: skip


def test_the_golden_file_with_portfolios_is_written_and_read():
    """Tables of times stand last, a line for each config and each point."""
    text = (GOLDEN / "schema1_portfolios.json").read_text(encoding="utf-8")
    assert dump(TABLES).decode() == text
    assert parse(text.encode()) == TABLES


def test_a_reader_that_knows_no_portfolios_finds_all_else():
    """They are a field of their own: what schema 1 had before is where it was."""
    document = json.loads(dump(TABLES))
    del document["portfolios"]
    assert from_document(document, "") == dataclasses.replace(TABLES, portfolios=())


ROW = {"at": {"M": 1}, "time_ms": [1.0]}
TABLE = {"configs": [{"BLOCK": 1}], "resources": [{}], "rows": [ROW]}


@pytest.mark.parametrize(
    ("portfolios", "where"),
    [
        ({}, "portfolios"),
        ([7], "portfolios[0]"),
        ([TABLE, {**TABLE, "configs": []}], "portfolios[1].configs"),
        ([{**TABLE, "configs": [{"BLOCK": 1}] * 2}], "portfolios[0].configs"),
        ([{**TABLE, "configs": [1]}], "portfolios[0].configs"),
        ([{**TABLE, "resources": []}], "portfolios[0].resources"),
        ([{**TABLE, "resources": [{"shared": -1}]}], "portfolios[0].resources[0].shared"),
        ([{**TABLE, "triton": 3}], "portfolios[0].triton"),
        ([{**TABLE, "rows": [ROW, ROW]}], "portfolios[0].rows"),
        ([{**TABLE, "rows": [{**ROW, "at": {"K": 1}}]}], "portfolios[0].rows[0].at"),
        ([{**TABLE, "rows": [{**ROW, "at": {"M": 1.5}}]}], "portfolios[0].rows[0].at"),
        ([{**TABLE, "rows": [{**ROW, "time_ms": [1.0, 2.0]}]}], "portfolios[0].rows[0].time_ms"),
        ([{**TABLE, "rows": [{**ROW, "time_ms": [True]}]}], "portfolios[0].rows[0].time_ms"),
        ([{**TABLE, "rows": [{**ROW, "time_ms": [-1]}]}], "portfolios[0].rows[0].time_ms"),
        ([{**TABLE, "rows": [{**ROW, "programs": [0.5]}]}], "portfolios[0].rows[0].programs"),
    ],
)  # fmt: skip
def test_a_malformed_portfolio_is_told_and_costs_no_record(portfolios, where):
    """It stays in the file as it is, for whoever can tell what it was."""
    with pytest.raises(ConfigFileError) as caught:
        from_list(portfolios, ("M",))
    assert where in [place for place, _ in caught.value.faults]
    document = {
        "schema": 1, "kernel": "k", "device": {"name": "d"}, "key": {}, "nearest": ["M"],
        "records": [{"at": {"M": 1}, "config": {}}], "portfolios": portfolios,
    }  # fmt: skip
    file = from_document(document, "")
    assert len(file.records) == 1 and file.portfolios == ()
    assert json.loads(dump(file))["portfolios"] == portfolios


def test_the_golden_flat_file_is_read():
    """As packages ship today: four spaces, points as strings, a version on top."""
    name = "E=8,N=1024,device_name=NVIDIA_L4,block_shape=[128, 128].json"
    path = GOLDEN / "flat" / name
    records = from_flat(parse_json(path.read_bytes(), path), path, ("M",))
    assert [record.at for record in records] == [{"M": 1}, {"M": 64}, {"M": 2048}]
    assert {record.triton for record in records} == {"3.5.0"}
    assert records[1].config == {
        "BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 16,
        "num_warps": 4, "num_stages": 3,
    }  # fmt: skip
    assert flat_fields(path.stem) == {
        "E": "8", "N": "1024", "device_name": "NVIDIA_L4", "block_shape": "[128,128]",
    }  # fmt: skip


# --- parse and dump ---------------------------------------------------------------------------

texts = st.text(max_size=6)
numbers = st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | texts
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=5,
)  # fmt: skip
unknown = st.dictionaries(texts.map(lambda text: f"x_{text}"), anything, max_size=2)
times = st.floats(0, 1e6)
key_values = st.recursive(
    scalars | texts.map(Dtype), lambda inner: st.lists(inner, max_size=2).map(tuple), max_leaves=4
)
records = st.builds(
    Record,
    at=st.fixed_dictionaries({"M": st.integers(-5, 2**20), "L": st.integers(0, 9)}),
    config=st.dictionaries(texts.map(lambda text: f"B{text}"), scalars, max_size=3),
    time_ms=st.none() | st.dictionaries(texts, times, max_size=2),
    default_ms=st.none() | times,
    candidates=st.none() | st.integers(0, 999),
    left_out=st.none() | st.dictionaries(texts, texts, max_size=2),
    rigor=st.none() | texts,
    resources=st.none() | st.dictionaries(texts, st.integers(), max_size=2),
    signature=st.none() | st.dictionaries(texts, anything, max_size=2),
    fingerprint=st.none() | texts,
    triton=st.none() | texts,
    torch=st.none() | texts,
    tuned_at=st.none() | texts,
    supersedes=st.none() | st.booleans(),
    extra=unknown,
)
devices = st.builds(Device, texts, texts, texts, st.integers(0, 999), st.integers(0, 2**20))
config_files = st.builds(
    ConfigFile,
    kernel=texts,
    device=devices,
    key=st.dictionaries(texts, key_values, max_size=3),
    nearest=st.just(("M", "L")),
    records=st.lists(records, max_size=3, unique_by=lambda r: (r.at["M"], r.at["L"])).map(
        lambda found: tuple(sorted(found, key=lambda r: (r.at["M"], r.at["L"])))
    ),
    dtypes=st.none()
    | st.dictionaries(texts, texts | st.lists(texts, min_size=1, max_size=2), max_size=2),
    extra=unknown,
)


@given(config_files)
def test_what_is_dumped_is_parsed_the_same(file):
    """parse ∘ dump = identity, types and unknown fields included."""
    data = dump(file)
    back = parse(data)
    assert back == file
    assert {n: typed(v) for n, v in back.key.items()} == {n: typed(v) for n, v in file.key.items()}
    assert dump(back) == data
    assert data.endswith(b"}\n") and not data.endswith(b"\n\n")


@given(unknown, unknown, unknown)
def test_unknown_fields_are_kept(top, inside, of_device):
    """dump ∘ parse keeps what a newer version wrote, at every level: case 18."""
    record = {"at": {"M": 1}, "config": {"BLOCK": 16}, **inside}
    before = {
        **document(device={"name": "NVIDIA L4", **of_device}, records=[record]), **top,
    }  # fmt: skip
    after = json.loads(dump(parse(encoded(before))))
    assert {name: after[name] for name in top} == top
    assert {name: after["records"][0][name] for name in inside} == inside
    assert {name: after["device"][name] for name in of_device} == of_device


def test_records_are_written_sorted_by_where_they_are():
    """As numbers, in the order of `nearest`; whatever their order in memory and in `at`."""
    points = [(64, 1), (4, 2), (1000, 0), (4, 1)]
    file = dataclasses.replace(
        EVERYTHING, records=tuple(Record(at={"L": b, "M": a}, config={}) for a, b in points)
    )
    at = [record["at"] for record in json.loads(dump(file))["records"]]
    assert [tuple(point.values()) for point in at] == [(4, 1), (4, 2), (64, 1), (1000, 0)]
    assert {tuple(point) for point in at} == {("M", "L")}


def test_a_file_without_records_is_whole():
    file = dataclasses.replace(EVERYTHING, records=())
    assert parse(dump(file)) == file


def test_merging_a_record_replaces_its_own_point_only():
    """And merging twice is merging once."""
    new = Record(at={"L": 2, "M": 16}, config={"BLOCK_M": 32})
    once = EVERYTHING.merged(new)
    assert [r.config.get("BLOCK_M") for r in parse(dump(once)).records] == [32, 128]
    assert once.extra == EVERYTHING.extra
    assert dump(once.merged(new)) == dump(once)


def test_dump_is_strict_json():
    for number in (float("nan"), float("inf")):
        record = Record(at={"M": 1, "L": 1}, config={"BLOCK": number})
        with pytest.raises(ValueError, match="JSON"):
            dump(dataclasses.replace(EVERYTHING, records=(record,)))


# --- faults -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "not strict JSON"),
        (b"  \n", "not strict JSON"),
        (encoded(MINIMAL)[:-9], "not strict JSON"),
        (b"{}{}", "not strict JSON"),
        (encoded(MINIMAL) * 2, "not strict JSON"),
        (b"\xef\xbb\xbf" + encoded(MINIMAL), "BOM|not strict JSON"),
        (encoded(MINIMAL).decode().encode("utf-16"), "not UTF-8"),
        (encoded(MINIMAL).replace(b'"k"', b'"\xff"'), "not UTF-8"),
        (b'{"schema": 1,}', "not strict JSON"),
        (b"[]", "must be an object"),
        (b"null", "must be an object"),
        (encoded(MINIMAL).replace(b'"kernel"', b'"schema": 1, "kernel"'), "doubled name 'schema'"),
        (encoded(MINIMAL).replace(b'"BLOCK"', b'"BLOCK": 1, "BLOCK"'), "doubled name 'BLOCK'"),
        (encoded(MINIMAL).replace(b"16", b"NaN"), "NaN is not JSON"),
        (encoded(MINIMAL).replace(b"16", b"-Infinity"), "-Infinity is not JSON"),
        (encoded(MINIMAL).replace(b"16", b"1e999"), "out of range"),
        (encoded(MINIMAL).replace(b"16", b"9" * 5000), "not strict JSON|config.BLOCK"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
    ],
)
def test_a_broken_file_says_what_is_wrong(data, what):
    """Case 21: always a ConfigFileError with the path, never another exception."""
    with pytest.raises(ConfigFileError, match=what) as caught:
        parse(data, "/p.json")
    assert caught.value.path == "/p.json"


@pytest.mark.parametrize("opening", [b'{"schema": 1, "kernel": ', b'{"schema": 1, "key": '])
def test_no_depth_is_too_deep_for_the_reader(opening):
    """Shallow enough for Python to read and too deep for it to quote is refused as well."""
    for depth in [1, 2, 97, 98, 99, 100, 101, *range(900, 1010)]:
        data = opening + b"[" * depth + b"]" * depth + b"}"
        with pytest.raises(ConfigFileError):
            parse(data)


def test_what_can_be_read_can_be_written():
    """An unknown field, as deep as parse takes it, survives a merge."""
    for depth in (1, 20, 45):
        deep: Any = 1
        for _ in range(depth):
            deep = {"a": [deep]}
        file = parse(encoded({**document(), "x": deep}))
        assert parse(dump(file)) == file


@pytest.mark.parametrize("name", ["kernel", "device", "key", "nearest", "records"])
def test_a_missing_field_is_named(name):
    assert name in faults(encoded(document(**{name: None})))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"schema": None}, "schema"),
        ({"schema": 0}, "schema"),
        ({"schema": "1"}, "schema"),
        ({"schema": True}, "schema"),
        ({"kernel": 3}, "kernel"),
        ({"device": "NVIDIA L4"}, "device"),
        ({"device": {"arch": "sm_89"}}, "device.name"),
        ({"device": {"name": 4}}, "device.name"),
        ({"device": {"name": "a", "multiprocessors": "58"}}, "device.multiprocessors"),
        ({"device": {"name": "a", "multiprocessors": True}}, "device.multiprocessors"),
        ({"device": {"name": "a", "arch": 89}}, "device.arch"),
        ({"key": ["N"]}, "key"),
        ({"key": {"N": [1]}}, "key.N"),
        ({"key": {"N": {"type": "float16"}}}, "key.N"),
        ({"dtypes": "float16"}, "dtypes"),
        ({"dtypes": {"a": 16}}, "dtypes.a"),
        ({"dtypes": {"a": []}}, "dtypes.a"),
        ({"nearest": "M"}, "nearest"),
        ({"nearest": [1], "records": []}, "nearest"),
        ({"nearest": [["M"]], "records": []}, "nearest"),
        ({"nearest": ["M", "M"]}, "nearest"),
        ({"records": {}}, "records"),
        ({"records": [3]}, "records[0]"),
        ({"records": [{"config": {}}]}, "records[0].at"),
        ({"records": [{"at": {"M": 1}}]}, "records[0].config"),
        ({"records": [{"at": {}, "config": {}}]}, "records[0].at"),
        ({"records": [{"at": {"M": 1, "N": 2}, "config": {}}]}, "records[0].at"),
        ({"records": [{"at": {"M": "1"}, "config": {}}]}, "records[0].at"),
        ({"records": [{"at": {"M": 1.0}, "config": {}}]}, "records[0].at"),
        ({"records": [{"at": {"M": True}, "config": {}}]}, "records[0].at"),
        ({"records": [{"at": {"M": 1}, "config": {}}] * 2}, "records[1].at"),
        ({"records": [{"at": {"M": 1}, "config": {}, "candidates": 1.5}]}, "records[0].candidates"),
        ({"records": [{"at": {"M": 1}, "config": {}, "default_ms": "1"}]}, "records[0].default_ms"),
        ({"records": [{"at": {"M": 1}, "config": {}, "supersedes": 1}]}, "records[0].supersedes"),
        (
            {"records": [{"at": {"M": 1}, "config": {}, "time_ms": {"median": -1}}]},
            "records[0].time_ms.median",
        ),
        (
            {"records": [{"at": {"M": 1}, "config": {}, "time_ms": {"median": None}}]},
            "records[0].time_ms.median",
        ),
    ],
)
def test_a_wrong_field_is_found_where_it_is(change, where):
    assert faults(encoded(document(**change)))[0] == where


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_warps", "4"), ("num_warps", 3), ("num_warps", 0), ("num_warps", 64),
        ("num_warps", True), ("num_warps", 4.0), ("num_warps", None), ("num_warps", -4),
        ("num_stages", -1), ("num_stages", 65), ("num_stages", "3"), ("num_stages", None),
        ("num_ctas", 3), ("num_ctas", 0), ("maxnreg", 0), ("maxnreg", 256), ("maxnreg", "64"),
        ("BLOCK", [16]), ("BLOCK", {"value": 16}),
    ],
)  # fmt: skip
def test_a_config_that_triton_would_choke_on_is_refused(name, value):
    """Case 21: `"num_warps": "4"` and 3, with the address that the design promises."""
    assert faults(with_config(**{name: value})) == [f"records[0].config.{name}"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_warps", 1), ("num_warps", 32), ("num_stages", 0), ("num_ctas", 16),
        ("maxnreg", None), ("maxnreg", 255), ("BLOCK", None), ("BLOCK", True), ("BLOCK", ".cg"),
        ("BLOCK", 0.5), ("ACC", {"dtype": "float32"}), ("SHAPE", {"tuple": [1, 2]}),
    ],
)  # fmt: skip
def test_knobs_keep_their_types(name, value):
    """Case 10; a dtype or a tuple as a knob is written as in a key, and so it is read."""
    file = parse(with_config(**{name: value}))
    assert file.records[0].config == {name: value}
    assert type(file.records[0].config[name]) is type(value)
    assert parse(dump(file)) == file


def test_all_faults_are_told_at_once():
    bad = document(
        kernel=1, device={"multiprocessors": "x"}, key={"N": []},
        records=[
            {"at": {"M": 1}, "config": {"num_warps": 3, "num_stages": "a"}},
            {"at": {"M": 2}},
            "x",
        ],
    )  # fmt: skip
    assert sorted(faults(encoded(bad))) == sorted([
        "kernel", "device.name", "device.multiprocessors", "key.N",
        "records[0].config.num_warps", "records[0].config.num_stages", "records[1].config",
        "records[2]",
    ])  # fmt: skip


@pytest.mark.parametrize("schema", [2, 99])
def test_a_newer_schema_is_refused_by_name(schema):
    """Whatever else is in it, since nobody here can know what it means."""
    with pytest.raises(NewerSchema, match=f"{schema} is newer than 1") as caught:
        parse(encoded({"schema": schema, "records": "?"}), "/p.json")
    assert caught.value.where == "schema" and isinstance(caught.value, ConfigFileError)


# --- devices of files -------------------------------------------------------------------------

L4 = Device("cuda", "NVIDIA L4", "sm_89", 58, 101376)


def test_a_minimal_file_serves_any_device_of_its_name():
    file = parse(encoded(document()))
    assert file.device == Device(name="NVIDIA L4")
    assert file.device.serves(L4)
    assert file.dtypes is None and file.records[0].fingerprint is None


# --- the flat form ----------------------------------------------------------------------------


def flat(value: Any, nearest: tuple[str, ...] = ("M",)) -> tuple[Record, ...]:
    return from_flat(value, "/f.json", nearest)


def test_points_of_a_flat_file_keep_their_numbers():
    """Case 12: a stored "0" and a negative are points like others; the order is the file's."""
    found = flat({"16": {"B": 1}, "0": {"B": 2}, "-4": {"B": 3}})
    assert [record.at["M"] for record in found] == [16, 0, -4]
    assert {record.triton for record in found} == {None}
    assert flat({}) == () and flat({"triton_version": "3.5.0"}) == ()


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ([], ""), ({"1": 3}, "1"), ({"x": {}}, "x"), ({"01": {}}, "01"), ({"1.0": {}}, "1.0"),
        ({"+1": {}}, "+1"), ({" 1": {}}, " 1"), ({"-0": {}}, "-0"), ({"٣": {}}, "٣"),
        ({"9" * 30: {}}, "9" * 30), ({"triton_version": 3}, "triton_version"),
        ({"1": {"num_warps": "4"}}, "1.num_warps"), ({"1": {"B": [1]}}, "1.B"),
    ],
)  # fmt: skip
def test_a_flat_files_faults_say_where(value, where):
    with pytest.raises(ConfigFileError) as caught:
        flat(value)
    assert (caught.value.path, caught.value.where) == ("/f.json", where)


def test_a_flat_file_needs_exactly_one_nearest_name():
    for nearest in ((), ("M", "L")):
        with pytest.raises(ConfigFileError, match="exactly one nearest entry"):
            flat({"1": {"B": 1}}, nearest)


@pytest.mark.parametrize(
    ("stem", "fields"),
    [
        ("N=1,device_name=NVIDIA_L4", {"N": "1", "device_name": "NVIDIA_L4"}),
        ("device_name=NVIDIA_L4,N=1", {"N": "1", "device_name": "NVIDIA_L4"}),
        ("N=1,device_name=Orin_(nvgpu)", {"N": "1", "device_name": "Orin_(nvgpu)"}),
        (
            "N=1,device_name=Intel(R)_Arc(TM)_Pro_B60_Graphics,dtype=int8_w8a16",
            {
                "N": "1", "device_name": "Intel(R)_Arc(TM)_Pro_B60_Graphics",
                "dtype": "int8_w8a16",
            },
        ),
        ("b=[128, 128],N=1", {"b": "[128,128]", "N": "1"}),
        ("b=[128,128],N=1", {"b": "[128,128]", "N": "1"}),
        ("b=(1,2),c=[3],N=1", {"b": "(1,2)", "c": "[3]", "N": "1"}),
        ("N=,device_name=a=b", {"N": "", "device_name": "a=b"}),
        ("N=1,N=2", None),
        ("aliases", None),
        ("N=1,oops", None),
    ],
)  # fmt: skip
def test_the_fields_of_a_flat_files_name(stem, fields):
    assert flat_fields(stem) == fields


def test_values_in_flat_names_are_spelt_as_packages_spell_them():
    assert [flat_text(v) for v in (8, True, None, "fp8", 0.5, Dtype("int8"), (128, 128))] == [
        "8", "True", "None", "fp8", "0.5", "int8", "[128,128]",
    ]  # fmt: skip
