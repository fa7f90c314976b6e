"""What a stored config must be before it reaches Triton, and files that break the rules."""

from __future__ import annotations

import json
from typing import Any

import kernels
import pytest
import torch
import triton
from kernels import BLOCKS, Trial, configs
from packages import (
    FILE,
    TOLD,
    document,
    files_in,
    package,
    record,
    records_in,
    shelf,
    user_folder,
    write,
)

from shipconf import Device, OfflineError, ShipconfWarning, offline

# --- knobs ------------------------------------------------------------------------------------


def at(m: int, **config: Any) -> dict[str, Any]:
    return {"at": {"M": m}, "config": config}


UNFIT = {
    "a knob the kernel no longer has": {"BLOCK": 16, "GROUP": 8},
    "a knob that is missing": {"num_warps": 4},
    "a value that the launch passes": {"BLOCK": 16, "M": 8},
    "a string for an integer": {"BLOCK": "16"},
    "a float for an integer": {"BLOCK": 16.0},
    "a boolean for an integer": {"BLOCK": True},
    "nothing for an integer": {"BLOCK": None},
}


@pytest.mark.parametrize("config", UNFIT.values(), ids=UNFIT)
def test_an_unfit_record_is_stale_and_the_next_source_serves(config, tmp_path):
    """Case 15: one warning, and the launch goes on with the next record."""
    module = package(tmp_path)
    path = write(shelf(module), at(8, **config), record(32, M=16))
    trial = Trial(module.told)
    with pytest.warns(ShipconfWarning, match="is stale and does not serve") as caught:
        assert [trial.launch(8, m) for m in (8, 8, 7)] == [32, 32, 32]
    assert len(caught) == 1 and str(path) in str(caught[0].message)
    assert trial.measured == []


def test_an_unfit_record_alone_is_a_miss(tmp_path):
    """Then the kernel is tuned, or refused."""
    module = package(tmp_path)
    write(shelf(module), at(8, BLOCK=16, GROUP=8))
    with pytest.warns(ShipconfWarning, match="GROUP is no parameter"):
        assert Trial(module.told).resolve(8, 8) is None
        with offline(), pytest.raises(OfflineError):
            Trial(module.told).launch(8, 8)
    trial = Trial(module.told)
    with pytest.warns(ShipconfWarning):
        assert trial.launch(8, 8) == 64
    assert trial.measured == list(BLOCKS)


@pytest.mark.parametrize("warps", ["4", 3, 64, 0, True, 4.0])
def test_a_bad_launch_option_in_a_file_is_a_fault_of_the_file(warps, tmp_path):
    """Case 21: `"num_warps": "4"`, `num_warps: 3`. Warned once, treated as a miss."""
    module = package(tmp_path)
    write(user_folder(Trial(module.told).kernel), record(32))
    write(shelf(module), at(8, BLOCK=16, num_warps=warps))
    trial = Trial(module.told)
    with pytest.warns(ShipconfWarning, match=r"records\[0\]\.config\.num_warps") as caught:
        assert [trial.launch(8, m) for m in (8, 8, 9)] == [32, 32, 32]
    assert len(caught) == 1


def test_a_launch_option_left_out_is_triton_s_default(tmp_path):
    module = package(tmp_path)
    write(shelf(module), at(8, BLOCK=16))
    trial = Trial(module.told)
    assert trial.launch(8, 8) == 16
    assert trial.resolve(8, 8).config == {"BLOCK": 16}
    assert trial.kernel.best_config == triton.Config({"BLOCK": 16})


def test_a_parameter_left_out_takes_the_kernel_s_default(tmp_path, store):
    """A knob with a default in the kernel is filled in; a record need not have it."""
    trial = Trial(kernels.told_spelt, key=["N"], nearest=[])
    folder = store / "v1"
    trial.launch(8)
    (path,) = folder.rglob("*.json")
    written = json.loads(path.read_text())
    written["records"][0]["config"] = {"num_warps": 4}
    path.write_text(json.dumps(written))
    again = Trial(kernels.told_spelt, key=["N"], nearest=[])
    assert again.launch(8) == 16 and again.measured == []
    assert again.resolve(8).config == {"num_warps": 4, "BLOCK": 16}


