"""Ordinary mode, for real: a throw-away account with subordinate ids, and the same without them."""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from ringfence.spawner import protocol
from tests.support import spawner_rig
from tests.support.spawner_rig import NotStarted, Rig, status_of

pytestmark = pytest.mark.root
A, B = "a" * 16, "b" * 16
FIRST_SUB, COUNT = 3_000_000 + os.getpid() % 1000 * 65536, 65536


@dataclass(frozen=True)
class Account:
    name: str
    uid: int
    gid: int


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    name = f"rft{os.getpid()}"
    subprocess.run(["useradd", "-m", "-s", "/bin/bash", name], check=True)
    entry = pwd.getpwnam(name)
    span = f"{FIRST_SUB}-{FIRST_SUB + COUNT - 1}"
    subprocess.run(["usermod", "--add-subuids", span, "--add-subgids", span, name], check=True)
    try:
        yield Account(name, entry.pw_uid, entry.pw_gid)
    finally:
        subprocess.run(["userdel", "-r", name], check=True, stderr=subprocess.DEVNULL)


@pytest.fixture
def subuid(account: Account) -> Iterator[Rig]:
    rig = spawner_rig.make(
        mode="subuid",
        account=(account.uid, account.gid),
        kernel=(0, 0),
        subuid=(FIRST_SUB, COUNT),
        ids=(8, COUNT - 1),
        accept=("no-cgroup", "no-disk-quota"),
    )
    yield rig
    rig.clean()


@pytest.fixture
def shared(account: Account) -> Iterator[Rig]:
    rig = spawner_rig.make(
        mode="shared",
        account=(account.uid, account.gid),
        kernel=(0, 0),
        ids=(0, 0),
        accept=("no-cgroup", "no-disk-quota", "shared-uid"),
    )
    yield rig
    rig.clean()


def test_each_box_has_a_host_id_of_its_own_without_root(subuid: Rig) -> None:
    subuid.start()
    pids = {}
    for box, inner in ((A, 8), (B, 16)):
        assert subuid.provision(box)["uid"] == inner
        pids[box] = subuid.start_box(box)["identity"]["pid"]
        subuid.shell(box, "true")  # the guest answers: bubblewrap is through
        status = status_of(pids[box])
        # Inside the spawner's namespace 1 is the first subordinate id.
        assert status["Uid"].split() == [str(FIRST_SUB + inner - 1)] * 4
        assert status["CapEff"] == status["CapBnd"] == "0" * 16 and status["Groups"] == ""
        assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")
    subuid.shell(A, "echo a > /home/user/f")
    tree = subuid.home / "boxes" / A / "tree"
    assert (tree / "home" / "f").stat().st_uid == FIRST_SUB + 7
    as_b = subprocess.run(["cat", str(tree / "home" / "f")], user=FIRST_SUB + 15, capture_output=True, text=True)
    assert "denied" in as_b.stderr  # the second wall: the id alone, out of every namespace
    as_a = subprocess.run(["cat", str(tree / "home" / "f")], user=FIRST_SUB + 7, capture_output=True, text=True)
    assert as_a.returncode == 0 or subuid.home.parent.stat().st_mode & 0o001 == 0


def gone(pid: int) -> bool:
    """No process, or a dead one that the host's init has not reaped yet (its parent was another spawner's)."""
    try:
        return status_of(pid)["State"].startswith("Z")
    except FileNotFoundError:
        return True


def life(rig: Rig) -> None:
    """Start, refused network, stop with an empty /tmp, adoption, removal."""
    rig.provision(A)
    first = rig.start_box(A)["identity"]
    assert rig.shell(A, "id -u; echo x > /tmp/x; echo y > /home/user/y")["out"] == "1000\n"
    told = rig.shell(A, "python3 -c \"import socket; socket.create_connection(('1.1.1.1', 443), 5)\"")
    assert "refused" in told["err"] or "unreachable" in told["err"]
    assert "denied" in rig.shell(A, "echo x > /proc/sys/kernel/core_pattern")["err"]
    rig.kill()
    rig.start()
    assert rig.start_box(A) == {"identity": first, "already": True, "timings_ms": {}}
    rig.ask(protocol.Stop(A))
    assert gone(first["pid"]) and os.listdir(rig.home / "boxes" / A / "tree" / "tmp") == []
    rig.start_box(A)
    assert rig.shell(A, "cat /home/user/y; ls /tmp")["out"] == "y\n"
    rig.ask(protocol.Remove(A))
    assert os.listdir(rig.home / "boxes") == []


