"""A real spawner in its own process, in a temporary home, with the test as its kernel. Root only.

The guest is a stand-in: it listens on the inherited socket and runs what the test says, which is all that the spawner's
walls need. The real guest has its own tests.
"""

from __future__ import annotations

import array
import importlib.util
import json
import os
import py_compile
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringfence.spawner import protocol
from ringfence.spawner.protocol import Limits

SOURCE = Path(protocol.__file__).parents[2]
PYTHON = "/usr/bin/python3"
# Two test runs on one machine must not meet: their own installation (cgroups) and ids. 1.70e9-1.77e9: above every account
# and subordinate id (useradd gives those up to 600,100,000), below the slices of installations (1,879,048,192 and up).
INSTALLATION = "ringfence" + "".join("abcdefghij"[int(digit)] for digit in f"{os.getpid():07d}"[-7:])
FIRST_ID = 1_700_000_000 + os.getpid() % 65536 * 1024
# Of a CA whose key nobody has.
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBkTCCATigAwIBAgIUBDlDyFLsPuCzT7bYNxFsg+bhvLcwCgYIKoZIzj0EAwIw
HDEaMBgGA1UEAwwRcmluZ2ZlbmNlIHRlc3QgQ0EwIBcNMjYxMTMwMTMwOTU1WhgP
MjEyNjExMDYxMzA5NTVaMBwxGjAYBgNVBAMMEXJpbmdmZW5jZSB0ZXN0IENBMFkw
EwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEegmhJvxjyitLfkxeelJ7MpLk3dd0bVN8
zxktl6D1DTMP8Geii5lYgDVfosfA1O9M+sJ8bW7CRHCs1dq+PeamR6NWMFQwHQYD
VR0OBBYEFP80IbaTltUlQNJh5Wrd14QA5zyPMB8GA1UdIwQYMBaAFP80IbaTltUl
QNJh5Wrd14QA5zyPMBIGA1UdEwEB/wQIMAYBAf8CAQAwCgYIKoZIzj0EAwIDRwAw
RAIgOIutJjk0x9Tg1LDlNJ2ZTSSElUIbet+um1+XgtS8DPkCICAGQxZaAHJp/g9n
wT2811ebL1TWEhUqE3ZZKrIwUsb+
-----END CERTIFICATE-----
"""
GUEST = """
import json, os, select, signal, socket, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
inherited = sorted(int(n) for n in os.listdir("/proc/self/fd"))[:-1]  # the last one is the listing itself
door = socket.socket(fileno=int(sys.argv[1]))
cmds = [int(n) for n in sys.argv[2].split(",") if n != "-"]
door.listen(8)
def enter():
    for fd in cmds:
        os.write(fd, b"0")
while True:
    conn, _ = door.accept()
    with conn, conn.makefile("rw") as wire:
        for line in wire:
            ask = json.loads(line)
            if ask.get("fds"):
                links = {n: os.readlink("/proc/self/fd/%d" % n) for n in inherited if n < 64}
                answer = {"fds": links, "argv": sys.argv, "environ": dict(os.environ)}
            else:
                done = subprocess.run(["/bin/sh", "-c", ask["sh"]], capture_output=True, text=True,
                                      preexec_fn=enter, env={"PATH": os.environ["PATH"], "HOME": "/home/user"})
                answer = {"rc": done.returncode, "out": done.stdout, "err": done.stderr}
            wire.write(json.dumps(answer) + "\\n")
            wire.flush()
"""
CODE = """
import socket, sys
sys.path.insert(0, sys.argv[1])
from ringfence.spawner import config, main
from ringfence.spawner.children import Children
from ringfence.spawner.errors import StartRefused
from ringfence.spawner.template import Template
try:
    host, lock = main.open_host(config.load(sys.argv[2]))
except StartRefused as refusal:
    print("refused", refusal.message, refusal.remedy, sep="\\t", flush=True)
    sys.exit(main.REFUSED)
