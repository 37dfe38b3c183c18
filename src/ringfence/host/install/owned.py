"""Text files that tell a server what to do: read only when nobody else can write them.

The settings name programs that run as the server's owner; a script names commands that run in people's boxes.
"""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

from ringfence.host.install import atomic
from ringfence.host.install.layout import Layout
from ringfence.host.install.state import Account
from ringfence.host.kernel.errors import Invalid, Refused
from ringfence.host.kernel.script import MAX_SCRIPT_BYTES, parse_script
from ringfence.host.kernel.settings import Settings

NAME_ONE = "name a text file"


def read_text(path: Path, limit: int, remedy: str = "") -> str:
    """At most `limit` bytes of UTF-8. FileNotFoundError; Invalid: unreadable; Refused: others can write it. `remedy`: for
    each of them, where the file must not be mended but made again."""
    try:
        data, status = _read(path, limit + 1)
    except FileNotFoundError:
        raise
    except PermissionError as error:
        text = f"{path} cannot be read: {error.strerror}"
        raise Invalid(text, remedy=remedy or f"run it as who may read {path}; as root it must be root's") from error
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}", remedy=remedy or NAME_ONE) from error
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
        raise Invalid(f"{path} is {kind}", remedy=remedy or NAME_ONE)
    mine = status.st_uid in (0, os.geteuid())
    loose = status.st_mode & (stat.S_IWOTH | (stat.S_IWGRP if os.geteuid() == 0 else 0))
    if not mine or loose:
        mend = remedy or f"chown {os.geteuid()} {path} && chmod go-w {path}"
        raise Refused(f"{path} can be written by others", remedy=mend)
    if len(data) > limit:
        raise Invalid(f"{path} is larger than {limit} bytes", remedy=remedy or "make it shorter")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        text = f"{path} is not UTF-8: byte 0x{data[error.start]:02x} after {error.start} bytes"
        raise Invalid(text, remedy=remedy or "save it as UTF-8 text") from error


def _read(path: Path, most: int) -> tuple[bytes, os.stat_result]:
    """At most that many bytes of a regular file; nothing of another kind, which is opened without waiting (a FIFO)."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        return b"", status
    with open(fd, "rb") as file:
        return file.read(most), status


def read_script(settings: Settings) -> str | None:
    """The text of the script that the settings name, checked. None: they name none. Invalid, Refused."""
    if not settings.script:
        return None
    try:
        text = read_text(Path(settings.script), MAX_SCRIPT_BYTES)
    except FileNotFoundError as error:
        raise Invalid(f"script: no such file: {settings.script}", remedy='name one, or script = ""') from error
    parse_script(text, source=settings.script)
    return text


def place_script(settings: Settings, layout: Layout, kernel: Account) -> Settings:
    """The settings with the script that they name copied to where the kernel process can read it, as it has given up the
    rights of whoever started it by then. Invalid, Refused."""
    text = read_script(settings)
    if text is None:
        return settings
    atomic.write(layout.script, text.encode(), mode=0o600, owner=(kernel.uid, kernel.gid))
    return replace(settings, script=str(layout.script))
