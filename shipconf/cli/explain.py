"""`shipconf explain module:kernel`: what a launch would use, and why, without launching."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import device as devices
from ..errors import ShipconfError
from ..explain import known_files
from ..keys import canonical, dtypes_text, one_or_each, to_json
from ..records import ConfigFile, Device
from ..targets import load
from . import tables
from .arguments import add_command, pair
from .env import device_document

if TYPE_CHECKING:
    from ..kernel import ShippedKernel

SHAPE = """It imports the kernel, and so torch and triton. With --json: {"kernel", "device",
"values", "dtypes", "match": {"config", "source", "rule", "distance", "at", "path"} or null,
"text"}."""
EXAMPLE = """  shipconf explain shipconf_gemm.kernel:gemm_kernel M=9 N=4096 K=4096 --dtypes float16
  shipconf explain shipconf_gemm.kernel:gemm_kernel M=1 N=4096 K=4096 --device "NVIDIA H200"
      needs no GPU: what it would use there, as far as this machine's files tell"""


def add_to(commands: Any) -> None:
    """Add the command to the parser of `shipconf`."""
    parser = add_command(
        commands, "explain", run, help="explain what a launch would use, and why", more=SHAPE,
        example=EXAMPLE,
    )  # fmt: skip
    parser.add_argument("kernel", help="module:kernel, or file.py:kernel")
    parser.add_argument("values", nargs="*", type=pair, metavar="NAME=VALUE",
                        help="key and nearest values, in JSON or as plain text")  # fmt: skip
    parser.add_argument("--dtypes", help="one dtype, or one for each tensor joined by '-'; if left "
                        "out, those of the stored records where they agree")  # fmt: skip
    parser.add_argument("--device", metavar="NAME", help="as the driver names it, on whatever "
                        "machine; this machine's if left out")  # fmt: skip
    parser.add_argument("--arch", default="", help="of that device, such as sm_90")
    parser.add_argument(
        "--multiprocessors", type=int, default=0, metavar="COUNT", help="how many it has"
    )


def run(chosen: argparse.Namespace) -> int:
    """Print the explanation; returns the exit code."""
    kernel = load_kernel(chosen.kernel)
    files = list(known_files(kernel.subject))
    values = dict(chosen.values)
    asked: dict[str, Any] = {
        "dtypes": _dtypes(chosen, files),
        "device": _device(chosen, files, kernel),
    }
    try:
        match = kernel.resolve_for(**asked, **values)
        text = kernel.explain_for(**asked, **values)
    except (ValueError, TypeError) as error:
        raise ShipconfError(f"{chosen.kernel}: {error}") from error
    if chosen.json:
        tables.document({
            "kernel": kernel.name, "device": device_document(asked["device"]),
            "values": {name: to_json(value) for name, value in values.items()},
            "dtypes": asked["dtypes"], "match": _document(match), "text": text,
        })  # fmt: skip
    else:
        print(text)
    return 0


def load_kernel(target: str) -> ShippedKernel:
    """The kernel that `module:kernel` names. Raises `ShipconfError`."""
    try:
        kernel: ShippedKernel = load(target)
    except ValueError as error:
        raise ShipconfError(str(error)) from error
    return kernel


def _dtypes(chosen: argparse.Namespace, files: list[ConfigFile]) -> str | Sequence[str] | None:
    """The dtypes asked for, else those that all stored files agree on."""
    if chosen.dtypes:
        return chosen.dtypes.split("-") if "-" in chosen.dtypes else str(chosen.dtypes)
    known = {dtypes_text(file.dtypes): file.dtypes for file in files if file.dtypes}
    if len(known) > 1:
        raise ShipconfError(f"say --dtypes; stored are {', '.join(sorted(known))}")
    return next(map(one_or_each, known.values()), None)


def _device(
    chosen: argparse.Namespace, files: list[ConfigFile], kernel: ShippedKernel
) -> Device:  # fmt: skip
    """The device of that name, as the stored files know it and the arguments say."""
    if not chosen.device:
        try:
            return devices.current(kernel.fn)
        except RuntimeError as error:  # Triton's, where no driver is active
            raise ShipconfError(f"{error}: name a device with --device") from error
    arch, count = chosen.arch, chosen.multiprocessors
    known = {file.device for file in files if file.device.name == chosen.device}
    fitting = [
        device for device in known
        if arch in ("", device.arch) and count in (0, device.multiprocessors)
    ]  # fmt: skip
    if len(fitting) > 1:
        raise ShipconfError(
            f"say --arch and --multiprocessors; stored are {'; '.join(sorted(map(str, fitting)))}"
        )
    if fitting and fitting[0].arch:
        return fitting[0]
    if not arch:
        tables.say(f"no stored file tells the architecture of {chosen.device}: add --arch")
    return Device("hip" if arch.startswith("gfx") else "cuda", chosen.device, arch, count)


def _document(match: Any) -> dict[str, Any] | None:
    if match is None:
        return None
    return {
        "config": {name: to_json(canonical(value)) for name, value in match.config.items()},
        "source": match.source, "rule": match.rule, "distance": match.distance,
        "at": dict(match.record.at) if match.record else None,
        "path": str(match.path) if match.path else None,
    }  # fmt: skip