def test_knobs_that_are_no_integers_keep_their_types(store):
    """Case 10: `null`, `true`, `".cg"`."""

    def trial() -> Trial:
        return Trial(
            kernels.told_option, key=["N"], nearest=[], configs=[
                triton.Config({"BLOCK": 16, "EVICT": ".ca", "EVEN": True}),
                triton.Config({"BLOCK": 32, "EVICT": ".cg", "EVEN": None}),
            ],
            times={16: 5.0, 33: 1.0},
        )  # fmt: skip

    assert trial().launch(8) == 33
    (kept,) = records_in(store)
    assert kept["config"]["EVICT"] == ".cg" and kept["config"]["EVEN"] is None
    again = trial()
    assert again.launch(8) == 33 and again.measured == []
    config = again.resolve(8).config
    assert (config["EVICT"], config["EVEN"], type(config["BLOCK"])) == (".cg", None, int)


def test_a_knob_that_is_a_dtype_is_served_as_one(store):
    """Stored as `{"dtype": …}` and matched to the live config's own object."""

    def trial(dtype: Any = torch.float16) -> Trial:
        return Trial(
            kernels.told_option, key=["N"], nearest=[], times={16: 5.0, 32: 1.0}, configs=[
                triton.Config({"BLOCK": 16, "EVICT": torch.float32, "EVEN": True}),
                triton.Config({"BLOCK": 32, "EVICT": dtype, "EVEN": True}),
            ],
        )  # fmt: skip

    trial().launch(8)
    (path,) = store.rglob("*.json")
    assert '"EVICT": {"dtype": "float16"}' in path.read_text()
    again = trial()
    assert again.launch(8) == 32 and again.measured == []
    assert again.resolve(8).config["EVICT"] is torch.float16


def test_options_of_another_backend_are_left_out_with_one_warning(tmp_path):
    """Case 16: what a config for AMD says to CUDA, or here to the interpreter."""
    module = package(tmp_path)
    foreign = {"waves_per_eu": 2, "matrix_instr_nonkdim": 16, "kpack": 2}
    write(shelf(module), at(8, BLOCK=16, **foreign), at(64, BLOCK=32, waves_per_eu=1))
    trial = Trial(module.told)
    with pytest.warns(ShipconfWarning, match="waves_per_eu, matrix_instr_nonkdim, kpack") as caught:
        assert [trial.launch(8, m) for m in (8, 64, 8)] == [16, 32, 16]
    assert len(caught) == 1
    assert trial.resolve(8, 8).config == {"BLOCK": 16}


def test_an_option_of_another_backend_that_is_a_parameter_stays(tmp_path):
    """Many kernels for AMD take `waves_per_eu` as a constexpr of their own."""
    source = TOLD.replace(
        "M, BLOCK: tl.constexpr):", "M, BLOCK: tl.constexpr, kpack: tl.constexpr = 1):", 1
    )
    module = package(
        tmp_path, source.replace("store(out_ptr, BLOCK)", "store(out_ptr, BLOCK + kpack)", 1)
    )
    write(shelf(module), at(8, BLOCK=16, kpack=2))
    trial = Trial(module.told)
    assert trial.launch(8, 8) == 18
    assert trial.resolve(8, 8).config == {"BLOCK": 16, "kpack": 2}


def test_options_of_the_device_s_own_backend_stay(tmp_path):
    """On CUDA, `maxnreg` and `num_ctas` do; `kpack` does not. No GPU is needed to ask."""
    module = package(tmp_path)
    name = "N=8,dtypes=int32,device_name=NVIDIA_H200,arch=sm_90,mp=132.json"
    device = {"backend": "cuda", "name": "NVIDIA H200", "arch": "sm_90", "multiprocessors": 132}
    write(
        shelf(module), at(8, BLOCK=16, num_ctas=2, maxnreg=64, kpack=2), name=name, device=device
    )  # fmt: skip
    h200 = Device("cuda", "NVIDIA H200", "sm_90", 132, 232448)
    with pytest.warns(ShipconfWarning, match="kpack in .* of another backend than cuda"):
        match = Trial(module.told).kernel.resolve_for(dtypes="int32", N=8, M=8, device=h200)
    assert match is not None and match.config == {"BLOCK": 16, "num_ctas": 2, "maxnreg": 64}


