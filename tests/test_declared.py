"""Kernels as their source files declare them, without an import."""

from __future__ import annotations

import sys

import pytest
from packages import TOLD
from projects import project

from shipconf.declared import current_fingerprints, declared, load
from shipconf.errors import ShipconfError
from shipconf.sources import open_source

SOURCE = (
    TOLD
    + """
import shipconf
from shipconf import shipped_autotune as st

CONFIGS = [triton.Config({"BLOCK": block}) for block in (16, 32)]
KEY = ["N"]

@shipconf.shipped_autotune(CONFIGS, ["N", ("E", lambda a: a["out_ptr"].shape[0])], nearest=["M"])
@triton.jit
def plain(out_ptr, N, M, BLOCK: tl.constexpr):
    tl.store(out_ptr, BLOCK)

@triton.heuristics({"EVEN": lambda args: True})
@st(configs=CONFIGS, key=["N", "BLOCK"], name="renamed", configs_dir="tuned/here")
@triton.jit
def below(out_ptr, N, M, EVEN, BLOCK: tl.constexpr):
    tl.store(out_ptr, BLOCK)

class Layer:
    @st(configs=CONFIGS, key=KEY)
    @triton.jit
    def inner(out_ptr, N, M, BLOCK: tl.constexpr):
        tl.store(out_ptr, BLOCK)

def make():
    @st(configs=CONFIGS, key=[*KEY, "M"])
    @triton.jit
    def made(out_ptr, N, M, BLOCK: tl.constexpr):
        tl.store(out_ptr, BLOCK)

called = st(configs=CONFIGS, key=["N"])(told)
"""
)


@pytest.fixture
def source(tmp_path):
    package = project(tmp_path, name="declaring")
    (package / "__init__.py").write_text("")
    (package / "deep").mkdir()
    (package / "deep" / "__init__.py").write_text("")
    (package / "deep" / "soft.py").write_text(SOURCE)
    (package / "broken.py").write_text("shipped_autotune(\n")
    yield open_source(tmp_path)
    for name in ("soft", "declaring", "declaring.deep", "declaring.deep.soft"):
        sys.modules.pop(name, None)


def test_every_way_to_decorate_is_seen(source):
    found = {kernel.name: kernel for kernel in declared(source)}
    assert set(found) == {"plain", "renamed", "Layer.inner", "make.<locals>.made", "told"}
    assert (found["plain"].key, found["plain"].nearest) == (("N", "E"), ("M",))
    assert found["Layer.inner"].key is None and found["make.<locals>.made"].key is None
    assert found["renamed"].nearest == () and found["renamed"].function == "below"


def test_the_folder_is_the_one_that_a_launch_reads(source):
    """Held against the kernels themselves, once they are imported."""
    for kernel in declared(source):
        if "<locals>" in kernel.name or "." in kernel.name:
            continue
        shipped = load(source, kernel)
        assert source.root / kernel.folder == shipped.subject.package, kernel.name
        assert shipped.base_fn.__name__ == kernel.function
        if kernel.name != "renamed":  # its configs set an entry of its key
            assert shipped.subject.key_names == kernel.key


def test_names_that_differ_from_the_decorator_are_told(source):
    found = {kernel.name: kernel for kernel in declared(source)}
    assert found["plain"].mismatch(["E", "N"], ["M"]) == ""
    assert "declares ['N', 'E']" in found["plain"].mismatch(["N"], ["M"])
    assert "declares ['M']" in found["plain"].mismatch(["N", "E"], [])
    assert found["renamed"].mismatch(["N"], []) == ""  # configs may set BLOCK
    assert found["Layer.inner"].mismatch(["anything"], []) == ""


def test_current_fingerprints_are_those_of_the_kernels(source):
    """Kernels that no name of their module leads to are left out."""
    found = current_fingerprints(source)
    assert set(found) == {"plain", "renamed", "told"}
    assert all(text.startswith("1:") for prints in found.values() for text in prints)


def test_an_import_that_fails_is_told_with_the_file(tmp_path):
    package = project(tmp_path, name="raising")
    (package / "tile.py").write_text(SOURCE)
    with pytest.raises(ShipconfError, match=r"cannot import .*tile\.py: ImportError: importing me"):
        current_fingerprints(open_source(tmp_path))


def test_a_source_without_kernels_has_nothing_to_import(tmp_path):
    with pytest.raises(ShipconfError, match="no kernel made by shipped_autotune"):
        current_fingerprints(open_source(tmp_path))
