"""What a bug report needs: `shipconf env`."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
from kernels import Trial

import shipconf
from shipconf import device, environment, settings
from shipconf.cli import main
from shipconf.records import Device

H200 = Device("cuda", "NVIDIA H200", "sm_90", 132, 232448)


def test_it_tells_the_versions_without_importing_what_it_names():
    found = environment.report()
    assert found.versions["shipconf"] == shipconf.__version__
    assert found.versions["python"] == platform.python_version()
    plain = [v.partition("+")[0] for v in (found.versions["torch"], torch.__version__)]
    assert plain[0] == plain[1]  # the build is not in every wheel's metadata
    assert found.versions["triton"] == triton.__version__
    assert found.platform == platform.platform()


def test_it_tells_every_setting_and_what_cannot_be_meant_so(monkeypatch):
    """A misspelt variable is silent everywhere else."""
    monkeypatch.setenv("SHIPCONF_OFLINE", "1")
    monkeypatch.setenv("SHIPCONF_OFFLINE", "yes")
    monkeypatch.setenv("SHIPCONF_LOCK_TIMEOUT", "soon")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("PASSWORD", "secret")
    found = environment.report()
    assert found.settings["SHIPCONF_OFFLINE"] == "yes"
    assert found.settings["CUDA_VISIBLE_DEVICES"] == "3" and "PASSWORD" not in found.settings
    assert len(found.faults) == 3
    text = "\n".join(found.faults)
    assert "SHIPCONF_OFFLINE='yes'" in text and "SHIPCONF_LOCK_TIMEOUT='soon'" in text
    assert "SHIPCONF_OFLINE is no setting of shipconf" in text


def test_every_setting_that_is_read_is_one_that_env_knows(monkeypatch):
    """One more variable in `settings` belongs into its list."""
    source = Path(settings.__file__).read_text()
    named = set(re.findall(r'environ\.get\("(SHIPCONF_\w+)"', source))
    assert len(named) >= 6
    for name in named:
        monkeypatch.setenv(name, "1")
    assert not [fault for fault in settings.faults() if "is no setting" in fault]


def test_it_tells_what_the_user_store_holds(store, monkeypatch):
    Trial().launch(8, 8)
    (path,) = store.rglob("*.json")
    path.with_name("x.json.bad").write_text("{")
    found = environment.report().store
    assert (found.path, found.writable, found.records, found.aside) == (store, True, 1, 1)
    assert found.bytes >= path.stat().st_size
    monkeypatch.setenv("SHIPCONF_CACHE_DIR", str(store / "not" / "there"))
    assert environment.report().store.writable
    assert not (store / "not").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root may change the user id")
def test_without_a_home_it_says_so():
    """Case 22."""
    from forked import Child

    def look() -> tuple[object, str]:
        for name in ("HOME", "XDG_CACHE_HOME", "SHIPCONF_CACHE_DIR"):
            os.environ.pop(name, None)
        found = environment.report().store
        return found.path, found.why

    path, why = Child(look, user=54321).result()
    assert path is None and "SHIPCONF_CACHE_DIR" in why


def test_it_tells_the_devices_or_why_there_is_none(monkeypatch, capsys):
    monkeypatch.setattr(device, "visible", lambda: [H200, H200])
    assert main(["env", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["devices"] == [
        {"backend": "cuda", "name": "NVIDIA H200", "arch": "sm_90", "multiprocessors": 132,
         "shared_memory": 232448},
    ] * 2  # fmt: skip
    assert main(["env"]) == 0
    assert "NVIDIA H200 (cuda, sm_90, 132 multiprocessors)" in capsys.readouterr().out

    def fail() -> list[Device]:
        raise OSError("libcuda.so.1: cannot open\nand more")

    monkeypatch.setattr(device, "visible", fail)
    assert main(["env"]) == 0
    assert "none: OSError: libcuda.so.1: cannot open\n" in capsys.readouterr().out


def test_a_bad_setting_is_a_finding(monkeypatch, capsys):
    monkeypatch.setenv("SHIPCONF_OFLINE", "1")
    assert main(["env"]) == 1
    assert "SHIPCONF_OFLINE is no setting" in capsys.readouterr().err


def test_it_works_where_torch_and_triton_are_missing():
    """That may be the very fault: the rest is reported all the same."""
    program = (
        "import sys, importlib.abc\n"
        "class Nothing(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name.partition('.')[0] in ('torch', 'triton', 'rich', 'platformdirs'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}')\n"
        "sys.meta_path.insert(0, Nothing())\n"
        "from shipconf.cli import main\nsys.exit(main(['env', '--json']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          check=False, cwd=Path(__file__).parents[1])  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["devices"] == [] and "No module named 'triton'" in document["no_devices"]
