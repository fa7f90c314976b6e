"""What runs around each measured call, so that every call starts from the same tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Hooks:
    """What Triton's autotuner does around each measured call, and the check of the result.

    A user's `pre_hook` and `post_hook` replace the resetting and restoring, as in Triton.
    """

    reset_to_zero: Sequence[str] = ()
    restore_value: Sequence[str] = ()
    pre_hook: Callable[..., Any] | None = None
    post_hook: Callable[..., Any] | None = None
    check: Callable[..., Any] | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing at all runs around a measured call."""
        return not (self.reset_to_zero or self.restore_value or self.pre_hook or self.post_hook)

    @contextmanager
    def around(self, named: dict[str, Any]) -> Iterator[None]:
        """One measured call: hooks before, and after it, with its exception if it raises."""
        copies: dict[str, Any] = {}
        if self.pre_hook is not None:
            self.pre_hook(named)
        else:
            for name in _tensors(self.reset_to_zero, named):
                named[name].zero_()
            copies = {n: named[n].clone() for n in _tensors(self.restore_value, named)}
        try:
            yield
        except Exception as error:
            with suppress(Exception):  # the kernel's own error is the one to tell
                self._after(named, copies, error)
            raise
        self._after(named, copies, None)

    def _after(
        self, named: dict[str, Any], copies: dict[str, Any], error: Exception | None
    ) -> None:
        if self.post_hook is not None:
            self.post_hook(named, exception=error)
        else:
            for name, copy in copies.items():
                named[name].copy_(copy)

    @contextmanager
    def preserved(self, named: Mapping[str, Any]) -> Iterator[None]:
        """The whole tuning: the named tensors end as they began, whatever was measured."""
        names = list(_tensors([*self.reset_to_zero, *self.restore_value], named))
        copies = {name: named[name].clone() for name in names}
        try:
            yield
        finally:
            with suppress(Exception):  # after a fatal error nothing can be copied
                for name, copy in copies.items():
                    named[name].copy_(copy)


def _tensors(names: Sequence[str], named: Mapping[str, Any]) -> Iterator[str]:
    return (name for name in names if named.get(name) is not None)
