"""The first step of a library's kernels that know nothing of shipconf, run unchanged, on a GPU.

    pip install fla-core==0.6.0 einops
    python benchmarks/adopted.py [--json FILE] [--plot FILE]

`shipconf run --adopt fla` runs flash-linear-attention (batch 2, 2,048 tokens, 8 heads of 128,
bfloat16): the gated delta rule forward, the delta rule and gated linear attention forward and
backward. First from nothing; then, with empty caches and offline, with the records exported into
a copy of the package; then once more with everything cached. Outputs are compared bit for bit
between the three, and with the package's own loops in float32.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from report import add_output_options, keep, print_versions, require_gpu, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCH, TOKENS, HEADS, WIDTH = 2, 2048, 8, 128
# Seconds of Triton's own autotuner from nothing to the end of each step, on an H200.
TRITON_S = {"gated delta rule, forward": 33.6, "delta rule": 109.4, "gated linear attention": 272.6}

# --- in the parent ----------------------------------------------------------------------------


def main() -> None:
    """Run the three processes, and print the table."""
    options = _options()
    require_gpu()
    if options.child:
        _child(Path(options.child))
        return
    print_versions()
    found: dict[str, Any] = {"triton_s": TRITON_S, "steps": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy = folder / "package" / "fla"
        shutil.copytree(_package(), copy)
        ways = {
            "from nothing": {},
            "exported, offline": {
                "PYTHONPATH": f"{copy.parent}:{os.environ.get('PYTHONPATH', '')}",
                "SHIPCONF_CACHE_DIR": f"{folder}/no store", "SHIPCONF_OFFLINE": "strict",
                "TRITON_CACHE_DIR": f"{folder}/no cache",
            },
            "everything cached": {},
        }  # fmt: skip
        for index, (way, environment) in enumerate(ways.items()):
            found["steps"][way] = _run(folder, index, environment)
            if way == "from nothing":
                found["export_s"] = _export(folder, copy)
            keep(options, "adopted", found, finished=False)
            print(f"\n{way}\n\n{render(found['steps'][way])}", flush=True)
        found["outputs"] = _compared(folder)
        print(f"\n{render_outputs(found['outputs'])}")
        keep(options, "adopted", found)


def _package() -> Path:
    spec = find_spec("fla")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("fla is not installed: pip install fla-core==0.6.0 einops")
    return Path(spec.submodule_search_locations[0])


def _run(folder: Path, index: int, environment: dict[str, str]) -> Any:
    own = {
        **os.environ, "SHIPCONF_CACHE_DIR": f"{folder}/store",
        "TRITON_CACHE_DIR": f"{folder}/cache", **environment,
    }  # fmt: skip
    command = [sys.executable, "-m", "shipconf", "run", "--adopt", "fla", "--", __file__,
               "--child", f"{folder}/{index}"]  # fmt: skip
    subprocess.run(command, env=own, check=True)
    return json.loads(Path(f"{folder}/{index}.json").read_text(encoding="utf-8"))


def _export(folder: Path, target: Path) -> float:
    start = time.perf_counter()
    command = [sys.executable, "-m", "shipconf", "export", str(target)]
    environment = {**os.environ, "SHIPCONF_CACHE_DIR": f"{folder}/store"}
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def render(steps: dict[str, dict[str, float]]) -> str:
    header = ["step", "s", "Triton's autotuner from nothing / ours", "tunings", "compiling, s",
              "measuring, s", "the rest, s"]  # fmt: skip
    total = {key: sum(step[key] for step in steps.values()) for key in next(iter(steps.values()))}
    rows = []
    for name, step in {**steps, "all": total}.items():
        triton_s = TRITON_S.get(name, sum(TRITON_S.values()))
        rest = step["s"] - step["compile_s"] - step["measure_s"]
        rows.append([
            name, f"{step['s']:.2f}", f"{triton_s / step['s']:.1f}", f"{step['tunings']:.0f}",
            f"{step['compile_s']:.2f}", f"{step['measure_s']:.2f}", f"{rest:.2f}",
        ])  # fmt: skip
    return table(header, rows)


def _compared(folder: Path) -> list[dict[str, Any]]:
    import torch

    first, *others = (torch.load(f"{folder}/{index}.pt") for index in range(3))
    return [
        {
            "output": name, "error": error,
            "equal": all(torch.equal(tensor, other[name][0]) for other in others),
        }
        for name, (tensor, error) in first.items()
    ]  # fmt: skip


def render_outputs(outputs: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [found["output"], f"{found['error']:.4f}", "yes" if found["equal"] else "NO"]
        for found in outputs
    ]
    header = ["output", "error against float32", "equal in all three processes"]
    return table(header, rows)


def draw(figure: Figure, results: Mapping[str, Any]) -> None:
    """Seconds of each step by Triton's own autotuner and in the three processes."""
    import plot

    steps = list(results["triton_s"])
    series = {"Triton's autotuner, from nothing": list(results["triton_s"].values())}
    for way, found in results["steps"].items():
        series[f"shipconf, {way}"] = [found[step]["s"] for step in steps]
    figure.set_size_inches(8.5, 4.6)
    axes = figure.subplots()
    plot.bars(axes, [step.replace(", ", ",\n") for step in steps], series, "{:.3g}",
              (plot.ORANGE, plot.BLUE, plot.GREEN, plot.PINK))  # fmt: skip
    axes.set_xscale("log")
    plot.plain_numbers(axes)
    axes.set_xlabel("seconds to the end of the step (logarithmic)")
    plot.legend_above(figure, axes)


