"""Everything of `serve` before the spawner: settings, checks, state, runtime copy, the two configuration files.

The process that the caller started becomes the spawner (execve, the pid stays), so this starts nothing that lives on.
Refuses rather than degrades: what a host lacks must be accepted by name.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ringfence.host.install import (
    accounts,
    atomic,
    doctor,
    gate,
    owned,
    prove_record,
    runtime,
    state,
    subids,
    vault_keys,
)
from ringfence.host.install.layout import ROOT_HOME, Layout
from ringfence.host.install.runtime import Runtime
from ringfence.host.install.state import Account, Installation
from ringfence.host.kernel.errors import Invalid, Refused, Unavailable
from ringfence.host.kernel.settings import Settings
from ringfence.host.kernel.settings_file import accept_ids, override, parse

MAX_SETTINGS_BYTES = 1 << 20
BLOCK = 8  # ids of one box; the first block of a range is the server's own: the kernel's, the egress template's
OF_SPAWNER = (  # the others are this package's own: rows of prove, `unproved`
    "no-cgroup",
    "no-cpu-limit",
    "no-swap-limit",
    "shared-uid",
    "no-landlock",
    "no-landlock-scope",
    "no-pidfs",
    "no-nft",
    "no-disk-quota",
    "no-freezer",
)
SPAWNER = "from ringfence.spawner.main import main; main(sys.argv[1])"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line adds to the file. None: not said."""

    config: Path | None = None
    database: str | None = None
    listen: str | None = None
    accept: str | None = None
    production: bool = False
    reason: str | None = None  # of accepting
    rows: Callable[[], Collection[str]] = tuple  # every id of `prove`, which this package may not ask itself
    # Of who starts it: keys of the vault may be in it.
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Ready:
    """A state that a server can start from."""

    layout: Layout
    installation: Installation
    settings: Settings
    kernel: Account
    notes: tuple[str, ...]


def file_of(name: str | None) -> Path | None:
    """The settings file that a command line names. Invalid: an empty name, which would mean the folder one is in."""
    if name == "":
        raise Invalid(
            "the name of the settings file is empty", remedy="name a file, or leave it out for the state's own"
        )
    return None if name is None else Path(name)


def read_settings(path: Path, *, missing_ok: bool) -> Settings:
    """Settings of a file that nobody else can write. Invalid, Refused."""
    try:
        text = owned.read_text(path, MAX_SETTINGS_BYTES)
    except FileNotFoundError as error:
        if missing_ok:
            return Settings()
        raise Invalid(f"no such file: {path}", remedy="`ringfence config show` prints one") from error
    return parse(text, source=str(path))


def merged(settings: Settings, wish: Wish) -> Settings:
    """The file's settings with the command line's on top; accepted ids add up. Invalid."""
    said: dict[str, object] = {}
    if wish.database is not None:
        said["database"] = wish.database
    if wish.listen is not None:
        said["listen"] = wish.listen
    if wish.reason is not None:
        said["accept_reason"] = wish.reason
    if wish.accept is not None:
        try:
            said["accept"] = [*settings.accept, *accept_ids(wish.accept)]
        except ValueError as error:
            raise Invalid(f"--accept {wish.accept} is not allowed", remedy=f"--accept takes {error}") from error
    return override(settings, said)


def mode_of(settings: Settings) -> str:
    """root, subuid or shared. Unavailable: the one that the settings ask for cannot be had here, or is not accepted."""
    root, wanted = os.geteuid() == 0, settings.mode
    if root:
        if wanted in ("auto", "root"):
            return "root"
        raise Unavailable(f"mode {wanted} is for ordinary users, and this is root", remedy='mode = "auto"')
    if wanted == "root":
        raise Unavailable("mode root needs root", remedy='run it as root, or set mode = "auto"')
    choice = subids.choose(doctor.my_name(), os.getuid())
    if wanted == "subuid" and choice.mode != "subuid":
        raise Unavailable(choice.lacks, remedy=choice.remedy)
    mode = "shared" if wanted == "shared" else choice.mode
    if mode == "shared" and "shared-uid" not in settings.accept:
        raise Unavailable(
            f"every box would have the same host id: {choice.lacks or 'mode is shared'}",
            remedy=f"{choice.remedy or 'mode = auto'}; or accept it: ringfence serve --accept shared-uid",
        )
    return mode


