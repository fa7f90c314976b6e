"""A Triton GEMM that ships its tuned configs with the package.

`gemm` multiplies two matrices; `gemm_kernel` is the kernel itself, decorated with
`shipconf.shipped_autotune`. Both load when first used, so that `python -m shipconf_gemm` can
choose Triton's interpreter before Triton is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shipconf_gemm.kernel import gemm, gemm_kernel

__all__ = ["gemm", "gemm_kernel"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shipconf_gemm import kernel

    return getattr(kernel, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