def test_a_life_in_mode_subuid(subuid: Rig) -> None:
    subuid.start()
    life(subuid)


def test_a_life_in_mode_shared(shared: Rig, account: Account) -> None:
    shared.start()
    shared.provision(B)
    pid = shared.start_box(B)["identity"]["pid"]
    shared.shell(B, "true")  # the guest answers: bubblewrap is through
    status = status_of(pid)
    assert status["Uid"].split() == [str(account.uid)] * 4 and status["CapEff"] == "0" * 16
    assert status["CapBnd"] == "0" * 16 and status["Seccomp"] == "2"
    assert "denied" in shared.shell(B, "kill -9 -1; echo x > /proc/sys/kernel/hostname")["err"]
    shared.ask(protocol.Remove(B))
    life(shared)


def jail(rig: Rig) -> None:
    """A skill's jail beside its user's box, which is the control: what it sees, reaches, makes, and leaves."""
    rig.start()
    for box, kind in ((A, "home"), (B, "skill")):
        rig.ask(protocol.Provision(box, kind, protocol.Limits()))  # type: ignore[arg-type]
        rig.start_box(box)
        rig.shell(box, f"echo of-{box} > /workspace/flag; echo x > /tmp/x")
    seen = {box: rig.shell(box, "ls -d /home/user /run; cat /workspace/flag")["out"].split() for box in (A, B)}
    assert seen == {A: ["/home/user", "/run", f"of-{A}"], B: [f"of-{B}"]}
    assert os.listdir(rig.home / "boxes" / B / "tree") != os.listdir(rig.home / "boxes" / A / "tree")
    connect = "python3 -c \"import socket; socket.create_connection(('1.1.1.1', 443), 5)\""
    assert "unreachable" in rig.shell(B, connect)["err"]
    assert "denied" in rig.shell(B, "unshare -U true || echo denied >&2; touch /usr/x")["err"]
    assert "space" in rig.shell(B, "bwrap --unshare-user --ro-bind / / true")["err"]  # user namespace
    assert len(rig.shell(B, "ls -d /proc/[0-9]*")["out"].split()) < 6
    pid = rig.ask(protocol.Observe(B))["identity"]["pid"]
    rig.ask(protocol.Stop(B))
    assert gone(pid) and os.listdir(rig.home / "boxes" / B / "tree" / "tmp") == []
    rig.ask(protocol.Remove(B))
    assert os.listdir(rig.home / "boxes") == [A] and rig.shell(A, "cat /tmp/x")["out"] == "x\n"


def test_a_jail_in_mode_subuid(subuid: Rig) -> None:
    jail(subuid)


def test_a_jail_in_mode_shared(shared: Rig) -> None:
    jail(shared)


def test_the_greeting_tells_what_is_weak(subuid: Rig, shared: Rig) -> None:
    for rig, weak in (
        (subuid, {"no-cgroup", "no-disk-quota"}),
        (shared, {"no-cgroup", "no-disk-quota", "shared-uid"}),
    ):
        rig.start(greet=False)
        greeting = rig.ask(protocol.Greet(1))
        assert weak <= set(greeting["weak"]) and greeting["mode"] == rig.mode
        rig.stop()


@pytest.mark.parametrize(
    ("missing", "remedy"),
    [
        ("shared-uid", "usermod --add-subuids"),
        ("no-cgroup", "--accept no-cgroup"),
        ("no-disk-quota", "--accept no-disk-quota"),
    ],
)
def test_what_is_not_accepted_is_refused_with_the_remedy(shared: Rig, missing: str, remedy: str) -> None:
    shared.accept = tuple(name for name in shared.accept if name != missing)
    shared.write_config()
    with pytest.raises(NotStarted) as caught:
        shared.start()
    assert missing in str(caught.value) and remedy in str(caught.value)
    shared.accept = ("no-cgroup", "no-disk-quota", "shared-uid")
    shared.write_config()
    shared.start()  # control


def test_subordinate_ids_that_the_user_does_not_have(subuid: Rig) -> None:
    subuid.overrides = {"subuid": [1000, 65536], "subgid": [1000, 65536]}
    subuid.write_config()
    with pytest.raises(NotStarted, match="refused the user's subordinate ids"):
        subuid.start()
    subuid.overrides = {}
    subuid.write_config()
    subuid.start()


