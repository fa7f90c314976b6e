"""Where config files are read from: packages, folders, wheels, the user store."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packages import FILE, record, write
from projects import HATCHLING, SETUPTOOLS, project, wheel

from shipconf.sources import SourceError, open_source

IN_PACKAGE = f"configs/tile/told/{FILE}"


def names(asked: str | Path | None) -> list[str]:
    return [member.name for member in open_source(asked).configs()]


@pytest.fixture
def importable(tmp_path, monkeypatch):
    """A package on the path whose import raises."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return project(tmp_path)


def test_a_package_is_found_by_its_name_and_not_imported(importable):
    source = open_source("tiles")
    (member,) = source.configs()
    assert (source.kind, member.name) == ("package", IN_PACKAGE)
    assert member.path == str(importable / IN_PACKAGE)
    assert (member.folder, member.stem, member.module) == ("told", "tile", "tile.py")
    assert member.read() == (importable / IN_PACKAGE).read_bytes()
    assert "tiles" not in sys.modules


def test_a_package_inside_another_imports_neither(importable):
    inner = importable / "inner"
    inner.mkdir()
    (inner / "__init__.py").write_text("raise ImportError\n")
    write(inner / "configs" / "soft" / "max", record(8))
    assert names("tiles.inner") == [f"configs/soft/max/{FILE}"]
    assert len(names("tiles")) == 2
    with pytest.raises(SourceError, match=r"tiles\.outer"):
        open_source("tiles.outer")


def test_a_module_that_is_no_package_has_the_records_beside_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "lonely.py").write_text("raise ImportError\n")
    write(tmp_path / "configs" / "lonely" / "told", record(8))
    write(tmp_path / "configs" / "another" / "told", record(8))
    assert names("lonely") == [f"configs/lonely/told/{FILE}"]


@pytest.mark.parametrize("build", [HATCHLING, SETUPTOOLS], ids=["hatchling", "setuptools"])
def test_a_wheel_lists_what_its_build_put_into_it(tmp_path, build):
    """setuptools takes package data only where it is told to."""
    data = '\n[tool.setuptools.package-data]\ntiles = ["configs/**/*.json"]\n'
    project(tmp_path, build, more=data if build is SETUPTOOLS else "")
    built = wheel(tmp_path)
    source = open_source(built)
    (member,) = source.configs()
    assert source.kind == "wheel" and member.name == f"tiles/{IN_PACKAGE}"
    assert member.path == f"{built}/tiles/{IN_PACKAGE}"
    assert member.read() == (tmp_path / "tiles" / IN_PACKAGE).read_bytes()
    assert member.module == "tiles/tile.py" and member.module in source.names


def test_a_package_in_a_zip_on_the_path_is_read_there(tmp_path, monkeypatch):
    package = project(tmp_path / "project")
    archive = tmp_path / "tiles.zip"
    with zipfile.ZipFile(archive, "w") as written:
        for path in sorted(package.rglob("*.*")):
            written.write(path, path.relative_to(tmp_path / "project"))
        written.writestr("other/__init__.py", "")
        written.writestr("other/configs/a/b/c.json", "{}")
    monkeypatch.syspath_prepend(str(archive))
    assert names("tiles") == [f"tiles/{IN_PACKAGE}"]


def test_beside_code_only_config_files_count(tmp_path):
    """Those below `configs`, wherever they lie in it, and those of a `configs_dir` by name."""
    package = project(tmp_path)
    for name in ("package.json", "configs/odd.json", "configs/aliases.json", "configs/a/b/c/d.json",
                 f"tuned/{FILE}", "tuned/N=1,device_name=NVIDIA_L4.json", "tuned/notes.json",
                 f"tuned/{'N=1' * 60}-0123456789abcdef~2.json"):  # fmt: skip
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("{}")
    listed = [name.removeprefix("tiles/") for name in names(tmp_path)]
    assert set(listed) == {
        IN_PACKAGE, "configs/odd.json", "configs/a/b/c/d.json", f"tuned/{FILE}",
        "tuned/N=1,device_name=NVIDIA_L4.json", f"tuned/{'N=1' * 60}-0123456789abcdef~2.json",
    }  # fmt: skip
    aliases = [member.name for member in open_source(tmp_path).aliases()]
    assert aliases == ["tiles/configs/aliases.json"]


