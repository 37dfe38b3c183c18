"""The files of the webhooks' keys as the server will find them: for `config check` and `doctor`, before it is started.

Must never show a byte of a key, or wait for one: a FIFO is no key.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass

from ringfence.host.install import tries
from ringfence.host.install.hostfacts import Row
from ringfence.host.install.layout import Layout
from ringfence.host.install.state import load
from ringfence.host.kernel.errors import Invalid, RingfenceError
from ringfence.host.kernel.key_files import MISSING, MOST_READ, missing_remedy, remedy, secret_from
from ringfence.host.kernel.settings import Settings


@dataclass(frozen=True, slots=True)
class Fault:
    """Of one key's file. `missing`: the server starts, and what needs the key waits; else it does not start."""

    webhook: str
    path: str
    wrong: str

    @property
    def missing(self) -> bool:
        return self.wrong == MISSING

    @property
    def text(self) -> str:
        return f"webhook {self.webhook}: secret_file {self.path} {self.wrong}"

    @property
    def remedy(self) -> str:
        return missing_remedy(self.path) if self.missing else remedy(self.path)


def faults(settings: Settings, layout: Layout) -> list[Fault]:
    """`layout`: whose installation's account is to read them; where none is made yet, whoever asks."""
    uid = _server(layout)
    found = [(hook, _wrong(hook.secret_file, uid)) for hook in settings.webhook]
    return [Fault(hook.name, hook.secret_file, wrong) for hook, wrong in found if wrong]


def checked(settings: Settings, layout: Layout) -> list[str]:
    """A line for each that is missing. Invalid: one with which no server starts."""
    every = faults(settings, layout)
    for fault in every:
        if not fault.missing:
            raise Invalid(fault.text, remedy=fault.remedy, key="webhook")
    return [f"{fault.text}; calls wait until it is: {fault.remedy}" for fault in every]


def rows(settings: Settings, layout: Layout) -> list[Row]:
    return [
        Row("webhook-key", False, "info" if fault.missing else "required", fault.text, fault.remedy)
        for fault in faults(settings, layout)
    ]


def _server(layout: Layout) -> int | None:
    """The account that root's server runs as; None: the one of this process."""
    if os.geteuid() != 0:
        return None
    try:
        made = load(layout)
    except RingfenceError:  # whoever starts the server is told
        return None
    return made.ids[0] if made is not None and made.ids[0] else None


def _wrong(path: str, uid: int | None) -> str:
    try:
        mode, data = _read(path)
    except FileNotFoundError:
        return MISSING
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    wrong = secret_from(mode, data)[1]
    if wrong or uid is None:
        return wrong
    code = tries.in_child(lambda: _open(path), uid)  # by the folders above, too
    return f"cannot be read by the server's account, id {uid}: {os.strerror(code)}" if code in _DENIED else ""


_DENIED = (errno.EACCES, errno.EPERM)


def _read(path: str) -> tuple[int, bytes]:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(fd).st_mode
        return mode, os.read(fd, MOST_READ) if stat.S_ISREG(mode) else b""
    finally:
        os.close(fd)


def _open(path: str) -> None:
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
