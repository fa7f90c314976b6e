"""`explain` and `explain_for`: the lookup in words, and the warnings of a miss."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import kernels
import pytest
import torch
from kernels import Trial, configs
from packages import FILE, TOLD, package, record, shelf, user_folder, write

import shipconf
from shipconf import ShipconfWarning, offline
from shipconf.cli import main


def explained(trial: Trial, n: int = 8, m: int = 8) -> str:
    """Both ways to ask give one answer."""
    words: str = trial.kernel.explain(trial.out, n, m)
    assert trial.kernel.explain_for(dtypes=torch.int32, N=n, M=m) == words
    return words


def test_it_names_the_kernel_the_device_and_the_key():
    lines = explained(Trial()).splitlines()
    assert lines[0] == "told on interpreter (interpreter, interpreter)"
    assert lines[1] == "key: N=8, dtypes=int32, M=8"


def test_it_names_every_place_looked_in(tmp_path, monkeypatch, store):
    monkeypatch.setenv("SHIPCONF_CONFIG_PATH", str(tmp_path / "extra"))
    module = package(tmp_path / "package")
    write(shelf(module), record(16))
    trial = Trial(module.told)
    words = explained(trial)
    for line in (
        f"  path: {tmp_path}/extra/told: nothing for this key",
        f"  path: {tmp_path}/extra/tile/told: nothing for this key",
        f"  package: {shelf(module)}: 1 records of this key",
        f"  user: {user_folder(trial.kernel)}: nothing for this key",
    ):
        assert line in words.splitlines()


def test_it_says_what_a_launch_uses_and_where_it_comes_from(tmp_path):
    module = package(tmp_path)
    path = write(shelf(module), record(16))
    trial = Trial(module.told)
    config = "BLOCK=16, num_warps=4, num_stages=3, num_ctas=1"
    assert f"uses: package, exact at {{'M': 8}}: {config} ({path})" in explained(trial)
    assert f"uses: package, nearest at {{'M': 8}}, 1.00 octaves away: {config} ({path})" in (
        explained(trial, m=16)
    )
    with shipconf.override(trial.kernel, {"BLOCK": 32}):
        assert "uses: override, exact: BLOCK=32" in explained(trial)


def test_it_says_what_a_launch_would_do_where_nothing_is_stored():
    trial = Trial()
    assert "uses: nothing stored; a launch would tune" in explained(trial)
    with offline():
        assert "uses: nothing stored; a launch would fail" in explained(trial)
    with_default = Trial(default=configs([32])[0])
    with offline(), pytest.warns(ShipconfWarning):
        assert "uses: default, default: BLOCK=32" in explained(with_default)


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        ({"key": {"N": 9}, "name": "N=9.json"}, "N is 9"),
        ({"dtypes": {"out_ptr": "float16"}}, "dtypes are float16"),
        ({"device": {"backend": "cuda", "name": "NVIDIA H20", "arch": "sm_90"}},
         "device is NVIDIA H20 (cuda, sm_90)"),
        ({"kernel": "toll"}, "kernel is toll"),
        ({"key": {"K": 1}, "name": "K=1.json"}, "key has no N; key has K"),
        ({"key": {"N": True}, "name": "N=true.json"}, "N is true"),
    ],
    ids=str,
)  # fmt: skip
def test_it_names_the_closest_records_and_which_field_of_each_differs(other, differs, tmp_path):
    """Case 5: only the dtype differs, and it says so."""
    module = package(tmp_path)
    path = write(shelf(module), record(16, M=32), **other)
    words = explained(Trial(module.told))
    (line,) = [line for line in words.splitlines() if line.startswith("  package {")]
    assert line.startswith(f"  package {{'M': 32}} (2.00 octaves away) {differs}")
    assert line.endswith(path.name)


def test_the_closest_come_first_and_five_at_most(tmp_path):
    module = package(tmp_path)
    write(shelf(module), *(record(16, M=2**i) for i in range(8, 16)))
    write(shelf(module), record(16), key={"N": 9}, name="N=9.json")
    words = explained(Trial(module.told))
    lines = words.split("closest records:\n")[1].splitlines()
    found = [line for line in lines if line.startswith("  package {")]
    assert len(found) == 5
    assert "'M': 256" in found[0] and "fits" in found[0]


def test_it_names_the_file_looked_for_and_the_command_that_fills_the_gap(tmp_path):
    module = package(tmp_path)
    words = explained(Trial(module.told))
    assert f"looked for: {shelf(module) / FILE}" in words
    command = f"shipconf tune {module.__name__}:told -k N=8 --at M=8 --dtypes int32"
    assert words.splitlines()[-1] == f"to fill the gap: {command}"
    write(shelf(module), record(16))
    assert "to fill the gap" not in explained(Trial(module.told))
    assert "to fill the gap" in explained(Trial(module.told), m=9)


@pytest.mark.parametrize("value", [3, "it's", None, True, (1, "x"), torch.float16, 0.5])
def test_the_command_that_it_names_works(value: Any, store, monkeypatch):
    """`shipconf tune` reads the key from the very words, and the launch finds the record."""
    trial = Trial(kernels.told_value, key=["V"], nearest=[])
    trial.kernel.workload(lambda V, dtypes: shipconf.Launch((1,), (trial.out, V)))
    words = trial.kernel.explain(trial.out, value)
    command = shlex.split(words.splitlines()[-1].removeprefix("to fill the gap: "))
    assert command[:3] == ["shipconf", "tune", "kernels:told_value"]
    monkeypatch.setattr(kernels, "told_value", trial.kernel)
    assert main(command[1:]) == 0
    assert len(trial.measured) == 3
    again = Trial(trial.kernel.fn, key=["V"], nearest=[])
    assert again.launch(value) == 64 and again.measured == []


def test_it_says_which_files_were_skipped_and_why(tmp_path):
    module = package(tmp_path)
    write(shelf(module), record(16), key={"N": True})
    write(shelf(module), record(16), schema=2, name=FILE.replace(".json", "~2.json"))
    with pytest.warns(ShipconfWarning):
        words = explained(Trial(module.told))
    assert f"  skipped {FILE}: holds another N" in words
    assert "~2.json: " in words and "2 is newer than 1" in words


def test_it_tells_of_another_triton_and_of_a_changed_kernel(tmp_path):
    """A difference of Triton's version shows here, and nowhere on a launch."""
    module = package(tmp_path)
    write(shelf(module), record(16, triton="3.2.0", fingerprint="1:0000000000000000"))
    with pytest.warns(ShipconfWarning, match="has changed"):
        words = explained(Trial(module.told))
    assert "tuned with Triton 3.2.0; this is" in words
    assert "the kernel has changed since this record was tuned" in words


