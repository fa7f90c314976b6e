"""Kernels run under Triton's interpreter, but for tests marked `gpu`.

`TRITON_INTERPRET` is read when a kernel is decorated, so it is set here, before anything imports
Triton. On a machine with a GPU, `TRITON_INTERPRET=0 pytest -m gpu` runs the marked tests.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest

from shipconf import errors

INTERPRETED = os.environ["TRITON_INTERPRET"] != "0"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    gpu_tests = not INTERPRETED and torch.cuda.is_available()
    for item in items:
        marked = item.get_closest_marker("gpu") is not None
        if marked and not gpu_tests:
            item.add_marker(pytest.mark.skip(reason="needs a GPU and TRITON_INTERPRET=0"))
        elif not marked and not INTERPRETED:
            item.add_marker(pytest.mark.skip(reason="runs under the interpreter"))


@pytest.fixture(autouse=True)
def clean_settings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory):
    """No variable of the caller's reaches a test, and each has a user store of its own."""
    for name in list(os.environ):
        if name.startswith("SHIPCONF_"):
            monkeypatch.delenv(name)
    store = tmp_path_factory.mktemp("store")
    monkeypatch.setenv("SHIPCONF_CACHE_DIR", str(store))
    errors.forget_warnings()
    return store


@pytest.fixture
def store(clean_settings):
    """The user store of the test: an empty folder."""
    return clean_settings


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch):
    """A stand-in for the GPU, which keeps its own time."""
    from fake_gpu import installed

    return installed(monkeypatch)


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch):
    """The benchmarks can be imported by their names, which other modules may have besides."""
    folder = Path(__file__).parents[1] / "benchmarks"
    names = [path.stem for path in folder.glob("*.py")]
    monkeypatch.syspath_prepend(str(folder))
    others = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    yield
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(others)


@pytest.fixture
def process():
    """A worker of the test's own, whose process starts with its first task."""
    from shipconf.worker import Worker

    made = Worker()
    yield made
    made.close()


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch, process):
    """Kernels that are interpreted are tuned in a worker all the same, as on a GPU."""
    from shipconf import Device, device, worker

    here = Device("interpreter", "interpreter", "interpreter")
    monkeypatch.setattr(device, "current", lambda kernel: here)
    monkeypatch.setattr(device, "interpreted", lambda kernel: False)
    monkeypatch.setattr(device, "current_index", lambda: None)
    monkeypatch.setattr(device, "all_alike", lambda: True)
    monkeypatch.setattr(worker, "the_worker", process)
