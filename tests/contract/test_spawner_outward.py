"""The way out of a box, from the spawner's side: listeners in its network and the worker, in all three modes."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from ringfence.spawner import protocol
from tests.support import spawner_rig
from tests.support.accounts import Account, account
from tests.support.spawner_rig import Refusal, Rig, status_of

__all__ = ["account"]
pytestmark = pytest.mark.root
A, B = "a" * 16, "b" * 16
SO_ORIGINAL_DST = 80  # of SOL_IP and SOL_IPV6, linux/netfilter_ipv4.h
FIXED = ["transparent", "transparent", "dns_udp", "dns_udp", "dns_tcp", "dns_tcp"]
COUNT = 65536
PYTHON = "python3 -c 'import socket\n{}'"


def made(mode: str, who: Account) -> Rig:
    if mode == "root":
        return spawner_rig.make(outward=True)
    accept = ("no-cgroup", "no-disk-quota", *(["shared-uid"] if mode == "shared" else []))
    ids: dict[str, Any] = {"ids": (0, 0)} if mode == "shared" else {"ids": (8, COUNT - 1), "subuid": (who.first, COUNT)}
    return spawner_rig.make(mode=mode, account=(who.uid, who.gid), kernel=(0, 0), accept=accept, outward=True, **ids)


@pytest.fixture(params=["root", "subuid", "shared"])
def rig(request: pytest.FixtureRequest, account: Account) -> Iterator[Rig]:
    one = made(request.param, account)
    one.start()
    yield one
    one.clean()


@pytest.fixture
def root() -> Iterator[Rig]:
    one = spawner_rig.make(outward=True)
    one.start()
    yield one
    one.clean()


def sockets(rig: Rig, box: str, port: int) -> tuple[list[str], list[socket.socket]]:
    body, fds = rig.ask_fds(protocol.Listen(box, port))
    return body["kinds"], [socket.socket(fileno=fd) for fd in fds]


def worker(rig: Rig, box: str) -> tuple[int, socket.socket]:
    body, (fd,) = rig.ask_fds(protocol.Worker(box))
    control = socket.socket(fileno=fd)
    control.settimeout(20)
    return body["pid"], control


def served(listener: socket.socket, act: Callable[[socket.socket], Any]) -> list[Any]:
    """What `act` said of the first connection (or datagram's socket), filled in by a thread."""
    said: list[Any] = []

    def once() -> None:
        listener.settimeout(20)
        if listener.type == socket.SOCK_DGRAM:
            said.append(act(listener))
            return
        with listener.accept()[0] as connection:
            connection.setblocking(True)
            said.append(act(connection))

    thread = threading.Thread(target=once)
    thread.start()
    said.append(thread)
    return said


def result(said: list[Any]) -> Any:
    said[0].join(20)
    return said[1]


def original4(connection: socket.socket) -> tuple[str, int]:
    raw = connection.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)
    connection.send(b"hello")
    return socket.inet_ntoa(raw[4:8]), struct.unpack("!H", raw[2:4])[0]


def original6(connection: socket.socket) -> tuple[str, int]:
    raw = connection.getsockopt(socket.IPPROTO_IPV6, SO_ORIGINAL_DST, 28)
    connection.send(b"hello")
    return socket.inet_ntop(socket.AF_INET6, raw[8:24]), struct.unpack("!H", raw[2:4])[0]


def echo(listener: socket.socket) -> bytes:
    data, peer = listener.recvfrom(512)
    listener.sendto(b"answer", peer)
    return data


def connects(rig: Rig, box: str, address: str, port: int) -> str:
    told = rig.shell(box, PYTHON.format(f'print(socket.create_connection(("{address}", {port}), 5).recv(9))'))
    return str(told["out"].strip() or told["err"].strip().splitlines()[-1])


def asks(rig: Rig, box: str, address: str) -> str:
    family = "AF_INET6" if ":" in address else "AF_INET"
    told = rig.shell(
        box,
        PYTHON.format(
            f"s = socket.socket(socket.{family}, socket.SOCK_DGRAM); s.settimeout(5)\n"
            f's.connect(("{address}", 53)); s.send(b"who"); print(s.recv(9))'
        ),
    )
    return str(told["out"].strip() or told["err"].strip().splitlines()[-1])


