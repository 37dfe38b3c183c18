"""What `prove` tries: the settings whose walls are tried, and the state that keeps the record. Must never keep a record of
walls that were changed while it ran."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ringfence.host.install import commands, prepare, prove_record
from ringfence.host.install.commands import Answer
from ringfence.host.install.layout import Layout, home_of
from ringfence.host.install.prove_record import ProvedRow, Stamp, Status
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.settings import Settings

CHANGED = "not recorded: the package or bubblewrap was changed meanwhile"


@dataclass(frozen=True, slots=True)
class Subject:
    layout: Layout
    settings: Settings | None  # None: neither a file was named nor has `init` made a state for this account
    stamp: Stamp | None  # None: nothing can be recorded

    @property
    def walls(self) -> dict[str, object]:
        """For the throw-away installation."""
        return {} if self.settings is None else prove_record.walls(self.settings)

    def record(self, rows: Iterable[tuple[str, Status]]) -> str:
        """(id, status) of every row, kept for the profile production; what became of it, in words, "" for nothing. OSError."""
        if self.settings is None or self.stamp is None:
            return ""
        if self.stamp != prove_record.current(self.settings):
            return CHANGED
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return f"recorded in {prove_record.write(self.layout, self.stamp, [ProvedRow(*row) for row in rows], at)}"


def subject(environment: Mapping[str, str], config: str | None, *, as_json: bool) -> Subject | Answer:
    """The settings of the file `config`, else of this account's state. Answer: they are none, or others could have written
    them."""
    try:
        layout = Layout(home_of(environment, os.geteuid()))
        settings = _settings(layout, config)
    except RingfenceError as error:
        return commands.failure(error, as_json=as_json)
    kept = settings is not None and _has_state(layout)
    return Subject(layout, settings, prove_record.current(settings) if settings is not None and kept else None)


def _settings(layout: Layout, config: str | None) -> Settings | None:
    if (named := prepare.file_of(config)) is not None:
        return prepare.read_settings(named, missing_ok=False)
    return prepare.read_settings(layout.settings, missing_ok=True) if _has_state(layout) else None


def _has_state(layout: Layout) -> bool:
    """Whether `init` has made this account one."""
    try:
        return layout.installation.stat().st_uid == os.geteuid()
    except OSError:
        return False
