"""What the environment decides."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest
from forked import Child

import shipconf
from shipconf import settings
from shipconf.settings import Policy, offline, policy

NO_ENTRY = 54321  # a user id without an entry in the password file


# --- offline ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", Policy.TUNE), ("1", Policy.OFFLINE), ("strict", Policy.STRICT), ("", Policy.TUNE)],
)
def test_the_variable_decides_the_policy_at_call_time(monkeypatch, text, expected):
    assert policy() is Policy.TUNE
    monkeypatch.setenv("SHIPCONF_OFFLINE", text)
    assert policy() is expected


@pytest.mark.parametrize("text", ["2", "true", "STRICT", " 1", "no", "-1"])
def test_a_bad_policy_names_the_variable_and_the_values_allowed(monkeypatch, text):
    monkeypatch.setenv("SHIPCONF_OFFLINE", text)
    with pytest.raises(ValueError, match=r"SHIPCONF_OFFLINE=.*allowed are 0, 1 and strict"):
        policy()


def test_offline_blocks_nest_and_the_strictest_holds():
    with offline():
        assert policy() is Policy.OFFLINE
        with offline(strict=True):
            assert policy() is Policy.STRICT
            with offline():
                assert policy() is Policy.STRICT
        assert policy() is Policy.OFFLINE
    assert policy() is Policy.TUNE


def test_an_offline_block_ends_with_an_exception():
    with pytest.raises(KeyError), offline(strict=True):
        raise KeyError
    assert policy() is Policy.TUNE


def test_a_block_wins_over_the_variable(monkeypatch):
    """Also over a bad one: the block has decided."""
    monkeypatch.setenv("SHIPCONF_OFFLINE", "strict")
    with offline():
        assert policy() is Policy.OFFLINE
    monkeypatch.setenv("SHIPCONF_OFFLINE", "maybe")
    with offline():
        assert policy() is Policy.OFFLINE


def test_threads_share_offline_blocks():
    """Autograd launches backward kernels on its own threads: the block holds there too."""
    seen: list[Policy] = []

    def look() -> None:
        thread = threading.Thread(target=lambda: seen.append(policy()))
        thread.start()
        thread.join()

    with offline():
        look()
    look()
    assert seen == [Policy.OFFLINE, Policy.TUNE]


def test_blocks_of_several_threads_end_in_any_order():
    strict, lax = offline(strict=True), offline()
    strict.__enter__()
    lax.__enter__()
    strict.__exit__(None, None, None)
    assert policy() is Policy.OFFLINE
    lax.__exit__(None, None, None)
    assert policy() is Policy.TUNE


def test_offline_is_a_public_name():
    assert shipconf.offline is offline


# --- folders ----------------------------------------------------------------------------------


def test_the_variable_names_the_user_store(monkeypatch, tmp_path):
    monkeypatch.setenv("SHIPCONF_CACHE_DIR", str(tmp_path / "a b"))
    assert settings.cache_dir() == tmp_path / "a b"
    assert not (tmp_path / "a b").exists()  # found, not made
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHIPCONF_CACHE_DIR", "relative")
    assert settings.cache_dir() == tmp_path / "relative"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHIPCONF_CACHE_DIR", "~/store")
    assert settings.cache_dir() == tmp_path / "store"


@pytest.mark.parametrize("empty", [True, False])
def test_the_user_store_is_the_platforms_cache(monkeypatch, tmp_path, empty):
    """`$XDG_CACHE_HOME/shipconf`, else `~/.cache/shipconf`; an empty variable is unset."""
    if empty:
        monkeypatch.setenv("SHIPCONF_CACHE_DIR", "")
    else:
        monkeypatch.delenv("SHIPCONF_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert settings.cache_dir() == tmp_path / ".cache" / "shipconf"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert settings.cache_dir() == tmp_path / "xdg" / "shipconf"


@pytest.mark.parametrize("xdg", [None, "", " ", "/var/cache/of mine"])
def test_on_linux_it_is_the_folder_that_platformdirs_names(monkeypatch, tmp_path, xdg):
    """Which is not imported there."""
    import platformdirs

    monkeypatch.delenv("SHIPCONF_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if xdg is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    named = platformdirs.user_cache_path("shipconf")
    if sys.platform == "linux":
        monkeypatch.setitem(sys.modules, "platformdirs", None)
    assert settings.cache_dir() == named


@pytest.mark.skipif(os.getuid() != 0, reason="only root may change the user id")
def test_no_home_and_an_unknown_user_is_a_runtime_error():
    """Case 22: callers take it for "memory only"."""

    def look() -> str:
        for name in ("HOME", "XDG_CACHE_HOME", "SHIPCONF_CACHE_DIR"):
            os.environ.pop(name, None)
        try:
            return str(settings.cache_dir())
        except RuntimeError as error:
            return f"RuntimeError: {error}"

    assert "set SHIPCONF_CACHE_DIR" in Child(look, user=NO_ENTRY).result()


@pytest.mark.skipif(os.getuid() != 0, reason="only root may change the user id")
def test_a_tilde_that_nobody_can_expand_names_its_variable():
    """For the store it is the RuntimeError that means memory only; for the rest a bad value."""

    def look() -> list[str]:
        os.environ.pop("HOME", None)
        for name in ("SHIPCONF_CACHE_DIR", "SHIPCONF_CONFIG_PATH", "SHIPCONF_MISSES"):
            os.environ[name] = "~/x"
        found = []
        for function in (settings.cache_dir, settings.config_path, settings.misses_path):
            try:
                function()
            except (RuntimeError, ValueError) as error:
                found.append(f"{type(error).__name__} {error}")
        return found

    store, path, misses = Child(look, user=NO_ENTRY).result()
    assert store.startswith("RuntimeError") and "SHIPCONF_CACHE_DIR" in store
    assert path.startswith("ValueError") and "SHIPCONF_CONFIG_PATH" in path
    assert misses.startswith("ValueError") and "SHIPCONF_MISSES" in misses


def test_the_config_path_is_a_list_of_folders(monkeypatch, tmp_path):
    assert settings.config_path() == []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHIPCONF_CONFIG_PATH", os.pathsep.join(["/a", "", "b c", "/d"]))
    assert settings.config_path() == [Path("/a"), tmp_path / "b c", Path("/d")]


def test_the_misses_file(monkeypatch, tmp_path):
    assert settings.misses_path() is None
    monkeypatch.setenv("SHIPCONF_MISSES", str(tmp_path / "m.jsonl"))
    assert settings.misses_path() == tmp_path / "m.jsonl"


# --- the rest ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "seconds"), [("", 300), ("0", 0), ("2.5", 2.5), ("1e3", 1000)])
def test_the_lock_timeout(monkeypatch, text, seconds):
    assert settings.lock_timeout_s() == 300
    monkeypatch.setenv("SHIPCONF_LOCK_TIMEOUT", text)
    assert settings.lock_timeout_s() == seconds


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "soon", "5s", "1,5"])
def test_a_bad_lock_timeout_names_the_variable_and_the_values_allowed(monkeypatch, text):
    monkeypatch.setenv("SHIPCONF_LOCK_TIMEOUT", text)
    with pytest.raises(ValueError, match=r"SHIPCONF_LOCK_TIMEOUT=.*allowed are seconds, 0 or more"):
        settings.lock_timeout_s()


def test_the_device_name(monkeypatch):
    assert settings.device_name() is None
    monkeypatch.setenv("SHIPCONF_DEVICE_NAME", "NVIDIA H200")
    assert settings.device_name() == "NVIDIA H200"
    monkeypatch.setenv("SHIPCONF_DEVICE_NAME", "")
    assert settings.device_name() is None


def test_locks_of_the_machine_are_the_user_s_whatever_the_store(monkeypatch, tmp_path):
    """Ranks with a store each still take turns at a GPU."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folders = set()
    for store in ("one", "two"):
        monkeypatch.setenv("SHIPCONF_CACHE_DIR", str(tmp_path / store))
        folders.add(settings.machine_dir())
    assert folders == {tmp_path / f"shipconf-{os.getuid()}"}
