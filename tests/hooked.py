"""What Triton's hooks are told of the launches of one kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import triton
from triton.runtime.jit import JITFunction


def bytes_written(grid: Any, metadata: Any, args: dict[str, Any]) -> dict[str, Any]:
    """What profilers ask a kernel for: its name and its traffic."""
    return {"name": f"{metadata.name} of {args['BLOCK']}", "bytes": 4 * grid[0]}


@contextmanager
def hooked(jit: JITFunction[Any]) -> Iterator[list[Any]]:
    """A list of what every hook is told in the block, in order."""
    events: list[Any] = []

    def on_compile(name: str) -> Callable[..., None]:
        return lambda repr, fn, **rest: events.append((name, repr, fn.jit_function is jit))

    def on_load(name: str) -> Callable[..., None]:
        return lambda module, function, kernel, group, hash: events.append((name, kernel))

    def on_launch(name: str) -> Callable[..., None]:
        def told(about: Any) -> None:
            fields = about.get()
            events.append((name, fields["name"], fields.get("bytes")))

        return told

    def on_run(*args: Any, **options: Any) -> None:
        events.append(("run", len(args), options))

    with ExitStack() as stack:
        for name in ("jit_cache_hook", "jit_post_compile_hook"):
            stack.enter_context(set_hook(name, on_compile(name)))
        for name in ("kernel_load_start_hook", "kernel_load_end_hook"):  # from Triton 3.5 on
            if hasattr(triton.knobs.runtime, name):
                stack.enter_context(set_hook(name, on_load(name)))
        for name in ("launch_enter_hook", "launch_exit_hook"):
            stack.enter_context(set_hook(name, on_launch(name)))
        jit.add_pre_run_hook(on_run)
        try:
            yield events
        finally:
            jit.pre_run_hooks.remove(on_run)


@contextmanager
def set_hook(name: str, hook: Callable[..., Any]) -> Iterator[None]:
    """The hook as a user sets it: added to a chain where Triton has one."""
    known = getattr(triton.knobs.runtime, name)
    if hasattr(known, "add"):
        known.add(hook)
        try:
            yield
        finally:
            known.remove(hook)
        return
    setattr(triton.knobs.runtime, name, hook)
    try:
        yield
    finally:
        setattr(triton.knobs.runtime, name, known)
