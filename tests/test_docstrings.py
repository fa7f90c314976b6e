"""Examples in docstrings run, and print what they show."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import shipconf

MODULES = sorted(
    found.name
    for found in pkgutil.walk_packages(shipconf.__path__, "shipconf.")
    if not found.name.endswith("__main__")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name, tmp_path, monkeypatch):
    """Wherever they are run from: a folder of some name may lie there."""
    monkeypatch.chdir(tmp_path)
    done = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert done.failed == 0


def test_there_are_examples(tmp_path, monkeypatch):
    """So that the test above does not pass for want of them."""
    monkeypatch.chdir(tmp_path)
    modules = [importlib.import_module(name) for name in MODULES]
    assert sum(doctest.testmod(module, report=False).attempted for module in modules) >= 10
