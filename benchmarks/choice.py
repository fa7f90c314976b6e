"""What a choice between tuned points loses: nearest, predicted, and the best there is.

    python benchmarks/choice.py TABLE.json [--no-cost] [--json FILE] [--plot FILE]

The table is a GEMM, measured at many values of M with every candidate:
{"configs": [{"BLOCK_M", "BLOCK_N", …}], "resources": [{"shared", "regs", "warps"} or null],
"times": {"N,K,M": {"config": ms} or [ms]}, "sms": multiprocessors}. Some of its M count as tuned,
the others are launched, and times are those of the table: it needs no GPU. Left one out, all M but
one count as tuned, and that one is launched, each in turn. The table does not say
what a multiprocessor holds: it is that of an H200 unless `--arch` and `--shared-memory` do.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import statistics
import time
import timeit
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import triton
from report import add_output_options, keep, table

from shipconf import quality
from shipconf.choice import MIDDLE, Predictor
from shipconf.configs import Knobs, to_triton
from shipconf.cover import fewest
from shipconf.foresight import Foresight
from shipconf.keys import Key
from shipconf.portfolio import Portfolio, Row, usable
from shipconf.quality import Loss, Summary, fastest, summary
from shipconf.records import Device
from shipconf.resolver import Query
from shipconf.stores import Shelf, Tabled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OCTAVES = [2**i for i in range(14)]
SPARSE = [1, 16, 64, 256, 1024, 4096]
BETWEEN = [1, 3, 6, 12, 24, 48, 96, 192, 384, 768, 1536, 3000, 6000]
HALVES = [1, 4, 16, 64, 160, 256, 640, 1000, 1792, 4096, 8192]
WITHIN = {"winners": None, "within 3 %": 0.03}  # which of the winners a file keeps
SHARES = [i / 10 for i in range(11)]  # what cross-validation chooses from


@dataclass(frozen=True)
class Table:
    """All candidates of one (N, K), measured at every M: a portfolio of too many configs."""

    name: str
    measured: Portfolio
    device: Device

    def best_ms(self, row: Row) -> float:
        """The fastest time of all candidates at a point."""
        best = row.time_ms[fastest(row.time_ms)]
        assert best is not None
        return best

    def tuned(self, points: Sequence[int], within: float | None) -> Table:
        """The portfolio that a tuning at these M would keep, still with a row for every M.

        With `within` the fewest winners that lose no more at a tuned point, else all winners.
        """
        rows = [row for row in self.measured.rows if row.at["M"] in points]
        winners = sorted({fastest(row.time_ms) for row in rows})
        if within is not None:
            times = [[row.time_ms[i] for i in winners] for row in rows]
            winners = [winners[i] for i in fewest(times, within=within)]
        return Table(self.name, self.measured.only(winners), self.device)


def read(path: Path, arch: str, shared_memory: int) -> list[Table]:
    """The tables of the file, one for each (N, K)."""
    document = json.loads(path.read_text(encoding="utf-8"))
    device = Device("cuda", path.stem, arch, document["sms"], shared_memory)
    points: dict[tuple[int, int], dict[int, Any]] = {}
    for name, times in document["times"].items():
        n, k, m = map(int, name.split(","))
        points.setdefault((n, k), {})[m] = times
    runs = [i for i, resources in enumerate(document["resources"]) if resources is not None]
    configs = [document["configs"][i] for i in runs]
    resources = [
        {"shared": r["shared"], "registers": r["regs"], "warps": r["warps"]}
        for r in (document["resources"][i] for i in runs)
    ]
    return [
        Table(
            f"N={n}, K={k}",
            Portfolio(
                configs=tuple(configs),
                resources=tuple(resources),
                rows=tuple(
                    Row(
                        at={"M": m},
                        time_ms=tuple(_time(times, i) for i in runs),
                        programs=tuple(_programs(config, m, n) for config in configs),
                    )
                    for m, times in sorted(rows.items())
                ),
            ),
            device,
        )
        for (n, k), rows in points.items()
    ]


def _time(times: Any, index: int) -> float | None:
    if isinstance(times, Mapping):
        return times.get(str(index))
    time_ms: float | None = times[index]
    return time_ms


def _programs(config: Mapping[str, int], m: int, n: int) -> int:
    return -(-m // config["BLOCK_M"]) * -(-n // config["BLOCK_N"])


def losses(
    tables: Sequence[Table], points: Sequence[int], rule: str, *, within: float | None = None,
    shared: float = MIDDLE,
) -> list[float]:  # fmt: skip
    """What the rule loses at every M that is not tuned, against the best of all candidates."""
    found = [lost(full, points, rule, within, shared) for full in tables]
    return [loss.loss for of_table in found for loss in of_table]


def lost(
    full: Table, points: Sequence[int], rule: str, within: float | None, shared: float = MIDDLE
) -> list[Loss]:
    """The same for one table, with the points."""
    found: list[Loss | None] = []
    kept = full.tuned(points, within)
    rows = tuple(row for row in kept.measured.rows if row.at["M"] in points)
    known = Portfolio(configs=kept.measured.configs, resources=kept.measured.resources, rows=rows)
    winners = Portfolio(
        configs=full.measured.configs, resources=full.measured.resources,
        rows=tuple(row for row in full.measured.rows if row.at["M"] in points),
    )  # fmt: skip
    predictor = Predictor(known, full.device, shared=shared)
    for row, all_times in zip(kept.measured.rows, full.measured.rows, strict=True):
        if row.at["M"] in points:
            continue
        best = full.best_ms(all_times)
        if rule == "nearest":
            found.append(quality.nearest(winners, all_times, best_ms=best))
        elif rule == "oracle":
            found.append(quality.oracle(row, best_ms=best))
        else:
            found.append(
                quality.predicted(known, full.device, row, best_ms=best, predictor=predictor)
            )
    return [loss for loss in found if loss is not None]


def tunings(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """For each tuning, portfolio and rule, how many configs are kept, and what is lost where."""
    found = []
    for name, points in (("octaves", OCTAVES), ("six points", SPARSE)):
        rules = [("nearest", "")] + [(r, kind) for kind in WITHIN for r in ("predicted", "oracle")]
        for rule, kind in rules:
            within = WITHIN.get(kind)
            kept = [len(one.tuned(points, within).measured.configs) for one in tables]
            found.append({
                "tuned": name, "rule": rule, "kept": kind,
                "configs": [min(kept), max(kept)] if kind else None,
                "losses": losses(tables, points, rule, within=within),
            })  # fmt: skip
    return found


def left_out(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """For each (N, K) and rule, what is lost at each M where all others are tuned."""
    found = []
    for full in tables:
        every = [row.at["M"] for row in full.measured.rows]
        for rule, kind in (("nearest", ""), ("predicted", "within 3 %"), ("oracle", "within 3 %")):
            of = [
                loss
                for hidden in every
                for loss in lost(full, [m for m in every if m != hidden], rule, WITHIN.get(kind))
            ]
            found.append({
                "table": full.name, "rule": rule,
                "at": [loss.at["M"] for loss in of], "losses": [loss.loss for loss in of],
            })  # fmt: skip
    return found


def render(results: Mapping[str, Any]) -> str:
    """All tables that the results have."""
    header = ["tuned at, choice", "configs", "mean", "p90", "p95", "worst"]
    text = table(header, [
        [f"{found['tuned']}: {found['rule']}" + (f", {found['kept']}" if found["kept"] else ""),
         "{} to {}".format(*found["configs"]) if found["configs"] else "",
         *_cells(summary(found["losses"]))]
        for found in results["tunings"]
    ])  # fmt: skip
    text += "\n\nLeft one out: every M but one is tuned\n"
    header = ["(N, K), choice", "values of M", "mean", "p50", "p95", "worst", "at M"]
    text += table(header, _left_out_rows(results["left_out"]))
    text += "\n\nFitted on two (N, K), tested on the others: mean, p95, worst of the octaves, 3 %\n"
    header = ["fitted on", "share", "fitted share", "waves alone", f"the middle ({MIDDLE:g})"]
    text += table(header, results["fitted"])
    if results["cost"]:
        text += "\n\nFrom 10 configs, measured at the octaves\n"
        header = ["the processor's time for", "µs", "of which the grid"]
        text += table(header, results["cost"])
    return text


def _left_out_rows(found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    rules = list(dict.fromkeys(one["rule"] for one in found))
    everything = [
        {
            "table": "all", "rule": rule,
            **{name: [x for one in found if one["rule"] == rule for x in one[name]]
               for name in ("at", "losses")},
        }
        for rule in rules
    ]  # fmt: skip
    rows = []
    for one in [*found, *everything]:
        of = summary(one["losses"])
        figures = (of.mean, statistics.median_low(one["losses"]), of.p95, of.worst)
        worst_at = one["at"][one["losses"].index(of.worst)]
        rows.append([
            f"{one['table']}: {one['rule']}", str(of.count),
            *(f"{100 * figure:.2f} %" for figure in figures), str(worst_at),
        ])  # fmt: skip
    return rows


def draw(figure: Figure, results: Mapping[str, Any]) -> None:
    """Losses in ascending order, for each rule: at what share of the points it is no larger."""
    import plot

    panels = {
        name: {
            found["rule"]: found["losses"]
            for found in results["tunings"]
            if found["tuned"] == name and found["kept"] in ("", "within 3 %")
        }
        for name in ("octaves", "six points")
    }
    panels["all M but that one"] = {
        rule: [x for one in results["left_out"] if one["rule"] == rule for x in one["losses"]]
        for rule in ("nearest", "predicted", "oracle")
    }
    figure.set_size_inches(8.5, 3.8)
    row = figure.subplots(1, len(panels), sharey=True)
    looks = {"nearest": (plot.ORANGE, "-"), "predicted": (plot.BLUE, "-"),
             "oracle": (plot.GREY, "--")}  # fmt: skip
    names = {"nearest": "nearest tuned M", "predicted": "predicted (shipconf)",
             "oracle": "best of the stored configs"}  # fmt: skip
    for axes, (title, rules) in zip(row, panels.items(), strict=True):
        for rule, (colour, line) in looks.items():
            ordered = sorted(rules[rule])
            shares = [100 * (i + 1) / len(ordered) for i in range(len(ordered))]
            axes.plot(shares, [100 * loss for loss in ordered], line, color=colour, linewidth=2,
                      label=names[rule])  # fmt: skip
        axes.set_title(f"tuned: {title}")
        axes.set_xlabel("share of launches, %")
        axes.set_xlim(40, 101)
    row[0].set_ylabel("loss at most, %")
    plot.legend_above(figure, row[0])


def _cells(of: Summary) -> list[str]:
    return [f"{100 * figure:.2f} %" for figure in (of.mean, of.p90, of.p95, of.worst)]


def cross_validation(tables: Sequence[Table]) -> list[list[str]]:
    """For each two tables the share that fits them best, and what it loses on the others.

    Beside it waves alone (share 0) and the middle, which is what shipconf uses. Fitted is the mean
    loss over three tunings; the loss told is that of the octaves.
    """
    mean = {
        (one.name, share, name): statistics.fmean(
            losses([one], points, "predicted", within=0.03, shared=share)
        )
        for one in tables
        for share in SHARES
        for name, points in (("octaves", OCTAVES), ("between", BETWEEN), ("halves", HALVES))
    }
    rows = []
    for fitted in itertools.combinations(tables, len(tables) // 2):
        share = min(
            SHARES,
            key=lambda share: sum(
                mean[one.name, share, name]
                for one in fitted
                for name in ("octaves", "between", "halves")
            ),
        )
        tested = [one for one in tables if one not in fitted]
        cells = []
        for used in (share, 0.0, MIDDLE):
            of = summary(losses(tested, OCTAVES, "predicted", within=0.03, shared=used))
            cells.append(f"{100 * of.mean:.2f} %, {100 * of.p95:.2f} %, {100 * of.worst:.2f} %")
        rows.append(["; ".join(one.name for one in fitted), f"{share:g}", *cells])
    return rows


def cost(full: Table) -> list[list[str]]:
    """Microseconds of the processor for a choice from 10 configs: alone, and as a launch makes it.

    A launch asks its own grid for each config, which beside it is asked alone. What any first sight
    of a shape does before and after is left out.
    """
    whole = full.measured
    step = max(1, len(whole.configs) // 10)
    kept = whole.only(range(0, len(whole.configs), step)[:10])
    asked = next(row for row in kept.rows if row.at["M"] not in OCTAVES and row.at["M"] > 500)
    rows = tuple(
        row for row in kept.rows if row.at["M"] in OCTAVES and all(map(usable, row.time_ms))
    )
    known = Portfolio(configs=kept.configs, resources=kept.resources, rows=rows)
    predictor = Predictor(known, full.device)
    given = ["a_ptr", "b_ptr", "c_ptr", "M", "N", "K", "am", "ak", "bk", "bn", "cm", "cn"]
    names = [*given, "BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M"]
    kinds = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    configs = [to_triton(config) for config in known.configs]
    foresight = Foresight(Knobs("gemm", inspect.Signature(kinds), configs, None))
    dtypes = dict.fromkeys(given[:3], "float16")
    shelf = Shelf(tables=[Tabled(known, full.device, "package", Path(), dtypes)])
    named = dict.fromkeys(given, 1024)

    def sight(grid: Any) -> Any:
        query = Query(Key({}, dtypes, asked.at), full.device, frozenset(given), named, grid=grid)
        return lambda: foresight.best(query, shelf, 2.0, lambda choice: False)

    meta = {**named, **known.configs[0]}
    cells = [["a choice", _per_call(lambda: predictor.predict(asked.at, asked.programs)), ""]]
    for name, grid in (
        ("of plain arithmetic", _arithmetic), ("of one `triton.cdiv`", _one_cdiv),
        ("of two `triton.cdiv`", _two_cdivs),
    ):  # fmt: skip
        alone = _per_call(lambda grid=grid: [grid(meta) for _ in known.configs])
        cells.append([f"a launch's, its grid {name}", _per_call(sight(grid)), alone])
    cells.append(["preparing the table", _per_call(lambda: Predictor(known, full.device)), ""])
    return cells


def _arithmetic(named: Mapping[str, Any]) -> tuple[int, int]:
    return -(-named["M"] // named["BLOCK_M"]), -(-named["N"] // named["BLOCK_N"])


def _one_cdiv(named: Mapping[str, Any]) -> tuple[int, int]:
    return triton.cdiv(named["M"], named["BLOCK_M"]), -(-named["N"] // named["BLOCK_N"])


def _two_cdivs(named: Mapping[str, Any]) -> tuple[int, int]:
    return triton.cdiv(named["M"], named["BLOCK_M"]), triton.cdiv(named["N"], named["BLOCK_N"])


def _per_call(function: Any, number: int = 500) -> str:
    # Not by the wall clock, which counts what other processes do meanwhile.
    times = timeit.repeat(function, number=number, repeat=21, timer=time.process_time)
    return f"{1e6 * statistics.median(times) / number:.0f}"


def main() -> None:
    options = _options()
    tables = read(options.table, options.arch, options.shared_memory)
    results = {
        "tunings": tunings(tables), "left_out": left_out(tables),
        "fitted": cross_validation(tables), "cost": cost(tables[0]) if options.cost else None,
    }  # fmt: skip
    print(render(results))
    keep(options, "choice", results, device=f"the table {options.table.stem}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--shared-memory", type=int, default=232448, help="bytes for a block")
    parser.add_argument("--cost", action=argparse.BooleanOptionalAction, default=True,
                        help="measure what a choice costs, too (yes)")  # fmt: skip
    add_output_options(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
