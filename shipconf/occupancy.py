"""How many programs of a compiled kernel a multiprocessor runs at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .records import Device

# CUDA's programming guide, compute capabilities: warps and blocks that a multiprocessor holds.
_WARPS = {"sm_75": 32, "sm_86": 48, "sm_87": 48, "sm_89": 48, "sm_120": 48, "sm_121": 48}
_BLOCKS = {"sm_75": 16, "sm_86": 16, "sm_87": 16, "sm_89": 24, "sm_120": 24, "sm_121": 24}
_REGISTERS = 65536  # of 32 bits, on every multiprocessor since sm_70
_RESERVED = 1024  # bytes of shared memory that CUDA takes for itself in each block since sm_80


def resident(config: Mapping[str, Any], resources: Mapping[str, Any], device: Device) -> int:
    """The programs that one multiprocessor of the device runs at once; 0 where none fits.

    `resources` are those of a record: `shared` bytes, `registers` a thread, and `warps` where a
    kernel has others than its config's `num_warps`. A limit that is not known does not limit:
    without any it is what the device holds in blocks, 1 on a device that is no CUDA one.
    """
    shared = resources.get("shared") or 0
    warps = resources.get("warps") or config.get("num_warps") or 4
    if device.shared_memory and shared > device.shared_memory:
        return 0
    if device.backend != "cuda":
        by_shared = device.shared_memory // shared if device.shared_memory and shared else 1
        return max(1, by_shared)
    limits = [_BLOCKS.get(device.arch, 32), _WARPS.get(device.arch, 64) // warps]
    if device.shared_memory:
        reserved = 0 if device.arch.startswith("sm_7") else _RESERVED
        limits.append((device.shared_memory + reserved) // max(1, shared + reserved))
    if registers := resources.get("registers"):
        # Given to warps in units of 256, and to warps by fours.
        held = _REGISTERS // (-(-registers * 32 // 256) * 256)
        limits.append(held // 4 * 4 // warps)
    return min(limits)
