"""A Triton GEMV that ships its tuned configs with the package.

`gemv` multiplies a matrix by a vector; `gemv_kernel` is the kernel itself, decorated with
`shipconf.shipped_autotune`. Both load when first used, so that `python -m shipconf_gemv` can
choose Triton's interpreter before Triton is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shipconf_gemv.kernel import gemv, gemv_kernel

__all__ = ["gemv", "gemv_kernel"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shipconf_gemv import kernel

    return getattr(kernel, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
