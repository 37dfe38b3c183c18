"""Group S: a kernel that somebody else has taken over, against the spawner: the real one, with hostile_kernel.py as its
child under the kernel's account. What the spawner did is looked at from outside."""

from __future__ import annotations

import json
import os
import socket
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from ringfence.bench.throwaway import CommandFailed, Installation
from ringfence.prove import apart, outside
from ringfence.prove.attacks.trying import DONE
from ringfence.prove.row import Row, Tries, ran
from ringfence.prove.stage import Stage
from ringfence.spawner import protocol

A, B, OTHER = "a" * 16, "b" * 16, "c" * 16
FLOOD = 3000
GROWTH_MIB = 16
REQUEST_SECONDS = 30.0


class Kernel:
    """The hostile kernel, at the other end of its socket."""

    def __init__(self, made: Installation) -> None:
        self.home = made.home
        self.made = made
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(REQUEST_SECONDS)
        self._socket.connect(str(made.home / "run" / "hostile.sock"))
        self._file = self._socket.makefile("rw", encoding="utf-8")
        self._number = 0
        self.ask(protocol.Greet(protocol.VERSION))

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def do(self, what: str, **order: Any) -> dict[str, Any]:
        self._file.write(json.dumps({"do": what, **order}) + "\n")
        self._file.flush()
        answer: dict[str, Any] = json.loads(self._file.readline())
        if "fault" in answer:
            raise CommandFailed(answer["fault"])
        return answer

    def ask(self, request: protocol.Request) -> dict[str, Any]:
        self._number += 1
        return self.packet(protocol.encode_request(self._number, request))

    def packet(self, data: bytes, fds: int = 0) -> dict[str, Any]:
        """The reply, with the kept descriptors in `fds`."""
        answer = self.do("ask", packet_b64=b64encode(data).decode(), fds=fds)
        return {**answer["reply"], "fds": answer["fds"]}

    def raw(self, **fields: Any) -> dict[str, Any]:
        return self.packet(json.dumps({"id": 5, **fields}).encode())

    def touch(self, how: str, path: Path, target: str = "") -> str:
        """By the kernel's account. An ordinary user's server has no other: what it could do the user can, at any time."""
        if os.geteuid() != 0:
            return "one account here, so not tried"
        said = self.do("touch", how=how, path=str(path), target=target)["error"]
        return str(said) or DONE

    def files(self, fd: int, **request: Any) -> tuple[str, bytes]:
        """(error's code or `ok`, data)."""
        answer = self.do("files", fd=fd, request=request)
        return answer["reply"].get("error", {}).get("code", "ok"), b64decode(answer["data_b64"])

    @property
    def box(self) -> Path:
        return self.home / "boxes" / A


def word(reply: dict[str, Any]) -> str:
    return f"{DONE} {json.dumps(reply['ok'])[:100]}" if "ok" in reply else str(reply["error"]["code"])


def _limits() -> dict[str, int]:
    made = protocol.Limits()
    return {name: getattr(made, name) for name in protocol.BOUNDS}


def paths_and_ids(kernel: Kernel, _stage: Stage) -> Tries:
    """S01: nothing of these has a field in the protocol."""
    start = {"op": "start", "box": A, "limits": _limits(), "image": protocol.HOST_IMAGE}
    return Tries(
        {
            "a bind": word(kernel.raw(**start, binds=["/"])),
            "an id": word(kernel.raw(**start, uid=0)),
            "another tree": word(kernel.raw(**{**start, "limits": {**_limits(), "tree": B}})),
            "a path for a box": word(kernel.raw(**{**start, "box": "../../etc/passwd"})),
            "a path for an image": word(kernel.raw(**{**start, "image": "../../etc"})),
            "a command": word(kernel.raw(op="exec", box=A, argv=["/bin/sh"])),
            "a port of the host's kind": word(kernel.raw(op="listen", box=A, port=22)),
            "a port that a box may bind": word(kernel.raw(op="listen", box=A, port=1024)),
            "an address to listen on": word(kernel.raw(op="listen", box=A, port=0, address="0.0.0.0")),
            "an id for a worker": word(kernel.raw(op="worker", box=A, uid=0)),
            "a file for a certificate": word(kernel.raw(op="trust", box=A, certificate="/etc/shadow")),
            "a limit beyond bounds": word(kernel.raw(**{**start, "limits": {**_limits(), "memory": 1 << 60}})),
        }
    )