def test_it_tells_of_a_record_without_a_fingerprint(tmp_path):
    module = package(tmp_path)
    write(shelf(module), record(16))
    assert "names no fingerprint" in explained(Trial(module.told))


def test_it_raises_for_missing_values_as_resolve_for_does():
    with pytest.raises(TypeError, match="looked up by N, M"):
        Trial().kernel.explain_for(dtypes="int32", N=8)


def test_it_works_for_another_device_without_that_device(tmp_path):
    module = package(tmp_path)
    h200 = shipconf.Device("cuda", "NVIDIA H200", "sm_90", 132, 232448)
    words = Trial(module.told).kernel.explain_for(dtypes="int32", N=8, M=8, device=h200)
    assert words.startswith("told on NVIDIA H200 (cuda, sm_90, 132 multiprocessors)")
    assert "device_name=NVIDIA_H200,arch=sm_90,mp=132.json" in words


def test_a_borrowed_record_shows(tmp_path, monkeypatch):
    """What the author's aliases let a device use is logged, and named here."""
    module = package(tmp_path)
    path = write(shelf(module), record(16))
    (shelf(module) / "aliases.json").write_text('{"other": "interpreter"}')
    monkeypatch.setenv("SHIPCONF_DEVICE_NAME", "other")
    words = explained(Trial(module.told))
    assert f"({path})" in words
    assert "device is interpreter" in words or "borrow" in words


# --- the warning of a miss --------------------------------------------------------------------


