"""How good a choice between tuned points is, file by file, from the tables that the files hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import quality
from .explain import tune_command
from .inventory import Fault
from .keys import Key
from .quality import Loss, Summary, summary
from .reach import Placed
from .sources import Source


@dataclass(frozen=True)
class Appraisal:
    """What the choices from one portfolio lose, each tuned point hidden from it in turn.

    `predicted` and `nearest` are of the same points. `worst` is the point of the greatest loss
    among the predicted ones; `commands` tune the points that would help most, best first.
    """

    path: str
    where: str
    configs: int
    predicted: Summary
    nearest: Summary
    worst: Loss
    commands: Sequence[str]


def appraise(
    placed: Sequence[Placed], source: Source, known_as: str | None = None
) -> tuple[list[Appraisal], list[Fault]]:
    """The appraisal of every portfolio, and which files have none that tells anything.

    `known_as` is what `shipconf tune` calls the kernel of them all; else the source tells.
    """
    appraisals: list[Appraisal] = []
    silent: list[Fault] = []
    for one in placed:
        found = list(_of_file(one, known_as or target(one, source)))
        appraisals += found
        if not found:
            what = "no portfolio of two points or more: what a choice between them loses is unknown"
            silent.append(Fault(one.path, "", what))
    return appraisals, silent


def _of_file(placed: Placed, target: str) -> Iterator[Appraisal]:
    file = placed.held.file
    for i, portfolio in enumerate(file.portfolios):
        losses = quality.left_out(portfolio, file.device)
        near = quality.left_out_nearest(portfolio)
        if not losses or not near:
            continue
        commands = [
            tune_command(target, Key(placed.key.values, file.dtypes, point))
            for point in quality.worth_tuning(losses)
        ]
        yield Appraisal(
            path=placed.path, where=f"portfolios[{i}]", configs=len(portfolio.configs),
            predicted=summary(loss.loss for loss in losses),
            nearest=summary(loss.loss for loss in near),
            worst=max(losses, key=lambda loss: loss.loss), commands=commands,
        )  # fmt: skip


def beyond(appraisals: Sequence[Appraisal], max_loss: float) -> Iterator[Fault]:
    """The portfolios whose choices lose more than that at some point."""
    for one in appraisals:
        if one.predicted.worst > max_loss:
            what = (
                f"a choice for {words(one.worst.at)}, were it not tuned, would lose "
                f"{one.predicted.worst:.1%}, more than {max_loss:.1%}"
            )
            cure = f": tune between, as by {one.commands[0]}" if one.commands else ""
            yield Fault(one.path, one.where, what + cure)


def words(at: Mapping[str, int]) -> str:
    """A point as people write it: `M=64`."""
    return " ".join(f"{name}={value}" for name, value in at.items())


def target(placed: Placed, source: Source) -> str:
    """What `shipconf tune` takes for the file's kernel; `module:kernel` where no code tells."""
    kernel = placed.kernel
    if kernel is None:
        return f"module:{placed.held.file.kernel}"
    path = Path(source.root, kernel.source_file)
    if not path.is_file():  # in a wheel
        return f"{kernel.source_file.removesuffix('.py').replace('/', '.')}:{kernel.function}"
    module = [path.stem]
    for folder in path.parents:
        if not (folder / "__init__.py").is_file():
            break
        module.insert(0, folder.name)
    return (
        f"{'.'.join(module)}:{kernel.function}" if len(module) > 1 else f"{path}:{kernel.function}"
    )