print("ready", flush=True)
children = Children()
template = Template(host.config, children) if sys.argv[4] == "outward" else None
main.run(host, socket.socket(fileno=int(sys.argv[3])), children, 0, template)
"""


class Refusal(Exception):
    """An error reply."""

    def __init__(self, error: dict[str, str]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code, self.message, self.remedy = error["code"], error["message"], error["remedy"]


class NotStarted(Exception):
    """The spawner refused to come up: its words."""


@dataclass
class Rig:
    """One state directory and, while started, its spawner."""

    home: Path
    mode: str = "root"
    account: tuple[int, int] = (0, 0)  # uid, gid that the spawner is started as
    subuid: tuple[int, int] | None = None
    accept: tuple[str, ...] = ()
    ids: tuple[int, int] = (FIRST_ID + 8, FIRST_ID + 807)
    kernel: tuple[int, int] = (FIRST_ID, FIRST_ID)
    overrides: dict[str, Any] = field(default_factory=dict)
    outward: bool = False  # with an egress template
    # File of the copied package -> its text by the text that it has: a wall taken away, a worker that obeys.
    changes: dict[str, Callable[[str], str]] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None
    channel: socket.socket | None = None
    _number: int = 0

    @property
    def config(self) -> Path:
        return self.home / "spawner" / "config.json"

    def prepare(self) -> None:
        """What `ringfence init` and `serve` lay out."""
        site = self.home / "runtime" / "test" / "site"
        shutil.copytree(
            SOURCE / "ringfence" / "spawner",
            site / "ringfence" / "spawner",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        shutil.copy(SOURCE / "ringfence" / "__init__.py", site / "ringfence")
        if self.outward:
            self._add_egress(site)
        for name, change in self.changes.items():
            path = site / "ringfence" / name
            path.write_text(change(path.read_text()))
        guest = self.home / "runtime" / "test" / "guest"
        guest.mkdir()
        (guest / "init.py").write_text(GUEST)
        py_compile.compile(str(guest / "init.py"), str(guest / "init.pyc"), doraise=True)
        for name, mode in (("boxes", 0o711), ("spawner", 0o700), ("run", 0o750)):
            (self.home / name).mkdir()
            (self.home / name).chmod(mode)
        self.home.chmod(0o711)
        self.write_config()
        if self.account[0]:
            for path in (self.home, *self.home.rglob("*")):
                os.chown(path, *self.account, follow_symlinks=False)

    def _add_egress(self, site: Path) -> None:
        """What the template loads: the rooms, and links to the packages that this test itself runs with."""
        for part in ("host/kernel", "host/egress"):
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(SOURCE / "ringfence" / part, site / "ringfence" / part, ignore=ignore)
        shutil.copy(SOURCE / "ringfence" / "host" / "__init__.py", site / "ringfence" / "host")
        for package in ("h11", "cryptography", "dns", "cffi", "_cffi_backend", "pycparser"):
            found = importlib.util.find_spec(package)
            if found is None or found.origin is None:
                continue
            origin = Path(found.origin)
            origin = origin.parent if found.submodule_search_locations else origin
            (site / origin.name).symlink_to(origin)

    def write_config(self) -> None:
        content = {
            "version": 1,
            "installation": INSTALLATION,
            "home": str(self.home),
            "mode": self.mode,
            "python": PYTHON,
            "bwrap": "/usr/bin/bwrap",
            "runtime": str(self.home / "runtime" / "test"),
            "guest_digest": "d" * 64,
            "kernel_uid": self.kernel[0],
            "kernel_gid": self.kernel[1],
            "egress_id": self.kernel[0] + (self.mode != "shared"),
            "ids": list(self.ids),
            "subuid": self.subuid,
            "subgid": self.subuid,
            "accept": list(self.accept),
            "cgroup_parent": None,
            "kernel_config": str(self.home / "run" / "kernel.json"),
            "disk": "auto",
            "root_ca": "",
            "limits_all": {"memory": 0, "pids": 0, "cpu_milli": 0},
        }
        self.config.write_text(json.dumps(content | self.overrides))
        self.config.chmod(0o600)
        os.chown(self.config, *self.account)

    def start(self, *, greet: bool = True) -> None:
        """Raises NotStarted."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        site = self.home / "runtime" / "test" / "site"
        argv = [PYTHON, "-I", "-S", "-B", "-c", CODE, str(site), str(self.config), str(theirs.fileno())]
        argv.append("outward" if self.outward else "-")
        with theirs:
            self.process = subprocess.Popen(
                argv,
                pass_fds=[theirs.fileno()],
                stdout=subprocess.PIPE,
                text=True,
                env={"PATH": "/usr/bin:/bin"},
                cwd="/",
                user=self.account[0],
                group=self.account[1],
                extra_groups=[],
            )
        assert self.process.stdout is not None
        first = self.process.stdout.readline().strip()
        if first != "ready":
            ours.close()
            self._reap()
            raise NotStarted(first)
        ours.settimeout(60)
        self.channel = ours
        if greet:
            self.ask(protocol.Greet(protocol.VERSION))

    def stop(self) -> None:
        """Closes the kernel's end: the spawner ends by itself, boxes go on."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None
        self._reap()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.stop()

    def _reap(self) -> None:
        if self.process is not None:
            self.process.wait(60)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    def send(self, request: protocol.Request) -> int:
        self._number += 1
        assert self.channel is not None
        self.channel.send(protocol.encode_request(self._number, request))
        return self._number

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        assert self.channel is not None
        packet, control, _, _ = self.channel.recvmsg(1 << 20, socket.CMSG_SPACE(32))
        fds = array.array("i")
        for _, _, data in control:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        assert packet, "the spawner has gone"
        return json.loads(packet), list(fds)

    def ask(self, request: protocol.Request) -> dict[str, Any]:
        body, fds = self.ask_fds(request)
        assert not fds
        return body

    def ask_fds(self, request: protocol.Request) -> tuple[dict[str, Any], list[int]]:
        number = self.send(request)
        reply, fds = self.receive()
        assert reply["id"] == number
        if "error" in reply:
            raise Refusal(reply["error"])
        body: dict[str, Any] = reply["ok"]
        return body, fds

    def provision(self, box: str, kind: protocol.BoxKind = "home", limits: Limits | None = None) -> dict[str, Any]:
        return self.ask(protocol.Provision(box, kind, limits or Limits()))

    def start_box(self, box: str, limits: Limits | None = None) -> dict[str, Any]:
        return self.ask(protocol.Start(box, limits or Limits()))

    def tell(self, box: str, question: dict[str, Any], seconds: float = 30) -> dict[str, Any]:
        """One exchange with the stand-in guest."""
        with socket.socket(socket.AF_UNIX) as wire:
            wire.settimeout(seconds)
            directory = os.open(self.home / "boxes" / box / "ctl", os.O_PATH)
            deadline = time.monotonic() + 30
            while True:
                try:
                    wire.connect(f"/proc/self/fd/{directory}/host.sock")
                    break
                except ConnectionRefusedError:
                    assert time.monotonic() < deadline
                    time.sleep(0.002)
            os.close(directory)
            with wire.makefile("rw") as file:
                file.write(json.dumps(question) + "\n")
                file.flush()
                answer: dict[str, Any] = json.loads(file.readline())
                return answer

    def shell(self, box: str, command: str) -> dict[str, Any]:
        return self.tell(box, {"sh": command})

    def clean(self) -> None:
        """Leaves nothing: boxes, cgroups, files. One box that cannot be removed keeps none of the others."""
        if self.channel is None:
            self.start()
        kept: list[Exception] = []
        for box in self.ask(protocol.ListBoxes())["boxes"]:
            try:
                self.ask(protocol.Remove(box))
            except (Refusal, OSError) as error:
                kept.append(error)
        self.stop()
        if kept:
            raise ExceptionGroup("boxes that are left", kept)
        self.discard()

    def discard(self) -> None:
        for parent in cgroup_parents():
            os.rmdir(parent)
        shutil.rmtree(self.home.parent)


def cgroup_parents() -> list[str]:
    return [str(p) for p in Path("/sys/fs/cgroup").glob(f"*/ringfence-{INSTALLATION}")] + [
        str(p) for p in Path("/sys/fs/cgroup").glob(f"ringfence-{INSTALLATION}")
    ]


def temporary_home() -> Path:
    """Below a directory that everybody may enter, as /var/lib is."""
    path = Path(tempfile.mkdtemp(prefix="ringfence-spawner-"))
    path.chmod(0o711)
    return path / "state"


def make(**options: Any) -> Rig:
    home = temporary_home()
    home.mkdir()
    rig = Rig(home, **options)
    rig.prepare()
    return rig


def status_of(pid: int) -> dict[str, str]:
    """/proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def end_quietly(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