def test_every_connection_and_every_name_arrives_at_the_listeners(rig: Rig) -> None:
    rig.provision(A)
    rig.start_box(A)
    assert "efused" in connects(rig, A, "1.2.3.4", 443)  # control: nobody listens yet
    with ExitStack() as stack:
        kinds, held = sockets(rig, A, 0)
        for one in held:
            stack.enter_context(one)
        assert kinds == FIXED and all(not os.get_blocking(one.fileno()) for one in held)
        said = served(held[0], original4)
        assert connects(rig, A, "1.2.3.4", 443) == "b'hello'" and result(said) == ("1.2.3.4", 443)
        said = served(held[1], original6)
        assert connects(rig, A, "2001:db8::1", 80) == "b'hello'" and result(said) == ("2001:db8::1", 80)
        for address, listener in (("127.0.0.1", held[2]), ("8.8.8.8", held[2]), ("2001:db8::53", held[3])):
            said = served(listener, echo)
            assert asks(rig, A, address) == "b'answer'" and result(said) == b"who", address
        said = served(held[4], lambda connection: connection.send(b"names"))
        assert connects(rig, A, "127.0.0.1", 53) == "b'names'"
        result(said)
        kinds, (proxy,) = sockets(rig, A, 1021)
        stack.enter_context(proxy)
        said = served(proxy, lambda connection: connection.send(b"proxy"))
        assert kinds == ["proxy"] and connects(rig, A, "127.0.0.1", 1021) == "b'proxy'"
        result(said)
    assert "efused" in connects(rig, A, "1.2.3.4", 443)  # held by nobody but whom they were given to