def foreign_boxes(kernel: Kernel, _stage: Stage) -> Tries:
    """S02: records that name what is not this installation's, put there as if a wall before had failed."""
    path, told = kernel.box / "box.json", {}
    good = path.read_text()
    changes: dict[str, dict[str, object]] = {
        "id 0": {"uid": 0},
        "an id outside the range": {"uid": 1000},
        "the kernel's own id": {"uid": _kernel_uid(kernel.home)},
        "another installation": {"installation": "z" * 16},
        "another box's record": {"box": B},
    }
    for label, change in changes.items():
        path.write_text(json.dumps(json.loads(good) | change))
        told[label] = word(kernel.ask(protocol.Start(A, protocol.Limits())))
        told[f"{label}, its files"] = word(kernel.ask(protocol.Files(A)))
        told[f"{label}, its network"] = word(kernel.ask(protocol.Listen(A, 0)))
        told[f"{label}, its worker"] = word(kernel.ask(protocol.Worker(A)))
    path.write_text(good)
    told["the network of a box that does not run"] = word(kernel.ask(protocol.Listen(A, 0)))
    told["the worker of a box that does not run"] = word(kernel.ask(protocol.Worker(A)))
    told["write the record"] = kernel.touch("write", path)
    return Tries(told)


def _kernel_uid(home: Path) -> int:
    raw = json.loads((home / "spawner" / "config.json").read_text())
    return int(raw["kernel_uid"])


def planted_links(kernel: Kernel, _stage: Stage) -> Tries:
    """S03: by the kernel's account, which may not; and put there all the same."""
    boxes, told = kernel.home / "boxes", {}
    told["plant"] = kernel.touch("link", boxes / OTHER, "/")
    told["make"] = kernel.touch("mkdir", boxes / OTHER)
    told["rename"] = kernel.touch("rename", kernel.box, str(boxes / OTHER))
    told["the spawner's folder"] = kernel.touch("read", kernel.home / "spawner" / "config.json")
    aside = kernel.home / "aside"
    for place in ("box.json", "ctl"):
        real = kernel.box / place
        real.rename(aside)
        real.symlink_to(aside)
        told[f"a link in place of {place}"] = word(kernel.ask(protocol.Start(A, protocol.Limits())))
        real.unlink()
        aside.rename(real)
    (boxes / OTHER).symlink_to(kernel.box)
    told["a link in place of a box"] = word(kernel.ask(protocol.Start(OTHER, protocol.Limits())))
    (boxes / OTHER).unlink()
    return Tries({**told, **_others_own(kernel)})


def _others_own(kernel: Kernel) -> dict[str, str]:
    """What a box needs, of another owner or open to others: neither a start nor a files helper takes it."""
    told: dict[str, str] = {}
    if os.geteuid() != 0:
        return told
    wrong: dict[str, tuple[int | None, int]] = {"box.json": (None, 0o646), "ctl": (None, 0o757), ".": (None, 0o757)}
    wrong |= {f"{place} of another's": (_kernel_uid(kernel.home), 0) for place in ("box.json", "ctl", ".", "tree")}
    wrong |= {"tree": (None, 0o755)}
    for label, (owner, mode) in wrong.items():
        place = kernel.box / label.split(" ")[0]
        before = place.stat()
        if owner is not None:
            os.chown(place, owner, before.st_gid)
        else:
            place.chmod(mode)
        told[f"{label}, start"] = word(kernel.ask(protocol.Start(A, protocol.Limits())))
        if not label.startswith("ctl"):  # a files helper has no use for it
            told[f"{label}, files"] = word(kernel.ask(protocol.Files(A)))
            kernel.do("drop")  # a helper that was given in spite of it ends: a box has a few only
        os.chown(place, before.st_uid, before.st_gid)
        place.chmod(before.st_mode & 0o7777)
    return told


