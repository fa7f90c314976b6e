"""The module that `shipconf vendor` writes: what it may import, and which Python can read it.

That it finds what the library finds is `test_reading`.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packages import TOLD, record, write
from test_layout import MODULES

import shipconf
from shipconf import vendor
from shipconf.cli import main
from shipconf.hoisting import Hoist, HoistingError
from shipconf.splicing import sections

SOURCE = vendor.source()
TREE = ast.parse(SOURCE)


def test_it_imports_the_standard_library_torch_and_triton_only():
    """Function-level imports count, and nothing is relative."""
    tops = set()
    for node in ast.walk(TREE):
        if isinstance(node, ast.Import):
            tops |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, ast.unparse(node)
            tops.add(str(node.module).partition(".")[0])
    assert tops - sys.stdlib_module_names == {"torch", "triton"}


def test_it_offers_what_shipconf_offers():
    names = next(ast.literal_eval(n.value) for n in TREE.body if isinstance(n, ast.Assign)
                 and ast.unparse(n.targets[0]) == "__all__")  # fmt: skip
    assert names == shipconf.__all__
    defined = {n.name for n in TREE.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    assert set(names) <= defined


def test_it_holds_nothing_that_tunes_locks_or_writes():
    calls = {ast.unparse(n.func).rpartition(".")[2] for n in ast.walk(TREE) if
             isinstance(n, ast.Call)}  # fmt: skip
    assert not calls & {
        "do_bench", "do_bench_cudagraph", "write", "write_text", "write_bytes", "mkdir", "unlink",
        "fsync", "flock", "open",
    }  # fmt: skip
    for node in ast.walk(TREE):
        if isinstance(node, ast.Attribute):
            assert ast.unparse(node) not in ("os.replace", "os.open", "os.remove", "os.rename")


# --- Python 3.9 -------------------------------------------------------------------------------


def newer_than_3_9(tree: ast.AST) -> list[str]:
    """What Python 3.9 parses, perhaps, and cannot run."""
    found = []
    notes = [getattr(n, field, None) for n in ast.walk(tree) for field in ("annotation", "returns")]
    lazy = {id(part) for note in notes if note is not None for part in ast.walk(note)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            new = {"zip": {"strict"}, "dataclass": {"kw_only", "slots"}, "field": {"kw_only"}}
            if new.get(name, set()) & {str(keyword.arg) for keyword in node.keywords}:
                found.append(ast.unparse(node))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            sides = {ast.unparse(node.left), ast.unparse(node.right)}
            types = {s for s in sides if s[:1].isupper() or s in ("int", "str", "float", "bool")}
            if types and id(node) not in lazy:
                found.append(ast.unparse(node))
        elif type(node).__name__ in ("Match", "TryStar"):
            found.append(ast.unparse(node))
    return found


def test_python_3_9_parses_it():
    ast.parse(SOURCE, feature_version=(3, 9))
    assert newer_than_3_9(TREE) == []
    assert any(isinstance(n, ast.ImportFrom) and n.module == "__future__" for n in TREE.body)


@pytest.mark.parametrize(
    "source",
    ["@dataclass(kw_only=True)\nclass A: pass", "zip(a, b, strict=True)", "A = int | None",
     "isinstance(x, Path | B)", "match x:\n    case 1: pass"],
)  # fmt: skip
def test_the_check_for_newer_constructs_finds(source):
    assert newer_than_3_9(ast.parse(source))


# Reads a folder of records as a lookup does, from key and device; and where Triton is there,
# asks a kernel. Where it is not, the two names that the module takes from it are empty classes.
READ = """
import importlib.util, json, sys, types
try:
    import triton
