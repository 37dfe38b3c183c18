"""The three pipes of a command, as PID 1 sees them. Never blocks, never loses a byte that somebody waits for."""

import fcntl
import posix

from ringfence.guest.kept import Kept
from ringfence.guest.poller import WRITE, Poller
from ringfence.wire.credits import CHUNK, GIVE_BACK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

FIONREAD = 0x541B
DISCARD_READ = 64 * 1024
DISCARD_PAUSE = 0.01
"""64 KiB each 10 ms: what a background process writes after its command has ended is thrown away at 6 MB/s at most, so
that a `yes &` cannot keep PID 1 busy."""


class Output:
    """One stream of a command. `take(data)` gets what is read; `allowed()` says how much it may be now."""

    __slots__ = ("_allowed", "_discarding", "_done", "_owed", "_poller", "_take", "_watched", "fd", "kept")

    def __init__(
        self,
        poller: Poller,
        fd: int,
        kept: Kept | None,
        allowed: "Callable[[], int]",
        take: "Callable[[bytes], None]",
        done: "Callable[[], None]",
    ) -> None:
        self.fd = fd  # -1 once closed
        self.kept = kept
        self._poller = poller
        self._allowed = allowed
        self._take = take
        self._done = done  # nothing more will be taken
        self._watched = False
        self._discarding = False
        self._owed: int | None = None  # bytes that are still to be delivered; None: until the end of the stream
        posix.set_blocking(fd, False)

    @property
    def finished(self) -> bool:
        return self.fd < 0 or self._discarding

    def update(self) -> None:
        """Reads from now on, or not: after anything that `allowed` depends on has changed."""
        wanted = self.fd >= 0 and (self._discarding or self._allowed() > 0)
        if wanted and not self._watched:
            self._poller.watch(self.fd, self._ready)
        elif self._watched and not wanted:
            self._poller.forget(self.fd)
        self._watched = wanted

    def read_now(self) -> None:
        """Takes what is there, so that an end that is already there is seen before anybody waits for it."""
        for _ in range(4):  # 192 KiB, three default pipes: a helper that writes on must not hold us here
            room = 0 if self.finished else self._room()
            if room <= 0 or not self._read(room):
                return

    def settle(self) -> None:
        """The command has ended and somebody else holds the pipe: what is in it now is owed, what comes is not."""
        if self.finished:
            return
        raw = fcntl.ioctl(self.fd, FIONREAD, b"\0\0\0\0")
        self._owed = int.from_bytes(raw, "little")
        self._settled()

    def close(self) -> None:
        if self.fd >= 0:
            self._poller.closing(self.fd)
            posix.close(self.fd)
            self.fd, self._watched = -1, False

    def _room(self) -> int:
        room = min(self._allowed(), CHUNK)
        return room if self._owed is None else min(room, self._owed)

    def _ready(self, events: int) -> None:
        if self._discarding:
            self._discard()
            return
        room = self._room()
        if room > 0:
            self._read(room)
        self.update()

    def _read(self, size: int) -> bool:
        """False when there is nothing now, or nothing any more."""
        try:
            data = posix.read(self.fd, size)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.close()
            self._done()
            return False
        if self._owed is not None:
            self._owed -= len(data)
        self._take(data)
        self._settled()
        return True

    def _settled(self) -> None:
        if self._owed == 0 and not self._discarding:
            self._discarding = True
            self.update()
            self._done()

    def _discard(self) -> None:
        try:
            more = bool(posix.read(self.fd, DISCARD_READ))
        except BlockingIOError:
            return
        except OSError:
            more = False
        if not more:
            self.close()
            return
        self._poller.forget(self.fd)
        self._watched = False
        self._poller.after(DISCARD_PAUSE, self.update)


class Input:
    """Stdin of a command. What cannot be written now is held; the sender's credit bounds it."""

    __slots__ = ("_broken", "_consumed", "_credit", "_eof", "_held", "_poller", "fd")

    def __init__(self, poller: Poller, fd: int, credit: "Callable[[int], None]") -> None:
        self.fd = fd
        self._poller = poller
        self._credit = credit  # (bytes): so much was consumed
        self._held: list[bytes] = []
        self._eof = False
        self._broken = False  # the command closed it: the rest is swallowed, and credited so that the sender ends
        self._consumed = 0
        posix.set_blocking(fd, False)

    def add(self, data: bytes, eof: bool) -> None:
        if data and not self._eof:
            self._held.append(data)
        self._eof = self._eof or eof
        self._write()

    def close(self) -> None:
        if self.fd >= 0:
            self._poller.forget(self.fd)
            posix.close(self.fd)
            self.fd = -1

    def _write(self) -> None:
        while self._held:
            data = self._held[0]
            written = self._push(data)
            if written < 0:
                self._poller.watch(self.fd, lambda events: self._write(), WRITE)
                return
            self._consumed += written
            if written == len(data):
                self._held.pop(0)
            else:
                self._held[0] = data[written:]
        if self.fd >= 0:
            self._poller.forget(self.fd)
        if self._consumed >= GIVE_BACK or (self._consumed and self._broken):
            self._credit(self._consumed)
            self._consumed = 0
        if self._eof:
            self.close()

    def _push(self, data: bytes) -> int:
        """Bytes that were written, -1 for none now; all of them when nobody will ever read."""
        if self.fd < 0 or self._broken:
            return len(data)
        try:
            return posix.write(self.fd, data)
        except BlockingIOError:
            return -1
        except OSError:
            self._broken = True
            self.close()
            return len(data)
