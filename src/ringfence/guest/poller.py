"""The event loop of PID 1: one epoll, one heap of timers. Callbacks must return at once and must not raise.

Timers count the time that the box is awake. While it stands still nothing in it runs, PID 1 neither, and its clock goes
on: how long that was is the host's to say (`stood_still`), before the box goes on or soon after. So that it is heard in
time, what can be read comes before what is due; and what is due when PID 1 finds that it slept too long is put off, once.
"""

import _heapq
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

READ, WRITE = select.EPOLLIN, select.EPOLLOUT
EARLY_SECONDS = 1.0
"""So long before a timer PID 1 wakes, and sleeps again: a stop that ends before it leaves time to hear, and of one that
covers it the end shows as oversleep. A time-out of 120 s would else be over with a stop of 90 s that happens to end then."""
OVERSLEPT_SECONDS = 0.5
"""More than a box that is short of CPU is commonly late. Both together: a stop that nobody tells of and that goes unnoticed
takes 1.5 s of a timer at most."""
PUT_OFF_SECONDS = 0.5
"""A new wire, its hello and the word take some ms. Who was only starved, or has no host, loses no more than this."""


class Timer:
    """Something that happens later, unless it is cancelled."""

    __slots__ = ("call", "due", "put_off", "since")

    def __init__(self, call: "Callable[[], None]", since: float, due: float) -> None:
        self.call: Callable[[], None] | None = call
        self.since = since  # when it was set; moved with `due`, so that it never has more left than it was given
        self.due = due
        self.put_off = False  # it has waited for the host's word, since the last one

    def cancel(self) -> None:
        self.call = None


class Poller:
    __slots__ = ("_calls", "_clock", "_count", "_epoll", "_heap", "_late", "_seen", "_still", "waiting")

    def __init__(
        self, clock: "Callable[[], float]" = time.monotonic, epoll: "Callable[[], select.epoll]" = select.epoll
    ) -> None:
        self._epoll = epoll()
        self._clock = clock
        self._calls: dict[int, Callable[[int], None]] = {}
        self._heap: list[tuple[float, int, Timer]] = []
        self._count = 0
        self._still = 0.0  # seconds that the box stood still, as far as PID 1 was told
        self._seen = clock()  # the newest moment at which it was awake, or meant to wake
        self._late = False  # it slept longer than it meant to, and nobody has said why
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

    # --- time

    def now(self) -> float:
        """Seconds for which the box has been awake, from some moment on: for durations. It steps back when PID 1 is told
        that the box stood still; what is to happen at a moment is a timer."""
        return self._clock() - self._still

    def after(self, seconds: float, call: "Callable[[], None]") -> Timer:
        now = self._clock()
        timer = Timer(call, now, now + seconds)
        self._push(timer, timer.due)
        return timer

    def late(self, timer: Timer) -> float:
        """Seconds since it was due, below 0 until then; whether or not it is cancelled."""
        return self._clock() - timer.due

    def stood_still(self, seconds: float) -> None:
        """The box did, for so long, until just now. Each timer gets that back, and never more than has passed since it
        was set: one that was set after the stop is not held up by it."""
        now = self._clock()
        self._still += seconds
        waiting = [(count, timer) for _, count, timer in self._heap if timer.call is not None]
        for _, timer in waiting:
            slept = min(seconds, now - timer.since)
            timer.since, timer.due, timer.put_off = timer.since + slept, timer.due + slept, False
        self._heap[:] = [(timer.due, count, timer) for count, timer in waiting]
        _heapq.heapify(self._heap)
        self._seen, self._late = now, False

    def _look(self) -> None:
        """Is more time gone since PID 1 last looked, or meant to wake, than it takes to be scheduled?"""
        now = self._clock()
        self._late = self._late or now - self._seen > OVERSLEPT_SECONDS
        self._seen = now

    def _push(self, timer: Timer, when: float) -> None:
        self._count += 1  # breaks ties, since timers do not compare
        _heapq.heappush(self._heap, (when, self._count, timer))

    # --- a turn

    def turn(self) -> None:
        """Waits for what comes next and does it."""
        patience = self._patience()
        self.waiting = True
        try:
            ready = self._epoll.poll(patience, 64)
        finally:
            self.waiting = False
        if patience < 0:  # for ever: nothing that could be due
            self._seen = self._clock()
        else:
            self._look()
            if self._late or not ready:  # the time was over when it woke, and nobody has looked
                ready = self._epoll.poll(0, max(1, len(self._calls)))
        for fd, events in ready:
            call = self._calls.get(fd)
            if call is not None:
                call(events)
        self._fire()

    def _fire(self) -> None:
        heap = self._heap
        while heap and (heap[0][2].call is None or heap[0][0] <= self._clock()):
            timer = _heapq.heappop(heap)[2]
            call = timer.call
            if call is None:
                continue
            self._look()
            if self._late and not timer.put_off:
                timer.put_off = True
                self._push(timer, self._clock() + PUT_OFF_SECONDS)
            else:
                call()
        self._late = False

    def _patience(self) -> float:
        """Seconds until there is something to look at, -1 for ever."""
        heap = self._heap
        while heap and heap[0][2].call is None:
            _heapq.heappop(heap)
        if not heap:
            return -1.0
        self._look()
        left = max(0.0, heap[0][0] - self._seen)
        patience = left - EARLY_SECONDS if left > EARLY_SECONDS else left
        self._seen += patience
        return patience