except ImportError:
    triton = None
    jit = types.ModuleType("triton.runtime.jit")
    class KernelInterface:
        def __class_getitem__(cls, item): return cls
    jit.KernelInterface, jit.MockTensor = KernelInterface, object
    for name in ("triton", "triton.runtime"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["triton.runtime.jit"] = jit
spec = importlib.util.spec_from_file_location("_shipconf", sys.argv[1])
library = importlib.util.module_from_spec(spec)
sys.modules["_shipconf"] = library
spec.loader.exec_module(library)
from pathlib import Path
device = library.Device("cuda", "NVIDIA H200", "sm_90", 132)
subject = library.Subject("told", "tile:told", "tile", Path(sys.argv[2]), False, "told-0", ("N",),
                          ("M",), "1:0")
key = library.Key({"N": 8}, {"out_ptr": "int32"}, {"M": 9})
shelf = library.stores_read(subject, key, device)
print(library.file_name(key, device))
print([(round(far, 6), dict(found.record.config)) for far, found in shelf.ranked(key)])
print([path.name for path, _ in shelf.skipped])
if triton is not None:
    spec = importlib.util.spec_from_file_location("tile", sys.argv[3])
    tile = importlib.util.module_from_spec(spec)
    sys.modules["tile"] = tile
    spec.loader.exec_module(tile)
    decorate = library.shipped_autotune([triton.Config({"BLOCK": 16})], ["N"], nearest=["M"])
    kernel = decorate(tile.told)
    print(kernel.resolve_for(dtypes="int32", device=device, N=8, M=9).config, file=sys.stderr)
"""


def python39() -> str:
    """A Python 3.9 of this machine, or the one that `PYTHON39` names."""
    name = os.environ.get("PYTHON39") or shutil.which("python3.9")
    version = [str(name), "-c", "import sys; print(sys.version_info[:2])"]
    if name is None or subprocess.run(version, capture_output=True).stdout != b"(3, 9)\n":
        pytest.skip("no Python 3.9 here")
    return name


def test_python_3_9_reads_as_this_python_does(tmp_path):
    """With or without Triton."""
    name = python39()
    path = vendor.write(tmp_path)
    source = tmp_path / "tile.py"
    source.write_text(TOLD)
    folder = tmp_path / "configs" / "tile" / "told"
    stem = "N=8,dtypes=int32,device_name=NVIDIA_H200,arch=sm_90,mp=132"
    write(folder, record(16), record(32, M=16), name=f"{stem}.json", device={"name": "NVIDIA H200"})
    write(folder, name=f"{stem}~2.json", schema=9)
    arguments = [path, folder, source]
    done = [
        subprocess.run(
            [python, "-W", "ignore", "-c", READ, *arguments], capture_output=True, text=True,
            check=False, env={**os.environ, "TRITON_INTERPRET": "1"},
        )
        for python in (name, sys.executable)
    ]  # fmt: skip
    assert [d.returncode for d in done] == [0, 0], done[0].stderr
    assert done[0].stdout == done[1].stdout and stem in done[0].stdout
    assert done[0].stderr in ("", done[1].stderr) and "16" in done[1].stderr


# A module of a Hub package, in which shipconf is not to be had.
LAUNCHED = """
import pickle, sys, torch, triton
sys.modules["shipconf"] = None
from hub import _shipconf, tile

out = torch.zeros(1, dtype=torch.int32)
for n, m in ((8, 8), (8, 8), (8, 9), (8, 60), (9, 8)):
    tile.told[(1,)](out, n, m)
    print(n, m, int(out[0]), tile.told.resolve(out, n, m).source)
tile.told[lambda named: (named["N"],)](out, N=8, M=8)
assert pickle.loads(pickle.dumps(tile.told)) is tile.told
try:
    tile.strict[(1,)](out, 9, 8)
except _shipconf.OfflineError as error:
    print(error.kernel, error.key)
"""


@pytest.mark.parametrize("version", ["this", "3.9"])
def test_a_package_launches_through_it(version, tmp_path):
    """Exact, nearest, default, and the error; under 3.9 too, where that has torch and Triton."""
    python = sys.executable if version == "this" else python39()
    imports = [python, "-c", "import torch, triton"]
    if version == "3.9" and subprocess.run(imports, capture_output=True, check=False).returncode:
        pytest.skip("Python 3.9 has no torch or no Triton here")
    package = tmp_path / "hub"
    package.mkdir()
    (package / "__init__.py").touch()
    vendor.write(package)
    (package / "tile.py").write_text(
        TOLD
        + """
from ._shipconf import shipped_autotune

CONFIGS = [triton.Config({"BLOCK": block}) for block in (16, 32, 64)]
strict = shipped_autotune(configs=CONFIGS, key=["N"], nearest=["M"], name="strict")(told)
told = shipped_autotune(configs=CONFIGS, key=["N"], nearest=["M"], default=CONFIGS[0])(told)
"""
    )
    write(package / "configs" / "tile" / "told", record(32, M=8), record(64, M=64))
    done = subprocess.run(
        [python, "-W", "ignore", "-c", LAUNCHED], cwd=tmp_path, capture_output=True, text=True,
        check=False, env={**os.environ, "TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "8 8 32 package", "8 8 32 package", "8 9 32 package", "8 60 64 package", "9 8 16 default",
        "strict N=9, dtypes=int32, M=8",
    ]  # fmt: skip


# --- making one module of several -------------------------------------------------------------


def made(modules: dict[str, str], *roots: tuple[str, str], **instead: str) -> str:
    """The text, whatever the headings."""
    hoist = Hoist(modules, roots, {k.replace("_", ".", 1): v for k, v in instead.items()})
    return "".join(f"{text}\n" for _, text in sections(hoist))


def test_a_local_variable_may_have_the_name_of_a_function_called_through_its_module():
    modules = {
        "a": '"""A."""\ndef policy():\n    return 1\n',
        "b": '"""B."""\nfrom . import a\ndef use(policy=0):\n    policy = a.policy()\n'
             "    return f'{a.policy()} a.policy() {policy}'\n",
    }  # fmt: skip
    text = made(modules, ("b", "use"))
    scope: dict[str, object] = {}
    exec(text, scope)
    assert scope["use"]() == "1 a.policy() 1"  # type: ignore[operator]


def test_two_definitions_of_one_name_stay_two():
    modules = {
        "a": '"""A."""\ndef _read():\n    return "a"\n\ndef first():\n    return _read()\n',
        "b": '"""B."""\nfrom .a import first as other\ndef _read():\n    return "b"\n\n'
             "def both():\n    return [f() for f in (other, _read)]\n",
    }  # fmt: skip
    scope: dict[str, object] = {}
    exec(made(modules, ("b", "both")), scope)
    assert scope["both"]() == ["a", "b"]  # type: ignore[operator]


def test_methods_that_nothing_names_are_left_out_and_comments_are_kept():
    source = (
        '"""A."""\nclass Both:\n    """Two."""\n\n    size = 1\n\n    # why it is so\n'
        "    def kept(self):\n        return self.size\n\n    def dropped(self):\n        pass\n"
        "\n\n"
        "# a reason\ndef use():\n    return Both().kept()\n\n\ndef unused():\n    pass\n"
    )
    text = made({"a": source}, ("a", "use"))
    assert "# why it is so\n    def kept" in text and "# a reason\ndef use" in text
    assert "dropped" not in text and "unused" not in text


def test_what_is_replaced_may_be_called_by_what_replaces_it():
    modules = {
        "a": '"""A."""\ndef limit():\n    return 1\n\ndef use():\n    return limit()\n',
        "b": '"""B."""\nfrom . import a\ndef limit():\n    return a.limit() + 1\n',
    }
    scope: dict[str, object] = {}
    exec(made(modules, ("a", "use"), a_limit="b.limit"), scope)
    assert scope["use"]() == 2  # type: ignore[operator]


def test_one_name_for_two_imports_is_refused():
    modules = {
        "a": '"""A."""\nfrom json import dumps\ndef first():\n    return dumps\n',
        "b": '"""B."""\nfrom .a import first\nfrom pickle import dumps\ndef use():\n'
             "    return first, dumps\n",
    }  # fmt: skip
    with pytest.raises(HoistingError, match="dumps is from"):
        made(modules, ("b", "use"))


def test_every_replacement_names_what_exists():
    """A method that was renamed would come back as it is."""
    for dotted in [*vendor.INSTEAD, *vendor.INSTEAD.values()]:
        module, *path = dotted.split(".")
        body = ast.parse(MODULES[module].read_text()).body
        for name in path:
            (found,) = [n for n in body if getattr(n, "name", None) == name]
            body = getattr(found, "body", [])


# --- the command ------------------------------------------------------------------------------


def test_the_command_writes_and_checks_the_module(tmp_path, capsys):
    assert main(["vendor", str(tmp_path), "--check"]) == 1
    assert main(["vendor", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith(f"wrote {tmp_path / '_shipconf.py'}\n")
    assert (tmp_path / "_shipconf.py").read_text() == SOURCE
    assert main(["vendor", str(tmp_path), "--check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "path": str(tmp_path / "_shipconf.py"), "version": shipconf.__version__, "current": True,
    }  # fmt: skip
    (tmp_path / "_shipconf.py").write_text(SOURCE.replace("OFFLINE = 1", "OFFLINE = 0"))
    assert main(["vendor", str(tmp_path), "--check"]) == 1
    assert main(["vendor", str(tmp_path)]) == 0
    assert (tmp_path / "_shipconf.py").read_text() == SOURCE


def test_a_file_of_someone_else_is_not_written_over(tmp_path, capsys):
    (tmp_path / "_shipconf.py").write_text("# mine\n")
    assert main(["vendor", str(tmp_path)]) == 2
    assert "is not by shipconf vendor" in capsys.readouterr().err
    assert (tmp_path / "_shipconf.py").read_text() == "# mine\n"
    assert main(["vendor", str(Path(tmp_path, "nowhere"))]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_the_text_is_the_same_in_every_process():
    """No order of a set shows: `--check` and diffs stand on it."""
    program = "from shipconf import vendor; import sys; sys.stdout.write(vendor.source())"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, check=True,
            cwd=Path(__file__).parents[1], env={**os.environ, "PYTHONHASHSEED": seed},
        )  # fmt: skip
        assert done.stdout.decode() == SOURCE
