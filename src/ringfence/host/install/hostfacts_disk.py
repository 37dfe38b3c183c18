"""What bounds the files of boxes on this host, and whether what is promised to them can be had. Looks only; the spawner
tries it and has the last word."""

from __future__ import annotations

import os
from pathlib import Path

from ringfence.host.install.hostfacts import Row
from ringfence.host.kernel.settings import Settings

PROGRAMS = ("mkfs.ext4", "e2fsck", "resize2fs")
_FOLDERS = ("/usr/sbin", "/sbin")
_LOOP = "/dev/loop-control"


def limits(settings: Settings, root: bool) -> Row:
    if settings.disk == "accounting":
        return _weak("disk is set to accounting", 'disk = "auto" in the configuration; or accept no-disk-quota')
    if not root:
        found = "an ordinary account can neither mount an image nor set a quota"
        return _weak(found, "run it as root; or accept no-disk-quota")
    if settings.disk == "quota":
        return Row("disk-limits", True, "recommended", "project quotas are asked for: tried when the server starts")
    missing = [name for name in PROGRAMS if not any(os.access(f"{folder}/{name}", os.X_OK) for folder in _FOLDERS)]
    if missing:
        return _weak(f"{', '.join(missing)} missing", "apt-get install -y e2fsprogs; or accept no-disk-quota")
    if not os.access(_LOOP, os.R_OK | os.W_OK):
        return _weak(f"{_LOOP} cannot be opened", "modprobe loop (docker: --device); or accept no-disk-quota")
    return Row("disk-limits", True, "recommended", "the files of each box lie in an ext4 image of their own")


def _weak(why: str, remedy: str) -> Row:
    found = (
        f"{why}: files of a box are counted from time to time, deleted ones that are still open are not, and a box above its "
        "limit is stopped"
    )
    return Row("disk-limits", False, "recommended", found, remedy)


def promised(home: Path) -> Row | None:
    """What the images that are there may still grow by, against what is free. None: there are none, or they are not ours
    to see."""
    images = [image.stat() for image in _images(home)]
    if not images:
        return None
    volume = os.statvfs(home)
    free = volume.f_bavail * volume.f_frsize
    open_ended = sum(max(0, image.st_size - image.st_blocks * 512) for image in images)
    text = f"{len(images)} boxes may still write {open_ended >> 20} MiB, {free >> 20} MiB are free"
    if open_ended <= free:
        return Row("disk-promised", True, "info", text)
    return Row(
        "disk-promised", False, "recommended", f"{text}: they cannot all", "a larger volume, or limits.disk lower"
    )


def _images(home: Path) -> list[Path]:
    try:
        return [image for image in home.glob("boxes/*/disk.img") if image.is_file()]
    except OSError:
        return []
