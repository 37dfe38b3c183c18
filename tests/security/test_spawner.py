"""Threats S01-S06: a compromised kernel, which holds the spawner's pair, against the spawner. Each with its control."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringfence.spawner import protocol
from ringfence.spawner.protocol import Limits
from tests.support import spawner_rig
from tests.support.spawner_rig import NotStarted, Refusal, Rig

pytestmark = pytest.mark.root
A, B = "a" * 16, "b" * 16


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = spawner_rig.make()
    made.start()
    yield made
    made.clean()


def raw(rig: Rig, packet: bytes) -> dict[str, Any]:
    assert rig.channel is not None
    rig.channel.send(packet)
    reply, fds = rig.receive()
    assert not fds
    return reply


def error(rig: Rig, **packet: object) -> str:
    code: str = raw(rig, json.dumps({"id": 5} | packet).encode())["error"]["code"]
    return code


# S01 ------------------------------------------------------------------------------------------------------------------


def test_s01_no_request_can_name_a_path_or_an_id(rig: Rig) -> None:
    rig.provision(A)
    limits = {n: getattr(Limits(), n) for n in protocol.BOUNDS}
    start: dict[str, object] = {"op": "start", "box": A, "limits": limits, "image": "host"}
    wrong: list[dict[str, object]] = [
        {"binds": ["/"]},
        {"uid": 0},
        {"limits": limits | {"tree": B}},
        {"box": f"../boxes/{A}"[:16]},
        {"image": "/"},
        {"image": "tree:" + "../" * 11},
    ]
    for each in wrong:
        assert error(rig, **(start | each)) == "bad_request", each
    assert error(rig, op="exec", box=A, argv=["/bin/sh"]) == "bad_request"
    assert "ok" in raw(rig, json.dumps({"id": 5} | start).encode())  # control


def test_s01_one_boxs_tree_is_out_of_anothers_reach(rig: Rig) -> None:
    for box in (A, B):
        rig.provision(box)
        rig.start_box(box)
    rig.shell(A, "echo secret-of-a > /home/user/f; chmod 777 /home/user; chmod 666 /home/user/f")
    told = rig.shell(B, "cat /home/user/f; grep -rs secret-of-a /home /workspace /tmp /run /proc/1/root/home")
    assert "secret-of-a" not in told["out"]
    assert rig.shell(A, "cat /home/user/f")["out"] == "secret-of-a\n"  # control


# S02 ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [{"uid": 0}, {"uid": spawner_rig.FIRST_ID}, {"uid": 1000}, {"installation": "z" * 16}, {"box": B}],
    ids=str,
)
def test_s02_foreign_records_are_refused(rig: Rig, change: dict[str, object]) -> None:
    rig.provision(A)
    path = rig.home / "boxes" / A / "box.json"
    good = path.read_text()
    path.write_text(json.dumps(json.loads(good) | change))
    for request in (protocol.Start(A, Limits()), protocol.Files(A), protocol.Remove(A), protocol.Stop(A)):
        with pytest.raises(Refusal) as caught:
            rig.ask_fds(request)
        assert caught.value.code == "refused", request
    assert rig.ask(protocol.ListBoxes()) == {"boxes": [], "running": [], "more": False, "jails": []}
    path.write_text(good)
    assert not rig.start_box(A)["already"]  # control: the very same box starts


# S03 ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def counted() -> Iterator[Rig]:
    """Trees are plain folders, as where the host has no images."""
    made = spawner_rig.make(overrides={"disk": "accounting"}, accept=("no-disk-quota",))
    made.start()
    yield made
    made.clean()


@pytest.mark.parametrize("place", ["box", "tree", "tree/home", "tree/workspace", "tree/tmp", "ctl", "box.json"])
def test_s03_planted_links_are_refused(counted: Rig, place: str) -> None:
    """The link leads to a faithful copy, owner and mode included: only that it is a link is wrong."""
    counted.provision(A)
    real = counted.home / "boxes" / A if place == "box" else counted.home / "boxes" / A / place
    refuses_a_link(counted, place, real, counted.home / "aside")


@pytest.mark.parametrize("place", ["tree/home", "tree/workspace", "tree/tmp", "ctl", "disk.img"])
def test_s03_planted_links_are_refused_in_and_beside_an_image(rig: Rig, place: str) -> None:
    rig.provision(A)
    box = rig.home / "boxes" / A
    if place == "disk.img":
        rig.stop()
        subprocess.run(["umount", str(box / "tree")], check=True)
        rig.start()
    refuses_a_link(rig, place, box / place, (box / place).with_name("aside"))


def refuses_a_link(rig: Rig, place: str, real: Path, aside: Path) -> None:
    real.rename(aside)
    real.symlink_to(aside)
    requests: list[protocol.Request] = [protocol.Start(A, Limits())]
    if place in ("box", "box.json", "tree", "tree/tmp", "disk.img"):
        requests.append(protocol.Stop(A))
    if place in ("box", "box.json", "tree") or (place == "tree/tmp" and rig.overrides):
        requests.append(protocol.Remove(A))  # the others' links are deleted as such: the test below
    for request in requests:
        with pytest.raises(Refusal) as caught:
            rig.ask(request)
        assert caught.value.code == "refused", (request, caught.value)
    assert aside.exists()
    real.unlink()
    aside.rename(real)
    assert not rig.start_box(A)["already"]  # control


def test_s03_removal_deletes_a_planted_link_not_its_target(rig: Rig) -> None:
    rig.provision(A)
    victim = rig.home.parent / "victim"
    victim.mkdir()
    (victim / "file").write_text("x")
    home = rig.home / "boxes" / A / "tree" / "home"
    home.rmdir()
    home.symlink_to(victim)
    rig.ask(protocol.Remove(A))
    assert (victim / "file").read_text() == "x" and not os.path.lexists(home)


def test_s03_wrong_owner_or_mode(rig: Rig) -> None:
    uid = rig.provision(A)["uid"]
    tree = rig.home / "boxes" / A / "tree"
    owners = [(tree / "home", uid + 1, uid), (tree, uid + 8, uid)]
    modes = [(tree, 0o755, 0o700), (tree.parent, 0o777, 0o711), (tree.parent / "ctl", 0o733, 0o711)]
    for path, wrong, right in owners:
        os.chown(path, wrong, uid)
        refused(rig)
        os.chown(path, right, uid)
    for path, wrong, right in modes:
        path.chmod(wrong)
        refused(rig)
        path.chmod(right)
    assert not rig.start_box(A)["already"]


def refused(rig: Rig) -> None:
    with pytest.raises(Refusal) as caught:
        rig.start_box(A)
    assert caught.value.code == "refused"


# S04 ------------------------------------------------------------------------------------------------------------------


def test_s04_descriptors_with_a_request_are_refused_and_not_installed(rig: Rig) -> None:
    assert rig.channel is not None and rig.process is not None
    count = len(os.listdir(f"/proc/{rig.process.pid}/fd"))
    canary = os.open("/etc/hostname", os.O_RDONLY)
    packet = protocol.encode_request(9, protocol.ListBoxes())
    for _ in range(20):
        socket.send_fds(rig.channel, [packet], [canary] * 10)
        reply, _ = rig.receive()
        assert reply["error"]["code"] == "refused" and reply["id"] == 9
    os.close(canary)
    assert len(os.listdir(f"/proc/{rig.process.pid}/fd")) == count
    assert raw(rig, packet)["ok"] == {"boxes": [], "running": [], "more": False, "jails": []}  # control


def test_s04_garbage_never_ends_it(rig: Rig) -> None:
    for packet in (
        b"\0",
        b"{",
        b"[" * 60_000,
        b'{"id":1}',
        b"\xff" * 1000,
        b"9" * 65536,
        b"null",
        b'{"id":-1,"op":"list"}',
    ):
        assert raw(rig, packet)["error"]["code"] == "bad_request"
    assert rig.channel is not None
    rig.channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    assert raw(rig, b" " * 100_000)["error"]["code"] == "bad_request"
    assert raw(rig, b"")["error"]["code"] == "bad_request"  # an empty packet is no end
    assert rig.ask(protocol.ListBoxes()) == {"boxes": [], "running": [], "more": False, "jails": []}


def test_s04_nothing_before_the_greeting(rig: Rig) -> None:
    rig.stop()
    rig.start(greet=False)
    with pytest.raises(Refusal, match="greet first"):
        rig.ask(protocol.ListBoxes())
    with pytest.raises(Refusal, match="version"):  # S05: a kernel of another version
        rig.ask(protocol.Greet(protocol.VERSION + 1))
    with pytest.raises(Refusal, match="greet first"):
        rig.ask(protocol.ListBoxes())
    rig.ask(protocol.Greet(protocol.VERSION))


def test_s04_a_flood_of_starts_is_bounded(rig: Rig) -> None:
    """3 000 requests for one box as fast as they go: each is answered, the spawner's memory stays, others are served."""
    rig.provision(A)
    rig.provision(B)
    assert rig.channel is not None and rig.process is not None
    before = resident(rig.process.pid)
    rig.channel.setblocking(False)
    answers: dict[str, int] = {}
    sent = received = 0
    deadline = time.monotonic() + 60
    while received < 3000 and time.monotonic() < deadline:
        try:
            while sent < 3000:
                request: protocol.Request = protocol.Start(A, Limits()) if sent % 2 else protocol.Stop(A)
                rig.send(request)
                sent += 1
        except BlockingIOError:
            pass
        try:
            while True:
                reply = rig.receive()[0]
                outcome = "ok" if "ok" in reply else reply["error"]["code"]
                answers[outcome] = answers.get(outcome, 0) + 1
                received += 1
        except BlockingIOError:
            time.sleep(0.001)
    rig.channel.settimeout(60)
    assert received == 3000 and set(answers) == {"ok", "busy"} and answers["busy"] > 1000, answers
    assert resident(rig.process.pid) - before < 16 << 20
    assert not rig.start_box(B)["already"]


