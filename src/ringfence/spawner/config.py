"""H/spawner/config.json, checked. Must never be read from a file that anyone but the spawner's owner can write."""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from ringfence.spawner.errors import StartRefused
from ringfence.spawner.limits import PERIOD, Whole

VERSION = 1
BLOCK = 8  # ids of one home
INSTALLATION = re.compile(r"[a-z2-7]{16}\Z")
# The user in the one-id namespace of mode shared, where the file says 0. It cannot be 0 there: a map that covers the
# parent's id 0 needs CAP_SETFCAP (user_namespaces(7), Linux 5.12), which bubblewrap must not have.
SHARED_ID = 1
_AGAIN = "start it with `ringfence serve`, which writes this file"

Mode = Literal["root", "subuid", "shared"]
Disk = Literal["auto", "image", "quota", "accounting"]


@dataclass(frozen=True, slots=True)
class Config:
    installation: str
    home: str
    mode: Mode
    python: str  # runs the guest and the kernel
    bwrap: str
    runtime: str  # H/runtime/<digest>
    guest_digest: str
    kernel_uid: int  # as counted in the spawner's user namespace, like all ids here
    kernel_gid: int
    egress_id: int  # of the egress template, uid and gid
    ids: tuple[int, int]  # of boxes, both ends included
    subuid: tuple[int, int] | None  # start, count; of the host
    subgid: tuple[int, int] | None
    accept: frozenset[str]
    cgroup_parent: str | None
    kernel_config: str
    disk: Disk  # how trees are bounded; auto: image, else quota, else accounting
    root_ca: str  # path of the company's roots, which boxes trust besides the host's; "": there are none
    limits_all: Whole  # of all boxes together; 0: by the host


_FIELDS = {
    "installation": str,
    "home": str,
    "mode": str,
    "python": str,
    "bwrap": str,
    "runtime": str,
    "guest_digest": str,
    "kernel_uid": int,
    "kernel_gid": int,
    "egress_id": int,
    "kernel_config": str,
    "disk": str,
    "root_ca": str,
}
_KNOWN = {*_FIELDS, "version", "ids", "subuid", "subgid", "accept", "cgroup_parent", "limits_all"}


def parse(text: str) -> Config:
    """Raises StartRefused with the field's name."""
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise StartRefused(f"spawner configuration is not JSON: {error}", _AGAIN) from error
    if not isinstance(raw, dict) or set(raw) != _KNOWN:
        odd = sorted(set(raw) ^ _KNOWN) if isinstance(raw, dict) else "no object"
        raise StartRefused(f"spawner configuration has missing or unknown fields: {odd}", _AGAIN)
    if raw["version"] != VERSION:
        raise StartRefused(f"spawner configuration is version {raw['version']!r}, this is {VERSION}", _AGAIN)
    for name, kind in _FIELDS.items():
        if type(raw[name]) is not kind:
            raise StartRefused(f"spawner configuration: {name} must be {kind.__name__}", _AGAIN)
    return _checked(raw)


def _checked(raw: dict[str, object]) -> Config:
    ids = _pair(raw["ids"], "ids")
    subuid, subgid = (_pair(raw[n], n) if raw[n] is not None else None for n in ("subuid", "subgid"))
    accept, parent = raw["accept"], raw["cgroup_parent"]
    if not isinstance(accept, list) or not all(isinstance(a, str) for a in accept):
        raise StartRefused("spawner configuration: accept must be a list of words", _AGAIN)
    if not (parent is None or (isinstance(parent, str) and parent.startswith("/"))):
        raise StartRefused("spawner configuration: cgroup_parent must be null or an absolute path", _AGAIN)
    values = {name: raw[name] for name in _FIELDS}
    config = Config(
        **values,  # type: ignore[arg-type]
        ids=ids,
        subuid=subuid,
        subgid=subgid,
        accept=frozenset(accept),
        cgroup_parent=parent,
        limits_all=_whole(raw["limits_all"]),
    )
    problem = _problem(config)
    if problem:
        raise StartRefused(f"spawner configuration: {problem}", _AGAIN)
    if config.mode == "shared":
        return replace(
            config, ids=(SHARED_ID, SHARED_ID), kernel_uid=SHARED_ID, kernel_gid=SHARED_ID, egress_id=SHARED_ID
        )
    return config


def _pair(value: object, name: str) -> tuple[int, int]:
    if isinstance(value, list) and len(value) == 2 and all(type(n) is int and n >= 0 for n in value):
        return value[0], value[1]
    raise StartRefused(f"spawner configuration: {name} must be two whole numbers", _AGAIN)


def _whole(value: object) -> Whole:
    """From {"memory", "pids", "cpu_milli"}, whole numbers."""
    names = ("memory", "pids", "cpu_milli")
    if isinstance(value, dict) and set(value) == set(names):
        memory, pids, cpu_milli = (value[name] for name in names)
        if all(type(number) is int and number >= 0 for number in (memory, pids, cpu_milli)):
            return Whole(memory, pids, cpu_milli * PERIOD // 1000)
    raise StartRefused(f"spawner configuration: limits_all must have whole numbers for {', '.join(names)}", _AGAIN)


def _problem(config: Config) -> str | None:
    first, last = config.ids
    if not INSTALLATION.match(config.installation):
        return "installation must be 16 characters of a-z2-7"
    if config.mode not in ("root", "subuid", "shared"):
        return f"no mode {config.mode!r}"
    if config.disk not in get_args(Disk):
        return f"no disk {config.disk!r}"
    if not all(p.startswith("/") for p in (config.home, config.python, config.bwrap, config.runtime)):
        return "home, python, bwrap and runtime must be absolute paths"
    if config.root_ca and not config.root_ca.startswith("/"):
        return "root_ca must be empty or an absolute path"
    if config.mode == "shared":
        return None if config.ids == (0, 0) else "ids must be [0, 0] in mode shared"
    if last - first < BLOCK - 1:
        return f"ids must hold a block of {BLOCK}"
    if first <= 0 or first <= config.kernel_uid <= last or first <= config.kernel_gid <= last:
        return "ids must hold neither 0 nor the kernel's account"
    if config.egress_id <= 0 or config.egress_id == config.kernel_uid or first <= config.egress_id <= last:
        return "egress_id must be neither 0 nor the kernel's account nor one of ids"
    if config.mode == "root":
        return "kernel_uid and kernel_gid must not be 0" if 0 in (config.kernel_uid, config.kernel_gid) else None
    if config.subuid is None or config.subgid is None:
        return "mode subuid needs subuid and subgid"
    # Inside the namespace 0 is the user and 1.. are the subordinate ids.
    most = min(config.subuid[1], config.subgid[1])
    return None if last <= most else f"ids reach {last}, the user has {most} subordinate ids"


def load(path: str) -> Config:
    """Reads and checks the file: a regular one, of the caller, that no one else can write."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise StartRefused(f"spawner configuration cannot be read: {error}", _AGAIN) from error
    with os.fdopen(fd, encoding="utf-8") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise StartRefused(
                "spawner configuration is not a file of its owner alone",
                f"chown {os.geteuid()} {Path(path)}; chmod 600 {Path(path)}",
            )
        return parse(file.read(1 << 20))
