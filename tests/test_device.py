"""Devices: whom a record serves, and the device of a launch."""

from __future__ import annotations

import dataclasses
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from shipconf import device as devices
from shipconf.records import OPTIONS, Device

H200 = Device("cuda", "NVIDIA H200", "sm_90", 132, 232448)


@triton.jit
def kernel(x_ptr, BLOCK: tl.constexpr):
    pass


# --- who serves whom --------------------------------------------------------------------------

ALIKE = [
    ("NVIDIA H20", "NVIDIA H200"),
    ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090 Laptop GPU"),
    ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090 D"),
    ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM2e"),
    ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"),
    ("nvidia h200", "NVIDIA H200"),
    ("NVIDIA_H200", "NVIDIA H200"),
    ("NVIDIA H200 ", "NVIDIA H200"),
    ("AMD Instinct MI50/MI60", "AMD Instinct MI50"),
    ("Orin (nvgpu)", "Orin"),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_names_that_are_alike_are_two_devices(one, other):
    """Case 3: never by prefix, substring or case, in either direction."""
    for stored, actual in ((one, other), (other, one)):
        tuned = dataclasses.replace(H200, name=stored)
        assert not tuned.serves(dataclasses.replace(H200, name=actual))
        assert tuned.serves(dataclasses.replace(H200, name=stored))


@pytest.mark.parametrize(
    "change",
    [{"backend": "hip"}, {"arch": "sm_90a"}, {"arch": "sm_9"}, {"multiprocessors": 66}],
)
def test_backend_arch_and_multiprocessors_must_agree(change):
    """The multiprocessors tell a MIG slice from the whole, under one name."""
    assert not H200.serves(dataclasses.replace(H200, **change))
    assert not dataclasses.replace(H200, **change).serves(H200)


@pytest.mark.parametrize("left_out", [{"backend": ""}, {"arch": ""}, {"multiprocessors": 0}])
def test_what_a_file_leaves_out_agrees_with_any(left_out):
    assert dataclasses.replace(H200, **left_out).serves(H200)
    # A launch that does not know does not agree with a file that does.
    assert not H200.serves(dataclasses.replace(H200, **left_out))


def test_a_name_alone_serves_every_device_of_the_name():
    assert Device(name="NVIDIA H200").serves(H200)
    assert not Device(name="NVIDIA H20").serves(H200)
    assert not Device(name="").serves(H200)


def test_shared_memory_does_not_decide():
    """It follows from the architecture, and drivers report it differently."""
    assert H200.serves(dataclasses.replace(H200, shared_memory=1))


def test_an_alias_borrows_within_one_arch_only():
    """Whatever the multiprocessors; never from another name, arch or backend."""
    nvl = Device("cuda", "NVIDIA H200 NVL", "sm_90", 114, 232448)
    assert not H200.serves(nvl)
    assert H200.serves(nvl, alias="NVIDIA H200")
    assert not H200.serves(nvl, alias="NVIDIA H20")
    assert not H200.serves(dataclasses.replace(nvl, arch="sm_100"), alias="NVIDIA H200")
    assert not H200.serves(dataclasses.replace(nvl, backend="hip"), alias="NVIDIA H200")


def test_the_interpreter_never_mixes_with_a_gpu():
    interpreter = Device("interpreter", "interpreter", "interpreter")
    assert interpreter.serves(interpreter)
    assert not interpreter.serves(H200) and not H200.serves(interpreter)
    # Not even when it is given the GPU's name.
    assert not H200.serves(Device("interpreter", "NVIDIA H200", "interpreter"))
    assert not Device("interpreter", "NVIDIA H200", "interpreter").serves(H200)


def test_devices_are_values():
    same = dataclasses.replace(H200)
    assert same == H200 and hash(same) == hash(H200)
    assert pickle.loads(pickle.dumps(H200)) == H200
    assert str(H200) == "NVIDIA H200 (cuda, sm_90, 132 multiprocessors)"
    assert str(Device(name="NVIDIA L4")) == "NVIDIA L4"


# --- the device of a launch -------------------------------------------------------------------


def test_an_interpreted_kernel_runs_on_the_interpreter():
    """Backend, name and arch are `interpreter`, the numbers 0; no driver is asked."""
    assert devices.interpreted(kernel)
    assert devices.interpreted(triton.heuristics({"BLOCK": lambda args: 16})(kernel))
    assert devices.current(kernel) == Device("interpreter", "interpreter", "interpreter", 0, 0)


def test_the_variable_replaces_the_name_only(monkeypatch):
    monkeypatch.setenv("SHIPCONF_DEVICE_NAME", "NVIDIA H200")
    assert devices.current(kernel) == Device("interpreter", "NVIDIA H200", "interpreter")
    monkeypatch.delenv("SHIPCONF_DEVICE_NAME")
    assert devices.current(kernel).name == "interpreter"


class Driver:
    """As much of Triton's active driver as a device is told from; two GPUs, the second current."""

    def __init__(self, backend: str, arch: object) -> None:
        self.utils = self
        self.target = SimpleNamespace(backend=backend, arch=arch)
        self.current = 1

    def get_current_device(self) -> int:
        return self.current

    def get_current_target(self) -> SimpleNamespace:
        return self.target

    def get_device_properties(self, index: int) -> dict[str, int]:
        return {"multiprocessor_count": 100 + index, "max_shared_mem": 65536}


def properties(backend: str) -> Any:
    """What torch tells of a GPU: of CUDA's all, of others a part; Triton has the rest."""

    def of(index: int) -> SimpleNamespace:
        known = {"name": f"GPU (number {index})"}
        if backend == "cuda":
            known |= {"multi_processor_count": 100 + index, "shared_memory_per_block_optin": 65536}
        return SimpleNamespace(**known)

    return of


@pytest.fixture
def driver(monkeypatch):
    """Puts a stub in the place of Triton's driver and of torch's properties of GPUs."""

    def install(backend: str, arch: object) -> Driver:
        stub = Driver(backend, arch)
        monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=stub))
        for module in (torch.cuda, torch.xpu):
            monkeypatch.setattr(module, "get_device_properties", properties(backend))
        devices._physical.cache_clear()
        return stub

    yield install
    devices._physical.cache_clear()


