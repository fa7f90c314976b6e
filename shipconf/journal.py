"""The journal of a tuning: each event a line of JSON beside the record, so nothing is lost.

A process that dies leaves its measurements to the next one, and the name of the candidate that
ran when it died. A point's events are removed once its record is written.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import files

log = logging.getLogger("shipconf.journal")

IN_TURN = "the finalists in turn"  # what runs while several candidates do


@dataclass
class History:
    """What earlier tunings of one point left, by candidate (as text).

    `times` are medians with their percentiles of candidates measured alone, `rounds` those of
    single launches in each round of the finals, in ms; `left_out` are reasons.
    """

    times: dict[str, list[float]] = field(default_factory=dict)
    rounds: list[dict[str, list[float]]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


class Journal:
    """The events of the tuning of one point (`at`). Without a path, it forgets.

    Times measured under another `version` (of Triton) do not count. What is measured there for
    another `purpose` than a tuning has events of its own.
    """

    def __init__(
        self, path: Path | None, at: Mapping[str, int], version: str = "", purpose: str = ""
    ) -> None:
        self.path = path
        self.subject: dict[str, Any] = {"at": dict(at)}
        if purpose:
            self.subject["purpose"] = purpose
        self.version = version

    def start(self) -> History:
        """Note that this process begins, and return what came before."""
        history = self._history()
        self._append("start", pid=os.getpid(), host=socket.gethostname(), version=self.version)
        return history

    def running(self, candidate: str) -> None:
        self._append("running", candidate=candidate)

    def measured(self, candidate: str, times_ms: list[float]) -> None:
        self._append("measured", candidate=candidate, times_ms=times_ms)

    def round(self, times_ms: Mapping[str, list[float]]) -> None:
        """Note a round of the finals: the times of each finalist."""
        self._append("round", times_ms=times_ms)

    def failed(self, candidate: str, reason: str, *, fatal: bool = False) -> None:
        self._append("failed", candidate=candidate, reason=reason, fatal=fatal)

    def stopped(self, candidate: str) -> None:
        """Note that the user stopped the process, which is no fault of the candidate."""
        self._append("stopped", candidate=candidate)

    def close(self) -> None:
        """Forget the point: its record is written. Other points of the file keep their events."""
        if self.path is None:
            return
        others = [json.dumps(event) for event in events(self.path) if not self._has(event)]
        with suppress(OSError):
            if others:
                files.replace(self.path, "".join(f"{line}\n" for line in others).encode())
            else:
                self.path.unlink()

    def _append(self, event: str, **subjects: Any) -> None:
        if self.path is None:
            return
        line = json.dumps({"event": event, **self.subject, **subjects})
        if event == "start":  # a killed process may have left half a line
            line = f"\n{line}"
        try:
            files.append(self.path, line)
        except OSError as error:
            log.info("no journal: %s", error)
            self.path = None

    def _has(self, event: Mapping[str, Any]) -> bool:
        return {name: event[name] for name in ("at", "purpose") if name in event} == self.subject

    def _history(self) -> History:
        history = History()
        comparable = True
        running: str | None = None  # the candidate that runs, as far as the journal tells
        died_with: str | None = None  # the one that ran at the latest death
        for event in events(self.path):
            if not self._has(event):
                continue
            match event:
                case {"event": "start"}:
                    comparable = event.get("version", "") == self.version
                    if running is not None and running == died_with:
                        history.left_out[running] = "was running when its process died, twice"
                    died_with, running = running or died_with, None
                case {"event": "running", "candidate": str(candidate)}:
                    running = candidate
                case {"event": "measured", "candidate": str(c), "times_ms": times}:
                    if comparable and _are_times(times) and len(times) == 3:
                        history.times[c] = times
                    running = died_with = None
                case {"event": "round", "times_ms": dict(times)}:
                    if comparable and all(map(_are_times, times.values())):
                        history.rounds.append(times)
                    running = died_with = None
                case {"event": "failed", "candidate": str(c), "fatal": True, "reason": reason}:
                    history.left_out[c] = f"ended its process: {reason}"
                    running = None
                case {"event": "failed" | "stopped"}:
                    running = None
        if running is not None and running == died_with:
            history.left_out[running] = "was running when its process died, twice"
        return history


def _are_times(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(
        isinstance(time, (int, float)) and 0 <= time < math.inf for time in value
    )  # fmt: skip


def events(path: Path | None) -> Iterator[dict[str, Any]]:
    """The events at the path; a line cut short by a kill is skipped."""
    try:
        lines = path.read_bytes().splitlines() if path is not None else []
    except OSError:
        return
    for line in lines:
        with suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict):
                yield event


def holder(path: Path | None) -> str:
    """Who tunes with the journal at the path, as it says itself: `pid 4711 on host`."""
    who = ""
    for event in events(path):
        if event.get("event") == "start":
            who = f"pid {event.get('pid')} on {event.get('host')}"
    return who
