"""What a kernel's workload returns, and the dtypes that it is called with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .keys import dtype_name


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel: what a workload builds from key and nearest values.

    `grid` is a tuple or a function of the named arguments, as between the brackets of
    `kernel[grid]`; `args` and `kwargs` are the arguments, without the knobs.
    """

    grid: Any
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def torch_dtypes(dtypes: Any) -> Any:
    """The `torch.dtype` of a dtype or its name; a tuple of them for a sequence.

    Raises `AttributeError` for a name that torch does not know.
    """
    import torch

    if isinstance(dtypes, (list, tuple)):
        return tuple(torch_dtypes(dtype) for dtype in dtypes)
    return None if dtypes in (None, "none") else getattr(torch, dtype_name(dtypes))