def test_an_unknown_field_of_a_record_is_ignored_by_launches_and_kept_by_writes(store):
    """Case 18: a field from a newer version."""
    folder = user_folder(Trial().kernel)
    path = write(folder, record(16, flavour={"x": [1]}), device={**document([])["device"],
                 "shared_memory": 0}, house="red")  # fmt: skip
    trial = Trial()
    assert trial.launch(8, 8) == 16
    assert trial.launch(8, 4096) == 64
    written = json.loads(path.read_text())
    assert written["house"] == "red"
    assert [r.get("flavour") for r in written["records"]] == [{"x": [1]}, None]


# --- staleness --------------------------------------------------------------------------------


def shipped_from(module: Any, block: int) -> None:
    """Records in the module's package, with the fingerprint of its own kernel of now."""
    trial = Trial(module.told)
    trial.times.update({block: 0.01})
    trial.launch(8, 8)
    tuned = trial.resolve(8, 8)
    write(shelf(module), record(block, fingerprint=tuned.record.fingerprint))
    tuned.path.unlink()


HELPED = TOLD.replace("@triton.jit\ndef told", """
@triton.jit
def factor(x):
    return x * 1

@triton.jit
def told""", 1).replace(
    "tl.store(out_ptr, BLOCK)", "tl.store(out_ptr, factor(BLOCK))", 1
)  # fmt: skip


def moved(module: Any, folder: Any, source: str) -> Any:
    """A new version of the package, with the records of the old one."""
    newer = package(folder, source)
    for path in shelf(module).iterdir():
        shelf(newer).mkdir(parents=True, exist_ok=True)
        (shelf(newer) / path.name).write_bytes(path.read_bytes())
    return newer


@pytest.mark.parametrize(
    "edit",
    [
        lambda s: s.replace("tl.store(", "# a comment\n\n    tl.store(", 1),
        lambda s: "\n\n\n" + s,
        lambda s: s.replace("(out_ptr, N, M, BLOCK: tl.constexpr)",
                            "(\n    out_ptr, N,\n    M, BLOCK: tl.constexpr,\n)", 1),
    ],
    ids=["a comment", "blank lines", "formatting"],
)  # fmt: skip
def test_a_comment_or_a_blank_line_makes_no_record_stale(edit, tmp_path):
    """Case 19: neither the package's nor the user's; nothing is warned of or tuned."""
    module = package(tmp_path / "old")
    shipped_from(module, 32)
    newer = moved(module, tmp_path / "new", edit(TOLD))
    trial = Trial(newer.told)
    assert trial.launch(8, 8) == 32
    assert trial.measured == []


def test_a_changed_constant_in_a_helper_makes_the_package_s_record_stale(tmp_path):
    """Case 19: used all the same, with one warning; the user's own record ranks before it."""
    module = package(tmp_path / "old", HELPED)
    shipped_from(module, 32)
    newer = moved(module, tmp_path / "new", HELPED.replace("x * 1", "x * 2"))
    trial = Trial(newer.told)
    with pytest.warns(ShipconfWarning, match="the kernel has changed since") as caught:
        assert [trial.launch(8, m) for m in (8, 8, 9)] == [64, 64, 64]
    assert len(caught) == 1
    assert trial.resolve(8, 8).source == "package" and trial.resolve(8, 8).config["BLOCK"] == 32
    write(user_folder(trial.kernel), record(16))
    current = Trial(newer.told)
    assert current.launch(8, 8) == 32  # block 16, doubled by the helper
    assert current.resolve(8, 8).source == "user"


def test_a_changed_kernel_never_sees_the_user_records_of_the_old_one(tmp_path):
    """Case 19: the user store has a folder for each version."""
    module = package(tmp_path / "old", HELPED)
    Trial(module.told).launch(8, 8)
    newer = package(tmp_path / "new", HELPED.replace("x * 1", "x * 2"))
    trial = Trial(newer.told)
    assert trial.resolve(8, 8) is None
    trial.launch(8, 8)
    assert trial.resolve(8, 8).config["BLOCK"] in BLOCKS
    assert Trial(module.told).resolve(8, 8).config["BLOCK"] == 64


def test_a_record_without_a_fingerprint_is_used(tmp_path):
    module = package(tmp_path)
    write(shelf(module), record(16))
    assert Trial(module.told).launch(8, 8) == 16


# --- files that are not as they should be -----------------------------------------------------

