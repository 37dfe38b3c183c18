"""A box's tree and real files helpers on it: forked, chrooted, with the box's uid. Needs root."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import ringfence
from ringfence.host.drivers.files import FilesClient

UID = 1_700_000_000  # no account's, no box's


@dataclass(frozen=True)
class Tree:
    """home/, workspace/ and tmp/ are the box's. `outside` lies beside them: the helper's uid may read and write it, and
    its chroot holds it, so that nothing but the way of opening keeps a path out of it."""

    root: Path

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def outside(self) -> Path:
        return self.root / "outside"

    def as_box(self, work: Callable[[], object]) -> None:
        """Runs `work` as the box's uid with the tree's home as working directory."""
        pid = self.fork(work)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    def fork(self, work: Callable[[], object]) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                os.chroot(self.root)
                os.chdir("/home")
                os.umask(0o022)
                become_box()
                work()
                os._exit(0)
            finally:
                os._exit(1)
        return pid

    @contextlib.contextmanager
    def busy(self, work: Callable[[], object]) -> Iterator[None]:
        """`work` again and again, beside what the test does."""

        def for_ever() -> None:
            while True:
                work()

        pid = self.fork(for_ever)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def become_box() -> None:
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)


@contextlib.contextmanager
def tree(at: Path) -> Iterator[Tree]:
    made = Tree(at)
    at.mkdir(mode=0o700)
    for name, mode in (("home", 0o700), ("workspace", 0o700), ("tmp", 0o1777), ("outside", 0o755)):
        (at / name).mkdir()
        (at / name).chmod(mode)
        os.chown(at / name, UID, UID)
    os.chown(at, UID, UID)
    (at / "outside" / "f").write_text("OUTSIDE")
    os.chown(at / "outside" / "f", UID, UID)
    yield made
    subprocess.run(["rm", "-rf", at], check=True)  # whatever depth a test left: shutil.rmtree recurses


@dataclass
class Helper:
    """A helper process. `fd` is the kernel's end of its socket, given away by whoever takes it."""

    pid: int
    fd: int
    code: int | None = None

    def wait(self) -> int:
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def memory(self, field: str = "VmRSS") -> int:
        """Bytes: VmRSS now, VmHWM at most."""
        return memory_of(self.pid, field)


def memory_of(pid: int | str, field: str = "VmRSS") -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise AssertionError(field)


FRESH = """
import os, resource, socket, sys
source, root, uid, largest = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
sys.path.insert(0, source)
from ringfence.spawner.files_helper import serve
os.dup2(os.open(root, os.O_PATH | os.O_DIRECTORY), 4)
os.closerange(5, 4096)
os.chroot(root)
os.chdir("/")
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
sock = socket.socket(fileno=3)
if largest:
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
serve(sock, 4)
"""


def start(made: Tree, largest: int = 0) -> Helper:
    """In an interpreter as bare as the spawner's, so that a module which is loaded too late is missed here too.
    `largest`: of a file, in bytes; 0 is no limit."""
    ours, theirs = socket.socketpair()
    source = Path(ringfence.__file__).parent.parent
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(theirs.fileno(), 3)
            arguments = [os.fspath(source), os.fspath(made.root), str(UID), str(largest)]
            os.execv(sys.executable, [sys.executable, "-I", "-S", "-B", "-c", FRESH, *arguments])
        finally:
            os._exit(98)
    theirs.close()
    return Helper(pid, ours.detach())


@contextlib.asynccontextmanager
async def files(made: Tree, largest: int = 0) -> AsyncIterator[tuple[FilesClient, Helper]]:
    helper = start(made, largest)
    try:
        async with FilesClient(helper.fd) as client:
            yield client, helper
    finally:
        helper.wait()
