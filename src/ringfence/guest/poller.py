"""The event loop of PID 1: one epoll, one heap of timers. Callbacks must return at once and must not raise."""

import _heapq
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

READ, WRITE = select.EPOLLIN, select.EPOLLOUT


class Timer:
    """Something that happens later, unless it is cancelled."""

    __slots__ = ("call",)

    def __init__(self, call: "Callable[[], None]") -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Poller:
    __slots__ = ("_calls", "_count", "_epoll", "_heap", "waiting")

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._calls: dict[int, Callable[[int], None]] = {}
        self._heap: list[tuple[float, int, Timer]] = []
        self._count = 0
        self.waiting = (
            False  # in `turn`, and nothing else is under way: a handler of a signal may do as a callback does
        )

    def watch(self, fd: int, call: "Callable[[int], None]", mask: int = READ) -> None:
        """`call` gets the events. Watching what is watched changes callback and mask."""
        try:
            if fd in self._calls:
                self._epoll.modify(fd, mask)
            else:
                self._epoll.register(fd, mask)
        except FileExistsError:  # a number that was closed while a new child still held a copy
            self._epoll.modify(fd, mask)
        self._calls[fd] = call

    def forget(self, fd: int) -> None:
        """Before the descriptor is closed, or when nothing of it matters now (a hang-up is always reported)."""
        if self._calls.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def closing(self, fd: int) -> None:
        """Forgets a descriptor that is closed next; the kernel forgets it with the last copy."""
        self._calls.pop(fd, None)

    def after(self, seconds: float, call: "Callable[[], None]") -> Timer:
        timer = Timer(call)
        self._count += 1  # breaks ties, since timers do not compare
        _heapq.heappush(self._heap, (time.monotonic() + seconds, self._count, timer))
        return timer

    def turn(self) -> None:
        """Waits for what comes next and does it."""
        patience = self._patience()
        self.waiting = True
        try:
            ready = self._epoll.poll(patience, 64)
        finally:
            self.waiting = False
        for fd, events in ready:
            call = self._calls.get(fd)
            if call is not None:
                call(events)
        heap = self._heap
        while heap and (heap[0][2].call is None or heap[0][0] <= time.monotonic()):
            call_now = _heapq.heappop(heap)[2].call
            if call_now is not None:
                call_now()

    def _patience(self) -> float:
        """Seconds until the next timer, -1 for ever."""
        heap = self._heap
        while heap and heap[0][2].call is None:
            _heapq.heappop(heap)
        return max(0.0, heap[0][0] - time.monotonic()) if heap else -1.0
