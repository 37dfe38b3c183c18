"""The command spawner: a small process that PID 1 forks before anything secret exists, and that starts each command.

It lives in the `cmds` cgroup and in a Landlock domain, and so does all that it starts. It clones with CLONE_PARENT:
PID 1 is the parent of each command, so that nobody in the box can forge an exit status. A child shares its memory until
exec (`vfork`): a copy of it would cost as much as the rest of a short command. Each child says itself that it is about
to run; when the last copy of the socket is closed, PID 1 knows of every command that came to be. Nothing here may keep
state: any command may kill it at any time, and it is replaced.

    job      one packet: the image of arguments and environment (`vfork.image`), then marshal of Job, with the
             descriptors of stdin, stdout, stderr (stdin absent when null); a job larger than a packet is a zero byte
             and comes in a memory file, the last descriptor
    word     three signed integers of 8 bytes: (STARTED, number, pid) by a child before exec; (REFUSED, number, -errno)
             by it when exec failed; (NO_CWD, NO_START or NO_FORK, number, -errno) when there was no child;
             (NOT_HEARD, number, pid) when a child died before it could say anything: it has not run
"""

import _socket
import marshal
import posix

from ringfence.guest import vfork
from ringfence.guest.forks import say
from ringfence.guest.syscalls import PR_SET_DUMPABLE, confine, prctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    Job = tuple[int, bytes, bool, int, int, int, "tuple[bytes, bytes] | None"]
    """(number, cwd, null stdin, addresses of the arguments, of the environment and of the program's path; or instead of
    the last the program's name and the PATH it is looked up in)."""

PACKET = 64 * 1024  # a third of the smallest default socket buffer (208 KiB)
NO_CWD, NO_START, NO_FORK, NOT_HEARD = 3, 4, 5, 6  # above the words of `vfork`
OOM_SCORE_ADJ = b"200"  # commands go first when memory ends, loops and PID 1 stay
MAX_PATH = 4095  # without its NUL
_ROOM = _socket.CMSG_SPACE(4 * 4)
_TYPE, _REGULAR = 0o170000, 0o100000


def serve(sock: _socket.socket, cgroups: "list[int]", abi: int, arena: int) -> "NoReturn":
    """Until the socket ends. `cgroups`: write ends of cgroup.procs files, joined before anything may run."""
    for fd in cgroups:
        posix.write(fd, b"0")
        posix.close(fd)
    _mark_for_oom()
    confine(abi)
    posix.umask(0o022)
    null = posix.open("/dev/null", posix.O_RDONLY | posix.O_CLOEXEC)
    starter = vfork.Starter(arena, sock.fileno())
    view = memoryview(starter.image)
    _let_go(null)
    while True:
        job, fds = _next_job(sock, starter.image, view)
        _carry_out(sock, starter, job, fds)
        _let_go(null)


def _next_job(sock: _socket.socket, image: "Any", view: memoryview) -> "tuple[Job, list[int]]":
    """Waits. Ends the process when the socket has ended."""
    size, ancillary, _, _ = sock.recvmsg_into([image], _ROOM, _socket.MSG_CMSG_CLOEXEC)
    fds = [int.from_bytes(raw[i : i + 4], "little") for _, _, raw in ancillary for i in range(0, len(raw), 4)]
    if not size:
        posix._exit(0)
    if size == 1:
        memory = fds.pop()
        posix.preadv(memory, [image], 0)
        posix.close(memory)
    job: Job = marshal.loads(view[int.from_bytes(view[:8], "little") :])
    return job, fds


def _carry_out(sock: _socket.socket, starter: vfork.Starter, job: "Job", fds: "list[int]") -> None:
    """The child gets its descriptors and its folder from us."""
    number, cwd, null_stdin, argv, env, program, search = job
    stage = NO_START
    try:
        target = 1 if null_stdin else 0
        for fd in fds:
            posix.dup2(fd, target)
            posix.close(fd)
            target += 1
        stage = NO_CWD
        posix.chdir(cwd)
        stage = vfork.REFUSED
        pid, said = starter.start(number, argv, env, program if search is None else _found(*search))
    except OSError as error:
        _say(sock, stage, number, -(error.errno or 0))
        return
    if pid < 0:
        _say(sock, NO_FORK, number, pid)
    elif not said:
        _say(sock, NOT_HEARD, number, pid)


def _say(sock: _socket.socket, kind: int, number: int, value: int) -> None:
    sock.send(vfork.said(kind, number, value))


def _let_go(null: int) -> None:
    """Nothing of a command is kept: whoever reads its output waits for the last copy to be closed."""
    for fd in (0, 1, 2):
        posix.dup2(null, fd)
    posix.chdir(b"/")


def _found(name: bytes, path: bytes) -> bytes:
    """As execvp looks a program up. OSError: the most telling one."""
    found: OSError = FileNotFoundError(2, "")
    for folder in path.split(b":"):
        whole = (folder or b".") + b"/" + name
        try:
            if len(whole) <= MAX_PATH and posix.stat(whole).st_mode & _TYPE == _REGULAR:
                if posix.access(whole, posix.X_OK):
                    return whole
                found = PermissionError(13, "")
        except PermissionError as error:
            found = error
        except OSError:
            continue
    raise found


def _mark_for_oom() -> None:
    """Files of a process that is not dumpable belong to root: dumpable for the one write, before the domain is
    entered, so that no command can use the moment."""
    prctl(PR_SET_DUMPABLE, 1)
    try:
        fd = posix.open("/proc/self/oom_score_adj", posix.O_WRONLY | posix.O_CLOEXEC)
        posix.write(fd, OOM_SCORE_ADJ)
        posix.close(fd)
    except OSError as error:
        say(f"guest: oom_score_adj: {error.strerror}")
    prctl(PR_SET_DUMPABLE, 0)
