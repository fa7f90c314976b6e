"""Several devices in one process: the launch's decides, not device 0."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from kernels import configs
from packages import package, record, shelf, write
from traced import H200, Driver, Graphs, compiled, h200
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from shipconf import ShippedKernel, shipped_autotune
from shipconf import device as devices

L4 = {"backend": "cuda", "name": "NVIDIA L4", "arch": "sm_89", "multiprocessors": 58}
FILES = {
    "N=8,dtypes=int32,device_name=NVIDIA_H200,arch=sm_90,mp=132.json": (H200, 64),
    "N=8,dtypes=int32,device_name=NVIDIA_L4,arch=sm_89,mp=58.json": (L4, 16),
}


class Machine(Driver):
    """GPUs of these kinds, the first one current."""

    def __init__(self, *kinds: dict[str, Any]) -> None:
        self.kinds = kinds
        self.current = 0

    def get_current_device(self) -> int:
        return self.current

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", int(self.kinds[self.current]["arch"][3:]), 32)

    def properties(self, index: int) -> SimpleNamespace:
        kind = self.kinds[index]
        return SimpleNamespace(
            name=kind["name"], multi_processor_count=kind["multiprocessors"],
            shared_memory_per_block_optin=101376, major=int(kind["arch"][3]),
            minor=int(kind["arch"][4]),
        )  # fmt: skip


def machine(*kinds: dict[str, Any]) -> Iterator[Machine]:
    found = Machine(*kinds)
    with (
        h200(),
        mock.patch.object(torch.cuda, "get_device_properties", found.properties),
        mock.patch.object(torch.cuda, "device_count", lambda: len(kinds)),
    ):
        driver.set_active(found)  # type: ignore[arg-type]
        devices.all_alike.cache_clear()
        yield found
    devices.all_alike.cache_clear()


@pytest.fixture
def unlike() -> Iterator[Machine]:
    yield from machine(H200, L4)


@pytest.fixture
def alike() -> Iterator[Machine]:
    yield from machine(H200, H200)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The blocks of the launches, none of which reaches a GPU."""
    blocks: list[int] = []
    monkeypatch.setattr(JITFunction, "run", lambda *args, BLOCK, **rest: blocks.append(BLOCK))
    return blocks


@pytest.fixture
def kernel(tmp_path: Any) -> ShippedKernel:
    module = package(tmp_path)
    for name, (device, block) in FILES.items():
        write(shelf(module), record(block), name=name, device=device)
    return shipped_autotune(configs=configs(), key=["N"], nearest=["M"])(compiled(module.told))


def test_each_launch_takes_the_record_of_its_device(kernel, unlike, launched):
    """Cold and known keys alike, whichever device was first."""
    out = torch.zeros(1, dtype=torch.int32)
    for current in (1, 0, 1, 0):
        unlike.current = current
        kernel[(1,)](out, 8, 8)
        match = kernel.resolve(out, 8, 8)
        assert match is not None and match.config["BLOCK"] == launched[-1]
    assert launched == [16, 64, 16, 64]


def test_a_device_is_known_as_what_it_is_whichever_is_current(unlike):
    for unlike.current in (0, 1):
        devices._physical.cache_clear()
        assert [(d.name, d.arch) for d in devices.visible()] == [
            ("NVIDIA H200", "sm_90"), ("NVIDIA L4", "sm_89"),
        ]  # fmt: skip


def test_where_all_are_alike_a_known_key_asks_for_no_device(kernel, alike, launched):
    out = torch.zeros(1, dtype=torch.int32)
    kernel[(1,)](out, 8, 8)
    with mock.patch.object(Machine, "get_current_device", side_effect=AssertionError):
        kernel[(1,)](out, 8, 8)
    assert launched == [64, 64]


def test_a_graph_takes_the_record_of_its_tensors_device(kernel, unlike):
    """Compiled code launches there, whichever device is current while torch traces."""
    graphs = Graphs()

    def function(x: torch.Tensor) -> torch.Tensor:
        kernel[(1,)](x, 8, 8)
        return x

    for unlike.current in (0, 1):
        for index, block in ((0, 64), (1, 16)):
            tracer = kernel._tracer
            assert tracer is not None
            here = (
                index,
                ("out_ptr", "N", "M"),
                (("out_ptr", torch.int32), ("N", ""), ("M", "")),
                (),
            )
            assert tracer.launcher(here, None, (8,), 8).configs[0].kwargs["BLOCK"] == block
    unlike.current = 1  # tensors of the CPU have no number: the current device it is
    assert int(graphs.compile(function)(torch.zeros(1, dtype=torch.int32))) == 16
