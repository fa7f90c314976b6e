"""Run the GEMV once, say which config it used and why, and check the result.

    python -m shipconf_gemv [--n N] [--k K] [--dtype float16|bfloat16]

Without a GPU, or where TRITON_INTERPRET=1, Triton's interpreter runs it, on a small problem.
Exits with 1 where the result is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

import torch  # imports no triton, which reads TRITON_INTERPRET when it is imported

if TYPE_CHECKING:
    from shipconf import Match

SHAPE = {"n": 4096, "k": 4096}
SMALL_SHAPE = {"n": 32, "k": 64}

SOURCES = {
    "path": "from a folder of SHIPCONF_CONFIG_PATH",
    "package": "shipped with the package",
    "user": "from the user store, tuned by an earlier run",
    "tuned": "tuned now",
    "default": "the kernel's default",
}


def main() -> int:
    """Parse the command line, run, and return the exit code."""
    options = _options()
    interpreted = _choose_interpreter()
    defaults = SMALL_SHAPE if interpreted else SHAPE
    n, k = (getattr(options, name) or size for name, size in defaults.items())
    return run(n, k, getattr(torch, options.dtype), interpreted=interpreted)


def run(n: int, k: int, dtype: torch.dtype, *, interpreted: bool) -> int:
    """Multiply a random matrix and vector, print what happened, and return the exit code."""
    # Only now: importing the kernel imports triton.
    from shipconf_gemv.kernel import arguments, gemv, gemv_kernel
    from shipconf_gemv.reference import compare

    torch.set_float32_matmul_precision("highest")
    device = torch.device("cpu") if interpreted else torch.accelerator.current_accelerator()
    w = torch.randn((n, k), device=device, dtype=dtype)
    x = torch.randn((k,), device=device, dtype=dtype)
    print(f"gemv     N={n} K={k} {str(dtype).removeprefix('torch.')}")
    print(f"device   {_device_name(device)}", flush=True)
    out = gemv(w, x)
    _print_match(gemv_kernel.resolve(*arguments(w, x, out)))
    comparison = compare(out, w, x)
    print(f"error    {comparison.relative_error:.2e}, relative to the largest value, ", end="")
    print("within rounding" if comparison.correct else "WRONG")
    return 0 if comparison.correct else 1


def _options() -> argparse.Namespace:
    summary = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m shipconf_gemv", description=summary)
    for name, size in SHAPE.items():
        help_text = f"{size}, or {SMALL_SHAPE[name]} under the interpreter"
        parser.add_argument(f"--{name}", type=positive, help=help_text)
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16")
    return parser.parse_args()


def positive(text: str) -> int:
    """A size of the command line; argparse names this function where the text is no integer."""
    size = int(text)
    if size < 1:
        raise argparse.ArgumentTypeError(f"a size is at least 1, got {size}")
    return size


def _choose_interpreter() -> bool:
    """Whether Triton's interpreter runs the kernel: where asked for, or where there is no GPU."""
    has_gpu = torch.cuda.is_available() or torch.xpu.is_available()
    if not has_gpu and "TRITON_INTERPRET" not in os.environ:
        os.environ["TRITON_INTERPRET"] = "1"
        print("no GPU here: TRITON_INTERPRET=1 is set, so Triton's interpreter runs the kernel")
    interpreted = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")
    if not has_gpu and not interpreted:
        value = os.environ["TRITON_INTERPRET"]
        sys.exit(f"no GPU here, and TRITON_INTERPRET={value} rules out Triton's interpreter")
    return interpreted


def _device_name(device: Any) -> str:
    if device.type == "cpu":
        return "Triton's interpreter"
    return str(torch.get_device_module(device).get_device_name(device))


def _print_match(match: Match | None) -> None:
    if match is None:
        print("config   none is kept: it was tuned for this launch alone")
        return
    knobs = " ".join(f"{name}={value}" for name, value in match.config.items())
    print(f"config   {knobs}")
    why = SOURCES.get(match.source, match.source)
    if match.source == "tuned":
        why += ", and kept in the user store" if match.path else ", and kept nowhere"
    if match.rule == "nearest" and match.record is not None:
        nearest = " ".join(f"{name}={value}" for name, value in match.record.at.items())
        why += f", where the nearest is {nearest}"
    print(f"source   {why}" + (f": {match.path}" if match.path else ""))


if __name__ == "__main__":
    sys.exit(main())