def test_copies_that_a_build_left_behind_do_not_count(tmp_path):
    package = project(tmp_path)
    for name in ("build/lib/tiles", "dist/tiles", ".venv/tiles", "tiles.egg-info"):
        write(tmp_path / name / "configs" / "tile" / "told", record(8))
    write(package / "build" / "configs" / "tile" / "told", record(8))
    assert names(tmp_path) == [f"tiles/build/{IN_PACKAGE}", f"tiles/{IN_PACKAGE}"]


def test_in_a_folder_without_code_every_json_file_counts(tmp_path):
    for name in ("a.json", "b/c.json", "b/c.json.lock", "b/c.journal", "b/d.json.bad"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert names(tmp_path) == ["a.json", "b/c.json"]
    assert [m.folder for m in open_source(tmp_path).configs()] == [tmp_path.name, "b"]


def test_the_path_of_one_file_is_that_file(tmp_path):
    write(tmp_path, record(8), name="a.json")
    write(tmp_path, record(8), name="b.json")
    assert names(tmp_path / "b.json") == ["b.json"]


def test_the_user_store_has_a_folder_for_each_kernel(store):
    assert names(None) == []
    write(store / "v1" / "told-0123456789ab", record(8))
    (member,) = open_source().configs()
    assert (member.folder, member.stem, member.module) == ("told-0123456789ab", None, None)


@pytest.mark.parametrize("asked", ["nowhere", "no/where", "no.where", "a b", "sys"])
def test_a_name_of_nothing_is_one_error_that_repeats_it(asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError) as raised:
        open_source(asked)
    assert raised.value.asked == asked and asked in str(raised.value)


def test_the_name_of_a_distribution_is_answered_with_its_packages():
    with pytest.raises(SourceError, match="has hypothesis") as raised:
        open_source("Hypothesis")
    assert raised.value.asked == "Hypothesis"


def test_a_file_that_is_no_archive_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "tiles-1-py3-none-any.whl"
    path.write_bytes(b"PK")
    with pytest.raises(SourceError, match="tiles-1-py3-none-any"):
        open_source(path)


def test_a_damaged_member_of_an_archive_is_an_os_error(tmp_path):
    """As an unreadable file is, so that one report can hold it."""
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(path, "w") as written:
        written.writestr("pkg/configs/a/b/c.json", "0123456789")
    path.write_bytes(path.read_bytes().replace(b"0123456789", b"012345678x"))
    (member,) = open_source(path).configs()
    with pytest.raises(OSError, match=r"c\.json"):
        member.read()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs user ids")
def test_a_folder_that_cannot_be_listed_is_told(tmp_path):
    """Not left out in silence: what it holds would be missing from every report."""
    from forked import NOBODY, Child

    write(tmp_path / "open", record(8))
    write(tmp_path / "shut", record(8))
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" or folder.stat().st_uid == os.getuid():
            folder.chmod(folder.stat().st_mode | 0o055)
    (tmp_path / "shut").chmod(0o000)

    def listed() -> tuple[list[str], list[tuple[str, str]]]:
        source = open_source(tmp_path)
        return source.names, source.unreadable

    found, unreadable = Child(listed, user=NOBODY).result()
    assert found == [f"open/{FILE}"]
    assert unreadable == [(str(tmp_path / "shut"), "Permission denied")]


def test_opening_a_package_needs_the_standard_library_only(importable):
    program = (
        "import sys\nfrom shipconf.sources import open_source\n"
        "assert len(list(open_source('tiles').configs())) == 1\n"
        "assert not {'torch', 'triton', 'filelock', 'rich', 'tiles'} & sys.modules.keys()\n"
    )
    path = os.pathsep.join([str(importable.parent), str(Path(__file__).parents[1])])
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": path}
    )