def test_a_spawner_that_refuses_to_start_leaves_no_cgroup_and_says_first_what_it_was_asked_for() -> None:
    """Control: accepted, it has its cgroups."""
    rig = spawner_rig.make(overrides={"disk": "accounting"})
    try:
        with pytest.raises(NotStarted) as caught:
            rig.start()
        _, what, remedy = str(caught.value).split("\t")
        assert what.startswith("disk is set to accounting: ") and "deleted files that are still open" in what
        assert remedy.startswith('set disk = "auto"') and "--accept no-disk-quota" in remedy
        assert spawner_rig.cgroup_parents() == []
        rig.accept = ("no-disk-quota",)
        rig.write_config()
        rig.start()
        assert spawner_rig.cgroup_parents() != []
    finally:
        rig.clean()


def test_what_is_left_under_subordinate_ids_is_found_and_everybody_else_lives(subuid: Rig, account: Account) -> None:
    """65534: whoever is outside of a user namespace looks to be that one in it, and the range has it."""
    subuid.start()
    for box in (A, B):
        subuid.provision(box)
    subuid.start_box(A)
    uid = str(subuid.ask(protocol.Observe(B))["uid"])
    leftover = subuid.home / "boxes" / B / ".live.json.new"
    leftover.write_text("{")
    os.chown(leftover, account.uid, account.gid)
    assert subuid.process is not None
    inside = ["nsenter", "-t", str(subuid.process.pid), "-U", "--setuid", uid, "--setgid", uid]
    with subprocess.Popen([*inside, "/bin/sleep", "600"]) as left:
        others = [subprocess.Popen(["/bin/sleep", "600"], user=each) for each in (account.uid, 0, 65534)]
        try:
            deadline = time.monotonic() + 30
            while status_of(left.pid)["Name"] != "sleep":
                assert time.monotonic() < deadline
                time.sleep(0.01)
            found = {(each["box"], each["debris"]) for each in subuid.ask(protocol.Debris())["found"]}
            assert found == {(B, "processes"), (B, "temporary")}
            assert subuid.ask(protocol.Clear(B, "processes"))["gone"] and left.wait(10) == -9
            assert subuid.ask(protocol.Clear(B, "temporary"))["gone"] and not leftover.exists()
            assert [one.poll() for one in others] == [None] * 3
            assert subuid.ask(protocol.Debris())["found"] == []
            assert subuid.shell(A, "echo lives")["out"] == "lives\n"
        finally:
            for one in (left, *others):
                one.kill()
                one.wait()


def test_another_installation_of_the_same_account_is_nobodys_to_end(subuid: Rig, account: Account) -> None:
    """It has the same subordinate ids, in a user namespace of its own: the kernel would refuse, and nothing is told of it."""
    subuid.start()
    other = spawner_rig.make(
        mode="subuid",
        account=(account.uid, account.gid),
        kernel=(0, 0),
        subuid=(FIRST_SUB, COUNT),
        ids=(8, COUNT - 1),
        accept=("no-cgroup", "no-disk-quota"),
        overrides={"installation": "o" * 16},
    )
    try:
        other.start()
        assert other.provision(B)["uid"] == subuid.provision(A)["uid"]
        identity = other.start_box(B)["identity"]
        other.shell(B, "true")
        assert subuid.ask(protocol.Debris())["found"] == []
        subuid.ask(protocol.Clear(A, "processes"))
        assert other.start_box(B)["identity"] == identity
    finally:
        other.clean()


def test_with_a_shared_id_no_process_is_anybodys_to_end(shared: Rig, account: Account) -> None:
    shared.start()
    shared.provision(A)
    (shared.home / "boxes" / B).mkdir(0o711)
    os.chown(shared.home / "boxes" / B, account.uid, account.gid)
    with subprocess.Popen(["/bin/sleep", "600"], user=account.uid, group=account.gid, extra_groups=[]) as own:
        try:
            found = {(each["box"], each["debris"]) for each in shared.ask(protocol.Debris())["found"]}
            assert found == {(B, "directory")}
            assert shared.ask(protocol.Clear(A, "processes")) == {"gone": False}
            assert shared.ask(protocol.Clear("", "processes")) == {"gone": False}
            assert shared.ask(protocol.Clear(B, "directory")) == {"gone": True}
            assert own.poll() is None
        finally:
            own.kill()
