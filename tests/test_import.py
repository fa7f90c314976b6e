"""What importing shipconf costs, and its public names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import shipconf

ROOT = Path(shipconf.__file__).parent.parent
HEAVY = ("torch", "triton", "filelock", "rich", "platformdirs", "numpy", "hypothesis")

# Modules that only read or move JSON, and so must work where neither torch nor triton is.
LIGHT = ("errors", "settings", "keys", "records", "memory", "fingerprint", "files", "subject",
         "journal", "stores", "device", "cli")  # fmt: skip


def run(program: str, *options: str, **environment: str) -> str:
    """What a fresh Python prints, with no home, no variable and no writable place of its own."""
    done = subprocess.run(
        [sys.executable, "-B", *options, "-c", program], capture_output=True, text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], **environment}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_shipconf_imports_nothing_heavy():
    """Neither torch nor triton, filelock, rich or platformdirs; nor the rest of shipconf."""
    loaded = run("import sys, shipconf; print(*sys.modules)").split()
    assert not set(HEAVY) & {name.partition(".")[0] for name in loaded}
    assert [name for name in loaded if name.startswith("shipconf")] == ["shipconf"]


@pytest.mark.parametrize("public", ["offline", "Record", "Device", "ConfigFileError"])
def test_names_of_the_json_side_load_nothing_heavy(public):
    loaded = run(f"import sys, shipconf; shipconf.{public}; print(*sys.modules)").split()
    assert not set(HEAVY) & {name.partition(".")[0] for name in loaded}


def test_the_json_side_works_where_nothing_is_installed():
    """`-S` leaves out site-packages: the modules below the stores need the standard library."""
    imports = "".join(f"import shipconf.{name}\n" for name in LIGHT)
    program = imports + "\n".join([
        "import shipconf",
        "from shipconf.records import ConfigFile, Device, dump, parse",
        "file = ConfigFile(kernel='k', device=Device(name='d'), key={}, nearest=(), records=())",
        "assert parse(dump(file)) == file",
        "with shipconf.offline(): pass",
        "print('done')",
    ])  # fmt: skip
    assert run(program, "-S") == "done\n"


def test_all_is_the_designs_list():
    """Later come adopt and adopt_all, and no name else."""
    assert set(shipconf.__all__) - {"adopt", "adopt_all"} == {
        "shipped_autotune", "ShippedKernel", "Match", "Record", "Device", "Launch", "offline",
        "override", "ShipconfError", "OfflineError", "TuningError", "ConfigFileError",
        "LockTimeout", "ShipconfWarning",
    }  # fmt: skip
    assert len(set(shipconf.__all__)) == len(shipconf.__all__)


def test_every_public_name_loads_and_says_what_it_is():
    for name in shipconf.__all__:
        value = getattr(shipconf, name)
        assert value.__name__ == name
        assert value.__module__.startswith("shipconf.")
        assert (value.__doc__ or "").strip()
        assert name in dir(shipconf)


def test_a_star_import_gives_the_public_names():
    scope: dict[str, object] = {}
    exec("from shipconf import *", scope)
    assert set(shipconf.__all__) <= set(scope)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'shipconf' has no attribute 'shipped_tune'"):
        _ = shipconf.shipped_tune
    with pytest.raises(ImportError):
        exec("from shipconf import shipped_tune")


def test_the_version_is_the_packages():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{shipconf.__version__}"\n' in text


def test_help_needs_neither_torch_nor_triton():
    """`python -m shipconf --help`, as a program without any package installed."""
    done = subprocess.run(
        [sys.executable, "-B", "-S", "-m", "shipconf", "--help"], capture_output=True, text=True,
        env={"PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "tune" in done.stdout