def floods(kernel: Kernel, _stage: Stage) -> Tries:
    """S04."""
    assert kernel.made.server is not None
    pid = kernel.made.server.pid
    before, fds = _resident(pid), len(os.listdir(f"/proc/{pid}/fd"))
    listed = protocol.encode_request(9, protocol.ListBoxes())
    with_fds = {word(kernel.packet(listed, fds=8)) for _ in range(20)}
    garbage = {word(kernel.packet(data)) for data in (b"\0", b"{", b"[" * 60_000, b"\xff" * 1000, b"9" * 60_000)}
    stop = protocol.encode_request(7, protocol.Stop(A))
    answer = kernel.do("flood", packet_b64=b64encode(stop).decode(), count=FLOOD)
    all_answered = sum(answer["replies"].values()) == FLOOD
    grown, more = _resident(pid) - before, len(os.listdir(f"/proc/{pid}/fd")) - fds
    return Tries(
        {
            "descriptors": ", ".join(sorted(with_fds)) if more <= 0 else f"{DONE} {more} installed",
            "garbage": ", ".join(sorted(garbage)),
            "flood": f"{answer['replies']}" if all_answered else f"{DONE} {answer}",
            "memory": f"grew by {grown} MiB" if grown <= GROWTH_MIB else f"{DONE} grew by {grown} MiB",
        }
    )


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def second_spawner(kernel: Kernel, _stage: Stage) -> Tries:
    """S05: beside the one that runs, by its owner and by the kernel's account; and another version's kernel."""
    second = Installation(kernel.home, site=kernel.made.site, apart=True)
    process = second.start(wait=False)
    code = process.wait(REQUEST_SECONDS)
    if process.stdout is not None:
        process.stdout.close()
    config = kernel.home / "spawner" / "config.json"
    runtime = json.loads(config.read_text())["runtime"]
    program = f"import sys; sys.path.insert(0, {runtime + '/site'!r}); from ringfence.spawner.main import main; main(sys.argv[1])"
    own = kernel.do("run", argv=["/usr/bin/python3", "-I", "-S", "-c", program, str(config)])
    return Tries(
        {
            "a second server": f"refused, exit {code}" if code == 5 else f"{DONE} exit {code}",
            "by the kernel's account": f"refused, exit {own['code']}" if own["code"] else DONE,
            "another version": word(kernel.ask(protocol.Greet(protocol.VERSION + 1))),
        }
    )


def one_tree(kernel: Kernel, _stage: Stage) -> Tries:
    """S06: by one box's files helper."""
    told = {}
    (kernel.home / "boxes" / B / "tree" / "home" / "flag").write_text("of-b")
    paths = {
        "upwards": f"../../../{B}/tree/home/flag",
        "absolute": str(kernel.home / "boxes" / B / "tree" / "home" / "flag"),
        "by magic links": f"/proc/self/root{kernel.home}/boxes/{B}/tree/home/flag",
        "a password file": "/etc/passwd",
    }
    for label, path in paths.items():
        (fd,) = kernel.ask(protocol.Files(A))["fds"]
        code, data = kernel.files(fd, op="get", path_b64=b64encode(path.encode()).decode())
        told[label] = f"{DONE} {data[:20]!r}" if data else code
    return Tries({**told, **_roots_of_helpers(kernel)})