def test_s04_a_kernel_that_never_reads_does_not_fill_it(rig: Rig) -> None:
    assert rig.channel is not None and rig.process is not None
    rig.channel.setblocking(False)
    before = resident(rig.process.pid)
    sent, last = 0, time.monotonic()
    while time.monotonic() - last < 0.5:
        try:
            rig.send(protocol.ListBoxes())
            sent, last = sent + 1, time.monotonic()
        except BlockingIOError:
            time.sleep(0.01)
    assert sent < 5000 and resident(rig.process.pid) - before < 8 << 20  # it stopped reading: the sender is blocked
    rig.channel.settimeout(20)
    assert all("ok" in rig.receive()[0] for _ in range(sent))


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def test_s04_file_helpers_are_counted(rig: Rig) -> None:
    rig.provision(A)
    fds: list[int] = []
    with pytest.raises(Refusal) as caught:
        for _ in range(50):
            fds += rig.ask_fds(protocol.Files(A))[1]
    assert caught.value.code == "busy" and len(fds) == 8
    for fd in fds:
        os.close(fd)


# S05 ------------------------------------------------------------------------------------------------------------------


def test_s05_a_second_spawner_is_refused(rig: Rig) -> None:
    second = Rig(rig.home)
    with pytest.raises(NotStarted, match="another server runs"):
        second.start()
    rig.ask(protocol.ListBoxes())
    rig.kill()
    rig.start()  # control: the lock ended with its process