GOOD = json.dumps(document([record(16)]))
BROKEN = {
    "an empty file": b"",
    "a truncated object": GOOD[:-20].encode(),
    "two objects": b"{}{}",
    "an empty object": b"{}",
    "a byte-order mark": b"\xef\xbb\xbf" + GOOD.encode(),
    "invalid UTF-8": GOOD.replace("told", "t\udcffld").encode("utf-8", "surrogateescape"),
    "UTF-16": GOOD.encode("utf-16"),
    "a trailing comma": (GOOD[:-1] + ",}").encode(),
    "a list at the top": b"[]",
    "null": b"null",
    "a number that is none": GOOD.replace('"BLOCK": 16', '"BLOCK": NaN').encode(),
    "a doubled name": GOOD.replace('"BLOCK": 16', '"BLOCK": 16, "BLOCK": 32').encode(),
    "nested too deeply": b'{"schema": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "no records": json.dumps({**json.loads(GOOD), "records": None}).encode(),
    "a huge number": GOOD.replace('"BLOCK": 16', '"BLOCK": 1e999').encode(),
    "an integer of 5000 digits": GOOD.replace('"BLOCK": 16', '"BLOCK": ' + "9" * 5000).encode(),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_of_a_package_is_a_miss_with_one_warning(data, tmp_path):
    """Case 21: never a traceback from a launch; and the file stays as it is."""
    module = package(tmp_path)
    shelf(module).mkdir(parents=True)
    path = shelf(module) / FILE
    path.write_bytes(data)
    trial = Trial(module.told)
    with pytest.warns(ShipconfWarning) as caught:
        assert [trial.launch(8, m) for m in (8, 8, 4096)] == [64, 64, 64]
        assert "skipped" in trial.kernel.explain(trial.out, 8, 8)
    about = [str(w.message) for w in caught if "bad file" in str(w.message)]
    assert len(about) == 1 and str(path) in about[0]
    assert path.read_bytes() == data


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_of_the_user_store_is_moved_aside_and_replaced(data, store):
    """Case 21: kept as `.bad`, warned of, and a good one written in its place."""
    folder = user_folder(Trial().kernel)
    folder.mkdir(parents=True)
    path = folder / FILE
    path.write_bytes(data)
    trial = Trial()
    with pytest.warns(ShipconfWarning, match="bad file"):
        assert trial.launch(8, 8) == 64
    assert (folder / f"{FILE}.bad").read_bytes() == data
    assert [r["config"]["BLOCK"] for r in records_in(store)] == [64]
    again = Trial()
    assert again.launch(8, 8) == 64 and again.measured == []


def test_a_newer_schema_is_a_warned_miss_and_never_written_over(store):
    """Case 18: refused by name; a new record goes to the next free name, and is found there."""
    folder = user_folder(Trial().kernel)
    path = write(folder, record(16), schema=99)
    before = path.read_bytes()
    trial = Trial()
    with pytest.warns(ShipconfWarning, match="99 is newer than 1"):
        assert trial.launch(8, 8) == 64
    assert path.read_bytes() == before
    assert [name for name in files_in(folder) if name.endswith(".json")] == [
        FILE, FILE.replace(".json", "~2.json"),
    ]  # fmt: skip
    again = Trial()
    assert again.launch(8, 8) == 64 and again.measured == []


def test_a_file_of_another_key_at_the_path_is_left_and_the_next_name_taken(store):
    """The path only finds a file; what is inside decides."""
    folder = user_folder(Trial().kernel)
    path = write(folder, record(16), key={"N": 9})
    trial = Trial()
    assert trial.launch(8, 8) == 64
    assert json.loads(path.read_text())["key"] == {"N": 9}
    assert Trial().launch(8, 8) == 64


@pytest.mark.parametrize(
    "other",
    [
        {"key": {"K": 8}}, {"key": {"N": 8, "K": 8}}, {"key": {"N": True}}, {"key": {"N": 8.0}},
        {"nearest": ["L"]}, {"kernel": "told_twice"}, {"dtypes": {"out_ptr": "int64"}},
        {"device": {"backend": "cuda", "name": "interpreter"}}, {"device": {"name": "inter"}},
        {"device": {"name": "interpreter", "multiprocessors": 4}},
    ],
    ids=str,
)  # fmt: skip
def test_a_file_of_something_else_under_the_right_name_never_serves(other, tmp_path):
    """Case 4, 6: explained, not used."""
    module = package(tmp_path)
    entry = {"at": dict.fromkeys(other.get("nearest", ["M"]), 8), "config": {"BLOCK": 16}}
    write(shelf(module), entry, **other)
    trial = Trial(module.told)
    assert trial.resolve(8, 8) is None
    words = trial.kernel.explain_for(dtypes="int32", N=8, M=8)
    assert "skipped N=8" in words or "dtypes are int64" in words


def test_what_a_file_s_device_leaves_out_agrees_with_any(tmp_path):
    module = package(tmp_path)
    write(shelf(module), record(16), device={"name": "interpreter"})
    assert Trial(module.told).launch(8, 8) == 16


def test_a_record_whose_at_has_other_names_is_a_fault(tmp_path):
    module = package(tmp_path)
    write(shelf(module), {"at": {}, "config": {"BLOCK": 16}})
    with pytest.warns(ShipconfWarning, match=r"records\[0\]\.at"):
        assert Trial(module.told).resolve(8, 8) is None


# --- the flat form ----------------------------------------------------------------------------


def flat(folder: Any, name: str, **fields: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(fields))


def test_the_flat_form_is_read_from_the_author_s_folder(tmp_path):
    """Case 17: a top-level `triton_version` beside the M entries is understood."""
    module = package(tmp_path)
    flat(
        tmp_path / "shipped", "N=8,device_name=interpreter.json", triton_version="3.5.0",
        **{"1": {"BLOCK": 16, "num_warps": 4}, "64": {"BLOCK": 32, "num_warps": 8}},
    )  # fmt: skip
    trial = Trial(module.told, configs_dir="shipped")
    assert [trial.launch(8, m) for m in (1, 64, 0)] == [16, 32, 16]
    assert trial.measured == []
    match = trial.resolve(8, 64)
    assert match.source == "package" and match.config == {"BLOCK": 32, "num_warps": 8}
    assert match.record.triton == "3.5.0"
    assert "it serves any" in trial.kernel.explain_for(dtypes="int32", N=8, M=64)
    trial.out = trial.out.to(torch.float32)
    assert trial.launch(8, 1) == 16  # it names no dtypes


def test_a_flat_file_with_a_field_that_is_not_declared_is_foreign(tmp_path):
    module = package(tmp_path)
    for name in ("N=8,E=2,device_name=interpreter.json", "N=9,device_name=interpreter.json",
                 "device_name=interpreter.json", "N=8,device_name=inter.json"):  # fmt: skip
        flat(tmp_path / "shipped", name, **{"8": {"BLOCK": 16}})
    assert Trial(module.told, configs_dir="shipped").resolve(8, 8) is None


def test_the_flat_form_is_not_read_elsewhere(tmp_path):
    """In a folder that the author did not name, it is a file without a schema."""
    module = package(tmp_path)
    flat(shelf(module), "N=8,device_name=interpreter.json", **{"8": {"BLOCK": 16}})
    with pytest.warns(ShipconfWarning, match="schema: is missing"):
        assert Trial(module.told).resolve(8, 8) is None


def test_a_stored_zero_in_the_flat_form_serves_one(tmp_path):
    """Case 12: a stored "0"."""
    module = package(tmp_path)
    flat(tmp_path / "shipped", "N=8,device_name=interpreter.json", **{"0": {"BLOCK": 16}})
    assert Trial(module.told, configs_dir="shipped").launch(8, 1) == 16


def test_our_own_files_are_read_from_the_author_s_folder_too(tmp_path):
    module = package(tmp_path)
    write(tmp_path / "shipped", record(16))
    assert Trial(module.told, configs_dir="shipped").launch(8, 8) == 16
    assert Trial(module.told, configs_dir=tmp_path / "shipped").launch(8, 8) == 16


def test_a_default_that_is_no_live_config_lends_its_knobs_types(tmp_path):
    """A knob's JSON type is one that some candidate or the default has for it."""
    module = package(tmp_path)
    write(shelf(module), at(8, BLOCK=16.0))
    trial = Trial(module.told, default=configs([16])[0])
    with pytest.warns(ShipconfWarning, match="BLOCK must be int"):
        assert trial.resolve(8, 8) is None
