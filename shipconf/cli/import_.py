"""`shipconf import`: files of other tools, to records."""

from __future__ import annotations

import argparse
from typing import Any

from ..export import export
from ..imports import Told, foreign
from ..records import ConfigFile, Device
from ..sources import open_source
from . import tables
from .arguments import add_command, names, pair
from .export import add_placing, finish, open_target

MORE = """Reads flat files (N=4096,K=4096,device_name=NVIDIA_L4.json), as Hugging Face kernels, vLLM
and SGLang ship them, and the *.autotune.json of Triton's cache. What these do not say must be told:
of a flat file the kernel; of Triton's the device, the names in the kernel's key=, and its tensors.
The target is as in `export`: the source folder of the package whose decorator declares the kernel,
or a folder, made if it does not exist, that gets a folder for each kernel, as SHIPCONF_CONFIG_PATH
has them. With --json: what `export --json` prints."""
EXAMPLE = """  shipconf import vllm/model_executor/layers/fused_moe/configs --to ./moe \\
      --kernel fused_moe_kernel --nearest M -k dtype=null
  shipconf import ~/.triton/cache --to ./gemm --kernel gemm_kernel --device "NVIDIA H200" \\
      --arch sm_90 --multiprocessors 132 --keys M,N,K --nearest M --tensors a_ptr,b_ptr,c_ptr"""


def add_to(commands: Any) -> None:
    """Add the command to the parser of `shipconf`."""
    parser = add_command(commands, "import", run, more=MORE, example=EXAMPLE,
                         help="import the files of other tools")  # fmt: skip
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="a folder, a wheel, a package "
                        "by its import name, or one file")  # fmt: skip
    parser.add_argument("--to", required=True, metavar="TARGET", help="where the records go")
    told = parser.add_argument_group("what the files do not say")
    told.add_argument("--kernel", metavar="NAME", help="the kernel; of Triton's files, which name "
                      "theirs, only those of this one are read")  # fmt: skip
    told.add_argument("--as", dest="called", metavar="NAME", help="what the records of Triton's "
                      "files call the kernel, where the decorator gives it a name")  # fmt: skip
    told.add_argument("--nearest", type=names, default=["M"], metavar="NAMES",
                      help="the kernel's nearest entries, separated by commas (M)")  # fmt: skip
    told.add_argument("-k", "--key", action="append", default=[], type=pair, metavar="NAME=VALUE",
                      help="an entry of the key that flat names leave out")  # fmt: skip
    told.add_argument("--keys", type=names, default=[], metavar="NAMES",
                      help="the names in Triton's key=, in order")  # fmt: skip
    told.add_argument("--tensors", type=names, default=[], metavar="NAMES",
                      help="the tensors that the launch passed, in order")  # fmt: skip
    told.add_argument("--device", metavar="NAME", help="the driver's name for the device; of flat "
                      "files, for those of this name only")  # fmt: skip
    told.add_argument("--arch", default="", help="its architecture: sm_90, gfx942")
    told.add_argument("--multiprocessors", type=int, default=0, metavar="N", help="how many it has")
    told.add_argument("--triton", metavar="VERSION", help="the version that tuned")
    add_placing(parser)


def run(chosen: argparse.Namespace) -> int:
    """Import, and tell what was written; returns the exit code."""
    told = Told(
        kernel=chosen.kernel, called=chosen.called, nearest=chosen.nearest, more=dict(chosen.key),
        device=_device(chosen), keys=chosen.keys, tensors=chosen.tensors, triton=chosen.triton,
    )  # fmt: skip
    files: list[tuple[str, ConfigFile]] = []
    faults = []
    for source in map(open_source, chosen.sources):
        found, bad = foreign(source, told)
        files += found
        faults += bad
    tables.say(f"{len(files)} files read")
    report = export(files, open_target(chosen.to, new=True), on_conflict=chosen.on_conflict,
                    source_file=chosen.source_file, dry_run=chosen.dry_run)  # fmt: skip
    report.faults[:0] = faults
    return finish(chosen, report)


def _device(chosen: argparse.Namespace) -> Device | None:
    if chosen.device is None:
        return None
    backend = {"sm": "cuda", "gf": "hip"}.get(chosen.arch[:2], "")
    return Device(backend, chosen.device, chosen.arch, chosen.multiprocessors)
