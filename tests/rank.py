"""One of the ranks that `test_ranks` has torchrun start: meets keys, and writes what came of it.

Ranks wait for one another by barriers and by torchrun's key-value store, around launches only.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist
from kernels import BLOCKS, Trial

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
KILLED, LACKING = map(int, sys.argv[2:])
OTHERS = [rank for rank in range(RANKS) if rank != KILLED]


def trial(log: Path, **options: Any) -> Trial:
    """A kernel whose benchmark has another favourite on each rank, as noise would."""
    times = {block: 1.0 + ((i + RANK) % len(BLOCKS)) for i, block in enumerate(BLOCKS)}
    return Trial(times=times, log=log, **options)


def outcome(met: Trial, n: int) -> dict[str, Any]:
    return {"block": met.launch(n, 8), "tuned": bool(met.measured)}


def with_a_store_of_its_own(folder: Path, store: Any) -> dict[str, Any]:
    """All but one rank find the record; that one's tuning ends only after all others launched."""
    shared, own = Path(os.environ["SHIPCONF_CACHE_DIR"]), folder / f"store{RANK}"
    done = [f"launched {rank}" for rank in range(RANKS) if rank != LACKING]
    if RANK != LACKING:
        shutil.copytree(shared, own)
    os.environ["SHIPCONF_CACHE_DIR"] = str(own)
    found = outcome(trial(folder / f"own{RANK}", during=lambda block: store.wait(done)), 8)
    store.set(f"launched {RANK}", "")
    os.environ["SHIPCONF_CACHE_DIR"] = str(shared)
    return found


def with_a_holder_that_is_killed(folder: Path, store: Any) -> dict[str, Any]:
    """One rank tunes, and is killed when all others wait for its lock."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun would end the others with it

    def die(block: int) -> None:
        store.set("holding", "")
        if block == BLOCKS[1]:
            store.wait([f"waiting {rank}" for rank in OTHERS])
            os.kill(os.getpid(), signal.SIGKILL)

    log = folder / "killed"
    if RANK == KILLED:
        return outcome(trial(log, during=die), 99)
    flock = fcntl.flock

    def watched(descriptor: int, operation: int) -> None:
        try:
            flock(descriptor, operation)
        except OSError:
            store.set(f"waiting {RANK}", "")  # somebody else holds it
            raise

    store.wait(["holding"])
    fcntl.flock = watched
    return outcome(trial(log), 99)


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    results = {"same": outcome(trial(folder / "same"), 8)}
    number = RANK // 2  # two ranks meet at each key
    dist.barrier()
    results["different"] = outcome(trial(folder / f"different{number}"), 100 + number)
    dist.barrier()
    results["own"] = with_a_store_of_its_own(folder, store)
    dist.barrier()
    results["killed"] = with_a_holder_that_is_killed(folder, store)
    (folder / f"rank{RANK}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)  # without the farewell to a process group that lacks one
