"""A GEMM measured on a GPU, from `tables/h200_gemm_winners.json`, which says how it was made."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from shipconf import portfolio
from shipconf.portfolio import Portfolio
from shipconf.records import Device

PATH = Path(__file__).parent / "tables" / "h200_gemm_winners.json"
OCTAVES = tuple(2**i for i in range(14))
SPARSE = (1, 16, 64, 256, 1024, 4096)


def device() -> Device:
    """The device of the table."""
    return Device(**json.loads(PATH.read_text())["device"])


@cache
def tables() -> list[Portfolio]:
    """For each (N, K) the configs that win at an octave of M, measured at 43 values of M.

    A row's `extra["best_ms"]` is the fastest time that any of 89 candidates has there.
    """
    documents = json.loads(PATH.read_text())["tables"]
    for document in documents:
        del document["key"]
    return [portfolio.from_document(document, ("M",)) for document in documents]


def at(table: Portfolio, points: Sequence[int]) -> Portfolio:
    """The table with its rows at these points alone."""
    rows = tuple(row for row in table.rows if row.at["M"] in points)
    return dataclasses.replace(table, rows=rows)