@pytest.mark.parametrize(
    ("backend", "arch", "expected"),
    [("cuda", 90, "sm_90"), ("cuda", 120, "sm_120"), ("hip", "gfx942", "gfx942"),
     ("xpu", "bmg", "bmg")],
)  # fmt: skip
def test_a_gpu_is_named_by_the_driver(driver, monkeypatch, backend, arch, expected):
    """Triton's current device, not device 0; the variable replaces the name there too."""
    stub = driver(backend, arch)
    compiled = SimpleNamespace()  # anything but an interpreted function
    assert devices.current(compiled) == Device(backend, "GPU (number 1)", expected, 101, 65536)
    stub.current = 0
    assert devices.current(compiled) == Device(backend, "GPU (number 0)", expected, 100, 65536)
    monkeypatch.setenv("SHIPCONF_DEVICE_NAME", "another")
    assert devices.current(compiled) == Device(backend, "another", expected, 100, 65536)


def test_without_a_driver_nothing_is_captured():
    assert not devices.capturing()


# --- launch options ---------------------------------------------------------------------------


def test_launch_options_are_those_of_the_backend():
    """Case 16: what a file for AMD sets is foreign on CUDA, and the other way round."""
    amd_only = {"waves_per_eu", "matrix_instr_nonkdim", "kpack"}
    assert {"num_warps", "num_stages", "num_ctas", "maxnreg"} <= devices.launch_options("cuda")
    assert not amd_only & devices.launch_options("cuda")
    assert devices.foreign_options("cuda") >= amd_only & devices.launch_options("hip") != set()
    assert "waves_per_eu" in devices.launch_options("hip")
    assert "waves_per_eu" not in devices.foreign_options("hip")
    assert "num_warps" not in devices.foreign_options("cuda")


def test_the_interpreter_knows_the_options_of_config():
    assert devices.launch_options("interpreter") == frozenset(OPTIONS)
    assert "waves_per_eu" in devices.foreign_options("interpreter")
