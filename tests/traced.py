"""Graphs of torch.compile on a machine without a GPU: traced as for one, run by the interpreter.

Dynamo and AOT see real `JITFunction`s and the driver of an H200 that is not there. Where a graph
launches a kernel, the backend here has Triton's interpreter run it with the graph's config.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch._dynamo
import torch._functorch.aot_autograd
import torch.utils._triton
import triton
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._higher_order_ops.triton_kernel_wrap import (
    kernel_side_table,
    triton_kernel_wrapper_functional,
    triton_kernel_wrapper_mutation,
)
from triton.backends.compiler import GPUTarget
from triton.runtime.autotuner import Autotuner
from triton.runtime.driver import driver
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from shipconf import device as devices

H200 = {"backend": "cuda", "name": "NVIDIA H200", "arch": "sm_90", "multiprocessors": 132}
H200_FILE = "N={N},dtypes=int32,device_name=NVIDIA_H200,arch=sm_90,mp=132.json"


class Driver:
    """As much of Triton's driver as is asked for before a launch; no launch is possible."""

    def get_current_device(self) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def properties(index: int) -> SimpleNamespace:
    return SimpleNamespace(
        name="NVIDIA H200", multi_processor_count=132, shared_memory_per_block_optin=232448,
        major=9, minor=0,
    )  # fmt: skip


class Launching(Driver):
    """Loads and launches nothing, and calls the launch's hooks as Triton's launcher does."""

    def __init__(self) -> None:
        self.utils = SimpleNamespace(
            get_device_properties=lambda index: {"max_shared_mem": 232448},
            load_binary=lambda *args: ("module", 1, 0, 0, 1024),
            unload_module=lambda module: None,
        )

    def get_current_stream(self, device: int) -> int:
        return 0

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        def launch(
            x: int, y: int, z: int, stream: int, function: int, packed: Any, about: Any,
            enter: Any, leave: Any, *args: Any,
        ) -> None:  # fmt: skip
            for hook in (enter, leave):
                if hook is not None:
                    hook(about)

        return launch


@contextmanager
def h200(stand_in: Driver | None = None) -> Iterator[None]:
    """An H200 in the eyes of Triton, Dynamo and shipconf."""
    devices._physical.cache_clear()
    torch._dynamo.reset()
    before = dict(vars(driver))
    driver.set_active(stand_in or Driver())  # type: ignore[arg-type]
    with (
        mock.patch.object(torch.cuda, "get_device_properties", properties),
        mock.patch.object(torch.utils._triton, "has_triton", lambda: True),
    ):
        try:
            yield
        finally:
            vars(driver).update(before)  # to reset it asks for a real one
            torch._dynamo.reset()
            devices._physical.cache_clear()


def compiled(fn: Any) -> JITFunction[Any]:
    """The kernel as it is outside Triton's interpreter."""
    return JITFunction(fn.fn)


class Graphs:
    """A backend that keeps what it is given, and what each run of a graph launched."""

    def __init__(self, *, aot: bool = False) -> None:
        self.traced: list[torch.fx.GraphModule] = []
        self.launched: list[dict[str, Any]] = []
        self._backend: Callable[..., Any] = self._keep
        if aot:
            self._backend = aot_autograd(
                fw_compiler=lambda graph, inputs: make_boxed_func(self._keep(graph, inputs))
            )

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return self._backend(graph, inputs)

    def compile(self, function: Any, dynamic: bool | None = None) -> Any:
        return torch.compile(function, backend=self, fullgraph=True, dynamic=dynamic)

    def configs(self) -> list[dict[str, Any]]:
        """The config of each launch in the graphs, in order."""
        return [
            _config(node.kwargs["kernel_idx"])
            for graph in self.traced for node in graph.graph.nodes
            if node.target in (self._mutating, self._functional)
        ]  # fmt: skip

    def _keep(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        self.traced.append(graph)
        return self.runnable(graph)

    def runnable(self, graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
        """The graph with its launches handed to the interpreter."""
        for node in graph.graph.nodes:
            if node.target is triton_kernel_wrapper_mutation:
                node.target = self._mutating
            elif node.target is triton_kernel_wrapper_functional:
                node.target = self._functional
        graph.recompile()
        return graph

    def _mutating(
        self, *, kernel_idx: int, constant_args_idx: int, grid: Any, kwargs: dict[str, Any],
        tma_descriptor_metadata: Any,
    ) -> None:  # fmt: skip
        (shape,) = grid
        arguments = {**kernel_side_table.get_constant_args(constant_args_idx), **kwargs}
        config = _config(kernel_idx)
        self.launched.append(config)
        jit = kernel_side_table.get_kernel(kernel_idx).fn
        InterpretedFunction(jit.fn).run(**arguments, **config, grid=shape, warmup=False)

    def _functional(self, *, kwargs: dict[str, Any], tensors_to_clone: Any, **rest: Any) -> Any:
        kwargs = {n: v.clone() if n in tensors_to_clone else v for n, v in kwargs.items()}
        self._mutating(kwargs=kwargs, **rest)
        return {name: kwargs[name] for name in tensors_to_clone}


def _config(kernel_idx: int) -> dict[str, Any]:
    """The one config that the graph's kernel has: several would be tuned."""
    kernel = kernel_side_table.get_kernel(kernel_idx)
    assert isinstance(kernel, Autotuner) and isinstance(kernel.fn, JITFunction)
    (config,) = kernel.configs
    found: dict[str, Any] = config.all_kwargs()
    return found


def cdiv_grid(size: int) -> Any:
    return lambda named: (triton.cdiv(size, named["BLOCK"]),)
