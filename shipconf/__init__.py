"""A memory for the tuned configs of Triton kernels: shipped with the kernel, kept for the user.

The public names load when they are first used, so `import shipconf` imports neither torch nor
triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adopting import adopt as adopt
    from .adopting import adopt_all as adopt_all
    from .errors import ConfigFileError as ConfigFileError
    from .errors import LockTimeout as LockTimeout
    from .errors import OfflineError as OfflineError
    from .errors import ShipconfError as ShipconfError
    from .errors import ShipconfWarning as ShipconfWarning
    from .errors import TuningError as TuningError
    from .kernel import ShippedKernel as ShippedKernel
    from .kernel import override as override
    from .kernel import shipped_autotune as shipped_autotune
    from .records import Device as Device
    from .records import Record as Record
    from .resolver import Match as Match
    from .settings import offline as offline
    from .workload import Launch as Launch

_HOME = {
    "shipped_autotune": "kernel",
    "ShippedKernel": "kernel",
    "Match": "resolver",
    "Record": "records",
    "Device": "records",
    "Launch": "workload",
    "offline": "settings",
    "override": "kernel",
    "adopt": "adopting",
    "adopt_all": "adopting",
    "ShipconfError": "errors",
    "OfflineError": "errors",
    "TuningError": "errors",
    "ConfigFileError": "errors",
    "LockTimeout": "errors",
    "ShipconfWarning": "errors",
}

__all__ = list(_HOME)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value  # the next use finds it without this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
