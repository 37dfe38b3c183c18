"""The `db` verbs, and `audit` where no server runs, as own commands: finds the database, takes the lock where a verb needs
it, and has the work done by a process of the kernel's account, from the runtime copy, as the server itself runs.

It must never open the database: whoever runs this may be root, and the file belongs to a less trusted account. Backups are
opened here, because their place may be one where that account may not go, and handed down as a descriptor.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ringfence.host.install import atomic, gate, prepare, runtime, state
from ringfence.host.install.layout import Layout, home_of
from ringfence.host.install.prepare import Wish
from ringfence.host.install.state import Account
from ringfence.host.kernel.errors import (
    Conflict,
    DiskFull,
    Failed,
    Invalid,
    NotFound,
    Refused,
    RingfenceError,
    Unavailable,
)
from ringfence.host.kernel.settings import Settings

VERB = "from ringfence.host.app import database_verb; database_verb(sys.argv[1:])"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the database of this installation is, and who may open it."""

    layout: Layout
    settings: Settings
    kernel: Account


def find(environment: Mapping[str, str], db: str | None) -> Place:
    """Unavailable: no installation. While a server runs, the database is the one that it was started with."""
    layout = Layout(home_of(environment, os.geteuid()))
    state.check_place(layout.home, os.geteuid())
    installation = state.load(layout)
    if installation is None:
        raise Unavailable(
            f"there is no installation at {layout.home}", remedy="ringfence init, or export RINGFENCE_HOME"
        )
    kernel = prepare.kernel_of(installation.ids)
    chosen = prepare.read_settings(layout.settings, missing_ok=True).at(str(layout.home), installation.id, "auto")
    if db is not None:
        chosen = prepare.merged(chosen, Wish(database=db))
    elif (served := _served(layout)) is not None:
        chosen = replace(chosen, database=served)
    return Place(layout, chosen, kernel)


def _served(layout: Layout) -> str | None:
    """The database of the server that runs; None: none does. Its account may have written anything into that file, so no
    other setting is taken from it: root runs the interpreter that the settings name."""
    try:
        with prepare.no_server(layout):
            return None
    except Unavailable:
        with suppress(OSError, ValueError, RecursionError, RingfenceError):
            return Settings.from_json(json.loads(atomic.read(layout.kernel_json))).database
        return None


@contextmanager
def alone(place: Place, *, must: bool) -> Iterator[bool]:
    """Whether the installation's lock is held within. Unavailable: a server has it, and it `must` be."""
    with ExitStack() as stack:
        try:
            stack.enter_context(prepare.no_server(place.layout))
            held = True
        except Unavailable:
            if must:
                raise
            held = False
        yield held


def work(place: Place, verb: str, options: Mapping[str, Any], *, held: bool, fd: int | None = None) -> dict[str, Any]:
    """The verb's facts. RingfenceError, as the process told it."""
    copied = runtime.install(place.layout.runtime, place.settings.python)
    command = prepare.launch(copied.site, place.settings.python, VERB, verb, "" if fd is None else str(fd))
    asked = {"settings": place.settings.to_json(), "options": dict(options), "by": gate.who(), "alone": held}
    done = prepare.as_kernel(place.kernel, command, given=json.dumps(asked), pass_fds=() if fd is None else (fd,))
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        name = verb if verb == "audit" else f"db {verb}"
        raise Failed(f"{name} broke down: {prepare.last_words(done)}", remedy="please report it") from error
    if "facts" in answer:
        facts: dict[str, Any] = answer["facts"]
        return facts
    raise told(answer)


def told(answer: Mapping[str, Any]) -> RingfenceError:
    """The error of the process's answer: of its kind, else of one with its exit code, else Failed."""
    said = answer["error"]
    known = (Invalid, NotFound, Refused, Conflict, DiskFull, Unavailable, Failed)
    by_code = (kind for kind in known if kind.code == said["code"])
    alike = (kind for kind in known if kind.exit_code == answer["exit_code"])
    kind = next(by_code, None) or next(alike, Failed)
    return kind(said["message"], remedy=said["remedy"], **said["details"])


def audit(environment: Mapping[str, str], db: str | None, wish: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of `app.read_audit`. RingfenceError; Unavailable, also: `db` is not named, and a server runs (its details
    have the `pid`). Whoever looks for a forgery leaves what there is as it is: nothing changes but the runtime copy, and
    that a restore which was cut short is finished."""
    place = find(environment, db)
    with alone(place, must=db is None) as held:
        return work(place, "audit", wish, held=held)


# --- the file of a backup --------------------------------------------------------------------------------------------


def make_backup(place: Place, target: Path) -> dict[str, Any]:
    """0600, on disk, and under its name only when it is whole. Conflict: the name is taken. DiskFull."""
    folder = target.absolute().parent
    part = folder / f".{target.name}.{secrets.token_hex(4)}.part"
    try:
        if os.path.lexists(target):
            raise Conflict(f"{target} exists: a backup overwrites nothing", remedy="name another file")
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Invalid(
            f"{target} cannot be written: {error.strerror}", remedy="name a file in a folder of yours"
        ) from error
    try:
        facts = work(place, "backup", {}, held=False, fd=fd)
        os.fsync(fd)
        size = os.fstat(fd).st_size
        os.link(part, target)  # fails where the name has been taken meanwhile, which a rename would not
        _sync(folder)
    except FileExistsError as error:
        raise Conflict(f"{target} exists: a backup overwrites nothing", remedy="name another file") from error
    except OSError as error:
        raise DiskFull(f"{target} cannot be written: {error.strerror}", remedy="take another place for it") from error
    finally:
        os.close(fd)
        part.unlink(missing_ok=True)
    return {"file": str(target), "size_bytes": size, **facts}


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def put_back(place: Place, source: Path, *, anyway: bool) -> dict[str, Any]:
    try:
        fd = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NotFound(f"no such file: {source}", remedy="name the file that db backup made") from error
    except OSError as error:
        raise Invalid(
            f"{source} cannot be read: {error.strerror}", remedy="name the file that db backup made"
        ) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise Invalid(f"{source} is no regular file", remedy="name the file that db backup made")
        with alone(place, must=True) as held:
            return work(place, "restore", {"file": str(source.absolute()), "anyway": anyway}, held=held, fd=fd)
    finally:
        os.close(fd)
