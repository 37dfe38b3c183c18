"""What boxes' PID 1 say on stderr: of each the first and the last bytes since the kernel asked last, and how many went between.

A box's words are hostile. They cost the spawner a read of a pipe's worth at most, fifty times a second (children.py), and memory for
HEAD + TAIL bytes a box. Must never show one box's words as another's, nor wait for a box.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from dataclasses import asdict, dataclass, field

from ringfence.spawner import identity, paths, protocol
from ringfence.spawner.answers import Answer
from ringfence.spawner.children import Children
from ringfence.spawner.errors import NotFound, SpawnerError
from ringfence.spawner.identity import Identifier
from ringfence.spawner.registry import Registry
from ringfence.spawner.sources import Host

HEAD, TAIL = 2048, 2048  # bytes of each box; PID 1 says a line of 2,000 at most
PAGE = 40_000  # bytes of JSON in one reply of 64 KiB at most; one box has 4,096 characters, of 12 bytes each at worst


@dataclass(slots=True)
class Heard:
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    dropped: int = 0

    def add(self, data: bytes) -> None:
        room = HEAD - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail += data
        over = max(0, len(self.tail) - TAIL)
        self.dropped += over
        del self.tail[:over]

    def text(self, part: bytearray) -> str:
        """Lines of printable characters."""
        text = part.decode(errors="replace")
        return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


class Hearing:
    def __init__(self, host: Host, children: Children, registry: Registry, identifier: Identifier) -> None:
        self._host, self._children, self._registry, self._identifier = host, children, registry, identifier
        self._heard: dict[str, Heard] = {}
        children.hear = self._hear

    def said(self, request: protocol.Said) -> Answer:
        if request.box:
            self._listen(request.box)
        found: list[protocol.Words] = []
        size = 0
        for fd in self._children.outputs():
            self._children.drain(fd)
        for box in list(self._heard):
            heard = self._heard[box]
            words = protocol.Words(box, heard.text(heard.head), heard.text(heard.tail), heard.dropped)
            size += len(json.dumps(asdict(words))) + 2
            if found and size > PAGE:
                return Answer(protocol.Heard(found, True))
            found.append(words)
            del self._heard[box]
        return Answer(protocol.Heard(found, False))

    def _hear(self, box: str, data: bytes) -> None:
        self._heard.setdefault(box, Heard()).add(data)

    def _listen(self, box: str) -> None:
        """Of a box that an earlier server started: its PID 1 writes into a pipe without a reader, which gets one again. Whatever
        else it has in that place is left alone."""
        entry = self._registry.get(box)
        if self._children.hears(entry.box):
            return
        with (
            contextlib.suppress(OSError, NotFound, SpawnerError),
            paths.box_directory(self._host.state, entry.box) as fd,
        ):
            live = identity.read(fd)
            pidfd = self._identifier.open_live(live) if live is not None else None
            if live is None or pidfd is None:
                return
            try:
                reader = reader_of(live.identity.pid)
                if identity.exited(pidfd):  # then that number was perhaps somebody else's
                    os.close(reader)
                else:
                    self._children.listen(entry.box, live.outer_pid, reader)
            finally:
                os.close(pidfd)


def reader_of(pid: int) -> int:
    """A new reader of the pipe that is that process's stderr. OSError: it is none. Looked at before it is opened: to open something
    else, a terminal say, may do something."""
    place = os.open(f"/proc/{pid}/fd/2", os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISFIFO(os.fstat(place).st_mode):
            raise OSError("no pipe")
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    finally:
        os.close(place)
