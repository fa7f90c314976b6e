"""Copies of a launch's tensors: where none may be made, and none are needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from shipconf import placement
from shipconf.placement import MOST_COPIES, SHARE, Arguments, copies


class OnGpu:
    """What a tensor on a GPU has that a copy is made of."""

    is_cuda = True

    def __init__(self, storage: Storage, offset: int = 0) -> None:
        self.storage, self.offset = storage, offset
        self.shape, self.moved = (4,), False

    def untyped_storage(self) -> Storage:
        return self.storage

    def storage_offset(self) -> int:
        return self.offset

    def stride(self) -> tuple[int]:
        return (1,)

    def detach(self) -> OnGpu:
        return self

    def new_empty(self, size: int) -> OnGpu:
        return OnGpu(self.storage)

    def set_(self, storage: Storage, offset: int, shape: Any, stride: Any) -> OnGpu:
        return OnGpu(storage, offset)


class Storage:
    count = 0

    def __init__(self, size: int, fails_after: int = 1000) -> None:
        Storage.count += 1
        self.size, self.address, self.left = size, 4096 * Storage.count, fails_after

    def data_ptr(self) -> int:
        return self.address

    def nbytes(self) -> int:
        return self.size

    def clone(self) -> Storage:
        self.left -= 1
        if self.left < 0:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return Storage(self.size)


@pytest.fixture
def memory(monkeypatch):
    """A GPU with 1,000 bytes free; its tensors count as plain ones."""
    monkeypatch.setattr(torch, "Tensor", OnGpu)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1000, 2000))


def of(**named: Any) -> Arguments:
    return Arguments(tuple(named.values()), {}, named)


# --- none -------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [
    {}, {"n": 8, "scale": 1.0, "none": None}, {"x": torch.zeros(3)},
    {"x": torch.nn.Parameter(torch.zeros(3))},
])  # fmt: skip
def test_without_tensors_on_a_gpu_nothing_is_copied(named):
    assert copies(of(**named)) == []


@pytest.mark.parametrize("holder", [
    (1, 2), [torch.zeros(1)], TensorDescriptor(torch.zeros(4, 16), [4, 16], [16, 1], [4, 16]),
    torch.zeros(1).as_subclass(type("Own", (torch.Tensor,), {})),
    SimpleNamespace(base=torch.zeros(1)), SimpleNamespace(data_ptr=lambda: 4096),
])  # fmt: skip
def test_what_else_may_hold_an_address_forbids_copies(holder, memory):
    """It would lead to the tensors that were not moved. A hook sees it even if no launch does."""
    x = OnGpu(Storage(1))
    assert len(copies(of(x=x))) == MOST_COPIES
    assert copies(of(x=x, holder=holder)) == []
    assert copies(Arguments((x,), {}, {"x": x, "holder": holder})) == []


@pytest.mark.parametrize("value", [8, 1.0, "mode", None, np.int64(8), np.float32(1), tl.float16])
def test_what_holds_no_address_is_passed_as_it_is(value, memory):
    made = copies(of(x=OnGpu(Storage(1)), value=value))
    assert len(made) == MOST_COPIES and made[0].args[1] is value


def test_one_tensor_that_is_elsewhere_forbids_copies(memory):
    elsewhere = OnGpu(Storage(1))
    elsewhere.is_cuda = False
    assert copies(of(x=OnGpu(Storage(1)), y=elsewhere)) == []


# --- how many ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "made"), [(1, 16), (6, 16), (25, 4), (50, 2), (51, 1), (101, 0)])
def test_all_copies_together_take_a_tenth_of_the_free_memory(size, made, memory):
    """By what the storages take: a view of a huge one is not copied alone."""
    assert SHARE == 0.1
    assert len(copies(of(x=OnGpu(Storage(size))))) == made


def test_where_memory_runs_out_those_made_so_far_serve(memory):
    assert len(copies(of(x=OnGpu(Storage(1, fails_after=3))))) == 3


# --- what a copy is ---------------------------------------------------------------------------


def test_tensors_that_share_memory_share_it_in_a_copy(memory):
    storage = Storage(30)
    x, view, other = OnGpu(storage), OnGpu(storage, offset=7), OnGpu(Storage(20))
    made = copies(Arguments((x, 8, view), {"o": other}, {"x": x, "v": view, "o": other, "n": 8}))
    assert len(made) == 2  # of fifty bytes, not eighty
    for copy in made:
        new_x, n, new_view = copy.args
        assert n == 8 and copy.named["n"] == 8
        assert copy.named["x"] is new_x and copy.named["v"] is new_view
        assert new_x.storage is new_view.storage is not storage and new_view.offset == 7
        assert copy.kwargs["o"] is copy.named["o"] is not other
    assert made[0].args[0].storage is not made[1].args[0].storage


def test_a_tensor_passed_twice_is_passed_twice_in_a_copy(memory):
    x = OnGpu(Storage(50))
    first, _ = copies(Arguments((x, x), {}, {"a": x, "b": x}))
    assert first.args[0] is first.args[1] is first.named["a"] is first.named["b"]


def test_memory_is_given_back_when_copies_are_gone(monkeypatch):
    """Only then: torch would keep it for its own allocations."""
    given: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given.append(1))
    placement.release()
    assert given == [1]
