"""Tries an image before it is kept: whether what PID 1 of a box is runs on it, as an id that owns nothing, in a jail without network.

The guest is compiled for the interpreter of this host and is of no use to another version; without it no box comes up. Must never
run anything of an image with an id that has files or processes.
"""

from __future__ import annotations

import os
import resource
import select
import subprocess
import time
from pathlib import Path

from ringfence.host.install.images_tree import OF_ETC
from ringfence.host.install.prepare import minimal_environment
from ringfence.host.kernel.errors import Invalid, Unavailable

SECONDS = 60.0  # it takes some 50 ms
WORDS = 4096  # bytes of what it said
_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")  # as spawner/images.py
_TRY = """
import importlib.util, marshal, subprocess, sys
with open("/opt/ringfence/init.pyc", "rb") as file:
    if file.read(4) != importlib.util.MAGIC_NUMBER:
        sys.exit("its python3 is %d.%d, and boxes of this host need %s" % (*sys.version_info[:2], sys.argv[1]))
import ctypes, json, hashlib, select, signal, socket, struct
sys.path.insert(0, "/opt/ringfence")
with open("/opt/ringfence/bundle", "rb") as file:
    for code in marshal.loads(file.read()).values():
        marshal.loads(code)
subprocess.run(["/bin/sh", "-c", "exit 0"], check=True)
print("ready", flush=True)
"""


def tried(image: Path, guest: Path, bwrap: str, python: str, account: int, wants: str) -> None:
    """`account`: an id that nobody has; 0: this process's own. `wants`: the version that the guest is compiled for. Invalid: no box
    would come up on it. Unavailable: it cannot be tried."""
    command = [*_jail(bwrap), *_view(image, guest), "--", python, "-I", "-S", "-B", "-c", _TRY, wants]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/",
            env=minimal_environment(), start_new_session=True, preexec_fn=lambda: _limited(alone=account > 0),
            user=account or None, group=account or None, extra_groups=[] if account else None,
        )  # fmt: skip
    except OSError as error:
        raise Unavailable(f"the image cannot be tried: {bwrap}: {error.strerror}", remedy="ringfence doctor") from error
    with process:
        said = _said(process)
    if said.split() == [b"ready"] and process.returncode == 0:
        return
    why = said.decode(errors="replace").strip().splitlines()[-1:] or [f"it ended with {process.returncode}"]
    text = "".join(each if each.isprintable() else "?" for each in why[0])[:300]
    raise Invalid(
        f"no box comes up on it: {python}: {text}",
        remedy="an image has python3 of this host's version and a shell: --suite of this host's release, or --include python3",
    )


def _jail(bwrap: str) -> list[str]:
    return [
        bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--uid", "1000", "--gid", "1000",
        "--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--setenv", "LANG", "C.UTF-8",
    ]  # fmt: skip


def _view(image: Path, guest: Path) -> list[str]:
    words = ["--ro-bind", f"{image}/usr", "/usr"]
    for name in _LINKS:
        if os.path.lexists(image / "usr" / name):
            words += ["--symlink", f"usr/{name}", f"/{name}"]
    for name in OF_ETC:
        words += ["--ro-bind", f"{image}/etc/{name}", f"/etc/{name}"]
    words += ["--ro-bind", str(guest), "/opt/ringfence", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    return [*words, "--remount-ro", "/", "--chdir", "/"]


def _limited(*, alone: bool) -> None:
    """`alone`: no other process has the id, so their number can be bounded."""
    if alone:
        resource.setrlimit(resource.RLIMIT_NPROC, (64, 64))
    for what, most in ((resource.RLIMIT_AS, 2 << 30), (resource.RLIMIT_FSIZE, 1 << 20), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(what, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
    os.umask(0o077)


def _said(process: subprocess.Popen[bytes]) -> bytes:
    """Its first words; killed when it says more, or takes too long."""
    assert process.stdout is not None
    until, said = time.monotonic() + SECONDS, b""
    while len(said) < WORDS and (left := until - time.monotonic()) > 0:
        if not select.select([process.stdout], [], [], left)[0]:
            break
        if not (data := os.read(process.stdout.fileno(), WORDS)):
            process.wait()
            return said
        said += data
    process.kill()
    process.wait()
    return said + b"\nit took too long, or said too much"
