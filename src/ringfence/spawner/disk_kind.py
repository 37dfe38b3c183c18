"""What bounds the trees of new boxes on this host: an image each, project quotas, or nothing (accounting).

Decided once, at start. Must never settle for less than the configuration names.
"""

from __future__ import annotations

import os

from ringfence.spawner import loop_image, quota_proof
from ringfence.spawner.config import Config
from ringfence.spawner.errors import StartRefused
from ringfence.spawner.paths import StateRoot
from ringfence.spawner.protocol import DiskBy

_PROGRAMS = ("mkfs.ext4", "e2fsck", "resize2fs")
_FOLDERS = ("/usr/sbin", "/sbin")


def program(name: str) -> str | None:
    """Path of one of e2fsprogs' programs."""
    found = (f"{folder}/{name}" for folder in _FOLDERS)
    return next((path for path in found if os.access(path, os.X_OK)), None)


def choose(config: Config, state: StateRoot) -> DiskBy:
    """Raises StartRefused: the one that the configuration names cannot be had here."""
    if config.disk == "accounting":
        return "accounting"
    if config.disk in ("auto", "image") and _images(config):
        return "image"
    if config.disk == "image":
        what = "disk = image needs root, e2fsprogs and loop devices"
        raise StartRefused(what, "apt-get install -y e2fsprogs; modprobe loop   (or: disk = auto)")
    if config.mode == "root" and quota_proof.holds(state, config.kernel_uid):
        return "quota"
    if config.disk == "quota":
        what = "disk = quota needs root and a file system below the state directory whose project quotas hold"
        raise StartRefused(what, "mount it with -o prjquota   (ext4: tune2fs -O project,quota first; or: disk = auto)")
    return "accounting"


def _images(config: Config) -> bool:
    return config.mode == "root" and all(program(name) for name in _PROGRAMS) and loop_image.usable()