def test_a_worker_comes_up_closed_in_and_ends_with_its_socket(rig: Rig) -> None:
    uid = rig.provision(A)["uid"]
    rig.start_box(A)
    body, (fd,) = rig.ask_fds(protocol.Worker(A))
    assert body["uid"] == (uid if rig.mode == "shared" else uid + 1)
    status = status_of(body["pid"])
    host = {
        "root": body["uid"],
        "subuid": rig.subuid[0] + body["uid"] - 1 if rig.subuid else 0,
        "shared": rig.account[0],
    }
    assert status["Uid"].split() == status["Gid"].split() == [str(host[rig.mode])] * 4
    assert {status[f"Cap{n}"] for n in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert (status["Seccomp"], status["NoNewPrivs"], status["Threads"]) == ("2", "1", "1")
    assert rig.mode == "shared" or status["Groups"] == ""
    with socket.socket(fileno=fd) as control:
        control.settimeout(20)
        assert b"ready" in control.recv(1000)
    assert ended(body["pid"])
    rig.ask(protocol.EndWorker(A))  # idempotent


def ended(pid: int) -> bool:
    until = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


def test_a_worker_ends_with_its_box_and_by_order(root: Rig) -> None:
    root.provision(A)
    root.start_box(A)
    for request in (protocol.EndWorker(A), protocol.Freeze(A), protocol.Stop(A), protocol.Remove(A)):
        pid, control = worker(root, A)
        with control:
            assert b"ready" in control.recv(1000)
            root.ask(request)
            assert not Path(f"/proc/{pid}").exists(), request
            assert control.recv(1000) == b""
        if isinstance(request, protocol.Freeze):
            with pytest.raises(Refusal, match="frozen"):
                root.ask_fds(protocol.Worker(A))
            root.ask(protocol.Thaw(A))
        elif isinstance(request, protocol.Stop):
            with pytest.raises(Refusal, match="does not run"):
                root.ask_fds(protocol.Worker(A))
            root.start_box(A)


def test_one_worker_a_box_and_one_for_each_of_two(root: Rig) -> None:
    pids = {}
    with ExitStack() as stack:
        for box in (A, B):
            root.provision(box)
            root.start_box(box)
            pids[box], control = worker(root, box)
            stack.enter_context(closing(control))
        assert status_of(pids[A])["Uid"] != status_of(pids[B])["Uid"]
        second, control = worker(root, A)
        stack.enter_context(closing(control))
        assert not Path(f"/proc/{pids[A]}").exists() and Path(f"/proc/{pids[B]}").exists()
        assert Path(f"/proc/{second}").exists()
        os.kill(root.ask(protocol.Observe(A))["identity"]["pid"], signal.SIGKILL)
        until = time.monotonic() + 20
        while root.ask(protocol.Observe(A))["state"] == "running":
            assert time.monotonic() < until
        root.start_box(A)  # of a box that died by itself the worker is gone when the next one starts
        assert not Path(f"/proc/{second}").exists()


def test_ports_are_free_again_once_a_former_server_has_gone(rig: Rig) -> None:
    rig.provision(A)
    rig.start_box(A)
    first = sockets(rig, A, 0)[1] + sockets(rig, A, 200)[1]
    for port in (0, 200):
        with pytest.raises(Refusal) as caught:
            rig.ask_fds(protocol.Listen(A, port))
        assert caught.value.code == "busy"
    pid, control = worker(rig, A)
    rig.kill()
    assert ended(pid)  # with the spawner, though its control socket is still held
    for one in (*first, control):
        one.close()
    rig.start()
    for port in (0, 200):
        for one in sockets(rig, A, port)[1]:
            one.close()
    _, control = worker(rig, A)
    control.close()


def test_a_spawner_keeps_nothing_of_what_it_hands_over(root: Rig) -> None:
    assert root.process is not None
    root.provision(A)
    root.start_box(A)
    pid = root.process.pid
    before, network = len(os.listdir(f"/proc/{pid}/fd")), os.stat(f"/proc/{pid}/ns/net").st_ino
    for port in (0, 100, 1021):
        for one in sockets(root, A, port)[1]:
            one.close()
    _, control = worker(root, A)
    control.close()
    root.ask(protocol.EndWorker(A))
    with pytest.raises(Refusal):
        root.ask_fds(protocol.Listen(B, 0))
    assert len(os.listdir(f"/proc/{pid}/fd")) == before
    assert os.stat(f"/proc/{pid}/ns/net").st_ino == network == os.stat("/proc/self/ns/net").st_ino


def template_of(pid: int) -> int:
    return int(status_of(pid)["PPid"])


def test_a_template_that_dies_takes_its_workers_along_and_is_started_again(rig: Rig) -> None:
    rig.provision(A)
    rig.start_box(A)
    pid, control = worker(rig, A)
    first = template_of(pid)
    with control:
        os.kill(first, signal.SIGKILL)
        assert ended(pid)
    with pytest.raises(Refusal) as caught:
        rig.ask_fds(protocol.Worker(A))
    assert caught.value.code == "unavailable" and "again in 1 s" in caught.value.message
    time.sleep(1.2)
    pid, control = worker(rig, A)
    control.close()
    assert template_of(pid) != first


def links_of(pid: int) -> dict[str, str]:
    """Open descriptors. One that is closed meanwhile is left out."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            found[name] = os.readlink(f"/proc/{pid}/fd/{name}")
    return found


def test_the_template_has_two_capabilities_and_one_socket(root: Rig) -> None:
    root.provision(A)
    root.start_box(A)
    pid, control = worker(root, A)
    template = template_of(pid)
    status = status_of(template)
    two = f"{1 << 6 | 1 << 7:016x}"  # CAP_SETGID, CAP_SETUID
    assert {status[f"Cap{n}"] for n in ("Inh", "Prm", "Eff", "Amb")} == {two} and status["CapBnd"] == "0" * 16
    assert status["Uid"].split() == status["Gid"].split() == [str(root.kernel[0] + 1)] * 4
    assert (status["NoNewPrivs"], status["Groups"], status["Threads"]) == ("1", "", "1")
    assert status["NSpid"].split()[-1] == "1" and os.stat(f"/proc/{template}/mem").st_uid == 0  # not dumpable
    end = time.monotonic() + 5
    while set(links := links_of(template)) != set("0123") and time.monotonic() < end:
        time.sleep(0.01)  # the worker may have said its word before the template has closed its copies
    assert links["0"] == links["1"] == "/dev/null" and links["3"].startswith("socket:") and set(links) == set("0123")
    assert b"ready" in control.recv(1000)  # after its word to the spawner
    held = links_of(pid)
    kinds = sorted(link.split(":")[0] for link in held.values())
    assert kinds == ["/dev/null"] * 3 + ["anon_inode"] + ["socket"] * 3  # its own, and an event loop's epoll and pair
    assert os.stat(f"/proc/{pid}/mem").st_uid == 0
    control.close()
    root.stop()
    assert ended(template)


def test_only_a_running_home_has_a_way_out(root: Rig) -> None:
    root.provision(A)
    root.provision(B, "scratch")
    root.start_box(B)
    for request, code in (
        (protocol.Listen(A, 0), "refused"),  # stopped
        (protocol.Worker(A), "refused"),
        (protocol.Listen(B, 0), "refused"),  # another kind
        (protocol.Worker(B), "refused"),
        (protocol.Trust(B, spawner_rig.CERTIFICATE), "refused"),
        (protocol.Listen("c" * 16, 0), "not_found"),
        (protocol.Worker("c" * 16), "not_found"),
        (protocol.EndWorker("c" * 16), "not_found"),
        (protocol.Trust("c" * 16, spawner_rig.CERTIFICATE), "not_found"),
    ):
        with pytest.raises(Refusal) as caught:
            root.ask_fds(request)
        assert caught.value.code == code, request
    root.start_box(A)  # control
    for one in sockets(root, A, 0)[1]:
        one.close()


def test_a_worker_is_cheap(root: Rig) -> None:
    """In memory; how soon it is there is bench's to say."""
    root.provision(A)
    root.start_box(A)
    for _ in range(5):
        root.ask(protocol.EndWorker(A))
        pid, control = worker(root, A)
        assert b"ready" in control.recv(1000)
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        control.close()
    private = sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_"))
    assert 0 < private <= 8 << 10  # KiB


def test_a_home_folder_that_lets_nobody_through_is_no_obstacle() -> None:
    """As that of an ordinary user's installation. What is loaded lies below it."""
    rig = spawner_rig.make(outward=True)
    try:
        (rig.home / "runtime").chmod(0o700)
        rig.start()
        rig.provision(A)
        rig.start_box(A)
        _, control = worker(rig, A)
        assert b"ready" in control.recv(1000)
        control.close()
    finally:
        rig.clean()


def broken(change: Callable[[str], str], file: str) -> Rig:
    rig = spawner_rig.make(outward=True, changes={f"host/egress/{file}": change})
    rig.start()
    rig.provision(A)
    rig.start_box(A)
    return rig


def test_a_worker_that_cannot_close_itself_in_is_none() -> None:
    rig = broken(lambda text: text.replace("abi = landlock_abi()", 'raise OSError(38, "no such wall")'), "confine.py")
    try:
        for _ in range(2):
            with pytest.raises(Refusal, match=r"could not close itself in.*no such wall") as caught:
                rig.ask_fds(protocol.Worker(A))
            assert caught.value.code == "failed"
        rig.ask(protocol.Stop(A))
    finally:
        rig.clean()


def test_a_template_that_cannot_load_stops_workers_alone(capfd: pytest.CaptureFixture[str]) -> None:
    rig = broken(lambda text: text + "import nothing_of_that_name\n", "preloaded.py")
    try:
        with pytest.raises(Refusal) as caught:
            rig.ask_fds(protocol.Worker(A))
        assert caught.value.code == "unavailable" and caught.value.remedy
        assert rig.shell(A, "echo alive")["out"] == "alive\n"  # control: the box itself does not need one
        assert "nothing_of_that_name" in capfd.readouterr().err  # on the server's stderr, for its operator
    finally:
        rig.clean()