# --- in a child -------------------------------------------------------------------------------


def _child(path: Path) -> None:
    import torch

    clock = _Clock(tunes=path.name == "0")
    torch.manual_seed(0)
    steps = {}
    outputs: dict[str, tuple[torch.Tensor, float]] = {}
    for name, (fast, slow, tensors) in _steps().items():
        torch.cuda.synchronize()
        before = clock.seconds()
        start = time.perf_counter()
        tensors_of = _with_gradients(fast, tensors, backward="forward" not in name)
        torch.cuda.synchronize()
        took = time.perf_counter() - start
        steps[name] = {
            "s": took,
            **{key: value - before[key] for key, value in clock.seconds().items()},
        }
        exact = {}
        if path.name == "0":  # the others are to have the same
            exact = _with_gradients(slow, tensors, backward="forward" not in name)
        for output, tensor in tensors_of.items():
            error = _error(tensor, exact[output]) if exact else 0.0
            outputs[f"{name}: {output}"] = tensor.cpu(), error
    path.with_suffix(".json").write_text(json.dumps(steps), encoding="utf-8")
    torch.save(outputs, path.with_suffix(".pt"))


def _error(tensor: Any, exact: Any) -> float:
    return float((tensor - exact).norm() / exact.norm())


class _Clock(logging.Handler):
    """Seconds in tunings; and in Triton's compiler, where nothing is tuned.

    A tuning compiles in other processes only where nobody listens to the compiler.
    """

    def __init__(self, *, tunes: bool) -> None:
        from triton import knobs

        super().__init__()
        self.tuned: list[tuple[float, float]] = []  # seconds, those of them compiling
        self.compiled_s = 0.0
        logger = logging.getLogger("shipconf.tuner")
        logger.setLevel(logging.INFO)
        logger.addHandler(self)
        if not tunes:
            knobs.compilation.listener = self._compiled

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("tuned "):
            self.tuned.append(record.args[3:5])  # type: ignore[index,arg-type]

    def _compiled(self, *, times: Any, **_: Any) -> None:
        self.compiled_s += times.total / 1e6

    def seconds(self) -> dict[str, float]:
        """So far. A tuning compiles much at once: its seconds count, not those of each."""
        within = sum(compiling for _, compiling in self.tuned)
        measuring = sum(whole - compiling for whole, compiling in self.tuned)
        compiling = within if self.tuned else self.compiled_s
        return {"tunings": len(self.tuned), "compile_s": compiling, "measure_s": measuring}


def _steps() -> dict[str, tuple[Callable[..., Any], Callable[..., Any], dict[str, Any]]]:
    """By name: the step, the same by the package's own loop, and the tensors of both."""
    import torch
    import torch.nn.functional as F  # noqa: N812
    from fla.ops.delta_rule import chunk_delta_rule
    from fla.ops.delta_rule.naive import delta_rule_recurrence
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
    from fla.ops.gla import chunk_gla
    from fla.ops.gla.naive import naive_recurrent_gla

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda")

    rows = (BATCH, TOKENS, HEADS)
    q, k, v, gate = (random(*rows, WIDTH) for _ in range(4))
    k = F.normalize(k, dim=-1)
    beta, decay = torch.sigmoid(random(*rows)), F.logsigmoid(random(*rows))
    tensors = {name: tensor.bfloat16() for name, tensor in
               {"q": q, "k": k, "v": v, "beta": beta}.items()}  # fmt: skip
    gates = F.logsigmoid(gate).bfloat16()

    def delta_by_loop(q: Any, k: Any, v: Any, beta: Any) -> Any:
        heads_first = [tensor.transpose(1, 2) for tensor in (q, k, v, beta)]
        return delta_rule_recurrence(*heads_first)[0].transpose(1, 2)

    return {
        "gated delta rule, forward": (
            lambda q, k, v, beta, g: chunk_gated_delta_rule(q, k, v, g, beta)[0],
            lambda q, k, v, beta, g: naive_recurrent_gated_delta_rule(q, k, v, beta, g)[0],
            {**tensors, "g": decay},
        ),
        "delta rule": (
            lambda q, k, v, beta: chunk_delta_rule(q, k, v, beta)[0], delta_by_loop, tensors,
        ),
        "gated linear attention": (
            lambda q, k, v, g: chunk_gla(q, k, v, g)[0],
            lambda q, k, v, g: naive_recurrent_gla(q, k, v, g)[0],
            {"q": tensors["q"], "k": tensors["k"], "v": tensors["v"], "g": gates},
        ),
    }  # fmt: skip


def _with_gradients(step: Callable[..., Any], tensors: dict[str, Any], *, backward: bool) -> Any:
    """The output in float32 and, with `backward`, the gradients."""
    import torch

    given = {
        name: tensor.detach().clone().requires_grad_(backward) for name, tensor in tensors.items()
    }
    with torch.set_grad_enabled(backward):
        out = step(**given)
    found = {"out": out.detach().float()}
    if backward:
        out.backward(torch.ones_like(out))
        found |= {f"gradient of {name}": t.grad.float() for name, t in given.items()}
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_output_options(parser)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
