"""What prove's own server is given before it starts and no box may come to have: a key in its session keyring, the secret
of a webhook, and limits above those of a box. Where nothing is planted a box without the wall would look like one with it.

Must never change what this process itself keeps: the keyring is a thread's, which ends; the limits are put back.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ringfence.bench.throwaway import Installation
from ringfence.prove.attacks.kernel import call

# keyctl(2)
JOIN_SESSION_KEYRING, CHOWN, SETPERM = 1, 4, 5
SESSION_KEYRING = -3
# keyctl_setperm(3). Whoever possesses it may do all. Its owner may do nothing by being that: what a box's id sees of it, it
# possesses. Root, whose group it stays in, may go on to give it away.
OF_PLANTED, OF_GIVEN = 0x3F212100, 0x3F002100
RAISED = {
    resource.RLIMIT_RTPRIO: 5,
    resource.RLIMIT_NICE: 25,
    resource.RLIMIT_MSGQUEUE: 4 << 20,
    resource.RLIMIT_SIGPENDING: 1 << 20,
}


def start(made: Installation) -> int | None:
    """Starts the server with all of it; the key's number, None where this host gives no keys. CommandFailed."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_start, made).result()


def _start(made: Installation) -> int | None:
    key = None
    with contextlib.suppress(OSError):
        call("keyctl", JOIN_SESSION_KEYRING, 0)
        key = call("add_key", b"user", b"ringfence-prove", b"x", 1, SESSION_KEYRING)
        call("keyctl", SETPERM, key, OF_PLANTED if os.geteuid() == 0 else OF_GIVEN)
    with raised():
        made.start()
    return key


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """`RAISED`, as far as this process may, until the end."""
    before = {kind: resource.getrlimit(kind) for kind in RAISED}
    try:
        for kind, value in RAISED.items():
            with contextlib.suppress(ValueError, OSError):  # not even every root may
                resource.setrlimit(kind, (value, value))
        yield
    finally:
        for kind, limits in before.items():
            resource.setrlimit(kind, limits)


def webhook(made: Installation) -> str:
    """Settings with a webhook that the policy lets nobody use, its secret planted in a file of the server's account."""
    path = _secret_file(made)
    servers_own(made, path, secrets.token_hex(24))
    url = "http://127.0.0.1:1/nobody"
    return f'[[webhook]]\nname = "planted"\nurl = "{url}"\nlookup_url = "{url}"\nsecret_file = "{path}"\n'


def servers_own(made: Installation, path: Path, text: str) -> None:
    """`text` in a file of the server's account, never another's to read; whole, or as it was before."""
    owner = (made.home / "vault").stat()
    new = path.with_name(f"{path.name}.new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
        if os.geteuid() == 0:
            os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
    new.rename(path)


def webhook_secret(made: Installation) -> bytes:
    return _secret_file(made).read_bytes()


def _secret_file(made: Installation) -> Path:
    return made.home.parent / "webhook-secret"


def give(key: int, uid: int) -> None:
    """The key's owner is `uid` from here on, so that it shows in /proc/keys where that is the only id there is, to
    whoever possesses it. OSError."""
    call("keyctl", CHOWN, key, uid, -1)
    call("keyctl", SETPERM, key, OF_GIVEN)