def test_a_shipped_package_that_fits_nothing_warns_once_for_the_device(tmp_path, monkeypatch):
    """Case 1: the file looked for, what does exist, the command that fills it; not for each
    launch or shape, but again for another device."""
    module = package(tmp_path)
    write(shelf(module), record(16), key={"N": 9}, name="N=9,x.json")
    write(shelf(module), record(16), device={"name": "NVIDIA H20"}, name="N=8,y.json")
    trial = Trial(module.told)
    with pytest.warns(ShipconfWarning) as caught:
        for n, m in ((8, 8), (8, 8), (8, 4096), (7, 8)):
            assert trial.launch(n, m) == 64
    (warning,) = caught
    text = str(warning.message)
    assert text.startswith("no shipped record of told fits interpreter")
    assert str(shelf(module) / FILE) in text
    assert "that folder has N=8,y.json, N=9,x.json" in text
    assert f"shipconf tune {module.__name__}:told -k N=8 --at M=8 --dtypes int32" in text
    assert warning.filename == kernels.__file__  # the caller's line, not ours or Triton's
    monkeypatch.setenv("SHIPCONF_DEVICE_NAME", "toaster")
    with pytest.warns(ShipconfWarning, match="fits toaster") as caught:
        other = Trial(module.told)
        other.launch(8, 8)
        other.launch(7, 8)
    assert len(caught) == 1


@pytest.mark.parametrize("default", [None, 32])
def test_offline_too_a_miss_is_told_once(default, tmp_path):
    """Case 1: the default's use or the error says all that the warning would."""
    module = package(tmp_path)
    write(shelf(module), record(16), key={"N": 9}, name="N=9,x.json")
    trial = Trial(module.told, default=default and configs([default])[0])
    with offline():
        if default is None:
            with pytest.raises(shipconf.OfflineError, match="N is 9"):
                trial.launch(8, 8)
        else:
            with pytest.warns(ShipconfWarning, match="N=9,x.json") as caught:
                assert [trial.launch(n, 8) for n in (8, 8, 7)] == [32, 32, 32]
            assert len(caught) == 1


def test_many_files_are_named_in_part(tmp_path):
    module = package(tmp_path)
    for n in range(10, 20):
        write(shelf(module), record(16), key={"N": n}, name=f"N={n}.json")
    with pytest.warns(ShipconfWarning, match=r"N=14\.json and 5 more\. To fill it") as caught:
        Trial(module.told).launch(8, 8)
    assert "N=15" not in str(caught[0].message)


def test_a_kernel_that_ships_nothing_tunes_without_a_warning():
    """Most kernels ship nothing; their first launch tunes, as `triton.autotune` would."""
    Trial().launch(8, 8)


def test_case_6_a_name_that_no_lookup_builds_is_named(tmp_path):
    """The right record in a file of a made-up name: a miss, and the name it should have."""
    module = package(tmp_path)
    path = write(shelf(module), record(32, M=8))
    lost = path.rename(path.with_name("tuned-on-my-machine.json"))
    trial = Trial(module.told)
    assert trial.resolve(8, 8) is None
    words = trial.kernel.explain(trial.out, 8, 8)
    assert lost.name in words
    assert f"no lookup builds its name, which should be {path.stem}" in words


# --- shipconf explain -------------------------------------------------------------------------

TUNED = (
    TOLD
    + """
from shipconf import shipped_autotune

tuned = shipped_autotune(
    configs=[triton.Config({"BLOCK": block}) for block in (16, 32)], key=["N"], nearest=["M"],
)(told)
"""
)


def h200(mp: int = 132) -> dict[str, Any]:
    """A file's name and device."""
    return {
        "name": f"N=8,dtypes=int32,device_name=NVIDIA_H200,arch=sm_90,mp={mp}.json",
        "device": {"backend": "cuda", "name": "NVIDIA H200", "arch": "sm_90",
                   "multiprocessors": mp},
    }  # fmt: skip


@pytest.fixture
def target(tmp_path) -> str:
    """A kernel that ships a record for an H200."""
    write(package_shelf(tmp_path), record(32), **h200())
    path = tmp_path / "tile.py"
    path.write_text(TUNED)
    return f"{path}:tuned"


def package_shelf(folder: Any) -> Any:
    return folder / "configs" / "tile" / "told"