def check_host(settings: Settings) -> None:
    """Unavailable: the first required row of the doctor that does not hold."""
    lacking = doctor.missing(doctor.required(settings))
    if lacking:
        first = lacking[0]
        more = f" (and {len(lacking) - 1} more: ringfence doctor)" if len(lacking) > 1 else ""
        raise Unavailable(first.found, remedy=first.remedy + more, row=first.id)


def make_state(layout: Layout, settings: Settings) -> Ready:
    """The state tree, made or mended. Idempotent; `settings.mode` is already decided."""
    root = os.geteuid() == 0
    notes: list[str] = []
    state.make_home(layout, os.geteuid())
    installation = state.load(layout)
    if installation is None:
        ids = accounts.ids_of(accounts.take_slice(layout.home)) if root else (0, 0)
        if root:
            notes.append(_account(layout, ids[0]))
        kernel = kernel_of(ids)
        _make_tree(layout, kernel, root)
        state.make_master_key(layout, kernel)
        installation = state.make_installation(layout, ids)
    else:
        kernel = kernel_of(installation.ids)
        _make_tree(layout, kernel, root)
    chosen = settings.at(str(layout.home), installation.id, settings.mode)
    return Ready(layout, installation, chosen, kernel, tuple(notes))


def _account(layout: Layout, uid: int) -> str:
    """The usual installation has the account by name; others go by number, so that they never fight for the name."""
    if layout.home == ROOT_HOME:
        return accounts.ensure_account(uid)
    return f"the server runs as id {uid}, without a name: only {ROOT_HOME} has the account {accounts.NAME}"


def kernel_of(ids: tuple[int, int]) -> Account:
    """Whom the kernel runs as in an installation with these host ids."""
    if ids == (0, 0):
        return Account(os.getuid(), os.getgid())
    return Account(ids[0], ids[0])


def _make_tree(layout: Layout, kernel: Account, root: bool) -> None:
    if root:
        state.check_reachable(layout.home, kernel)
    state.make_tree(layout, kernel)


def spawner_config(ready: Ready, copied: Runtime) -> dict[str, Any]:
    """H/spawner/config.json. Ids are counted as in the spawner's user namespace."""
    settings, mode = ready.settings, ready.settings.mode
    first, last = ready.installation.ids
    subuid = subgid = None
    ids = [first + BLOCK, last]
    kernel, egress = [ready.kernel.uid, ready.kernel.gid], first + 1
    if mode != "root":
        kernel, ids, egress = [0, 0], [0, 0], 0
    if mode == "subuid":
        choice = subids.choose(doctor.my_name(), os.getuid())
        if choice.uids is None or choice.gids is None:
            raise Unavailable(choice.lacks, remedy=choice.remedy)
        subuid, subgid = ([r.start, r.count] for r in (choice.uids, choice.gids))
        ids, egress = [BLOCK, min(choice.uids.count, choice.gids.count)], 1
    return {
        "version": 1,
        "installation": ready.installation.id,
        "home": settings.home,
        "mode": mode,
        "python": settings.python,
        "bwrap": settings.bwrap,
        "runtime": str(copied.path),
        "guest_digest": copied.guest_digest,
        "kernel_uid": kernel[0],
        "kernel_gid": kernel[1],
        "egress_id": egress,
        "ids": ids,
        "subuid": subuid,
        "subgid": subgid,
        "accept": [name for name in settings.accept if name in OF_SPAWNER],
        "cgroup_parent": settings.cgroup_parent or None,
        "kernel_config": str(ready.layout.kernel_json),
        "disk": settings.disk,
        "root_ca": settings.egress.root_ca,
        "limits_all": asdict(settings.limits_all),
    }