def _roots_of_helpers(kernel: Kernel) -> dict[str, str]:
    """From the host: the root of each files helper that is alive, which is the box's own tree."""
    if os.geteuid() != 0:
        return {}
    assert kernel.made.server is not None
    tree, told = os.stat(kernel.box / "tree"), {}
    children = Path(f"/proc/{kernel.made.server.pid}/task/{kernel.made.server.pid}/children").read_text().split()
    for pid in children:
        with suppress(OSError):
            if outside.status(int(pid)).get("Uid", "").split()[:1] == [str(tree.st_uid)]:
                root = os.stat(f"/proc/{pid}/root/")
                same = (root.st_dev, root.st_ino) == (tree.st_dev, tree.st_ino)
                told[f"root of helper {pid}"] = "its tree" if same else f"{DONE} {os.readlink(f'/proc/{pid}/root')}"
    return told or {"root of helpers": f"{DONE} none was alive to look at"}


# --- controls: the same account, the same channel, without the flaw ---------------------------------------------------


def starts(kernel: Kernel) -> Tries:
    """A box that is the installation's own, as it should be, starts; and stops again."""
    said = word(kernel.ask(protocol.Start(A, protocol.Limits())))
    kernel.ask(protocol.Stop(A))
    return Tries({"start": said})


def own_file(kernel: Kernel) -> Tries:
    (fd,) = kernel.ask(protocol.Files(B))["fds"]
    _, data = kernel.files(fd, op="get", path_b64=b64encode(b"home/flag").decode())
    return Tries({"own tree": f"{DONE} read" if data == b"of-b" else "not read"})


def listed(kernel: Kernel) -> Tries:
    return Tries({"list": word(kernel.ask(protocol.ListBoxes()))})


Attack = Callable[[Kernel, Stage], Tries]
PLAY: dict[str, tuple[Attack, Callable[[Kernel], Tries]]] = {
    "S01": (paths_and_ids, starts),
    "S02": (foreign_boxes, starts),
    "S03": (planted_links, starts),
    "S04": (floods, listed),
    "S05": (second_spawner, listed),
    "S06": (one_tree, own_file),
}


def played(stage: Stage) -> dict[str, Tries]:
    """All of them with one hostile kernel, which ends with its boxes removed."""
    with apart.installation(stage, apart.hostile_kernel) as made:
        made.start()
        with closing(Kernel(made)) as kernel:
            for box in (A, B):
                kernel.ask(protocol.Provision(box, "home"))
            told: dict[str, Tries] = {}
            for row_id, (attack, control) in PLAY.items():
                told[row_id] = attack(kernel, stage)
                told[f"{row_id} control"] = control(kernel)
            for box in (A, B):
                kernel.ask(protocol.Remove(box))
        _until_ended(made)
    return told


def _until_ended(made: Installation) -> None:
    """The kernel ends with its caller, and the spawner with its kernel."""
    assert made.server is not None
    made.server.wait(REQUEST_SECONDS)
    if made.server.stdout is not None:
        made.server.stdout.close()


def _row(row_id: str, attempt: str, wall: str) -> Row:
    return Row(
        row_id,
        attempt,
        "refused",
        wall,
        lambda stage, _runner: stage.once("hostile kernel", played)[row_id],
        ran(lambda stage: stage.once("hostile kernel", played)[f"{row_id} control"]),
        "h",
        play="hostile kernel",
    )


ROWS: tuple[Row, ...] = (
    _row("S01", "name a path, an id, a command to the spawner", "it takes {op, box id, limits} and derives the rest"),
    _row("S02", "id 0, an id outside the range, another installation's box", "range and installation are checked"),
    _row("S03", "planted links in boxes/", "root's directories; openat2 without links, owner and mode checked"),
    _row("S04", "floods, garbage, descriptors attached", "bounded queue; no room for control data"),
    _row("S05", "a second spawner, another version", "one lock; the version is greeted with first"),
    _row("S06", "another tree by one box's files helper", "one descriptor, the box's id, its tree as its root"),
)
