"""The flat form, both ways: names, contents, and folders of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packages import record
from test_export import L4, put
from test_listing import shipconf

from shipconf.cli import main
from shipconf.interop import flat
from shipconf.keys import Dtype
from shipconf.records import ConfigFile, Device, flat_text

GOLDEN = Path(__file__).parent / "golden" / "flat"
# Names as Hugging Face kernels, vLLM and SGLang build them.
NAMES = [
    "N=4096,K=4096,device_name=NVIDIA_L4.json",
    "E=128,N=1024,device_name=AMD_Instinct_MI300X.json",
    "E=8,N=1024,device_name=NVIDIA_L4,dtype=fp8_w8a8.json",
    "E=8,N=1024,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8,block_shape=[128,128].json",
    "E=8,N=1024,device_name=NVIDIA_H200,dtype=int8_w8a8,block_shape=[128, 128].json",
    "E=8,N=1024,device_name=NVIDIA_H200,per_channel_quant=True.json",
    "device_name=NVIDIA_L4.json",
    "N=-1,scale=0.5,bias=None,device_name=Orin_(nvgpu).json",
]
CONTENTS = [
    {"1": {"BLOCK_M": 16, "num_warps": 4}, "64": {"BLOCK_M": 64, "num_warps": 8}},
    {"triton_version": "3.5.0", "1": {"BLOCK_M": 16, "fast": True, "cache": ".cg", "x": None}},
    {"0": {}, "4096": {"waves_per_eu": 0, "kpack": 2, "SCALE": 0.5}},
]


def text(content: dict) -> bytes:
    return (json.dumps(content, indent=4) + "\n").encode()


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_file_comes_back_byte_for_byte_under_its_own_name(name, content):
    file = flat.read(name.removesuffix(".json"), content, name, kernel="moe", nearest="M")
    assert flat.file_name(file) == name
    assert flat.dump(flat.document(file)) == text(content)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.name)
def test_golden_files_come_back_byte_for_byte(path):
    file = flat.read(path.stem, json.loads(path.read_bytes()), path, kernel="moe")
    assert flat.file_name(file) == path.name
    assert flat.dump(flat.document(file)) == path.read_bytes()


names = st.sampled_from(["N", "K", "E", "dtype", "block_shape", "top_k"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**17), 10**17)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="ascii", categories=["L", "N"], include_characters="_-."))
    | st.sampled_from(["float16", "None", "True", "12", "0x10", "1_000", "[1,2]", "007"]),
    lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=3,
)  # fmt: skip


@given(st.dictionaries(names, values, max_size=4), st.sampled_from(["NVIDIA L4", "A B (c)"]))
def test_a_name_says_its_key_or_is_refused(key, device):
    """What a name cannot say is refused, never said wrongly: reading it back gives the key."""
    file = ConfigFile(kernel="k", device=Device(name=device), key=key, nearest=("M",), records=())
    try:
        name = flat.file_name(file)
    except flat.UnfitForFlat:
        return
    back = flat.read(name.removesuffix(".json"), {}, name, kernel="k")
    said = {n: v for n, v in key.items() if n in back.key}
    assert {n: flat_text(v) for n, v in back.key.items()} == {
        n: flat_text(v) for n, v in said.items()
    }
    unsaid = {n: v for n, v in key.items() if n not in said}
    assert set(unsaid) <= {"dtype", "block_shape"} and set(unsaid.values()) <= {None, False}
    assert back.device.name == device


@pytest.mark.parametrize(
    ("key", "device"),
    [
        ({"dtype": "a/b"}, "NVIDIA L4"), ({"dtype": "a,b"}, "NVIDIA L4"),
        ({"N": 1}, "AMD Instinct MI50/MI60"), ({"N": "x" * 300}, "NVIDIA L4"),
        ({"s": ("a", 1.0, (2, "b"))}, "NVIDIA L4"),
    ],
)  # fmt: skip
def test_what_no_name_can_say_is_refused(key, device):
    file = ConfigFile(kernel="k", device=Device(name=device), key=key, nearest=("M",), records=())
    with pytest.raises(flat.UnfitForFlat):
        flat.file_name(file)


def test_a_dtype_in_the_key_is_said_by_its_name_as_lookups_read_it():
    key = {"acc": Dtype("float16")}
    file = ConfigFile(kernel="k", device=Device(name="L4"), key=key, nearest=("M",), records=())
    assert flat.file_name(file) == "acc=float16,device_name=L4.json"


# --- export --format flat ---------------------------------------------------------------------


def export(folder: Path, *words: str) -> int:
    return main(["export", str(folder), "--format", "flat", *words])


def files(folder: Path) -> dict[str, dict]:
    return {path.name: json.loads(path.read_text()) for path in sorted(folder.glob("*"))}


def config(block: int) -> dict:
    return record(block)["config"]


def test_records_become_flat_files_as_vllm_names_them(tmp_path, store, capsys):
    key = {"block_shape": {"tuple": [128, 128]}, "E": 8, "dtype": "fp8_w8a8", "N": 7}
    put(store, record(64, 16, triton="3.6.0"), record(16, 1, triton="3.6.0"), key=key)
    assert export(tmp_path / "out") == 0
    name = "E=8,N=7,device_name=NVIDIA_L4,dtype=fp8_w8a8,block_shape=[128,128].json"
    assert files(tmp_path / "out") == {name: {"1": config(16), "16": config(64)}}
    assert list(files(tmp_path / "out")[name]) == ["1", "16"]
    assert "2 added" in capsys.readouterr().err


def test_a_triton_version_is_said_only_when_asked_for_and_true_of_all(tmp_path, store):
    put(store, record(16, 1, triton="3.6.0"))
    put(store, record(16, 1, triton="3.6.0"), record(16, 2), name="b.json", key={"N": 9})
    assert export(tmp_path / "out", "--triton-version") == 0
    first, second = files(tmp_path / "out").values()
    assert first["triton_version"] == "3.6.0" and "triton_version" not in second


def test_the_files_that_are_there_tell_how_names_are_spelled(tmp_path, store):
    """As SGLang does: a space after a comma, and another order of fields."""
    there = "device_name=NVIDIA_L4,block_shape=[64, 64],N=1.json"
    (tmp_path / there).write_bytes(text({"triton_version": "3.5.0", "1": {"BLOCK": 16}}))
    put(store, record(32, 2, triton="3.6.0"), key={"N": 9, "block_shape": {"tuple": [64, 64]}})
    assert export(tmp_path) == 0
    found = files(tmp_path)
    new = "device_name=NVIDIA_L4,block_shape=[64, 64],N=9.json"
    assert set(found) == {there, new} and found[new]["triton_version"] == "3.6.0"


@pytest.mark.parametrize(("policy", "block"), [("keep", 8), ("replace", 32), ("faster", 8)])
def test_points_that_are_there_are_settled_as_asked(tmp_path, store, policy, block, capsys):
    name = "N=8,device_name=NVIDIA_L4.json"
    there = {"triton_version": "3.5.0", "1": config(8), "-5": config(8), "64": config(8)}
    (tmp_path / name).write_bytes(text(there))
    put(store, record(32, 1), record(8, 64), record(32, 4))
    assert export(tmp_path, "--on-conflict", policy, "--json") == 0
    content = files(tmp_path)[name]
    assert content == {"-5": config(8), "1": config(block), "4": config(32), "64": config(8)}
    assert list(content) == ["-5", "1", "4", "64"]
    outcomes = {r["at"]["M"]: r["outcome"] for r in json.loads(capsys.readouterr().out)["records"]}
    assert outcomes == {1: "replaced" if policy == "replace" else "kept", 4: "added", 64: "same"}


def test_entries_that_are_not_set_are_left_out_of_names_as_vllm_does(tmp_path, store):
    """`-k dtype=null` of an import gives the key such an entry; its file keeps its name."""
    name = "E=8,N=7,device_name=NVIDIA_L4.json"
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(text(CONTENTS[0]))
    words = ["--kernel", "moe", "-k", "dtype=null", "-k", "block_shape=null", "-k", "E=9"]
    assert main(["import", str(tmp_path / "in"), "--to", str(tmp_path / "mid"), *words]) == 0
    (path,) = (tmp_path / "mid" / "moe").glob("*")
    key = json.loads(path.read_text())["key"]
    assert key == {"E": 8, "N": 7, "dtype": None, "block_shape": None}
    assert export(tmp_path / "out", "--from", str(tmp_path / "mid")) == 0
    assert (tmp_path / "out" / name).read_bytes() == text(CONTENTS[0])
    put(store, record(16, 1), key={"E": 8, "N": 1, "dtype": None, "per_channel_quant": False})
    assert export(tmp_path / "out") == 0
    assert "E=8,N=1,device_name=NVIDIA_L4.json" in files(tmp_path / "out")


def test_files_that_differ_in_what_the_form_cannot_say_are_a_choice_to_make(
    tmp_path, store, capsys
):
    put(store, record(16, 1), dtypes={"out_ptr": "float16"})
    put(store, record(32, 1), dtypes={"out_ptr": "float32"}, name="b.json")
    assert export(tmp_path / "out") == 1
    assert capsys.readouterr().err.count("choose by --dtypes") == 2
    assert export(tmp_path / "out", "--dtypes", "float32") == 0
    (content,) = files(tmp_path / "out").values()
    assert content == {"1": config(32)}


def test_what_the_form_cannot_hold_is_named_and_the_rest_is_written(tmp_path, store, capsys):
    put(store, record(16, 1))
    put(store, record(16, None), nearest=[], name="b.json", key={"N": 1})
    put(store, record(16, 1), name="c.json", device={**L4, "name": "AMD Instinct MI50/MI60"})
    assert export(tmp_path / "out") == 1
    printed = capsys.readouterr()
    assert "b.json: it has 0 nearest entries" in printed.err and "MI50/MI60" in printed.err
    assert len(files(tmp_path / "out")) == 1


def test_a_dry_run_shows_the_diff_and_a_second_run_changes_nothing(tmp_path, store, capsys):
    put(store, record(16, 1))
    assert export(tmp_path / "out", "--dry-run") == 0
    assert '+    "1": {' in capsys.readouterr().out.splitlines()
    assert not (tmp_path / "out").exists()
    assert export(tmp_path / "out") == 0 and export(tmp_path / "out") == 0
    assert capsys.readouterr().out.count(".json") == 1


def test_a_broken_file_in_the_target_stays_and_is_reported(tmp_path, store, capsys):
    name = "N=8,device_name=NVIDIA_L4.json"
    put(store, record(16, 1))
    for data in (b'{"1": [', b'{"x": {}}', b"[]", b"", text({"1": {"num_warps": 3}})):
        (tmp_path / name).write_bytes(data)
        assert export(tmp_path) == 1
        assert f"{tmp_path / name}: " in capsys.readouterr().err
        assert (tmp_path / name).read_bytes() == data


def test_a_flat_source_is_reported_with_the_command_that_reads_it(tmp_path, capsys):
    """It names no kernel, and its folder is none."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / NAMES[0]).write_bytes(text(CONTENTS[0]))
    assert export(tmp_path / "out", "--from", str(tmp_path / "in")) == 1
    assert "`shipconf import` reads it" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_flat_export_imports_neither_torch_nor_triton(tmp_path, store):
    put(store, record(16, 1))
    done = shipconf("export", tmp_path / "out", "--format", "flat")
    assert done.returncode == 0 and "device_name=NVIDIA_L4.json" in done.stdout, done.stderr
