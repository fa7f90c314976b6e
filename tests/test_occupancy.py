"""How many programs are resident: each limit of the device, one at a time."""

from __future__ import annotations

import pytest

from shipconf.occupancy import resident
from shipconf.records import Device

H200 = Device("cuda", "NVIDIA H200", "sm_90", 132, 232448)
L4 = Device("cuda", "NVIDIA L4", "sm_89", 58, 101376)
T4 = Device("cuda", "Tesla T4", "sm_75", 40, 65536)
MI300 = Device("hip", "AMD Instinct MI300X", "gfx942", 304, 65536)


@pytest.mark.parametrize(
    ("device", "warps", "resources", "programs"),
    [
        (H200, 4, {}, 16),  # 64 warps
        (L4, 4, {}, 12),  # 48 warps
        (H200, 1, {}, 32),  # blocks
        (L4, 1, {}, 24),
        (T4, 1, {}, 16),
        (H200, 4, {"shared": 110592}, 2),  # 1 KiB of each block is CUDA's
        (H200, 4, {"shared": 116224}, 1),
        (T4, 4, {"shared": 32768}, 2),  # but not before sm_80
        (H200, 4, {"registers": 128}, 4),
        (H200, 4, {"registers": 129}, 3),  # given in units of 8 a thread
        (H200, 8, {"registers": 255}, 1),
        (H200, 4, {"warps": 8, "registers": 128}, 2),  # a specialised kernel has more
        (H200, 16, {"registers": 255}, 0),  # more registers than there are
        (H200, 4, {"shared": 232449}, 0),
        (MI300, 4, {"shared": 16384}, 4),
        (MI300, 4, {"shared": 65537}, 0),
        (MI300, 4, {}, 1),
        (Device(), 4, {"shared": 1 << 20}, 1),  # nothing is known of the device
    ],
)
def test_the_tightest_limit_counts(device, warps, resources, programs):
    """By CUDA's table of compute capabilities; other devices have the shared memory alone."""
    assert resident({"num_warps": warps}, resources, device) == programs


def test_a_config_without_warps_has_tritons_four():
    assert resident({}, {"registers": 64}, H200) == resident(
        {"num_warps": 4}, {"registers": 64}, H200
    )
