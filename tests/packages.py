"""Kernel packages in a temporary folder: a module, and the records that ship beside it."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from shipconf import ShippedKernel

TOLD = """
import triton
import triton.language as tl

@triton.jit
def told(out_ptr, N, M, BLOCK: tl.constexpr):
    tl.store(out_ptr, BLOCK)

@triton.jit
def picky(out_ptr, N, M, BLOCK: tl.constexpr, BAD: tl.constexpr = 1):
    if BLOCK == BAD or BAD == 0:
        tl.static_assert(False, "this block fails")
    tl.store(out_ptr, BLOCK)
"""

INTERPRETER = {
    "backend": "interpreter", "name": "interpreter", "arch": "interpreter", "multiprocessors": 0,
}  # fmt: skip
FILE = "N=8,dtypes=int32,device_name=interpreter,arch=interpreter,mp=0.json"

_number = itertools.count()


def load(path: Path) -> ModuleType:
    """The module at the path, under a name that no other has."""
    name = f"package_{next(_number)}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def package(folder: Path, source: str = TOLD, stem: str = "tile") -> ModuleType:
    """A package of one module in the folder, loaded; its kernels ship no records yet."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}.py"
    path.write_text(source)
    return load(path)


def shelf(module: ModuleType, kernel: str = "told") -> Path:
    """The folder of the records that ship with a package's kernel."""
    path = Path(str(module.__file__))
    return path.parent / "configs" / path.stem / kernel


def record(block: int, M: int | None = 8, **fields: Any) -> dict[str, Any]:
    """A record that says which block to use at an `M`."""
    config = {"BLOCK": block, "num_warps": 4, "num_stages": 3, "num_ctas": 1}
    return {"at": {} if M is None else {"M": M}, "config": config, **fields}


def document(
    records: Sequence[Mapping[str, Any]], *, kernel: str = "told",
    key: Mapping[str, Any] | None = None, nearest: Sequence[str] = ("M",),
    dtypes: Mapping[str, Any] | None = None, device: Mapping[str, Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:  # fmt: skip
    """What a file of these records holds."""
    return {
        "schema": 1, "kernel": kernel, "device": INTERPRETER if device is None else device,
        "key": {"N": 8} if key is None else key,
        "dtypes": {"out_ptr": "int32"} if dtypes is None else dtypes,
        "nearest": list(nearest), "records": list(records), **fields,
    }  # fmt: skip


def write(folder: Path, *records: Mapping[str, Any], name: str = FILE, **fields: Any) -> Path:
    """A file of these records in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(json.dumps(document(records, **fields), indent=2) + "\n")
    return path


def user_folder(kernel: ShippedKernel) -> Path:
    """The kernel's folder in the user store, as `explain_for` names it."""
    words = kernel.explain_for(dtypes="int32", N=8, M=8)
    found = re.search(r"^  user: (.*?): ", words, re.MULTILINE)
    assert found is not None, words
    return Path(found[1])


def records_in(store: Path) -> list[dict[str, Any]]:
    """All records in a user store."""
    found = []
    for path in sorted(store.rglob("*.json")):
        found += json.loads(path.read_text())["records"]
    return found


def files_in(store: Path) -> list[str]:
    """Everything in a folder, by name."""
    return sorted(path.name for path in store.rglob("*") if path.is_file())