def test_the_command_explains_for_a_device_that_is_not_here(target, capsys):
    """Its architecture and the dtypes are those that the stored files know."""
    assert main(["explain", target, "N=8", "M=9", "--device", "NVIDIA H200"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("told on NVIDIA H200 (cuda, sm_90, 132 multiprocessors)\n")
    assert "uses: package, nearest at {'M': 8}" in printed.out and printed.err == ""


def test_the_command_that_fills_a_gap_names_the_kernel_as_it_was_named(target, capsys, monkeypatch):
    """No module's name leads to a file; and the file takes the place of no module of its name."""
    path, _, kernel = target.rpartition(":")
    monkeypatch.chdir(Path(path).parent)
    assert main(["explain", f"tile.py:{kernel}", "N=99", "M=9", "--dtypes", "int32"]) == 0
    assert f"shipconf tune tile.py:{kernel} -k N=99 --at M=9" in capsys.readouterr().out
    assert "tile" not in sys.modules


def test_the_command_explains_for_this_device(target, capsys):
    """Here, the interpreter: what ships is for another device."""
    assert main(["explain", target, "N=8", "M=9", "--dtypes", "int32"]) == 0
    printed = capsys.readouterr().out
    assert "told on interpreter" in printed and "device is NVIDIA H200" in printed


def test_the_command_s_json(target, capsys):
    arguments = ["explain", target, "N=8", "M=9", "--device", "NVIDIA H200", "--json"]
    assert main(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kernel"] == "told" and document["dtypes"] == "int32"
    assert document["values"] == {"N": 8, "M": 9} and document["text"].startswith("told on NVIDIA")
    assert document["device"] == {"backend": "cuda", "name": "NVIDIA H200", "arch": "sm_90",
                                  "multiprocessors": 132, "shared_memory": 0}  # fmt: skip
    match = document["match"]
    assert match["config"] == record(32)["config"] and match["at"] == {"M": 8}
    assert (match["source"], match["rule"]) == ("package", "nearest")
    assert main([*arguments, "--dtypes", "float16"]) == 0
    assert json.loads(capsys.readouterr().out)["match"] is None


def test_the_command_says_what_it_needs_to_know(target, tmp_path, capsys):
    for arguments, what in (
        (["N=8"], "is looked up by N, M; got N"),
        (["N=8", "M=x"], "nearest value M must be an integer"),
    ):
        assert main(["explain", target, *arguments, "--device", "NVIDIA H200"]) == 2
        assert what in capsys.readouterr().err
    assert main(["explain", f"{tmp_path}/none.py:x"]) == 2
    assert "no such file" in capsys.readouterr().err
    write(package_shelf(tmp_path), record(16), **h200(mp=16))  # a slice of the same GPU
    asked = ["explain", target, "N=8", "M=8", "--device", "NVIDIA H200"]
    assert main(asked) == 2
    assert "16 multiprocessors" in capsys.readouterr().err
    assert main([*asked, "--multiprocessors", "16"]) == 0
    assert "BLOCK=16" in capsys.readouterr().out


def test_a_device_that_no_file_knows_is_described_by_the_arguments(target, capsys):
    asked = ["explain", target, "N=8", "M=8", "--device", "AMD Instinct MI300X"]
    assert main(asked) == 0
    printed = capsys.readouterr()
    assert "add --arch" in printed.err and "nothing stored" in printed.out
    assert main([*asked, "--arch", "gfx942", "--multiprocessors", "304"]) == 0
    printed = capsys.readouterr()
    assert "told on AMD Instinct MI300X (hip, gfx942, 304 multiprocessors)" in printed.out
    assert "device_name=AMD_Instinct_MI300X,arch=gfx942,mp=304.json" in printed.out


def test_without_a_gpu_the_command_names_the_way_out(target):
    """In a process of its own, where the kernel is a real one and no driver is there."""
    done = subprocess.run(
        [sys.executable, "-m", "shipconf", "explain", target, "N=8", "M=8"],
        capture_output=True, text=True, check=False,
        env={**os.environ, "TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 2 and "--device" in done.stderr and "Traceback" not in done.stderr
