"""Makes the stage and strikes it: one folder `ringfence-prove-*` that holds all, and a lock that says it is in use.

A prove that was killed leaves its folder; the next one takes what nobody holds the lock of away. The lock is the first
thing in a folder and the last to go. Must never touch a folder of another name, nor one whose lock is held.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from ringfence.bench import throwaway
from ringfence.bench.throwaway import CommandFailed, Installation, state_base
from ringfence.client.sync import SyncClient
from ringfence.host.install import accounts
from ringfence.prove import copied, planted, remains
from ringfence.prove.outside import lives
from ringfence.prove.stage import ATTACKER, FLAG, VICTIM, Canaries, Stage
from ringfence.prove.world import World, world

PREFIX = "ringfence-prove-"
LOCK = "lock"
END_SECONDS = 15.0
BARE_SECONDS = 60.0  # a folder older than this has its lock, or was left by one that was killed before or after it
SETTINGS = '[limits]\ndisk = "128MiB"\n'  # small enough to be filled in a second (E08)


@contextlib.contextmanager
def stage(
    left: list[str],
    *,
    patches: Mapping[str, copied.Patch] = copied.HOSTILE,
    settings: Mapping[str, object] | None = None,
) -> Iterator[Stage]:
    """A stage with its two users. What could not be taken away again is in `left` afterwards. CommandFailed: this host
    cannot run a server."""
    sweep()
    root, lock = claimed()
    made = Installation(root / "state", site=root / "site", apart=True)
    try:
        copied.copy(root / "site", patches)
        facts = made.ok("init", "--json").json()
        with world(root) as outside:
            text = _toml(settings or {}) + outside.settings() + planted.webhook(made)
            (made.home / "ringfence.toml").write_text(text)
            key = planted.start(made)
            with contextlib.closing(_staged(root, made, facts, outside)) as ready:
                ready.key = key
                ready.left = left
                yield ready
    finally:
        with _undisturbed():
            left += strike(made)
            os.close(lock)


def _toml(settings: Mapping[str, object]) -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()) + SETTINGS


def claimed() -> tuple[Path, int]:
    """A new folder and its lock, held. Another prove that sweeps may have taken the folder between the two for left."""
    while True:
        root = Path(tempfile.mkdtemp(prefix=PREFIX, dir=state_base()))
        root.chmod(0o711)
        lock = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (root / LOCK).exists():
            return root, lock
        os.close(lock)


def _staged(root: Path, made: Installation, facts: dict[str, object], outside: World) -> Stage:
    ids = facts["ids"]
    assert isinstance(ids, list)
    client = SyncClient(socket=made.socket)
    canaries = _host_canaries(root, made)
    mode = str(facts["mode"])
    ready = Stage(root, made, client, canaries, str(facts["installation"]), (ids[0], ids[1]), mode, outside)
    for user in (VICTIM, ATTACKER):
        ready.user(user)
    ready.exec(VICTIM, ["sh", "-c", f"umask 022; cat > ~/{FLAG}"], canaries.flag.encode())
    return ready


def _host_canaries(root: Path, made: Installation) -> Canaries:
    """Anybody on the host may read one and write to the other: only the box's view keeps them out of its reach."""
    folder = root / "canary"
    (folder / "open").mkdir(parents=True)
    (folder / f"of-{VICTIM}").mkdir()
    (folder / "private").write_text("root's alone")
    (folder / "private").chmod(0o600)
    folder.chmod(0o755)
    (folder / "open").chmod(0o1777)
    secret = f"host-{secrets.token_hex(16)}"
    (folder / "secret").write_text(secret)
    (folder / "secret").chmod(0o644)
    key = (made.home / "vault" / "master.key").read_bytes()
    return Canaries(f"flag-{secrets.token_hex(16)}", folder, secret, key)


# --- the end ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """A second ^C must not leave half of it. In another thread no signal arrives, and none can be set."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def strike(made: Installation) -> list[str]:
    """Takes users, boxes, server and folder away; what is left of them, which should be nothing. The slice of ids is
    given back last: whoever had it while this still looks would be what is left."""
    facts = _facts(made.home)
    accounts.keep(made.home)
    problem = ""
    try:
        throwaway.remove(made)
    except (CommandFailed, OSError, KeyError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"[:300]
        remains.end_by_force(facts, made.home.parent)
    remains.take_cgroups(facts.installation)
    root = made.home.parent
    accounts.keep(made.home)
    _take_away(root)
    left = remains.find(facts, root)
    accounts.forget(made.home)
    return [*([problem] if problem and left else []), *left]


def _take_away(root: Path) -> None:
    """The lock after all else: a folder without one looks like one that was just begun."""
    for path in [path for path in root.iterdir() if path.name != LOCK] if root.exists() else []:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if root.exists() and [path.name for path in root.iterdir()] in ([], [LOCK]):
        (root / LOCK).unlink(missing_ok=True)
        root.rmdir()


def _facts(home: Path) -> remains.Facts:
    try:
        raw = json.loads((home / "installation.json").read_text())
        return remains.Facts(str(raw["id"]), (int(raw["ids"][0]), int(raw["ids"][1])))
    except (OSError, ValueError, KeyError):
        return remains.Facts("", (0, 0))


def sweep() -> list[str]:
    """Strikes what an earlier prove left when it was killed; the folders' names."""
    struck = []
    for root in sorted(state_base().glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError):
            bare = not (root / LOCK).exists()
            age = time.time() - root.stat().st_mtime  # noqa: TID251  against a file's time
            if bare and age < BARE_SECONDS:
                continue
            lock = os.open(root / LOCK, os.O_RDWR | os.O_CREAT * bare | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _strike_old(root)
                struck.append(root.name)
            finally:
                os.close(lock)
    return struck


def _strike_old(root: Path) -> None:
    """Its server may still run, and its boxes do: it is ended, and another one takes the boxes away."""
    made = Installation(root / "state", site=root / "site", apart=True)
    _end_server(made.home)
    if (made.home / "installation.json").exists():
        with contextlib.suppress(CommandFailed, OSError):
            made.start()
    strike(made)


def _end_server(home: Path) -> None:
    """The holder of the state's lock, if it is a server of that state."""
    try:
        pid = int((home / "spawner" / LOCK).read_text())
        pidfd = os.pidfd_open(pid)
    except (OSError, ValueError):
        return
    try:
        if os.fsencode(home) not in Path(f"/proc/{pid}/cmdline").read_bytes():
            return
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        until = time.monotonic() + END_SECONDS
        while time.monotonic() < until and lives(pid):
            time.sleep(0.05)
        if lives(pid):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:
        return
    finally:
        os.close(pidfd)
