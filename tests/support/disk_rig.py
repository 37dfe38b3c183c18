"""What the tests of disk limits share: counts of mounts and loop devices, and ways to fill a box's tree."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ringfence.spawner import protocol
from ringfence.spawner.protocol import Limits
from tests.support import spawner_rig
from tests.support.spawner_rig import Rig

BOX = "d" * 16
MIB = 1 << 20
SMALL = Limits(disk=64 * MIB, inodes=2048)


def mounts_below(home: Path) -> list[str]:
    """Mount points of this process's namespace below `home`."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[4] for line in lines if line.split()[4].startswith(f"{home}/")]


def devices_of(home: Path) -> list[str]:
    """Loop devices over files below `home`, deleted ones too."""
    found = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if path.read_text().startswith(f"{home}/"):
                found.append(path.parts[3])
    return found


def nothing_left(home: Path) -> bool:
    """No mount and no device below `home`, at the latest 30 s on: the kernel takes a dead box's namespace, which holds
    its mounts, apart in its own time."""
    deadline = time.monotonic() + 30
    while mounts_below(home) or devices_of(home):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def kill_outright(pid: int) -> None:
    """SIGKILL, until /proc knows it no more: 30 s at most."""
    os.kill(pid, 9)
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, f"process {pid} stays"
        time.sleep(0.01)


def pid_of(rig: Rig, box: str = BOX) -> int:
    """Of the box's PID 1, on the host."""
    return int(json.loads((rig.home / "boxes" / box / "live.json").read_text())["identity"]["pid"])


def observed(rig: Rig, box: str = BOX) -> dict[str, Any]:
    return rig.ask(protocol.Observe(box))


def with_disk(how: str) -> Rig:
    """A started rig whose new boxes are bounded so."""
    accept = ("no-disk-quota",) if how == "accounting" else ()
    rig = spawner_rig.make(overrides={"disk": how}, accept=accept)
    rig.start()
    return rig


@contextlib.contextmanager
def holding(how: str, tree: Path, program: str | Path = "sleep") -> Iterator[int]:
    """The pid of a process of the host that has the disk: in a mount namespace of its own, or by working in it. `program`:
    what it is, called with a number of seconds."""
    before = ["unshare", "--mount"] if how == "namespace" else []
    where = tree if how == "folder" else Path("/")
    told = 'echo there; exec "$0" 600'
    with subprocess.Popen([*before, "sh", "-c", told, program], cwd=where, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"there\n"
        deadline = time.monotonic() + 30
        while Path(f"/proc/{process.pid}/comm").read_bytes() == b"sh\n":
            assert time.monotonic() < deadline, "it never became the program"
            time.sleep(0.01)
        try:
            yield process.pid
        finally:
            process.kill()


def kernel_has_quotas() -> bool:
    """Whether this kernel mounts an ext4 that has them. Only root can tell."""
    if os.geteuid() != 0:
        return False
    try:
        with quota_volume():
            return True
    except subprocess.CalledProcessError:
        return False


@contextlib.contextmanager
def quota_volume() -> Iterator[Path]:
    """A directory on an ext4 that is mounted with project quotas."""
    work = Path(tempfile.mkdtemp(prefix="ringfence-quota-"))
    work.chmod(0o711)
    image, place = work / "volume", work / "mounted"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(512 * MIB)
    features = ["-O", "quota,project", "-E", "quotatype=prjquota,lazy_itable_init=1"]
    try:
        subprocess.run(["/usr/sbin/mkfs.ext4", "-q", "-F", *features, str(image)], check=True)
        subprocess.run(["mount", "-o", "loop,prjquota", str(image), str(place)], check=True, capture_output=True)
        try:
            yield place
        finally:
            subprocess.run(["umount", str(place)], check=True)
    finally:
        image.unlink()
        os.rmdir(place)
        os.rmdir(work)


def fill_bytes(rig: Rig, mib: int, box: str = BOX) -> dict[str, Any]:
    """Writes that many MiB from inside the box, into several files of 8 MiB."""
    script = (
        f"i=0; while [ $i -lt {mib // 8} ]; do head -c 8388608 /dev/zero > /workspace/$i || exit 9; i=$((i+1)); done"
    )
    return rig.shell(box, script)


def fill_inodes(rig: Rig, count: int, box: str = BOX) -> dict[str, Any]:
    """Makes that many empty files from inside the box."""
    return rig.shell(box, f"cd /workspace && seq {count} | xargs touch")
