"""The record of a tuning: the winner, and where it comes from."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from .keys import canonical, storable, to_json
from .plan import Outcome, Plan
from .records import Record


def record(plan: Plan, outcome: Outcome, at: Mapping[str, int], fingerprint: str | None,
           options: Mapping[str, Any]) -> Record:  # fmt: skip
    """The record of a tuning. `options` are launch options that the launch itself passed."""
    import torch

    resources, signature = None, None
    if outcome.compiled is not None:
        resources = resources_of(outcome.compiled)
        signature = _signature(outcome.compiled, options)
    now = datetime.datetime.now(datetime.timezone.utc)
    return Record(
        at=dict(at),
        config=outcome.winner.document,
        time_ms=outcome.timings[outcome.winner].document(),
        default_ms=outcome.default_ms,
        candidates=len(plan.candidates),
        left_out=outcome.left_out,
        rigor=plan.bench.rigor,
        resources=resources,
        signature=signature,
        fingerprint=fingerprint,
        triton=triton_version(),
        torch=torch.__version__,
        tuned_at=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def triton_version() -> str:
    """The version of Triton that compiles here."""
    import triton

    version: str = triton.__version__
    return version


def resources_of(compiled: Any) -> dict[str, int]:
    """Shared bytes, registers a thread and spills of a compiled kernel, as far as it tells."""
    known = {
        "shared": getattr(compiled.metadata, "shared", None),
        "registers": getattr(compiled, "n_regs", None),
        "spills": getattr(compiled, "n_spills", None),
    }
    return {name: value for name, value in known.items() if value is not None}


def _signature(compiled: Any, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """What `ASTSource` and the backend's options were made from, or None if JSON cannot say."""
    source = compiled.src
    values = [canonical(v) for v in [*source.constants.values(), *options.values()]]
    if not all(map(storable, values)):
        return None

    def text(path: Any) -> str:  # parameters are numbered, members of tuples below them
        return ".".join(map(str, path)) if isinstance(path, tuple) else str(path)

    signature: dict[str, Any] = {
        "types": {name: _plain(kind) for name, kind in source.signature.items()},
        "attrs": {text(path): attrs for path, attrs in source.attrs.items() if attrs},
        "constexprs": {text(p): to_json(canonical(v)) for p, v in source.constants.items()},
    }
    if options:
        signature["options"] = {n: to_json(canonical(v)) for n, v in options.items()}
    return signature


def _plain(kind: Any) -> Any:
    return [_plain(member) for member in kind] if isinstance(kind, (tuple, list)) else str(kind)
