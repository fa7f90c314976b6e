"""Eight ranks that torchrun starts on one machine, at cold keys: one run of `rank.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kernels import BLOCKS, blocks_in
from packages import records_in

RANKS = 8
KILLED, LACKING = 3, 5
Outcomes = dict[int, dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the ranks leave. torchrun itself fails, since a rank is killed in the end."""
    folder = tmp_path_factory.mktemp("ranks")
    store = tmp_path_factory.mktemp("store")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone",
         f"--nproc-per-node={RANKS}", str(Path(__file__).with_name("rank.py")), str(folder),
         str(KILLED), str(LACKING)],
        env={**os.environ, "SHIPCONF_CACHE_DIR": str(store), "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert "Signal 9 (SIGKILL)" in done.stderr and f"rank      : {KILLED}" in done.stderr, (
        done.stderr[-5000:]
    )
    (folder / "records").write_text(json.dumps(records_in(store)))
    return folder


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> Outcomes:
    """What each rank wrote that was not killed."""
    ranks = [rank for rank in range(RANKS) if rank != KILLED]
    return {rank: json.loads((folder / f"rank{rank}.json").read_text()) for rank in ranks}


def test_ranks_at_one_cold_key_tune_once_and_agree(folder, outcomes):
    """Though their benchmarks disagree: each has another favourite."""
    assert sorted(blocks_in(folder / "same")) == list(BLOCKS)
    assert len({found["same"]["block"] for found in outcomes.values()}) == 1
    assert sum(found["same"]["tuned"] for found in outcomes.values()) <= 1  # it may be the killed


def test_ranks_at_different_cold_keys_tune_each_once(folder, outcomes):
    for number in range(RANKS // 2):
        assert sorted(blocks_in(folder / f"different{number}")) == list(BLOCKS)
        met = [
            outcomes[r]["different"]["block"] for r in (2 * number, 2 * number + 1) if r in outcomes
        ]
        assert len(set(met)) == 1


def test_a_rank_that_lacks_what_the_others_hold_tunes_alone(folder, outcomes):
    """Each has a store of its own. The others launch while it tunes: it would wait forever for
    them, and they for it, were there anything collective in a launch."""
    assert {rank for rank, found in outcomes.items() if found["own"]["tuned"]} == {LACKING}
    same = {found["same"]["block"] for found in outcomes.values()}
    assert {f["own"]["block"] for rank, f in outcomes.items() if rank != LACKING} == same
    assert sorted(blocks_in(folder / f"own{LACKING}")) == list(BLOCKS)


def test_a_rank_killed_with_the_lock_holds_nobody_up(folder, outcomes):
    """One of the others goes on where it was killed; no finished measurement is repeated."""
    assert len({found["killed"]["block"] for found in outcomes.values()}) == 1
    assert sum(found["killed"]["tuned"] for found in outcomes.values()) == 1
    first, second, third = BLOCKS
    assert blocks_in(folder / "killed") == [first, second, second, third]


def test_one_record_is_kept_for_each_key(folder):
    records = json.loads((folder / "records").read_text())
    assert [record["at"] for record in records] == [{"M": 8}] * (1 + RANKS // 2 + 1)
