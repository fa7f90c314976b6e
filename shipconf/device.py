"""The device of a launch: Triton's current one, or the interpreter."""

from __future__ import annotations

import dataclasses
import functools
import sys
from typing import Any

from . import forks, settings
from .records import OPTIONS, Device

# Triton's interpreter patches `triton.language` and keeps the grid in globals: one at a time.
interpreter_lock = forks.reentrant_lock()


def interpreted(kernel: Any) -> bool:
    """Whether the kernel was decorated under `TRITON_INTERPRET=1`."""
    while hasattr(kernel, "fn"):
        if type(kernel).__name__ == "InterpretedFunction":
            return True
        kernel = kernel.fn
    return False


def current(kernel: Any, index: int | None = None) -> Device:
    """The device that a launch of the kernel runs on now, or the one of that number.

    `SHIPCONF_DEVICE_NAME` replaces the name. Raises what Triton raises where there is no driver.
    """
    name = settings.device_name()
    if interpreted(kernel):
        return Device("interpreter", name or "interpreter", "interpreter")
    found = _physical(current_index() if index is None else index)
    return Device(found.backend, name or found.name, found.arch, found.multiprocessors,
                  found.shared_memory)  # fmt: skip


def visible() -> list[Device]:
    """The devices that Triton can launch on here. Raises what Triton raises without a driver."""
    return [_physical(index) for index in range(_torch_module(current_backend()).device_count())]


def name_here() -> str | None:
    """The name of the device that launches of this process run on; None where there is none."""
    import triton

    name = settings.device_name()
    if name or triton.knobs.runtime.interpret:
        return name or "interpreter"
    try:
        return _physical(current_index()).name
    except RuntimeError:  # Triton's, where no driver is active
        return None


def current_index() -> int:
    """The number of Triton's current device."""
    from triton.runtime import driver

    index: int = driver.active.get_current_device()
    return index


@functools.cache
def _physical(index: int) -> Device:
    from triton.runtime import driver

    target = driver.active.get_current_target()
    # torch has the properties at hand; Triton asks the driver for clocks too, which is slow.
    properties = _torch_module(target.backend).get_device_properties(index)
    multiprocessors = getattr(properties, "multi_processor_count", None)
    shared_memory = getattr(properties, "shared_memory_per_block_optin", None)
    if multiprocessors is None or not shared_memory:
        asked = driver.active.utils.get_device_properties(index)
        multiprocessors, shared_memory = asked["multiprocessor_count"], asked["max_shared_mem"]
    arch = target.arch if index == current_index() else _arch(properties, target)
    name = f"sm_{arch}" if target.backend == "cuda" else str(arch)
    return Device(target.backend, properties.name, name, multiprocessors, shared_memory)


def _arch(properties: Any, current: Any) -> Any:
    """The architecture of a device that is not the current one, as Triton would call it."""
    if current.backend == "cuda":
        return f"{properties.major}{properties.minor}"
    return getattr(properties, "gcnArchName", str(current.arch)).partition(":")[0]


def _torch_module(backend: str) -> Any:
    import torch

    return torch.xpu if backend == "xpu" else torch.cuda  # torch calls HIP devices cuda


def physical_id() -> str:
    """What names the current GPU among all of the machine: its UUID, else its number here."""
    index = current_index()
    properties = _torch_module(current_backend()).get_device_properties(index)
    return str(getattr(properties, "uuid", index))


def current_backend() -> str:
    """Triton's name of the current backend: cuda, hip or xpu."""
    from triton.runtime import driver

    backend: str = driver.active.get_current_target().backend
    return backend


@functools.cache
def all_alike() -> bool:
    """Whether all visible GPUs have one name, one size and one architecture."""
    gpus = _torch_module(current_backend())
    kinds = set()
    for index in range(gpus.device_count()):
        properties = gpus.get_device_properties(index)
        size = getattr(properties, "multi_processor_count", 0)
        version = getattr(properties, "gcnArchName", None) or (
            getattr(properties, "major", 0), getattr(properties, "minor", 0),
        )  # fmt: skip
        kinds.add((properties.name, size, version))
    return len(kinds) <= 1


def capturing() -> bool:
    """Whether the current stream captures a CUDA graph; without a driver it does not."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    return bool(torch.cuda.is_current_stream_capturing())


@functools.cache
def launch_options(backend: str) -> frozenset[str]:
    """The launch options that Triton's backend for the device takes.

    Those of `triton.Config` alone under the interpreter, or for a backend that is not installed.
    """
    own = _options_by_backend().get(backend)
    return own if own is not None else frozenset(OPTIONS)


def foreign_options(backend: str) -> frozenset[str]:
    """The launch options of other backends only, such as `waves_per_eu` on CUDA."""
    return frozenset().union(*_options_by_backend().values()) - launch_options(backend)


@functools.cache
def _options_by_backend() -> dict[str, frozenset[str]]:
    """The fields of each installed backend's options class, by the backend's name."""
    from triton.backends import backends
    from triton.backends.compiler import GPUTarget

    found = {}
    for backend in ("cuda", "hip", "xpu"):
        for installed in backends.values():
            if installed.compiler.supports_target(GPUTarget(backend, 0, 32)):
                classes = vars(sys.modules[installed.compiler.__module__]).items()
                found[backend] = frozenset(
                    field.name
                    for name, kind in classes
                    if name.endswith("Options") and dataclasses.is_dataclass(kind)
                    for field in dataclasses.fields(kind)
                )
    return found
