"""Records compiled again from their signature, for their own device, with no GPU present."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ShipconfError
from .inspection import device_of
from .inventory import Fault
from .keys import Dtype, dtype_name, from_json
from .reach import Placed
from .records import OPTIONS, Device, Record

if TYPE_CHECKING:
    from .kernel import ShippedKernel

# Bytes of shared memory that a block may opt in to, for devices whose files do not say it.
SHARED_MEMORY = {
    "sm_75": 65536, "sm_80": 166912, "sm_86": 101376, "sm_87": 166912, "sm_89": 101376,
    "sm_90": 232448, "sm_100": 232448, "sm_103": 232448, "sm_120": 101376, "sm_121": 101376,
    "gfx90a": 65536, "gfx942": 65536, "gfx950": 163840, "gfx1100": 65536, "gfx1201": 65536,
}  # fmt: skip
_WIDE = re.compile(r"gfx9")  # AMD's GPUs with 64 threads in a wave


@dataclass(frozen=True)
class Compiled:
    """What compiling one record gave: bytes of shared memory and their limit (0: unknown),
    registers a thread, and spilled 32-bit registers; None where no tool tells."""

    path: str
    where: str
    shared: int
    limit: int
    registers: int | None
    spills: int | None


@dataclass
class Outcome:
    """All compiled records, the faults, and what could not be compiled for lack of a signature."""

    compiled: list[Compiled]
    faults: list[Fault]
    notes: list[Fault]


def recompile(pairs: Sequence[tuple[Placed, ShippedKernel]]) -> Outcome:
    """Compile every record that carries its signature, in threads: Triton's compiler lets them.

    Raises `ShipconfError` under the interpreter, where kernels have no compiler.
    """
    outcome = Outcome([], [], [])
    work = list(_work(pairs, outcome))
    # A failing ptxas makes Triton print the whole assembly.
    with contextlib.redirect_stdout(io.StringIO()), ThreadPoolExecutor(os.cpu_count()) as pool:
        for one, result in zip(work, pool.map(lambda one: _compile(*one), work)):
            placed, index, *_ = one
            if isinstance(result, str):
                outcome.faults.append(Fault(placed.path, placed.where(index), result))
            else:
                _judge(result, placed.held.file.records[index], outcome)
    return outcome


def _work(
    pairs: Sequence[tuple[Placed, ShippedKernel]], outcome: Outcome
) -> Iterator[tuple[Placed, int, Any, Device]]:
    for placed, kernel in pairs:
        jit = kernel.fn
        while type(jit).__name__ != "JITFunction":
            if not hasattr(jit, "fn"):
                raise ShipconfError("kernels are interpreted here: unset TRITON_INTERPRET")
            jit = jit.fn
        device = device_of(placed)
        without = 0
        for index, record in enumerate(placed.held.file.records):
            if record.signature is None:
                without += 1
            elif device.backend == "interpreter" or not device.arch:
                what = f"not compiled: {device} has no architecture"
                outcome.notes.append(Fault(placed.path, placed.where(index), what))
            else:
                yield placed, index, jit, device
        if without:
            what = f"{without} of {len(placed.held.file.records)} records carry no signature"
            outcome.notes.append(Fault(placed.path, "", f"{what}: not compiled"))


def _compile(placed: Placed, index: int, jit: Any, device: Device) -> Compiled | str:
    """The result for one record, or why it does not compile."""
    record = placed.held.file.records[index]
    try:
        compiled = compile_record(record, jit, device)
    except Exception as error:  # Triton fails in many ways, and all of them are the record's
        return f"does not compile for {device.arch}: {type(error).__name__}: {_reason(error)}"
    registers, spills = _registers(compiled.asm)
    limit = device.shared_memory or SHARED_MEMORY.get(device.arch, 0)
    shared = int(compiled.metadata.shared)
    return Compiled(placed.path, placed.where(index), shared, limit, registers, spills)


def _reason(error: Exception) -> str:
    """The line that says why: the assembler's first error, else the last line of the message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    errors = [line for line in lines if re.match(r"ptxas\S* .*(error|fatal)", line)]
    return (errors or lines[-1:])[0]


