"""Entry of PID 1 of a box: `python3 -I -S init.pyc LISTEN_FD CMDS_FDS DIGEST`.

    LISTEN_FD  a bound unix stream socket that does not listen yet
    CMDS_FDS   comma list of descriptors of the cgroup.procs files that the command spawner joins, or `-`
    DIGEST     of the guest tree

It must have forked the command spawner before it hears the first word of the host. The modules of PID 1 are read from one
file: finding each by its path was a third of the guest's share of a start.
"""

import _socket
import gc
import marshal
import posix
import sys
from _frozen_importlib import ModuleSpec  # importlib.machinery would be 1 ms of imports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import NoReturn

BACKLOG = 8  # as `wire_end`, which listens once more
PACKAGES = ("ringfence", "ringfence.guest", "ringfence.wire")


class Bundle:
    """Finder and loader (importlib.abc) of the modules in the tree's bundle: marshal of {name: marshalled code}. What it
    does not hold is found below `lib` by the packages' paths."""

    def __init__(self, here: str) -> None:
        self._lib = f"{here}/lib"
        fd = posix.open(f"{here}/bundle", posix.O_RDONLY | posix.O_CLOEXEC)
        self._codes: dict[str, bytes] = marshal.loads(posix.read(fd, posix.fstat(fd).st_size))
        posix.close(fd)

    def find_spec(self, name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        if name not in self._codes:
            return None
        place = f"{self._lib}/{name.replace('.', '/')}"
        spec = ModuleSpec(name, self, origin=place, is_package=name in PACKAGES)  # type: ignore[arg-type]
        if name in PACKAGES:
            spec.submodule_search_locations = [place]
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """The default one."""

    def exec_module(self, module: "ModuleType") -> None:
        exec(marshal.loads(self._codes.pop(module.__name__)), module.__dict__)  # loaded once: let go


def start(argv: list[str]) -> "NoReturn":
    """Never returns: a PID 1 that ends takes the box with it, so an error ends it at once and says why."""
    gc.disable()  # nothing that is made until the freeze ever goes
    listener = int(argv[1])
    _listen(listener)
    from ringfence.guest import forks, syscalls
    from ringfence.guest.pid1 import main

    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    forks.ignore_signals()
    posix.set_blocking(2, False)  # whoever reads it may be stuck, and PID 1 must not be
    cgroups = [int(word) for word in argv[2].split(",") if word != "-"]
    for fd in (listener, *cgroups):
        posix.set_inheritable(fd, False)
    gc.freeze()  # what lives now lives for ever: the collector need not touch the pages that children share
    gc.enable()
    main(listener, cgroups, argv[3])


def _listen(listener: int) -> None:
    """Before the imports: a host that dials meanwhile waits in the backlog instead of trying again and again."""
    sock = _socket.socket(fileno=listener)
    sock.listen(BACKLOG)
    sock.detach()


if __name__ == "__main__":
    sys.meta_path.insert(0, Bundle(sys.argv[0].rpartition("/")[0] or "."))
    start(sys.argv)
