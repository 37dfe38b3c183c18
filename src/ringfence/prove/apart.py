"""Further installations of the same copy, for rows that kill a server or put a hostile part in the place of an honest one.

Each is a folder like the stage's own, so that the next prove takes it away when this one is killed. The runtime is linked
from the stage's, and only the file that differs is written anew. Must never change a file of the stage's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from ringfence.bench.throwaway import Installation
from ringfence.prove import building
from ringfence.prove.stage import PYTHON, Stage

HERE = Path(__file__).parent
Tamper = Callable[[Path], None]  # of a runtime: H/runtime/<digest>
_KERNEL = """

def main() -> None:  # in a throw-away installation of prove: the kernel is somebody else's
    from ringfence.prove import hostile_kernel

    hostile_kernel.main()
"""


def hostile_guest(runtime: Path) -> None:
    """PID 1 of every box is hostile_guest.py."""
    target = runtime / "guest" / "init.pyc"
    target.unlink()  # it is a link of the stage's
    code = f"import py_compile; py_compile.compile({str(HERE / 'hostile_guest.py')!r}, {str(target)!r}, doraise=True)"
    subprocess.run([PYTHON, "-I", "-c", code], check=True)
    target.chmod(0o444)


def hostile_kernel(runtime: Path) -> None:
    """The kernel's process is hostile_kernel.py, under the kernel's account."""
    target = runtime / "site" / "ringfence" / "host" / "app.py"
    text = target.read_text()
    target.unlink()
    target.write_text(text + _KERNEL)
    target.chmod(0o644)


@contextlib.contextmanager
def installation(stage: Stage, tamper: Tamper | None = None) -> Iterator[Installation]:
    """Made and not started. CommandFailed. What of it could not be taken away is in the stage's `left`: no row is to
    blame."""
    root, lock = building.claimed()
    made = Installation(root / "state", site=stage.made.site, apart=True)
    try:
        made.home.mkdir(mode=0o711)
        made.home.chmod(0o711)
        _link(stage.made.home / "runtime", made.home / "runtime")
        made.ok("init")
        (runtime,) = (path for path in (made.home / "runtime").iterdir() if not path.name.startswith("."))
        if tamper is not None:
            tamper(runtime)
        yield made
    finally:
        stage.left += building.strike(made)
        os.close(lock)


def _link(source: Path, target: Path) -> None:
    shutil.copytree(source, target, symlinks=True, copy_function=os.link)