def compile_record(record: Record, jit: Any, device: Device) -> Any:
    """Triton's `CompiledKernel` of a record's launch, for any device that Triton compiles for.

    Raises `ShipconfError` for a signature that it cannot read, and whatever Triton raises.
    """
    import triton
    from triton.compiler import ASTSource

    signature = record.signature or {}
    try:
        types = {str(name): _kind(kind) for name, kind in signature["types"].items()}
        constexprs = {_place(p): _constexpr(v) for p, v in signature["constexprs"].items()}
        attrs = {_place(p): given for p, given in signature.get("attrs", {}).items()}
        passed = {n: _constexpr(v) for n, v in signature.get("options", {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ShipconfError(f"its signature cannot be read: {error!r}") from error
    knobs = {name: _constexpr(value) for name, value in record.config.items()}
    # The config is what launches: it counts where someone changed it by hand.
    constexprs |= {(i,): knobs[name] for i, name in enumerate(types) if name in knobs}
    options = {n: v for n, v in {**knobs, **passed}.items() if n in OPTIONS or n not in types}
    source = ASTSource(jit, types, constexprs, attrs)
    return triton.compile(source, target=_target(device), options=options)


def _constexpr(document: Any) -> Any:
    """The value of a constexpr as the compiler takes it: a dtype is Triton's."""
    value = from_json(document)
    if isinstance(value, tuple):
        return tuple(map(_constexpr, document["tuple"]))
    if not isinstance(value, Dtype):
        return value
    import triton.language as tl

    found = (
        t for t in vars(tl).values() if isinstance(t, tl.dtype) and dtype_name(t) == value.name
    )
    return next(found, value.name)


def _place(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _kind(kind: Any) -> Any:
    return tuple(map(_kind, kind)) if isinstance(kind, list) else kind


def _target(device: Device) -> Any:
    from triton.backends.compiler import GPUTarget

    if device.backend == "hip":
        return GPUTarget("hip", device.arch, 64 if _WIDE.match(device.arch) else 32)
    number = re.fullmatch(r"sm_(\d+)[a-z]?", device.arch)
    if device.backend != "cuda" or number is None:
        raise ShipconfError(f"Triton cannot compile for {device} from here")
    return GPUTarget("cuda", int(number[1]), 32)


def _judge(result: Compiled, record: Record, outcome: Outcome) -> None:
    """Hold the result against the device's limit and against what the record says."""
    outcome.compiled.append(result)
    if result.limit and result.shared > result.limit:
        what = f"needs {result.shared} bytes of shared memory, and the device has {result.limit}"
        outcome.faults.append(Fault(result.path, result.where, what))
    said = (record.resources or {}).get("spills")
    if result.spills:
        words = f", and the record says {said}" if said not in (None, result.spills) else ""
        what = f"spills {result.spills} registers{words}"
        outcome.notes.append(Fault(result.path, result.where, what))


def _registers(asm: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Registers a thread and spilled ones, from the binary or the assembly."""
    if "cubin" in asm:
        usage = _cubin_usage(asm["cubin"])
        found = re.search(r"REG:(\d+).*?STACK:(\d+)", usage)
        # The driver counts as spills what the stack holds, in words of four bytes.
        return (int(found[1]), int(found[2]) // 4) if found else (None, None)
    text = asm.get("amdgcn", "")
    spills = [int(n) for n in re.findall(r"\.vgpr_spill_count:\s*(\d+)", text)]
    counts = [int(n) for n in re.findall(r"\.vgpr_count:\s*(\d+)", text)]
    return (counts[0] if counts else None, spills[0] if spills else None)


def _cubin_usage(cubin: bytes) -> str:
    """What `cuobjdump`, which comes with Triton, says of a binary; "" where it is missing."""
    import triton.backends

    tool = Path(str(triton.backends.__file__)).parent / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            done = subprocess.run(
                [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            return ""
    return done.stdout + done.stderr
