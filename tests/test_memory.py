"""The process's memory: one generated key function, one dict lookup."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import numpy as np
import pytest
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from shipconf.keys import Binder
from shipconf.memory import CAPACITY, Memory, Remembered

HALF, FULL = torch.empty(4, dtype=torch.float16), torch.empty(4, dtype=torch.float32)


def memory(function: Any, key: Any = ("n",), nearest: Any = (), device: Any = None) -> Memory:
    return Memory(Binder(inspect.signature(function), key, nearest), device)


def remembered(word: str) -> Remembered:
    return Remembered({"word": word}, None, None)


class Launcher:
    """Uses a memory as a launch does: look, and where it is not known, learn and remember."""

    def __init__(self, start: Memory) -> None:
        self.memory = start

    def knows(self, *args: Any, **kwargs: Any) -> bool:
        """Whether the launch was known; afterwards it is."""
        try:
            key = self.memory.key(*args, **kwargs)
            if key in self.memory.launches:
                return True
        except (AttributeError, TypeError):
            pass
        named = self.memory.binder.bind(args, kwargs).named
        self.memory = self.memory.learn(named)
        self.memory.remember(self.memory.key(*args, **kwargs), remembered(str(args)))
        return False


def kernel(x_ptr, n, bias_ptr=None, scale=1.0):
    """The signature of these tests."""


def test_a_known_launch_is_found_however_it_is_spelt():
    launcher = Launcher(memory(kernel))
    assert not launcher.knows(HALF, 8)
    assert launcher.knows(HALF, n=8)
    assert launcher.knows(n=8, x_ptr=HALF)
    assert launcher.knows(HALF, 8, None, 1.0)
    assert launcher.knows(torch.empty(99, dtype=torch.float16), 8)


def test_values_that_python_calls_equal_are_told_apart():
    """`1`, `True` and `1.0` hash alike: the key has their types."""
    launcher = Launcher(memory(kernel))
    values = (1, True, 1.0, "1", None, torch.float16)
    for value in values:
        assert not launcher.knows(HALF, value)
    assert all(launcher.knows(HALF, value) for value in values)
    launcher.knows(HALF, (1,))  # the same where a tuple has been seen, and values are read slowly
    keys = {launcher.memory.key(HALF, value) for value in values}
    assert len(keys) == 6


def test_tuples_are_told_apart_by_the_types_inside():
    launcher = Launcher(memory(kernel))
    assert not launcher.knows(HALF, (1, 2))
    assert not launcher.knows(HALF, (True, 2))
    assert not launcher.knows(HALF, (1.0, 2))
    assert not launcher.knows(HALF, ((1,), 2))
    assert not launcher.knows(HALF, ((True,), 2))
    assert launcher.knows(HALF, (1, 2)) and launcher.knows(HALF, ((1,), 2))


def test_dtypes_are_told_apart():
    launcher = Launcher(memory(kernel))
    assert not launcher.knows(HALF, 8)
    assert not launcher.knows(FULL, 8)
    assert launcher.knows(HALF, 8) and launcher.knows(FULL, 8)


@pytest.mark.parametrize("first_without", [True, False])
def test_an_optional_tensor_is_told_from_its_absence(first_without):
    """None then a tensor, and a tensor then None: each is its own launch, and stays known."""
    without, with_half, with_full = (HALF, 8), (HALF, 8, HALF), (HALF, 8, FULL)
    order = [without, with_half] if first_without else [with_half, without]
    launcher = Launcher(memory(kernel))
    assert [launcher.knows(*args) for args in order] == [False, False]
    assert not launcher.knows(*with_full)
    # Learning that the argument is both may forget what was known, once.
    for args in (without, with_half, with_full):
        launcher.knows(*args)
    assert all(launcher.knows(*args) for args in (without, with_half, with_full))
    keys = {launcher.memory.key(*args) for args in (without, with_half, with_full)}
    assert len(keys) == 3


def test_a_number_in_the_place_of_a_tensor_is_another_launch():
    launcher = Launcher(memory(kernel))
    assert not launcher.knows(HALF, 8, HALF)
    assert not launcher.knows(HALF, 8, 3)
    assert launcher.knows(HALF, 8, np.float16(3))  # no tensor: nothing in the key changed


def test_descriptors_and_tuples_are_told_apart_by_their_dtypes():
    def described(dtype):
        return TensorDescriptor.from_tensor(torch.empty(16, 16, dtype=dtype), [8, 8])

    launcher = Launcher(memory(kernel))
    assert not launcher.knows(described(torch.float16), 8)
    assert not launcher.knows(described(torch.bfloat16), 8)
    assert launcher.knows(described(torch.float16), 8)
    assert not launcher.knows((HALF, FULL), 8)
    assert not launcher.knows((HALF, HALF), 8)
    assert launcher.knows((HALF, FULL), 8)


def test_other_scalars_make_no_new_launch():
    """An argument that is in neither key nor nearest counts with its kind only."""
    launcher = Launcher(memory(kernel))
    assert not launcher.knows(HALF, 8, scale=1.0)
    assert launcher.knows(HALF, 8, scale=2.0)


def test_pairs_are_read_by_their_functions_with_types():
    """`("E", function)` in key and nearest: defaults are filled in, `1` and `True` differ."""
    entries = [("E", lambda a: a["n"]), ("s", lambda a: a["scale"])]
    launcher = Launcher(memory(kernel, entries, [("rows", lambda a: a["x_ptr"].shape[0])]))
    assert not launcher.knows(HALF, 1)
    assert launcher.knows(HALF, 1, scale=1.0)
    assert not launcher.knows(HALF, True)
    assert not launcher.knows(HALF, 1, scale=2.0)
    assert not launcher.knows(torch.empty(5, dtype=torch.float16), 1)


def test_a_pair_sees_only_what_the_launch_passed():
    def optional(x_ptr, n, m):
        pass

    seen = []
    pairs = [("names", lambda a: tuple(sorted(a)) if not seen.append(tuple(a)) else None)]
    table = memory(optional, pairs)
    table.key(HALF, 1)
    assert seen == [("x_ptr", "n")]


def test_the_nearest_values_are_part_of_a_launch():
    launcher = Launcher(memory(kernel, [], ["n"]))
    assert not launcher.knows(HALF, 8)
    assert not launcher.knows(HALF, 9)
    assert launcher.knows(HALF, 8)


def test_the_memory_holds_the_last_4096_shapes():
    table = memory(kernel)
    for n in range(CAPACITY + 10):
        table.remember(table.key(HALF, n), remembered(str(n)))
    assert CAPACITY == 4096 and len(table.launches) == CAPACITY
    assert table.key(HALF, 9) not in table.launches
    assert table.launches[table.key(HALF, 10)].flat == {"word": "10"}
    assert table.launches[table.key(HALF, CAPACITY + 9)].flat == {"word": str(CAPACITY + 9)}


def test_a_device_is_part_of_a_launch_where_devices_differ():
    current = ["gpu 0"]
    launcher = Launcher(memory(kernel, device=lambda: current[0]))
    assert not launcher.knows(HALF, 8)
    current[0] = "gpu 1"
    assert not launcher.knows(HALF, 8)
    assert launcher.knows(HALF, 8)


def test_learning_nothing_new_keeps_the_memory():
    table = memory(kernel)
    learnt = table.learn({"x_ptr": HALF, "n": 8, "bias_ptr": None, "scale": 1.0})
    learnt.remember(learnt.key(HALF, 8), remembered("kept"))
    assert learnt.learn({"x_ptr": FULL, "n": 9, "bias_ptr": None, "scale": 2.0}) is learnt
    both = learnt.learn({"x_ptr": HALF, "n": 8, "bias_ptr": HALF, "scale": 1.0})
    assert both is not learnt and not both.launches
    assert learnt.launches  # a launch that still holds it is not disturbed


def test_threads_may_remember_at_once():
    table = memory(kernel)

    def fill(start: int) -> None:
        for n in range(start, start + 3000):
            table.remember(table.key(HALF, n), remembered("x"))

    threads = [threading.Thread(target=fill, args=(i * 3000,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(table.launches) == CAPACITY


def test_keyword_only_and_variadic_parameters_are_read():
    def variadic(x_ptr, *rest, n):
        pass

    launcher = Launcher(memory(variadic))
    assert not launcher.knows(HALF, 1, 2, n=8)
    assert launcher.knows(HALF, 1, 2, n=8)
    assert not launcher.knows(HALF, 1, 2, n=9)
