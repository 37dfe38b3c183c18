"""The tools of the native loop that work on files. They run in the loop's process, as the box's user.

Each returns a dict with `ok`; a failure is a result with `error`, for the model to read. Bytes that are not UTF-8 are
shown as replacement characters and cannot be edited. Nothing here may read without a bound or write outside the
person's own folders. (`shell` is offered too, but the host runs it, under the key of its step.)
"""

import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOTS = ("/home/user", "/workspace")
MAX_READ = 128 * 1024
"""Bytes of a file that are read at once."""
MAX_RESULT = 192 * 1024
"""Bytes of a result as JSON: the journal takes 256 KiB, and binary data grows to six bytes for each of its own."""
MAX_FILE = 8 * 1024 * 1024  # of a file that is edited or searched
MAX_ENTRIES = 1000
MAX_MATCHES = 200
MAX_LINE = 500
MAX_VISITED = 20_000


class ToolError(Exception):
    """What went wrong, for the model to read."""


def use(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The result, always with `ok`."""
    if name not in _TOOLS:
        return {"ok": False, "error": f"{name} is not a tool that the loop can carry out by itself"}
    try:
        return {"ok": True, **_TOOLS[name](arguments)}
    except ToolError as error:
        return {"ok": False, "error": str(error)}
    except OSError as error:
        return {"ok": False, "error": f"{error.strerror}: {error.filename or ''}".rstrip(": ")}
    except KeyError as error:
        return {"ok": False, "error": f"{name} needs the argument {error}"}


# --- arguments -------------------------------------------------------------------------------------------------------


def _word(arguments: dict[str, Any], name: str) -> str:
    value = arguments[name]
    if not isinstance(value, str):
        raise ToolError(f"{name} must be text")
    if name == "path" and "\0" in value:
        raise ToolError("a path has no NUL byte")
    return value


def _number(arguments: dict[str, Any], name: str, default: int) -> int:
    value = arguments.get(name, default)
    if not isinstance(value, int) or value < 0:
        raise ToolError(f"{name} must be a number of 0 or more")
    return value


def _path(arguments: dict[str, Any]) -> Path:
    """Relative to HOME. Links are followed: whatever they lead to, the user could read or write anyway."""
    text = os.path.normpath(os.path.join(ROOTS[0], _word(arguments, "path")))
    if not any(text == root or text.startswith(root + "/") for root in ROOTS):
        raise ToolError(f"{text} is not below {' or '.join(ROOTS)}; use shell for other places")
    return Path(text)


def _content(path: Path) -> bytes:
    """Of a regular file of at most MAX_FILE bytes. Opened without waiting: a FIFO must not hang the loop."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise ToolError(f"{path} is not a regular file")
        if facts.st_size > MAX_FILE:
            raise ToolError(f"{path} has {facts.st_size} bytes; the limit is {MAX_FILE}: use shell")
        return file.read(MAX_FILE)


def _replace(path: Path, data: bytes) -> None:
    """All of it or nothing. The mode of a file that exists stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    real = Path(os.path.realpath(path))
    mode = 0o644
    if real.exists():
        mode = stat.S_IMODE(real.stat().st_mode)
        if not real.is_file():
            raise ToolError(f"{path} is not a regular file")
    new = real.with_name(f".{real.name[:200]}.{os.getpid()}.new")
    try:
        with open(new, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
        os.replace(new, real)
    except OSError:
        new.unlink(missing_ok=True)
        raise


# --- the tools -------------------------------------------------------------------------------------------------------


def _read(arguments: dict[str, Any]) -> dict[str, Any]:
    path = _path(arguments)
    start = _number(arguments, "offset", 0)
    length = min(_number(arguments, "length", MAX_READ), MAX_READ)
    data = _content(path)
    part = _whole_characters(data[start : start + length], len(data) - start - length)
    text = part.decode("utf-8", "replace")
    while _json_bytes(text) > MAX_RESULT:
        part = _whole_characters(part[: len(part) // 2], len(part))
        text = part.decode("utf-8", "replace")
    return {"text": text, "bytes": len(data), "rest": max(0, len(data) - start - len(part))}


def _whole_characters(part: bytes, rest: int) -> bytes:
    """Without the beginning of a character of UTF-8 whose end is in what comes after, if anything does."""
    for back in range(1, min(4, len(part)) if rest > 0 else 0):
        byte = part[-back]
        if byte >= 0xC0:  # the first of 2, 3 or 4 bytes
            size = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return part[:-back] if size > back else part
        if byte < 0x80:
            break
    return part


def _json_bytes(value: object) -> int:
    return len(json.dumps(value))


def _fitting(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As many of the first ones as fit into a result."""
    left = MAX_RESULT
    for count, entry in enumerate(entries):
        left -= _json_bytes(entry) + 2
        if left < 0:
            return entries[:count]
    return entries


def _write(arguments: dict[str, Any]) -> dict[str, Any]:
    path = _path(arguments)
    data = _word(arguments, "text").encode("utf-8", "replace")
    _replace(path, data)
    return {"bytes": len(data)}


def _edit(arguments: dict[str, Any]) -> dict[str, Any]:
    """Replaces `old`, which must be there exactly once, by `new`. Done twice it is done once."""
    path = _path(arguments)
    old, new = _word(arguments, "old").encode("utf-8", "replace"), _word(arguments, "new").encode("utf-8", "replace")
    data = _content(path)
    count = data.count(old) if old else 0
    if count == 0 and new and data.count(new) == 1:
        return {"replaced": 0, "already": True}
    if count != 1:
        raise ToolError(f"the old text is there {count} times, not once")
    _replace(path, data.replace(old, new))
    return {"replaced": 1, "already": False}


def _list(arguments: dict[str, Any]) -> dict[str, Any]:
    path = _path({"path": arguments.get("path", ".")})
    with os.scandir(path) as found:
        entries = sorted(found, key=lambda entry: os.fsencode(entry.name))
    shown = _fitting([_entry(entry) for entry in entries[:MAX_ENTRIES]])
    return {"entries": shown, "more": len(entries) - len(shown)}


def _entry(entry: "os.DirEntry[str]") -> dict[str, Any]:
    kind = "symlink" if entry.is_symlink() else "directory" if entry.is_dir() else "file"
    size = entry.stat(follow_symlinks=False).st_size
    return {"name": _sayable(entry.name), "kind": kind, "bytes": size}


def _search(arguments: dict[str, Any]) -> dict[str, Any]:
    """Lines of the files below `path` that hold `text` (plain text, no pattern)."""
    text = _word(arguments, "text")
    if not text:
        raise ToolError("text must not be empty")
    found: list[dict[str, Any]] = []
    needle, visited = re.compile(re.escape(text)), 0
    for visited, path in enumerate(_files(_path({"path": arguments.get("path", ".")})), 1):
        found += _matches(path, needle, MAX_MATCHES - len(found))
        if len(found) >= MAX_MATCHES or visited >= MAX_VISITED:
            break
    shown, full = _fitting(found), len(found) >= MAX_MATCHES or visited >= MAX_VISITED
    return {"matches": shown, "files": visited, "complete": not full and len(shown) == len(found)}


def _files(root: Path) -> Iterator[Path]:
    """Regular files in the order of their names, without following links and without recursion."""
    queue = [root]
    while queue:
        folder = queue.pop()
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: os.fsencode(entry.name))
        except NotADirectoryError:
            yield folder
            continue
        except OSError:
            continue
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                yield Path(entry.path)
        queue += [Path(e.path) for e in reversed(entries) if e.is_dir(follow_symlinks=False)]


def _matches(path: Path, needle: re.Pattern[str], room: int) -> list[dict[str, Any]]:
    try:
        data = _content(path)
    except (OSError, ToolError):
        return []
    if b"\0" in data[:8192]:
        return []
    found: list[dict[str, Any]] = []
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        if needle.search(line) and len(found) < room:
            found.append({"path": _sayable(str(path)), "line": number, "text": line[:MAX_LINE]})
    return found


def _sayable(name: str) -> str:
    """A file name as text; bytes that are not UTF-8 are shown, not hidden."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


_TOOLS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "read": _read,
    "write": _write,
    "edit": _edit,
    "list": _list,
    "search": _search,
}