@contextmanager
def no_server(layout: Layout) -> Iterator[None]:
    """Holds the spawner's lock while the files are written. Unavailable: a server has it, named by its pid.

    A POSIX record lock, as the spawner's: no child inherits it, and it ends when this process becomes the spawner, which
    takes it again. Of two that get so far at once the second ends there. Refused: there is no place for the lock.
    """
    try:
        fd = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Refused(
            f"{layout.lock} cannot be opened: {error.strerror}",
            remedy="run it as the server's owner; ringfence init makes folders that are gone",
        ) from error
    try:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            pid = _holder(fd)
            raise Unavailable(
                f"a server runs already on {layout.home}, pid {pid}", remedy=f"stop it first: kill {pid}", pid=pid
            ) from error
        yield
    finally:
        os.close(fd)


def _holder(fd: int) -> int:
    """Pid of who holds a lock on the file; 0: nobody any more, or a process of another pid namespace."""
    layout = "hhqqi"  # struct flock {short l_type, l_whence; off_t l_start, l_len; pid_t l_pid}
    asked = struct.pack(layout, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = struct.unpack(layout, fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    return 0 if kind == fcntl.F_UNLCK else max(0, int(pid))


def write_kernel_json(ready: Ready) -> None:
    """0600: a database URL may hold a password."""
    owner = (ready.kernel.uid, ready.kernel.gid)
    atomic.write_json(ready.layout.kernel_json, ready.settings.to_json(), mode=0o600, owner=owner)


def copy_runtime(ready: Ready) -> Runtime:
    return runtime.install(ready.layout.runtime, ready.settings.python)


def launch(site: Path, python: str, code: str, *arguments: str) -> list[str]:
    """Argument list that runs `code` from a runtime with sys.argv[1:] = `arguments`: isolated, without the host's own
    site packages."""
    return [python, "-I", "-S", "-B", "-c", f"import sys; sys.path.insert(0, {str(site)!r}); {code}", *arguments]


def as_kernel(
    kernel: Account,
    command: list[str],
    *,
    given: str = "",
    pass_fds: Collection[int] = (),
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """`command` run to its end as the kernel's account, without its other groups when this is root. `given`: its stdin.
    TimeoutExpired."""
    root = os.geteuid() == 0
    return subprocess.run(
        command, env=minimal_environment(), cwd="/", capture_output=True, text=True, check=False, input=given,
        umask=0o077, pass_fds=pass_fds, timeout=timeout,
        user=kernel.uid if root else None, group=kernel.gid if root else None, extra_groups=[] if root else None,
    )  # fmt: skip


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """The last line that a process said on stderr, 500 characters of it."""
    return (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:500]


def serve(layout: Layout, wish: Wish) -> tuple[list[str], dict[str, str]]:
    """Argument list and environment of the spawner, everything else done. RingfenceError: why not."""
    state.check_place(layout.home, os.geteuid())
    settings = merged(read_settings(wish.config or layout.settings, missing_ok=wish.config is None), wish)
    gate.check_rows(settings.accept, wish.rows)
    gate.check_pins(settings, production=wish.production)
    verdict = prove_record.verdict(prove_record.read(layout), prove_record.current(settings))
    why, remedy = gate.check(settings, verdict, production=wish.production, config=wish.config)
    settings = replace(gate.recorded(settings, verdict), gate=why, gate_remedy=remedy, accepted_by=gate.who())
    check_host(settings)
    settings = override(settings, {"mode": mode_of(settings)})
    ready = make_state(layout, settings)
    with no_server(layout):
        ready = replace(ready, settings=owned.place_script(ready.settings, layout, ready.kernel))
        copied = copy_runtime(ready)
        runtime.prune(layout.runtime, copied.path, layout.boxes)
        ready = replace(ready, settings=vault_keys.hand_over(ready.settings, wish.environment, ready.kernel))
        write_kernel_json(ready)
        atomic.write_json(layout.spawner_config, spawner_config(ready, copied), mode=0o600)
    argv = launch(copied.site, settings.python, SPAWNER, str(layout.spawner_config))
    return argv, minimal_environment()


def minimal_environment() -> dict[str, str]:
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


def as_facts(ready: Ready) -> dict[str, Any]:
    """What `init` answers, the token left out."""
    return {
        "home": str(ready.layout.home),
        "installation": ready.installation.id,
        "mode": ready.settings.mode,
        "kernel": asdict(ready.kernel),
        "ids": list(ready.installation.ids),
        "notes": list(ready.notes),
    }
