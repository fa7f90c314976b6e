"""Kernels by name, found in modules that hold anything."""

from __future__ import annotations

import sys
import types
from typing import Any
from unittest import mock

import pytest
import triton
from kernels import Trial

from shipconf.targets import Target, find, load, shipped, target_of


class Lazy(types.ModuleType):
    """Imports when it is asked, and fails."""

    def __getattr__(self, name: str) -> Any:
        raise ImportError(f"{name} needs a package that is not installed")


class Endless:
    """Has everything, and a new one each time."""

    def __getattr__(self, name: str) -> Any:
        if name == "resolve_for":
            raise AttributeError(name)
        return Endless()


ODD = [Lazy("lazy"), Endless(), mock.Mock(), mock.sentinel, object(), 3, "text", None, type, int]


@pytest.fixture
def module(monkeypatch):
    """A module with a kernel, below heuristics too, among much else."""
    made = types.ModuleType("odd_module")
    made.__file__ = "/nowhere/odd_module.py"
    monkeypatch.setitem(sys.modules, "odd_module", made)
    for number, value in enumerate(ODD):
        setattr(made, f"a{number}", value)
    return made


@pytest.mark.parametrize("value", ODD)
def test_what_is_no_kernel_is_not_asked_whether_it_is_one(value):
    assert shipped(value) is None


def test_a_kernel_is_found_among_anything_below_heuristics_too(module):
    kernel = Trial().kernel
    module.z = kernel
    assert target_of(kernel, "odd_module") == Target("odd_module", module.__file__, "z")
    del module.z
    module.above = triton.heuristics({"M": lambda named: 8})(kernel)
    assert shipped(module.above) is kernel
    assert target_of(kernel, "odd_module") == Target("odd_module", module.__file__, "above")


def test_what_the_module_does_not_have_has_no_target(module):
    assert target_of(Trial().kernel, "odd_module") is None


def test_a_name_that_is_no_kernel_is_refused(module):
    for number in range(len(ODD)):
        with pytest.raises(ValueError, match="no kernel made by shipped_autotune"):
            load(f"odd_module:a{number}")
    with pytest.raises(ValueError, match="write module:kernel"):
        load("odd_module")


def test_what_a_target_names_is_found(module):
    assert find(Target("odd_module", None, "a5")) == 3
    with pytest.raises(ImportError):
        find(Target("no_such_module_here", None, "a5"))
