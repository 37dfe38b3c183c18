"""`ringfence backup restore`: an installation from a backup, on this host or another, while no server runs.

The file is read to its end before anything is made, and again as it is put back. All is built in a folder beside the state
directory, HOME.restoring, which gets its name in the end: a kill before that leaves no installation under the name, or the one that
was there; the next restore takes the folder away and begins anew. A file is hostile until shown otherwise: its form by the reader,
its trees by who unpacks them, as their boxes, into their boxes; settings that name what root would run or read are refused unless
trusted by name. What it says of rows is believed, as it must be: whoever writes to the file decides who has which rights.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from ringfence.host.install import accounts, atomic, gate, jobs, prepare, state, uninstall, whole_file
from ringfence.host.install.layout import ROOT_HOME, Layout, home_of
from ringfence.host.install.prepare import Ready
from ringfence.host.install.state import Installation
from ringfence.host.install.taking_away import take_away
from ringfence.host.install.whole_file import Looked
from ringfence.host.kernel.errors import Conflict, Invalid, Refused, RingfenceError, Unavailable
from ringfence.host.kernel.settings import Settings
from ringfence.host.kernel.settings_file import parse

MARK = ".restoring"  # in the folder that is built: it may be taken away
_DATABASE = re.compile(r"\s*database\s*=")
_STOP = "stop every box of it: ringfence uninstall (without --purge), then again"
# What root would run or read for whoever wrote the settings.
_OF_ROOT = ("bwrap", "python", "cgroup_parent", "script", "vault")


@dataclass(frozen=True, slots=True)
class Wish:
    file: Path
    home: str | None = None
    database: str | None = None
    force: bool = False
    anyway: bool = False
    trust: bool = False


def verify(path: Path) -> dict[str, Any]:
    """Reads all of it. Facts, `settings`: keys of its settings that a restore wants trusted. Invalid: it is no whole backup."""
    with whole_file.opened(path) as file:
        looked = whole_file.look(file)
        size = os.fstat(file.fileno()).st_size
    return {"file": str(path), "size_bytes": size, **looked.facts(), "settings": _of_root(_settings(looked))}


def restore(environment: Mapping[str, str], wish: Wish) -> dict[str, Any]:
    """{"home", "installation", "ids", "boxes", "boxes_empty", "snapshots_gone", "with_key", "moved", "generation", "rows",
    "runs_to_redrive", "gone", "notes", "backup"}."""
    layout = Layout(home_of(environment, os.geteuid(), wish.home))
    try:
        with whole_file.opened(wish.file) as file:
            looked, ready, facts, moved = _restored(layout, wish, file)
    except OSError as error:
        raise whole_file.full(error, str(error.filename or layout.home)) from error
    kept = facts.pop("replaced")
    notes = [*facts.pop("notes"), *([f"what the database had is in its schema {kept}"] if kept else [])]
    return {
        "home": str(layout.home),
        "installation": ready.installation.id,
        "ids": list(ready.installation.ids),
        "moved": moved,
        **{name: value for name, value in facts.items() if name not in ("findings", "backup")},
        "notes": notes,
        "backup": looked.facts(),
    }


def _restored(layout: Layout, wish: Wish, file: IO[bytes]) -> tuple[Looked, Ready, dict[str, Any], str | None]:
    """All that is looked at comes before anything is touched, and what may be refused before the rows are put back."""
    looked = whole_file.look(file)
    file.seek(0)
    settings, text = _chosen(looked, wish)
    state.check_place(layout.home, os.geteuid())
    _check_alone(layout, looked, force=wish.force)
    settings = jobs.accepting(settings)
    prepare.check_host(settings)
    mode = prepare.mode_of(settings)
    with _kept_down(layout), _building(layout) as built:
        ready = _made(layout, built, looked, settings, text, mode)
        _let_go(layout.home)
        options = {"file": str(wish.file.absolute()), "anyway": wish.anyway, "by": gate.who()}
        facts = jobs.done(ready, "restore", options, file, lambda: accounts.keep(layout.home))
        try:
            moved = _named(layout, built)
        except (OSError, RingfenceError) as error:
            raise _not_named(error, layout, settings) from error
    return looked, ready, facts, moved


def _not_named(error: OSError | RingfenceError, layout: Layout, settings: Settings) -> Unavailable:
    why = error.message if isinstance(error, RingfenceError) else f"{error.filename or layout.home}: {error.strerror}"
    rows = ", whose rows are in the database already: start no server before that" if settings.database else ""
    return Unavailable(
        f"all is put back, and cannot be given its place: {why}", remedy=f"see to that, and restore again{rows}"
    )


# --- before anything is made ----------------------------------------------------------------------------------------------


def _settings(looked: Looked) -> Settings:
    return parse(looked.settings, source="the backup's ringfence.toml")


def _of_root(settings: Settings) -> list[str]:
    usual = Settings()
    return [name for name in _OF_ROOT if getattr(settings, name) != getattr(usual, name)]


def _chosen(looked: Looked, wish: Wish) -> tuple[Settings, str]:
    """What the installation is to run with, and the text of its file. Refused; Invalid."""
    settings, text = _settings(looked), looked.settings
    named = _of_root(settings)
    if named and not wish.trust:
        raise Refused(
            f"the backup's settings name what root would run or read here: {', '.join(named)}",
            remedy="look at them (tar -xOf FILE --wildcards 'ringfence.toml.*' | zcat), then: --trust-settings",
        )
    if settings.database and wish.database is None:
        raise Refused(
            "the backup's rows were in a database server, and nothing says where they are to go",
            remedy="name an empty database: --db URL; or the state's own file: --db sqlite",
        )
    if wish.database is not None:
        text = _with_database(text, "" if wish.database == "sqlite" else wish.database)
        settings = parse(text, source="--db")
    return settings, text


def _with_database(text: str, url: str) -> str:
    """The same settings with another database. Invalid: they cannot be changed so."""
    lines, top = [], True
    for line in text.splitlines():
        top = top and not line.lstrip().startswith("[")
        if not (top and _DATABASE.match(line)):
            lines.append(line)
    changed = "\n".join([f"database = {json.dumps(url)}", *lines, ""])
    before, after = parse(text, source="the backup's ringfence.toml"), parse(changed, source="--db")
    if replace(before, database=url) != after:
        raise Invalid("the database of the backup's settings cannot be changed", remedy="--db as the backup has it")
    return changed


def _check_alone(layout: Layout, looked: Looked, *, force: bool) -> None:
    """Nobody works there, and no other state of this host has the same id: its boxes would have the same names."""
    home = layout.home
    if home.exists() and any(home.iterdir()):
        if not force:
            raise Conflict(
                f"{home} has something in it", remedy="name another: --home DIR; or move it aside, kept: --force"
            )
        with _kept_down(layout):
            pass
        if own := [each for each in jobs.mounts(home) if not _of_box(home, each)]:
            raise Unavailable(
                f"{own[0]} is a volume of its own below {home}",
                remedy=f"put the backup elsewhere: --home DIR; or umount {own[0]}",
            )
        if boxes := uninstall.running(uninstall.Found(layout, None, (0, 0))):
            raise Unavailable(f"{len(boxes)} boxes run at {home}", remedy=_STOP, boxes=boxes[:100])
    if os.geteuid() != 0 or not accounts.REGISTRY.is_dir():
        return
    for other in accounts.homes():
        if other != home and (found := _id_of(Layout(other))) == looked.manifest["installation"]:
            raise Conflict(
                f"the installation {found} is on this host already: {other}",
                remedy=f"RINGFENCE_HOME={other} ringfence uninstall --purge; or move it away",
            )


@contextmanager
def _kept_down(layout: Layout) -> Iterator[None]:
    """No server works on the state that is there, and none begins to. Unavailable."""
    with prepare.no_server(layout) if (layout.home / "spawner").is_dir() else nullcontext():
        yield


def _of_box(home: Path, target: str) -> bool:
    """Whether it is the disk of a box's tree."""
    parts = Path(target).relative_to(home).parts
    return len(parts) == 3 and parts[0] == "boxes" and parts[2] in ("tree", "beside")


