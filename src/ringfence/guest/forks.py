"""What every process that PID 1 forks does first. No child may keep a descriptor, a handler or a right of PID 1's."""

import posix

from ringfence.guest.signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MAX_FD = 1 << 20  # above every hard limit that a box is given
_KEEP = (signal.SIGKILL, signal.SIGSTOP, 32, 33)  # 32 and 33 are the C library's own


def ignore_signals() -> None:
    """PID 1: whatever has no handler is ignored, or the first of them from outside would end the box."""
    for number in range(1, signal.NSIG):
        if number not in _KEEP:
            signal.signal(number, signal.SIG_IGN)


def default_signals() -> None:
    """A child: every disposition and the mask as a fresh login would have them; exec hands ignored ones on."""
    signal.set_wakeup_fd(-1)
    for number in range(1, signal.NSIG):
        if number not in _KEEP:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def close_all_but(keep: "list[int]") -> None:
    """Closes every descriptor above 2 that is not listed."""
    low = 3
    for fd in sorted(keep):
        posix.closerange(low, fd)
        low = fd + 1
    posix.closerange(low, MAX_FD)


def child(keep: "list[int]", run: "Callable[[], None]") -> int:
    """Forks; the child keeps 0-2 and `keep`, runs `run` and ends. The pid. OSError when there is no room."""
    pid = posix.fork()
    if pid:
        return pid
    status = 1
    try:
        default_signals()
        close_all_but(keep)
        run()
        status = 0
    except BaseException as error:
        say(f"guest: {type(error).__name__}: {error}")
    finally:
        posix._exit(status)


def say(text: str) -> None:
    """A line to stderr, whose other end may be gone for long."""
    try:
        posix.write(2, text.encode("utf-8", "replace")[:2000] + b"\n")
    except OSError:
        return
