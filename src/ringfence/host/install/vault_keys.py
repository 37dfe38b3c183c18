"""Keys of the vault that `serve` reads as who started it, and leaves in memory for the server, which may not read them itself.

An environment, a systemd credential (systemd.exec(5), LoadCredential=), a file of root's and a program's output are read
here, before any right is given up. They are handed over as a file of the server's account in a tmpfs: it takes the file away
with its first look, and no disk sees it. What cannot be read is said there instead: the server starts with a sealed vault.
Must never put a byte of a key into an error, an argument or an environment.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import stat
import subprocess
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ringfence.host.install.state import Account
from ringfence.host.kernel.errors import Unavailable
from ringfence.host.kernel.settings import Settings
from ringfence.host.kernel.vault_keys import MAX_READ, key_from, source_of

MEMORY = Path("/dev/shm")  # a tmpfs on every Linux with glibc (shm_overview(7)); the name in it is random
COMMAND_SECONDS = 30.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class NoKey(Exception):
    """Why a source gives none: (the end of a sentence, what to do)."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.why, self.remedy = why, remedy


def hand_over(settings: Settings, environment: Mapping[str, str], kernel: Account, memory: Path = MEMORY) -> Settings:
    """The settings with the place of the keys; as they are when the keys are the state's own files. The caller has made sure
    that no server of the installation runs. Unavailable: there is no place in memory."""
    _swept(memory, settings.installation, {os.geteuid(), kernel.uid})
    if not settings.vault.key and not settings.vault.old:
        return settings
    why = remedy = ""
    key, old = b"", []
    try:
        key = _read(settings.vault.key or f"file:{settings.home}/vault/master.key", environment)
        old = [_read(each, environment) for each in settings.vault.old]
    except NoKey as error:
        key, old, why, remedy = b"", [], error.why, error.remedy
    said = {"key": _text(key), "old": [_text(each) for each in old], "why": why, "remedy": remedy}
    path = memory / f"ringfence-{settings.installation}-{secrets.token_hex(8)}"
    try:
        _write(path, json.dumps(said).encode(), kernel)
    except OSError as error:
        raise Unavailable(
            f"the key of the vault cannot be handed over in {memory}: {error.strerror}",
            remedy=f"mount -t tmpfs tmpfs {memory}; or keep the key in the state: [vault] without key",
        ) from error
    return replace(settings, handed=str(path))


def _swept(memory: Path, installation: str, ours: set[int]) -> None:
    """Takes away what a start left that came to nothing. Everybody may write there: what is not ours is not touched, and what
    cannot be taken away keeps no server down."""
    for left in memory.glob(f"ringfence-{installation}-*"):
        with suppress(OSError):
            status = left.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_uid in ours:
                left.unlink()


def _text(key: bytes) -> str:
    return b64encode(key).decode()


def _write(path: Path, data: bytes, owner: Account) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        if (owner.uid, owner.gid) != (os.geteuid(), os.getegid()):
            os.fchown(fd, owner.uid, owner.gid)
        file.write(data)


def _read(source: str, environment: Mapping[str, str]) -> bytes:
    """NoKey."""
    kind, name = source_of(source)
    if kind == "env":
        data = environment.get(name, "").encode(errors="replace")
        if not data:
            raise NoKey(f"the variable {name} is not set", f"set {name} for `ringfence serve`")
    elif kind == "credential":
        folder = environment.get("CREDENTIALS_DIRECTORY", "")
        if not folder.startswith("/"):
            raise NoKey("there is no CREDENTIALS_DIRECTORY", f"LoadCredential={name}:/PATH in the unit")
        data = _file(Path(folder) / name)
    elif kind == "command":
        data = _output(name)
    else:
        data = _file(Path(name))
    key = key_from(data)
    if not key:
        raise NoKey(f"{kind}:{name} is no key: 32 bytes, 64 hex digits or base64 of them", "head -c 32 /dev/urandom")
    return key


def _file(path: Path) -> bytes:
    """NoKey: also when others than its owner may read it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            data = file.read(MAX_READ) if stat.S_ISREG(status.st_mode) else b""
    except OSError as error:
        raise NoKey(f"{path} cannot be read: {error.strerror}", f"ls -l {path}") from error
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise NoKey(f"others can read the key of the vault: {path}", f"chmod 600 {path}")
    return data


def _output(command: str) -> bytes:
    """NoKey. No shell; of the environment a PATH alone."""
    shown = command.split()[0]  # what follows may say how it is asked
    try:
        argv = shlex.split(command)
        done = subprocess.run(
            argv, env={"PATH": _PATH, "LANG": "C.UTF-8"}, stdin=subprocess.DEVNULL, capture_output=True, cwd="/",
            timeout=COMMAND_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise NoKey(f"{shown} cannot be run: {error}", "try the command by hand") from error
    except subprocess.TimeoutExpired:
        raise NoKey(f"{shown} took longer than {COMMAND_SECONDS:.0f} s", "try the command by hand") from None
    if done.returncode != 0:
        raise NoKey(f"{shown} ended with {done.returncode}", "try the command by hand")
    return done.stdout[: MAX_READ + 1] if len(done.stdout) <= MAX_READ else b""
