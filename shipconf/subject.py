"""What the stores need to know of a kernel: its names, its folders, its fingerprint."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from .fingerprint import fingerprint, plain_function
from .keys import Binder, folder_name


@dataclass(frozen=True)
class Subject:
    """What the stores need to know of a kernel.

    `stem` is that of its source file, `package` its folder of shipped records (None where it
    has no source file), `own_folder` whether the author named that folder (the flat form is
    read there too), `identity` its folder in the user store. `target` is how the command line
    names it: `module:kernel`; `module` is None for a script's or a loaded file's.
    """

    name: str
    target: str
    stem: str
    package: Path | None
    own_folder: bool
    identity: str
    key_names: tuple[str, ...]
    nearest_names: tuple[str, ...]
    fingerprint: str | None
    module: str | None = None


def _name_in(module: str, function: FunctionType) -> str:
    """What the module calls the tuned kernel; the function's own name where it calls it nothing."""
    for name, value in list(vars(sys.modules.get(module, object)).items()):
        if getattr(value, "base_fn", None) is function and hasattr(value, "resolve_for"):
            return name
    return function.__name__


def _is_importable(module: str) -> bool:
    """Whether the name is that of a module, not of a script or of a file that was loaded."""
    return module != "__main__" and all(part.isidentifier() for part in module.split("."))


def subject_of(kernel: Any, name: str, binder: Binder, configs_dir: str | Path | None) -> Subject:
    """The subject for a `@triton.jit` kernel.

    Its records ship in `configs_dir` beside the source file, else in `configs/<stem>/<name>`.
    """
    function = plain_function(kernel)
    source = Path(function.__code__.co_filename)
    module = function.__module__
    digest = fingerprint(kernel)
    key_names, nearest_names = tuple(binder.key_entries), tuple(binder.nearest_entries)
    # Two versions of a package share a user store without fighting over one folder.
    identity = [digest, key_names, nearest_names, module if digest is None else None]
    digits = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]
    folder = Path(configs_dir or Path("configs", source.stem, folder_name(name)))
    # A notebook's cell has no file. One that this user may not read counts as a file.
    found = not source.name.startswith("<") or folder.is_absolute()
    return Subject(
        name=name,
        target=f"{source if module == '__main__' else module}:{_name_in(module, function)}",
        stem=source.stem,
        package=source.parent.absolute() / folder if found else None,
        own_folder=configs_dir is not None,
        identity=f"{folder_name(name)}-{digits}",
        key_names=key_names,
        nearest_names=nearest_names,
        fingerprint=digest,
        module=module if _is_importable(module) else None,
    )
