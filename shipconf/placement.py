"""Copies of a launch's tensors at other addresses.

How fast a kernel reads memory depends on where its tensors happen to lie: on an H200 the ratio
of two GEMV configs differed by up to 3 % between copies of the same tensors, and repeated within
0.1 % for each of them. A winner found at one address may lose in the next process.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

log = logging.getLogger("shipconf.placement")

MOST_COPIES = 16
SHARE = 0.1  # of the free memory, for all copies


@dataclass(frozen=True, eq=False)
class Arguments:
    """What a launch passes: as it was called, and by name with what the hooks see besides."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    named: Mapping[str, Any]


def copies(arguments: Arguments) -> list[Arguments]:
    """Up to 16 copies, in a tenth of the device's free memory; none where a copy is not safe.

    Tensors that share memory share it in a copy too. Only plain tensors are copied: what else
    holds an address (a descriptor, a tuple of tensors) forbids it.
    """
    import torch

    values = list(arguments.named.values())
    tensors = [value for value in values if type(value) in (torch.Tensor, torch.nn.Parameter)]
    if not tensors or not all(t.is_cuda for t in tensors) or any(map(_holds_address, values)):
        return []
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}
    size = sum(storage.nbytes() for storage in storages.values())
    free, _ = torch.cuda.mem_get_info()
    count = min(MOST_COPIES, int(SHARE * free / max(size, 1)))
    return list(_copied(arguments, tensors, storages, count))


def _copied(
    arguments: Arguments, tensors: list[Any], storages: dict[int, Any], count: int
) -> Iterator[Arguments]:
    import torch

    for _ in range(count):
        try:
            memory = {address: storage.clone() for address, storage in storages.items()}
        except torch.cuda.OutOfMemoryError as error:
            log.debug("no further copy: %s", error)
            return
        moved = {
            id(t): t.detach().new_empty(0).set_(
                memory[t.untyped_storage().data_ptr()], t.storage_offset(), t.shape, t.stride()
            )
            for t in tensors
        }  # fmt: skip
        yield Arguments(
            tuple(moved.get(id(value), value) for value in arguments.args),
            {name: moved.get(id(value), value) for name, value in arguments.kwargs.items()},
            {name: moved.get(id(value), value) for name, value in arguments.named.items()},
        )


def _holds_address(value: Any) -> bool:
    import torch

    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return False
    # NumPy's scalars have a base too, which is None.
    return (
        isinstance(value, (tuple, list))
        or hasattr(value, "data_ptr")
        or getattr(value, "base", None) is not None
    )


def release() -> None:
    """Give the memory of copies that are gone back to the device."""
    import torch

    torch.cuda.empty_cache()
