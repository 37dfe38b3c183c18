"""Where everything of one installation lies. Names only: touches no file.

State root H, mode 0711, owned by whoever runs the server (root or an ordinary user):
    installation.json  ringfence.toml  db/ vault/ run/ (the kernel's)  boxes/ spawner/ runtime/ (the owner's)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ringfence.host.kernel.errors import Invalid

ROOT_HOME = Path("/var/lib/ringfence")
LONGEST = 107 - len("/run/api.sock")  # bytes: sun_path has 108 with its NUL (man 7 unix)


@dataclass(frozen=True, slots=True)
class Layout:
    home: Path

    @property
    def installation(self) -> Path:
        return self.home / "installation.json"

    @property
    def settings(self) -> Path:
        return self.home / "ringfence.toml"

    @property
    def database(self) -> Path:
        return self.home / "db" / "ringfence.db"

    @property
    def master_key(self) -> Path:
        return self.home / "vault" / "master.key"

    @property
    def audit_key(self) -> Path:
        """What signs the audit. Further keys, of other hosts or of before, lie beside it as audit.key.NAME."""
        return self.home / "vault" / "audit.key"

    @property
    def run(self) -> Path:
        return self.home / "run"

    @property
    def kernel_json(self) -> Path:
        return self.run / "kernel.json"

    @property
    def script(self) -> Path:
        """The copy of the settings' script that the kernel reads."""
        return self.run / "script.json"

    @property
    def boxes(self) -> Path:
        return self.home / "boxes"

    @property
    def spawner(self) -> Path:
        return self.home / "spawner"

    @property
    def spawner_config(self) -> Path:
        return self.spawner / "config.json"

    @property
    def lock(self) -> Path:
        return self.spawner / "lock"

    @property
    def runtime(self) -> Path:
        return self.home / "runtime"


def home_of(environment: Mapping[str, str], uid: int, wanted: str | None = None) -> Path:
    """The state root: `wanted`, else $RINGFENCE_HOME, else root's, else below $XDG_DATA_HOME or ~/.local/share.
    Invalid: a relative path, or one with `..`: what it names would depend on who asks; one that cannot stand in a JSON
    or text file; one too long for the socket in it."""
    text = wanted or environment.get("RINGFENCE_HOME") or ""
    if not text:
        if uid == 0:
            return ROOT_HOME
        data = environment.get("XDG_DATA_HOME") or ""
        if not data.startswith("/"):  # the XDG specification: a relative value is ignored
            if not environment.get("HOME", "").startswith("/"):
                raise Invalid("neither RINGFENCE_HOME nor HOME is set", remedy="export RINGFENCE_HOME=/path/to/state")
            data = environment["HOME"] + "/.local/share"
        text = data.rstrip("/") + "/ringfence"
    if not text.startswith("/") or ".." in text.split("/") or "\0" in text:
        raise Invalid(
            f"the state directory {text!r} is no absolute path", remedy="export RINGFENCE_HOME=/path/to/state"
        )
    if not text.isprintable():
        raise Invalid(
            f"the state directory {text!r} has a control character or bytes that are not UTF-8 in its path",
            remedy="export RINGFENCE_HOME=/path/to/state",
        )
    home = Path(text)
    if len(os.fsencode(home)) > LONGEST:
        raise Invalid(
            f"the state directory's path has {len(os.fsencode(home))} bytes; the limit is {LONGEST}, as a socket lies "
            f"in it: {home}",
            remedy="export RINGFENCE_HOME=/a/shorter/path",
        )
    if len(home.parts) < 3:
        raise Invalid(f"{home} is no place for a state directory", remedy="export RINGFENCE_HOME=/path/to/state")
    return home
