"""Fingerprints: what makes tuned configs stale, and what does not."""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import shipconf.fingerprint
from shipconf.fingerprint import fingerprint, plain_function

GOLDEN = Path(__file__).with_name("golden") / "fingerprint_source.py"
GOLDEN_HASH = "1:9f101f66fa97bbdf"

KERNEL = '''
import triton
import triton.language as tl

TILE = 32
ANNOTATED: tl.constexpr = 8
WRAPPED = tl.constexpr(4)
UNUSED = 1


@triton.jit
def inner(x):
    return x * 3


@triton.jit
def outer(x):
    return inner(x) + 1


@triton.jit
def kernel(x_ptr, n, BLOCK: tl.constexpr):
    """Scale."""
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
    tl.store(x_ptr + offsets, outer(x) * TILE + ANNOTATED + WRAPPED)
'''

_numbers = itertools.count()


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Imports a source text as a module of a given or a new name."""

    def load_module(source: str, name: str = "") -> Any:
        name = name or f"fingerprinted_{next(_numbers)}"
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(source))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load_module


@pytest.fixture
def digest(load):
    """The fingerprint of `kernel` in a source text."""

    def of(source: str = KERNEL) -> str:
        found = fingerprint(plain_function(load(source).kernel))
        assert found is not None
        return found

    return of


def edited(before: str, after: str, source: str = KERNEL) -> str:
    assert before in source
    return source.replace(before, after)


# --- quiet ------------------------------------------------------------------------------------

QUIET = {
    "another module name": KERNEL,
    "a comment": edited("    offsets =", "    # why\n    offsets ="),
    "a comment at the end of a line": edited("BLOCK)\n    x", "BLOCK)  # why\n    x"),
    "blank lines": edited("    offsets =", "\n\n    offsets ="),
    "lines above": "import math\n\n\n" + KERNEL,
    "formatting": edited(
        "    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)",
        "    x = (tl.load(\n        x_ptr   + offsets,\n  mask=(offsets<n), other=0.0,\n    ))",
    ),
    "quotes and number spellings": edited("other=0.0", "other=0."),
    "another docstring": edited('"""Scale."""', '"""Scale, in place."""'),
    "no docstring": edited('    """Scale."""\n', ""),
    "a docstring in a helper": edited("    return x * 3", '    "Thrice."\n    return x * 3'),
    "a decorator with arguments": edited(
        "@triton.jit\ndef kernel", "@triton.jit(do_not_specialize=['n'])\ndef kernel"
    ),
    "a decorator above": edited(
        "@triton.jit\ndef kernel",
        "GRID = {'EVEN': lambda args: True}\nWARPS = 4\n\n\n"
        "@triton.heuristics(GRID if WARPS else {})\n@triton.jit\ndef kernel",
    ),
    "candidates in a decorator's literal": edited(
        "@triton.jit\ndef kernel",
        "SIZES = [16, 32]\n\n\n"
        "@triton.autotune([triton.Config({'BLOCK': b}) for b in SIZES], key=['n'])\n"
        "@triton.jit\ndef kernel",
    ),
    "an unused global": edited("UNUSED = 1", "UNUSED = 2"),
    "a helper nobody calls": KERNEL + "\n\n@triton.jit\ndef more(x):\n    return x\n",
    "a literal's spelling": edited("TILE = 32", "TILE = 0x20"),
}


@pytest.mark.parametrize("case", QUIET)
def test_the_fingerprint_is_quiet_on(digest, case):
    """Case 19, first half: what does not change the compiled code is not stale."""
    assert digest(QUIET[case]) == digest(KERNEL)


def test_it_says_its_version_and_16_digits(digest):
    version, _, digits = digest().partition(":")
    assert version == "1" and len(digits) == 16 and int(digits, 16) >= 0


# --- changes ----------------------------------------------------------------------------------

LOUD = {
    "an operator": edited("x_ptr + offsets, mask", "x_ptr - offsets, mask"),
    "a constant": edited("other=0.0", "other=1.0"),
    "a constant's type": edited("other=0.0", "other=0"),
    "the order of statements": edited(
        "    offsets = tl.arange(0, BLOCK)\n", "    offsets = tl.arange(0, BLOCK)\n    n = n + 0\n"
    ),
    "a parameter's name": edited("BLOCK", "SIZE"),
    "a parameter's default": edited("BLOCK: tl.constexpr", "BLOCK: tl.constexpr = 16"),
    "a constant in a helper's helper": edited("x * 3", "x * 4"),
    "another helper": edited("outer(x) * TILE", "inner(x) * TILE"),
    "noinline": edited("@triton.jit\ndef kernel", "@triton.jit(noinline=True)\ndef kernel"),
    "noinline of a helper": edited(
        "@triton.jit\ndef inner", "@triton.jit(noinline=True)\ndef inner"
    ),
    "a literal": edited("TILE = 32", "TILE = 64"),
    "a literal's type": edited("TILE = 32", "TILE = 32.0"),
    "an annotated literal": edited("constexpr = 8", "constexpr = 16"),
    "a constexpr": edited("tl.constexpr(4)", "tl.constexpr(5)"),
    "a literal that is set again": edited("UNUSED = 1", "TILE = 33"),
}


@pytest.mark.parametrize("case", LOUD)
def test_the_fingerprint_changes_with(digest, case):
    """Case 19, second half."""
    assert digest(LOUD[case]) != digest(KERNEL)


def test_each_change_has_a_fingerprint_of_its_own(digest):
    hashes = [digest(source) for source in LOUD.values()]
    assert len(set(hashes)) == len(hashes)


@pytest.mark.parametrize("indirect", [False, True])
def test_a_literal_imported_from_another_module_counts(load, indirect):
    """Through `from … import … as …`, and through a module that only passes it on."""

    def with_value(value: int) -> str | None:
        number = next(_numbers)
        load(f"LIMIT = {value}\n", f"constants_{number}")
        source = f"constants_{number}"
        if indirect:
            load(f"from constants_{number} import LIMIT as PASSED\n", f"passing_{number}")
            source = f"passing_{number}"
        name = "PASSED" if indirect else "LIMIT"
        return fingerprint(load(f"""
            from {source} import {name} as TOP

            def kernel(x):
                return x + TOP
        """).kernel)  # fmt: skip

    assert with_value(1) != with_value(2)
    assert with_value(1) == with_value(1)


def test_a_literal_read_off_a_module_counts(load):
    """`constants.LIMIT`, as well as `LIMIT` itself."""

    def with_value(value: int) -> str | None:
        name = f"constants_{next(_numbers)}"
        load(f"LIMIT = {value}\n", name)
        return fingerprint(load(f"""
            import {name} as constants

            def kernel(x):
                return x + constants.LIMIT
        """).kernel)  # fmt: skip

    assert with_value(1) != with_value(2)
    assert with_value(1) == with_value(1)


def test_literals_assigned_together_count(digest):
    """`A, B = 1, 2`: each name has its own value."""
    source = "A, B = 1, 2\n\ndef kernel(x):\n    return x + B\n"
    assert digest(source) != digest(source.replace("1, 2", "1, 3"))
    assert digest(source) == digest(source.replace("1, 2", "7, 2"))


def test_the_name_a_module_is_loaded_under_does_not_matter(load, monkeypatch):
    """A package may be loaded under another name, or without being entered in `sys.modules`."""
    source = "LIMIT = 3\n\ndef kernel(x):\n    return x + LIMIT\n"
    module = load(source)
    named = fingerprint(module.kernel)
    monkeypatch.delitem(sys.modules, module.__name__)
    assert fingerprint(module.kernel) == named
    assert fingerprint(load(source.replace("3", "4")).kernel) != named


def test_helpers_imported_from_another_module_count(load):
    def with_value(value: int) -> str | None:
        name = f"helpers_{next(_numbers)}"
        load(f"import triton\n\n@triton.jit\ndef helper(x):\n    return x + {value}\n", name)
        by_name = load(f"import triton\nfrom {name} import helper\n\n@triton.jit\n"
                       "def kernel(x):\n    return helper(x)\n")  # fmt: skip
        by_module = load(f"import triton\nimport {name} as helpers\n\n@triton.jit\n"
                         "def kernel(x):\n    return helpers.helper(x)\n")  # fmt: skip
        hashes = [fingerprint(plain_function(m.kernel)) for m in (by_name, by_module)]
        return "".join(map(str, hashes))

    first, same, other = with_value(1), with_value(1), with_value(2)
    assert first == same
    assert first[:18] != other[:18] and first[18:] != other[18:]


def test_a_global_computed_from_the_device_or_triton_does_not_count(load, monkeypatch):
    """One source on two machines: the value differs, the fingerprint does not."""
    source = """
        import os

        import triton

        WARPS = int(os.environ["FINGERPRINT_TEST"])
        VERSION = triton.__version__ + os.environ["FINGERPRINT_TEST"]


        def kernel(x):
            return x * WARPS if VERSION else x
    """
    hashes = set()
    for value in ("4", "8"):
        monkeypatch.setenv("FINGERPRINT_TEST", value)
        module = load(source)
        assert int(value) == module.WARPS
        hashes.add(fingerprint(module.kernel))
    assert len(hashes) == 1 and None not in hashes


def test_a_computed_globals_name_counts(load):
    source = "import os\nA = os.getpid()\nB = os.getpid()\n\n\ndef kernel(x):\n    return x + {}\n"
    hashes = [fingerprint(load(source.format(name)).kernel) for name in "AB"]
    assert hashes[0] != hashes[1]


def test_a_helper_in_a_closure_counts(load):
    source = """
        import triton


        def make():
            @triton.jit
            def helper(x):
                return x + {}

            @triton.jit
            def kernel(x):
                return helper(x)

            return kernel


        kernel = make()
    """
    hashes = [fingerprint(plain_function(load(source.format(n)).kernel)) for n in (1, 1, 2)]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize("constant", [1, 2])
def test_mutual_recursion_ends(load, constant):
    source = """
        import triton


        @triton.jit
        def even(n):
            return 1 if n == 0 else odd(n - {})


        @triton.jit
        def odd(n):
            return 0 if n == 0 else even(n - 1)


        @triton.jit
        def kernel(n):
            return kernel(even(n))
    """
    first, second = (
        fingerprint(plain_function(load(source.format(n)).kernel)) for n in (constant, 3)
    )
    assert first != second and first is not None


def test_names_imported_in_a_circle_end(load, tmp_path):
    """Two modules that pass a name on to one another, as lazily patched ones do."""
    one, two = f"circle_{next(_numbers)}", f"circle_{next(_numbers)}"
    load("X = 1\n", two)
    module = load(f"from {two} import X\n\n\ndef kernel(a):\n    return a + X\n", one)
    load(f"from {one} import X\n", two)
    assert fingerprint(module.kernel) is not None


# --- no source --------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", [{}, {"__name__": "nowhere"}, {"__name__": None}])
def test_a_kernel_without_source_has_none(scope):
    exec("def kernel(x):\n    return x\n", scope)
    assert fingerprint(scope["kernel"]) is None


@pytest.mark.parametrize("scope", [{}, {"__name__": "nowhere"}, {"__name__": None}])
def test_a_helper_without_source_leaves_none(load, scope):
    """What it does cannot be known, and asking does not raise."""
    module = load("def kernel(x):\n    return helper(x)\n")
    exec("def helper(x):\n    return x\n", scope)
    import triton

    jitted = triton.jit(lambda x: x)
    jitted.fn = scope["helper"]
    module.helper = jitted
    assert fingerprint(module.kernel) is None


def test_a_lambda_has_none():
    assert fingerprint(lambda x: x) is None


def test_the_plain_function_is_under_all_wrappers(load):
    module = load(KERNEL)
    import triton

    wrapped = triton.heuristics({"BLOCK": lambda args: 16})(module.kernel)
    assert plain_function(wrapped) is plain_function(module.kernel)
    assert plain_function(wrapped).__name__ == "kernel"


# --- other Pythons ----------------------------------------------------------------------------


def test_one_fixed_source_has_one_fixed_fingerprint():
    """On every supported Python: shipped records must not go stale with an interpreter."""
    spec = importlib.util.spec_from_file_location("fingerprint_source", GOLDEN)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fingerprint_source"] = module
    try:
        spec.loader.exec_module(module)
        assert fingerprint(module.kernel) == GOLDEN_HASH
    finally:
        del sys.modules["fingerprint_source"]


def _pythons() -> list[Path]:
    versions = Path("~/.pyenv/versions").expanduser()
    return [
        next(iter(sorted(versions.glob(f"{version}.*/bin/python"))), versions / version)
        for version in ("3.10", "3.12", "3.13", "3.14")
    ]


@pytest.mark.parametrize("python", _pythons(), ids=lambda path: path.parent.parent.name)
def test_other_pythons_find_the_same_fingerprint(python):
    """The module needs the standard library only, so any interpreter can run it by its path."""
    if not python.is_file():
        pytest.skip(f"no {python}")
    program = f"""
import importlib.util, sys
sys.path.insert(0, {str(GOLDEN.parent)!r})
spec = importlib.util.spec_from_file_location("fp", {shipconf.fingerprint.__file__!r})
fp = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fp)
import fingerprint_source
print(fp.fingerprint(fingerprint_source.kernel))
"""
    done = subprocess.run(
        [python, "-B", "-I", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == GOLDEN_HASH


@pytest.mark.parametrize("around", [
    '"""Text.\n\nfrom the start\ntryout = 5\nelse: what\n"""\n',
    'TEXT = """\ntryout = 5\n"""\n',
    "if True:\n    pass\nelse:\n    pass\n",
    "from os import (\n    path,\n)\n",
    "class Kind:\n    tryout = 5\n",
])  # fmt: skip
def test_a_literal_is_found_whatever_stands_around_it(digest, around):
    """Text that looks like code, statements over several lines, and blocks do not hide it."""
    source = "{}tryout: int = 3\n\ndef kernel(x):\n    return x + tryout\n"
    plain, there = digest(source.format("")), digest(source.format(around))
    assert plain == there
    assert digest(source.format(around).replace("= 3", "= 4")) != there
