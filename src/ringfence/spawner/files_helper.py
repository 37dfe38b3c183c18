"""The files helper: one process for one box's tree, with the box's uid, that does what the kernel may not do itself.

The spawner forks it, chroots it into the tree and drops it to the box's uid before it reads a byte. It opens everything
beneath the tree's fd (openat2), reads and writes regular files only, and ends after 10 s without a request or when its
socket ends. It must never see a path of the host, hold another fd, or outlive its use.

Standard library only. Every module it needs is loaded before the fork: after it there is no /usr to load from.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from typing import Any, NoReturn

from ringfence.spawner.files_listing import list_folder, stat_path, usage
from ringfence.spawner.files_protocol import Answered, Broken, FilesError, Wire, error_of, unpack_bytes
from ringfence.spawner.files_staging import clear
from ringfence.spawner.files_transfer import get, put, remove

IDLE_SECONDS = 10.0


def serve(sock: socket.socket, tree_fd: int) -> NoReturn:
    """Answers requests until the peer ends or is idle, then ends the process: 0, or 1 when the wire was broken.

    `sock`: a connected stream socket. `tree_fd`: the tree (O_PATH is enough), with home/, workspace/ and tmp/.
    """
    code = 1
    try:
        os.umask(0o022)  # modes below are given explicitly; new folders are 0755
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the file size limit is EFBIG, not death
        clear(tree_fd)
        answer_all(Wire(sock), tree_fd)
        code = 0
    except Broken:
        pass
    finally:
        os._exit(code)  # no exit handler, buffer or destructor of the spawner that we are a fork of


def answer_all(wire: Wire, tree_fd: int, idle: float = IDLE_SECONDS) -> None:
    while (request := wire.request(idle)) is not None:
        try:
            _answer(wire, tree_fd, request)
        except Answered:
            continue
        except FilesError as error:
            wire.answer_error(error)
        except OSError as error:
            wire.answer_error(error_of(error))


def _answer(wire: Wire, tree_fd: int, request: dict[str, Any]) -> None:
    op = request.get("op")
    if op == "usage":
        size, inodes = usage(tree_fd, wire.gone)
        wire.answer({"ok": {"bytes": size, "inodes": inodes}})
        return
    handler = _HANDLERS.get(op) if isinstance(op, str) else None
    if handler is None:
        raise Broken("no such operation")
    handler(wire, tree_fd, unpack_bytes(request, "path_b64"), request)


def _stat(wire: Wire, tree_fd: int, path: bytes, _: dict[str, Any]) -> None:
    wire.answer({"ok": stat_path(tree_fd, path)})


def _list(wire: Wire, tree_fd: int, path: bytes, request: dict[str, Any]) -> None:
    after = unpack_bytes(request, "after_b64") if request.get("after_b64") is not None else None
    entries, more = list_folder(tree_fd, path, after, _number(request, "limit", 1, 1000))
    wire.answer({"ok": {"entries": entries, "more": more}})


def _put(wire: Wire, tree_fd: int, path: bytes, request: dict[str, Any]) -> None:
    put(wire, tree_fd, path, _number(request, "mode", 0, 0o777))


def _get(wire: Wire, tree_fd: int, path: bytes, _: dict[str, Any]) -> None:
    get(wire, tree_fd, path)


def _remove(wire: Wire, tree_fd: int, path: bytes, request: dict[str, Any]) -> None:
    remove(tree_fd, path, request.get("recursive") is True, wire.gone)
    wire.answer({"ok": {}})


def _number(request: dict[str, Any], name: str, low: int, high: int) -> int:
    value = request.get(name)
    if type(value) is not int or not low <= value <= high:
        raise Broken(f"{name} must be a whole number from {low} to {high}")
    return value


_HANDLERS: dict[str, Callable[[Wire, int, bytes, dict[str, Any]], None]] = {
    "stat": _stat,
    "list": _list,
    "get": _get,
    "put": _put,
    "remove": _remove,
}
