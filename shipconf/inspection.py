"""Records held against the kernel itself: its knobs, its fingerprint, its version of Triton."""

from __future__ import annotations

import posixpath
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .declared import Declared, load
from .device import foreign_options
from .errors import ShipconfError
from .inventory import Fault
from .reach import Placed
from .records import Device
from .sources import Folder, Source

if TYPE_CHECKING:
    from .kernel import ShippedKernel

Live = Mapping[Declared, "ShippedKernel"]


@contextmanager
def imported(source: Source, kernels: Sequence[Declared]) -> Iterator[tuple[Live, list[Fault]]]:
    """The kernels, imported, and torch and triton with them; and what went wrong.

    The Python files of a wheel are unpacked into a temporary folder for as long as the block.
    """
    with tempfile.TemporaryDirectory(prefix="shipconf-") as folder:
        where = source
        if not isinstance(source, Folder):
            where = _unpacked(source, Path(folder))
        live: dict[Declared, ShippedKernel] = {}
        faults: list[Fault] = []
        for kernel in kernels:
            try:
                live[kernel] = load(where, kernel)
            except ShipconfError as error:
                path = posixpath.join(str(source.root), kernel.source_file)
                faults.append(Fault(path, kernel.name, f"{error}: its records are not checked"))
        yield live, faults


def _unpacked(source: Source, folder: Path) -> Folder:
    for name in source.names:
        if name.endswith(".py"):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(source.read(name))
    return Folder("folder", folder)


def unfit(placed: Placed, kernel: ShippedKernel) -> Iterator[Fault]:
    """The records that no launch of the kernel takes, each with the reason."""
    for index, record in enumerate(placed.held.file.records):
        if why := misfit(record.config, placed, kernel):
            yield Fault(placed.path, f"{placed.where(index)}.config", why)


def misfit(config: Mapping[str, Any], placed: Placed, kernel: ShippedKernel) -> str:
    """Why no launch of the kernel takes the config on the file's device, or ""."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of options of other backends, which are left out
            kernel.resolver.knobs.accept(config, frozenset(), device_of(placed))
    except ValueError as error:  # UnfitError, of shipconf or of a vendored module
        return str(error)
    return ""


def stale(placed: Placed, kernel: ShippedKernel) -> Iterator[Fault]:
    """The records that were tuned for another version of the kernel's source."""
    current = kernel.subject.fingerprint
    for index, record in enumerate(placed.held.file.records):
        if record.fingerprint not in (None, current):
            what = f"is stale: {record.fingerprint} was tuned, and the kernel is {current} now"
            yield Fault(placed.path, f"{placed.where(index)}.fingerprint", what)


def remarks(placed: Placed, kernel: ShippedKernel) -> Iterator[Fault]:
    """What is no fault, and good to know: one line for a file."""
    import triton

    records = placed.held.file.records
    unmarked = sum(record.fingerprint is None for record in records)
    if unmarked:
        what = f"{unmarked} of {len(records)} records name no fingerprint: they may be stale"
        yield Fault(placed.path, "", what)
    versions = sorted(
        {str(r.triton) for r in records if r.triton not in (None, triton.__version__)}
    )
    if versions:
        what = f"tuned with Triton {', '.join(versions)}; this is {triton.__version__}"
        yield Fault(placed.path, "", what)
    foreign = foreign_options(device_of(placed).backend) - kernel.resolver.knobs.parameters.keys()
    left_out = sorted({knob for record in records for knob in record.config if knob in foreign})
    if left_out:
        yield Fault(placed.path, "", f"{', '.join(left_out)}: left out, of another backend")


def device_of(placed: Placed) -> Device:
    """The file's device, with the backend that its name tells where the file does not."""
    device = placed.held.file.device
    return device if device.backend else replace(device, backend=_backend(device))


def _backend(device: Device) -> str:
    if device.arch.startswith("gfx") or device.name.startswith("AMD"):
        return "hip"
    return "xpu" if device.name.startswith("Intel") else "cuda"