def _let_go(home: Path) -> None:
    """The disks of boxes, which the next start of each mounts again. Unavailable."""
    if left := jobs.unmounted(home):
        raise Unavailable(f"{left[0]} is in use", remedy=f"see who has it (fuser -vm {left[0]}); or: {_STOP}")


def _id_of(layout: Layout) -> str | None:
    try:
        found = state.load(layout)
    except Unavailable:
        return None
    return None if found is None else found.id


# --- built -----------------------------------------------------------------------------------------------------------------


@contextmanager
def _building(layout: Layout) -> Iterator[Layout]:
    """A folder of its own beside the state, which goes when it did not become it. Conflict: another restore is at work on it."""
    built = Layout(layout.home.with_name(f"{layout.home.name}.restoring"))
    if len(os.fsencode(built.home)) > 107 - len("/run/api.sock"):
        raise Invalid(f"{built.home}, where it is built, is too long a path", remedy="--home /a/shorter/path")
    layout.home.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    state.check_place(built.home, os.geteuid())
    known = accounts.slice_of(layout.home) is not None
    folder = os.open(layout.home.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _cleared(built)
        built.home.mkdir(mode=0o711)
        (built.home / MARK).touch(0o600)
        lock = os.open(built.home / MARK, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield built
        except BaseException as error:
            os.close(lock)
            lock = -1
            _abandoned(layout, built, error, known=known)
            raise
        finally:
            if lock >= 0:
                os.close(lock)
    finally:
        os.close(folder)


def _abandoned(layout: Layout, built: Layout, error: BaseException, *, known: bool) -> None:
    """What was built goes, and the ids of a state that never was (`known`: they were taken before). What cannot be is told with the error
    itself, and goes with the next restore."""
    try:
        if (built.home / MARK).exists():
            _cleared(built)
        if not known and layout.home != ROOT_HOME:
            accounts.forget(layout.home)
    except (OSError, RingfenceError) as left:
        if isinstance(error, RingfenceError):
            error.message += f" (what was built is at {built.home} still: {left}; the next restore takes it away)"


def _cleared(built: Layout) -> None:
    """What a restore left that was killed. Nothing else has the mark. Conflict; Unavailable."""
    if not built.home.exists():
        return
    mark = built.home / MARK
    if not mark.exists() and any(built.home.iterdir()):
        raise Conflict(
            f"{built.home} is no folder of a restore", remedy=f"look at it, and move it away: ls -l {built.home}"
        )
    if mark.exists():
        with mark.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise Conflict("another restore is at work", remedy=f"wait for it: {built.home}") from error
    if (built.home / "spawner").is_dir():
        with prepare.no_server(built):
            pass
    if left := jobs.unmounted(built.home):
        raise Unavailable(f"{left[0]} is in use", remedy=f"see who has it, then umount {left[0]}")
    found = state.load(built)
    if (
        found is not None
        and os.geteuid() != 0
        and (built.home / "boxes").is_dir()
        and any((built.home / "boxes").iterdir())
    ):
        _cleared_by_spawner(built)  # trees of subordinate ids, which this account cannot delete itself
    take_away(built.home, last=MARK)


def _cleared_by_spawner(built: Layout) -> None:
    jobs.done(jobs.ready_of(built), "clear", {})


def _made(layout: Layout, built: Layout, looked: Looked, settings: Settings, text: str, mode: str) -> Ready:
    """A state with the backup's id, ids of this host and nothing in it."""
    root = os.geteuid() == 0
    ids = (0, 0)
    if root:
        number = accounts.take_slice(layout.home)
        ids = accounts.ids_of(number)
        if layout.home == ROOT_HOME:
            accounts.ensure_account(ids[0])
    kernel = prepare.kernel_of(ids)
    if root:
        state.check_reachable(built.home, kernel)
    built.home.chmod(0o711)
    state.make_tree(built, kernel)
    if text:
        atomic.write(built.settings, text.encode(), mode=0o600)
    _spend(layout, built, looked, ids)
    # The wall clock is for people only here: nothing is decided by it.
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    made = Installation(looked.manifest["installation"], ids, created)
    said = {"id": made.id, "ids": list(ids), "created_at": created}
    atomic.write_json(built.installation, said, mode=0o644)
    return Ready(built, made, settings.at(str(built.home), made.id, mode), kernel, ())


def _spend(layout: Layout, built: Layout, looked: Looked, ids: tuple[int, int]) -> None:
    """No id is given out that a box had which was here: by the state that is moved aside, and by the backup."""
    first = ids[0] + prepare.BLOCK
    spent = [looked.manifest["spent"]] if ids[0] < looked.manifest["spent"] <= ids[1] + 1 else []
    with suppress(OSError, ValueError):
        spent.append(int(atomic.read(layout.spawner / "next_id")))
    if spent and max(spent) > first:
        following = max(spent) + -(max(spent) - first) % prepare.BLOCK
        atomic.write(built.spawner / "next_id", str(following).encode(), mode=0o600)


def _named(layout: Layout, built: Layout) -> str | None:
    """The last step: where the state of before is, which is kept; None: there was none. OSError, Unavailable: it is where it was."""
    _let_go(built.home)
    _let_go(layout.home)
    os.sync()
    moved = None
    if layout.home.exists():
        if any(layout.home.iterdir()):
            number = next(
                n for n in range(1, 1000) if not layout.home.with_name(f"{layout.home.name}.replaced-{n}").exists()
            )
            moved = layout.home.with_name(f"{layout.home.name}.replaced-{number}")
            layout.home.rename(moved)
        else:
            layout.home.rmdir()
    try:
        built.home.rename(layout.home)
    except OSError:
        if moved is not None:
            moved.rename(layout.home)
        raise
    _synced(layout.home.parent)
    (layout.home / MARK).unlink()
    return None if moved is None else str(moved)


def _synced(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
