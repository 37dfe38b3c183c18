"""What whoever takes a shell in a box over tries first: eight programs, each with the words that the host would have to keep.

    credentials   PATH...        of the host: the vault's key, the database; then the memory and environment of others
    scope         SOCKET KEY     the host's API; PID 1's wire; the model gateway with KEY, another user's
    target        URL ADDRESS    that no rule lets through: by the proxy, and past it
    metadata                     of a cloud: by the proxy, and past it
    process       PID            a host's process, by its number there; PID 1 of the box
    placeholder   URL TEXT       TEXT for Authorization: an expired one, or another user's
    run_token     KEY            the model gateway with the key of another run
    port          PORT PORT      of another box's way out, whichever is not one's own: straight, and by one's own proxy

These are honest clients of a shell; prove/attacks/outward.py has wires of its own, so the two sets stay two.

A TEXT or KEY that is the name of a variable stands for its value, so that a control can use what the command has itself.
Must never send what counts: what gets through is a GET, a list of models, or a signal of number 0.
"""

from __future__ import annotations

import ctypes
import os
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

from ringfence.prove.attacks.trying import Outcomes, Place, each, forked, read

SECONDS = 15.0
METADATA = "169.254.169.254"
_PTRACE_ATTACH = 16


class Answered(Exception):
    """The wall's own words: status, and the reason that it gave."""


def _get(url: str, *fields: tuple[str, str]) -> str:
    """The status, by the proxy of the environment. Answered: none of 2xx."""
    request = urllib.request.Request(url, headers=dict(fields))
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return str(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            raise Answered(f"{error.code} {error.headers.get('X-Egress-Reason', '')}".strip()) from None


def _value(word: str) -> str:
    return os.environ.get(word, word)


def _proxy() -> tuple[str, int]:
    parts = urlsplit(os.environ["HTTPS_PROXY"])
    return str(parts.hostname), int(parts.port or 0)


def _said(there: socket.socket) -> str:
    """The status of what is answered, with the reason. Answered: none of 2xx. OSError: nothing came."""
    said = b""
    while b"\r\n\r\n" not in said and (data := there.recv(4096)):
        said += data
    if not said:
        raise OSError("nothing was answered")
    lines = said.decode("latin-1").split("\r\n")
    status = lines[0].split(" ")[1]
    reason = next((line.partition(":")[2].strip() for line in lines if line.lower().startswith("x-egress-reason:")), "")
    if status[0] != "2":
        raise Answered(f"{status} {reason}".strip())
    return status


def _past_the_proxy(host: str, address: str) -> str:
    """A connection to the address with that name in it."""
    context = ssl.create_default_context()
    with (
        socket.create_connection((address, 443), SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=host) as there,
    ):
        there.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        return _said(there)


def _straight(address: str, port: int) -> str:
    with socket.create_connection((address, port), SECONDS) as there:
        there.sendall(f"GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
        return _said(there)


def _reach(address: str, port: int) -> None:
    socket.create_connection((address, port), SECONDS).close()


def _connect(host: str, port: int) -> str:
    """CONNECT by one's own proxy, and one request in it."""
    with socket.create_connection(_proxy(), SECONDS) as there:
        there.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        _said(there)
        there.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        return _said(there)


def _models(key: str) -> str:
    return _get(f"{os.environ['OPENAI_BASE_URL']}/models", ("Authorization", f"Bearer {_value(key)}"))


def _unix(path: str) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as there:
        there.settimeout(SECONDS)
        there.connect(path)
        there.sendall(b"GET /v1/status HTTP/1.0\r\nHost: api\r\n\r\n")
        return _said(there)


def _a_wire_of(pid: int) -> None:
    """Opens a descriptor of the process again, as one's own."""
    for name in os.listdir(f"/proc/{pid}/fd"):
        read(f"/proc/{pid}/fd/{name}", 1)


def _attach(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(ctypes.c_long(_PTRACE_ATTACH), ctypes.c_long(pid), None, None) == -1:
        raise OSError(ctypes.get_errno(), "ptrace")
    os.waitpid(pid, 0)


def _memory(pid: int) -> str:
    return str(len(read(f"/proc/{pid}/mem", 0) + read(f"/proc/{pid}/environ")))


def credentials(place: Place) -> Outcomes:
    works: dict[str, Callable[[], object]] = {os.path.basename(path): partial(read, path) for path in place.arguments}
    return each(**works, first=lambda: _memory(1), parent=lambda: _memory(os.getppid()))


def scope(place: Place) -> Outcomes:
    path, key = place.arguments
    return each(api=lambda: _unix(path), wire=lambda: _a_wire_of(1), gateway=lambda: _models(key))


def target(place: Place) -> Outcomes:
    url, address = place.arguments
    host = str(urlsplit(url).hostname)
    return each(proxy=lambda: _get(url), past=lambda: _past_the_proxy(host, address))


def metadata(place: Place) -> Outcomes:
    return each(
        proxy=lambda: _get(f"http://{METADATA}/latest/meta-data/"),
        past=lambda: _straight(METADATA, 80),
    )


def process(place: Place) -> Outcomes:
    pid = int(place.arguments[0])
    signalled = each(host=lambda: os.kill(pid, 0), first=lambda: os.kill(1, 0))
    looked = each(host_memory=lambda: _memory(pid), first_memory=lambda: _memory(1))
    attached = {"host_trace": forked(lambda: _attach(pid)), "first_trace": forked(lambda: _attach(1))}
    return {**signalled, **looked, **attached}


def placeholder(place: Place) -> Outcomes:
    url, text = place.arguments
    return each(sent=lambda: _get(url, ("Authorization", f"token {_value(text)}")))


def run_token(place: Place) -> Outcomes:
    return each(gateway=lambda: _models(place.arguments[0]))


def port(place: Place) -> Outcomes:
    number = next(int(word) for word in place.arguments if int(word) != _proxy()[1])
    return each(straight=lambda: _reach("127.0.0.1", number), proxy=lambda: _connect("127.0.0.1", number))


ATTACKS = {
    "credentials": credentials,
    "scope": scope,
    "target": target,
    "metadata": metadata,
    "process": process,
    "placeholder": placeholder,
    "run_token": run_token,
    "port": port,
}
