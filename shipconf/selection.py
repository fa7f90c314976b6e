"""Which records a command is about: by kernel, device, key, age and rigor."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

from .inventory import tuned_at
from .keys import Value, dtypes_text, typed
from .records import ConfigFile, Record

RIGORS = ("quick", "full", "verified")  # from the least to the most


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What is asked for; what is left empty selects everything.

    `kernels` and `devices` are whole names, as the files hold them; `key` holds values of exact
    key entries; `dtypes` and `fingerprint` are as file names and records say them; ages are in
    seconds; `rigor` is the least that serves.
    """

    kernels: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    key: Mapping[str, Value] = field(default_factory=dict)
    dtypes: str | None = None
    fingerprint: str | None = None
    newer_than_s: float | None = None
    older_than_s: float | None = None
    rigor: str | None = None

    def has_file(self, file: ConfigFile) -> bool:
        """Whether the kernel, device and key of a file are asked for."""
        if self.kernels and file.kernel not in self.kernels:
            return False
        if self.devices and file.device.name not in self.devices:
            return False
        if self.dtypes is not None and dtypes_text(file.dtypes) != self.dtypes:
            return False
        return all(
            name in file.key and typed(file.key[name]) == typed(value)
            for name, value in self.key.items()
        )

    def has_record(self, record: Record) -> bool:
        """Whether the version, age and rigor of a record are asked for; unknown ones are not."""
        if self.rigor is not None:
            if record.rigor not in RIGORS:
                return False
            if RIGORS.index(record.rigor) < RIGORS.index(self.rigor):
                return False
        if self.fingerprint is not None and record.fingerprint != self.fingerprint:
            return False
        if self.newer_than_s is None and self.older_than_s is None:
            return True
        when = tuned_at(record)
        if when is None:
            return False
        age_s = (datetime.now(timezone.utc) - when).total_seconds()
        if self.newer_than_s is not None and age_s > self.newer_than_s:
            return False
        return self.older_than_s is None or age_s >= self.older_than_s

    def of(self, file: ConfigFile) -> ConfigFile | None:
        """The file with the records asked for; None where none is.

        Its portfolios stay where they are of the version asked for: they have no age or rigor.
        """
        if not self.has_file(file):
            return None
        records = tuple(record for record in file.records if self.has_record(record))
        if not records:
            return None
        portfolios = tuple(
            table for table in file.portfolios
            if self.fingerprint is None or table.fingerprint == self.fingerprint
        )  # fmt: skip
        return dataclasses.replace(file, records=records, portfolios=portfolios)