def test_s05_no_child_holds_the_lock(rig: Rig) -> None:
    rig.provision(A)
    rig.start_box(A)
    _, fds = rig.ask_fds(protocol.Files(A))
    rig.kill()
    rig.start()  # the box and the helper still live
    os.close(fds[0])


# S06 ------------------------------------------------------------------------------------------------------------------


def test_s06_a_files_helper_sees_one_tree_as_one_id(rig: Rig) -> None:
    uid = rig.provision(A)["uid"]
    rig.provision(B)
    _, fds = rig.ask_fds(protocol.Files(A))
    deadline = time.monotonic() + 5
    while (helper := of_uid(uid)) is None:
        assert time.monotonic() < deadline
    status = spawner_rig.status_of(helper)
    assert status["Uid"].split() == [str(uid)] * 4 and status["Groups"] == ""
    assert {status[f"Cap{n}"] for n in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    links = [os.readlink(f"/proc/{helper}/fd/{n}") for n in os.listdir(f"/proc/{helper}/fd")]
    tree = str(rig.home / "boxes" / A / "tree")
    assert sorted(link.split(":")[0] for link in links) == sorted(["/dev/null"] * 3 + ["socket", tree])
    assert os.readlink(f"/proc/{helper}/root") == tree
    other = (rig.home / "boxes" / B / "tree").stat()
    assert other.st_uid != uid and stat.S_IMODE(other.st_mode) == 0o700  # even out of its root, the id is not enough
    os.close(fds[0])


def of_uid(uid: int) -> int | None:
    """A living process that has dropped to `uid`."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            status = spawner_rig.status_of(int(name))
        except OSError:
            continue
        if status["State"][0] != "Z" and status["Uid"].split() == [str(uid)] * 4 and status["NoNewPrivs"] == "1":
            return int(name)
    return None


def test_s04_damaged_state_fails_one_request_only(rig: Rig) -> None:
    (rig.home / "spawner" / "pool.json").write_text("not json")
    with pytest.raises(Refusal) as caught:
        rig.provision(A, "run")
    assert caught.value.code == "failed"
    assert rig.provision(B, "home")["created"]
