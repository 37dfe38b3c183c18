"""The own commands, those that need no server: each returns what to say and the exit code, and prints nothing itself.

`cli/own.py` prints the answers. Errors of kernel.errors end here, as one line saying what and one saying the remedy, or as
the JSON object of docs/design.md.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ringfence.host.install import doctor, gate, owned, prepare, state, webhook_keys
from ringfence.host.install.layout import Layout, home_of
from ringfence.host.install.prepare import Ready, Wish
from ringfence.host.kernel import hidden
from ringfence.host.kernel.boxes import BLOCK
from ringfence.host.kernel.errors import Invalid, RingfenceError, Unavailable
from ringfence.host.kernel.settings import ACCEPT, Settings
from ringfence.host.kernel.settings_text import as_toml, values

# Runs as the kernel's account, from the runtime copy: what it makes in the store must be the kernel's.
BOOTSTRAP = (
    "import asyncio, json; from ringfence.host.app import bootstrap; "
    "from ringfence.host.kernel.settings import Settings; "
    "print(asyncio.run(bootstrap(Settings.from_json(json.load(open(sys.argv[1]))), empty_only=sys.argv[2:] == ['empty'])))"
)
BOOTSTRAP_SECONDS = 120  # an empty database takes one; a network database may be slow


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    out: str = ""
    err: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """What the calling process is to become."""

    argv: list[str]
    environment: dict[str, str]


def failure(error: RingfenceError, *, as_json: bool) -> Answer:
    if as_json:
        return Answer(error.exit_code, json.dumps({"error": error.as_json()}) + "\n")
    lines = [f"ringfence: {error.message}", *([f"  {error.remedy}"] if error.remedy else [])]
    return Answer(error.exit_code, err="\n".join(lines) + "\n")


def _answered(work: Callable[[], Answer], *, as_json: bool) -> Answer:
    try:
        return work()
    except RingfenceError as error:
        return failure(error, as_json=as_json)


def _layout(environment: Mapping[str, str], wanted: str | None = None) -> Layout:
    return Layout(home_of(environment, os.geteuid(), wanted))


# --- init ------------------------------------------------------------------------------------------------------------


def init(environment: Mapping[str, str], home: str | None, *, as_json: bool) -> Answer:
    """State, keys and, the first time, the operator's token. JSON: `{"home", "installation", "mode", "kernel", "ids",
    "notes", "token"}`; `token` is null when the store was there, and has a tenant."""

    def work() -> Answer:
        layout = _layout(environment, home)
        state.check_place(layout.home, os.geteuid())
        settings = prepare.read_settings(layout.settings, missing_ok=True)
        mode = prepare.mode_of(replace(settings, accept=tuple(ACCEPT)))  # `serve` asks for acceptance, not `init`
        ready = prepare.make_state(layout, replace(settings, mode=mode))
        facts = prepare.as_facts(ready)
        token = _token_of_a_store(ready, facts["notes"]) if _has_store(ready) else first_token(ready)
        return _init_text({**facts, "token": token}, as_json=as_json)

    return _answered(work, as_json=as_json)


def _has_store(ready: Ready) -> bool:
    """A SQLite file that is there was made by an earlier `init` or `serve`; another database is asked."""
    own = ready.settings.database == f"sqlite:///{ready.layout.database}"
    return own and ready.layout.database.exists()


def _token_of_a_store(ready: Ready, notes: list[str]) -> str | None:
    """Of one that is there and may have been made by `serve` alone, without anybody in it. One that cannot be looked into
    now is none of `init`'s: what else the state lacks is made all the same."""
    try:
        return first_token(ready, "empty")
    except RingfenceError as error:
        notes.append(f"the store was left as it is: {error.message}")
        return None


def first_token(ready: Ready, *only: str) -> str | None:
    """Makes the store and its operator; with `empty` where there is no tenant yet, else None. Unavailable: it cannot be
    made, in its own words."""
    with prepare.no_server(ready.layout):
        copied = prepare.copy_runtime(ready)
        prepare.write_kernel_json(ready)
        kernel_json = str(ready.layout.kernel_json)
        command = prepare.launch(copied.site, ready.settings.python, BOOTSTRAP, kernel_json, *only)
        try:
            done = prepare.as_kernel(ready.kernel, command, timeout=BOOTSTRAP_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise Unavailable(
                f"the store was not made within {BOOTSTRAP_SECONDS} s",
                remedy="is the database reachable? ringfence config show",
            ) from error
    if done.returncode:
        what = f"the store cannot be made: {prepare.last_words(done)}"
        raise Unavailable(what, remedy="ringfence doctor; ringfence config show")
    return done.stdout.strip() or None


def _init_text(facts: dict[str, Any], *, as_json: bool) -> Answer:
    if as_json:
        return Answer(0, json.dumps(facts) + "\n")
    lines = [f"state         {facts['home']}", f"installation  {facts['installation']} (mode {facts['mode']})"]
    lines += [f"              {note}" for note in facts["notes"]]
    if facts["token"]:
        lines += [f"token         {facts['token']}", "              the operator's; shown this once"]
    else:
        lines += ["              the store was there; a further token: ringfence token add --user operator"]
    return Answer(0, "\n".join([*lines, "next          ringfence serve"]) + "\n")


# --- serve -----------------------------------------------------------------------------------------------------------


def serve(
    environment: Mapping[str, str],
    config: str | None,
    db: str | None,
    accept: str | None,
    listen: str | None,
    profile: str | None,
    reason: str | None = None,
    *,
    rows: Callable[[], Collection[str]],
) -> Start | Answer:
    """Everything before the spawner; the caller then becomes it. `rows`: every id of `prove`."""
    try:
        if profile not in (None, "default", "production"):
            raise Invalid(f"no profile {profile!r}", remedy="--profile production, or leave it out")
        wish = Wish(prepare.file_of(config), db, listen, accept, profile == "production", reason, rows, environment)
        argv, minimal = prepare.serve(_layout(environment), wish)
    except RingfenceError as error:
        return failure(error, as_json=False)
    return Start(argv, minimal)


# --- doctor ----------------------------------------------------------------------------------------------------------


def run_doctor(environment: Mapping[str, str], *, as_json: bool) -> Answer:
    """Exit 5 when a required row fails. JSON: `{"ok", "rows": [{"id", "ok", "level", "found", "remedy"}]}`."""

    def work() -> Answer:
        layout = _layout(environment)
        settings = prepare.read_settings(layout.settings, missing_ok=True)
        rows = doctor.examine(settings, layout.home)
        lacking = doctor.missing(rows)
        code = Unavailable.exit_code if lacking else 0
        if as_json:
            facts = {"ok": not lacking, "rows": [row.to_json() for row in rows]}
            return Answer(code, json.dumps(facts) + "\n")
        verdict = f"{len(lacking)} required rows fail: no box can start\n" if lacking else "boxes can start\n"
        return Answer(code, doctor.as_text(rows) + verdict)

    return _answered(work, as_json=as_json)


# --- config ----------------------------------------------------------------------------------------------------------


def _settings_of(environment: Mapping[str, str], file: str | None) -> Settings:
    if (named := prepare.file_of(file)) is not None:
        return prepare.read_settings(named, missing_ok=False)
    return prepare.read_settings(_layout(environment).settings, missing_ok=True)


def config_check(
    environment: Mapping[str, str], file: str | None, *, as_json: bool, rows: Callable[[], Collection[str]]
) -> Answer:
    def work() -> Answer:
        settings = _settings_of(environment, file)
        gate.check_rows(settings.accept, rows)
        owned.read_script(settings)
        notes = _notes(settings)
        if settings.webhook:
            notes += webhook_keys.checked(settings, _layout(environment))
        if as_json:
            return Answer(0, json.dumps({"ok": True, **({"notes": notes} if notes else {})}) + "\n")
        return Answer(0, "".join(f"{line}\n" for line in ("ok", *notes)))

    return _answered(work, as_json=as_json)


def _notes(settings: Settings) -> list[str]:
    """What is allowed and not to be had as written."""
    most = settings.limits.disk // BLOCK
    if settings.disk == "accounting" or settings.limits.inodes <= most:
        return []
    return [f"limits.inodes: a disk image of limits.disk has {most} at most, not {settings.limits.inodes}"]


def config_show(environment: Mapping[str, str], file: str | None, *, as_json: bool) -> Answer:
    """The settings in force as a file that would give them, but for what is secret; JSON: key -> value as one writes it."""

    def work() -> Answer:
        settings = hidden.shown(_settings_of(environment, file))
        return Answer(0, json.dumps(values(settings)) + "\n" if as_json else as_toml(settings))

    return _answered(work, as_json=as_json)
