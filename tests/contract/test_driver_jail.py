"""A skill's jail: a box of kind `skill` made by driver calls alone, beside a user's home box and another jail.

Each look is made in both: what the jail must not see or do, the home box does (the control); where no box may, the
control is the same attempt on the host.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.broker.link import WireLink
from ringfence.host.kernel.boxes import JAIL_LIMITS, BoxKind, Limits, Observed
from ringfence.host.kernel.errors import NotFound, Refused
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.ports import Outcome
from tests.contract.test_spawner import directories, processes_of
from tests.support.driver_stage import BOX, INSTALLATION, Stage, command, own_installation, stage
from tests.support.spawner_rig import status_of

__all__ = ["own_installation"]
pytestmark = pytest.mark.root
JAIL, OTHER = BoxId("jailjailjailjail"), BoxId("otherotherotherj")
MIB = 1 << 20
SMALL = Limits(memory=160 * MIB, pids=64, cpu_milli=1000, nofile=512, shm=16 * MIB, run=MIB, disk=32 * MIB, inodes=1024)
PLAIN = "--ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev"


@dataclass
class Boxes:
    stage: Stage
    home: WireLink
    jail: WireLink
    number: int = 0

    async def run(self, link: WireLink, script: str) -> tuple[str, Outcome]:
        self.number += 1
        where = "/home/user" if link is self.home else "/workspace"
        started = await link.spawn(f"x/{self.number}", command("/bin/sh", "-c", f"exec 2>&1\n{script}", home=where))
        out = b"".join([data async for _, data in started.output()])
        return out.decode(errors="replace").strip(), await started.outcome()

    async def both(self, script: str) -> tuple[str, str]:
        """(in the home box, in the jail): output and errors."""
        return (await self.run(self.home, script))[0], (await self.run(self.jail, script))[0]

    async def identity(self, box: BoxId) -> dict[str, Any]:
        seen = (await self.stage.driver.observe(box)).identity
        assert seen is not None
        return seen


@asynccontextmanager
async def boxes(limits: Limits = JAIL_LIMITS) -> AsyncIterator[Boxes]:
    async with stage() as s:
        home = await s.up(BOX)
        yield Boxes(s, home, await s.up(JAIL, BoxKind.SKILL, limits))


async def test_what_it_sees_is_what_it_needs() -> None:
    async with boxes() as b:
        home, jail = (set(said.split()) for said in await b.both("ls /"))
        assert home - jail == {"home", "run"} and jail < home
        writable = "awk '$4 ~ /^rw/ {print $2}' /proc/self/mounts | sort -u"
        home, jail = (set(said.split()) for said in await b.both(writable))
        assert home - jail == {"/home/user", "/run"}
        assert jail - {line for line in jail if line.startswith(("/proc", "/dev"))} == {"/workspace", "/tmp"}
        refused = "for d in / /dev /etc /usr /opt /opt/ringfence /workspace; do touch $d/x 2>/dev/null && echo $d; done"
        assert await b.both(refused) == ("/workspace", "/workspace")
        made = "echo made > /workspace/w && echo made > /tmp/t && cat /workspace/w /tmp/t"
        assert await b.both(made) == ("made\nmade", "made\nmade")
        # PID 1's own, which commands may not read: what it was started with, and nothing of whoever started it.
        home, jail = [
            set((Path("/proc") / str((await b.identity(box))["pid"]) / "environ").read_text().split("\0"))
            for box in (BOX, JAIL)
        ]
        assert "HOME=/home/user" in home and "HOME=/tmp" in jail
        assert {line.partition("=")[0] for line in jail - {""}} <= {line.partition("=")[0] for line in home} | {"PWD"}
        assert not any("/home/user" in line for line in jail)


async def test_files_of_its_user_and_of_another_jail_are_out_of_reach() -> None:
    async with boxes() as b:
        other = await b.stage.up(OTHER, BoxKind.SKILL, SMALL)
        await b.run(
            b.home, "umask 0; echo mine > /home/user/flag-u; echo mine > /workspace/flag-w; echo m > /tmp/flag-t"
        )
        await b.run(other, "umask 0; echo theirs > /workspace/flag-o; echo theirs > /tmp/flag-p")
        look = "find / -xdev -name 'flag-*' 2>/dev/null; find /workspace /tmp /dev/shm -name 'flag-*'; true"
        home, jail = await b.both(look)
        assert jail == "" and set(home.split()) == {"/workspace/flag-w", "/tmp/flag-t"}
        assert await b.both("cat /home/user/flag-u") == ("mine", "cat: /home/user/flag-u: No such file or directory")
        assert (await b.run(other, look))[0].split() == ["/workspace/flag-o", "/tmp/flag-p"]
        # The second wall, for a jail that was given the wrong tree: its id is nobody else's, and the trees are 0700.
        uids = [(await b.identity(box))["uid"] for box in (BOX, JAIL, OTHER)]
        assert len(set(uids)) == 3
        theirs = str(b.stage.rig.home / "boxes" / BOX / "tree" / "workspace" / "flag-w")
        read = {uid: subprocess.run(["cat", theirs], user=uid, capture_output=True, check=False) for uid in uids[:2]}
        assert read[uids[0]].stdout == b"mine\n" and b"denied" in read[uids[1]].stderr


async def test_no_network_and_none_of_the_outer_processes() -> None:
    async with boxes() as b:
        names = ("net_ns", "pid_ns")
        identities = [await b.identity(box) for box in (BOX, JAIL)]
        assert all(identities[0][name] != identities[1][name] for name in names)
        await b.home.spawn("x/sleeper", command("/bin/sleep", "29"))
        assert await b.both("pgrep -cx sleep") == ("1", "0")
        assert await b.both("cat /proc/net/dev | grep -c :") == ("1", "1")  # the loopback alone
        routes = await b.both("grep -c . /proc/net/fib_trie; true")
        say = "import socket; s = socket.socket(); s.settimeout(3); print(s.connect_ex(('%s', %d)))"
        told = await b.both(f'python3 -c "{say % ("1.1.1.1", 443)}"')
        assert told == ("111", "101"), routes  # refused by the way out that is not there; no route at all
        server = "import socket, time; s = socket.create_server(('127.0.0.1', 8099)); print(flush=True); time.sleep(25)"
        serving = await b.home.spawn("x/server", command("/usr/bin/python3", "-c", server))
        async with asyncio.timeout(20):
            assert (await anext(aiter(serving.output())))[1] == b"\n"
        assert await b.both(f'python3 -c "{say % ("127.0.0.1", 8099)}"') == ("0", "111")
        outer = int(status_of(identities[1]["pid"])["PPid"])
        assert (Path("/proc") / str(outer) / "environ").read_bytes() == b""
        status = status_of(identities[1]["pid"])
        assert status["Uid"].split() == [str(identities[1]["uid"])] * 4
        assert (status["Seccomp"], status["NoNewPrivs"], status["CapBnd"]) == ("2", "1", "0" * 16)


async def test_no_jail_in_the_jail() -> None:
    """Control: on the host the same command lines work for an id without rights."""
    async with boxes() as b:
        for line, words in (("unshare -U true", "not permitted"), (f"bwrap {PLAIN} --unshare-all true", "namespace")):
            said, outcome = await b.run(b.jail, line)
            assert outcome.code != 0 and words in said
            uid = (await b.identity(JAIL))["uid"]
            done = subprocess.run(line.split(), user=uid, group=uid, extra_groups=[], cwd="/", check=False)
            assert done.returncode == 0


async def test_its_own_small_limits_bite_and_the_users_box_goes_on() -> None:
    """Control: the home box, under its own limits, does the same."""
    async with boxes(SMALL) as b:
        full = "head -c 60000000 /dev/zero > /workspace/fill; rm -f /workspace/fill; true"
        home, jail = await b.both(full)
        assert "No space" in jail and home == ""
        hold = 'exec python3 -c "x = bytearray(300 << 20); print(len(x))"'
        said, outcome = await b.run(b.jail, hold)
        assert (outcome.signal, (await b.stage.driver.observe(JAIL)).oom_kills >= 1) == (9, True), said
        assert (await b.run(b.home, hold))[0] == str(300 << 20)
        forks = "for i in $(seq 100); do sleep 2 & done; echo all"
        home, jail = await b.both(forks)
        assert "fork" in jail and home == "all"
        home, jail = await b.both("ulimit -Hn")
        assert (int(home) > 512, jail) == (True, "512")
        assert (await b.run(b.jail, "echo lives"))[0] == "lives"


async def test_its_files_are_read_by_the_helper_as_those_of_any_box() -> None:
    """H12: what the host collects from a jail. Control: a plain file comes out."""
    async with boxes(SMALL) as b:
        secret = b.stage.rig.home.parent / "host-secret"
        secret.write_text("of the host")
        secret.chmod(0o644)
        await b.run(
            b.jail, f"echo result > /workspace/out; ln -s {secret} /workspace/link; ln -s /proc/self/environ /tmp/l"
        )
        async with b.stage.driver.files(JAIL) as files:
            assert b"".join([part async for part in files.get(b"/workspace/out")]) == b"result\n"
            for path in (b"/workspace/link", b"/tmp/l"):
                with pytest.raises(Refused):
                    _ = [part async for part in files.get(path)]
            with pytest.raises(NotFound):  # there is no HOME, also not to put something into
                await files.list(b"/home/user", None, 10)


async def test_stop_and_remove_leave_nothing() -> None:
    async with boxes(SMALL) as b:
        driver, folder = b.stage.driver, b.stage.rig.home / "boxes" / JAIL
        uid = (await b.identity(JAIL))["uid"]
        await b.run(b.jail, "setsid sleep 300 > /dev/null 2>&1 & echo kept > /workspace/k; echo gone > /tmp/g")
        assert processes_of(uid) and directories(JAIL, INSTALLATION)  # control
        await b.jail.close()
        await driver.stop(JAIL)
        assert not processes_of(uid) and not directories(JAIL, INSTALLATION)
        assert (await driver.observe(JAIL)).state is Observed.STOPPED and await driver.jails() == [JAIL]
        assert os.listdir(folder / "tree" / "tmp") == [] and os.listdir(folder / "tree" / "workspace") != []
        b.jail = await b.stage.up(JAIL, BoxKind.SKILL, SMALL)
        assert (await b.run(b.jail, "cat /workspace/k; ls /tmp"))[0] == "kept"
        await b.jail.close()
        await driver.remove(JAIL)
        assert (await driver.observe(JAIL)).state is Observed.ABSENT and not folder.exists()
        assert (
            not processes_of(uid)
            and not directories(JAIL, INSTALLATION)
            and f"/{JAIL}/" not in Path("/proc/self/mountinfo").read_text()
        )
        assert (await driver.running(), await driver.jails()) == ([BOX], [])  # the user's own is not touched
