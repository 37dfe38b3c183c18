"""Who asks in `bench egress`: a program for any python3, in a box by its proxy or on the host straight to the server.

Reads one JSON object, {"what", "host", "ca", "to", ...}; `to` [address, port] or null for the proxy of the environment. Says one.
It imports the standard library only: a box has nothing of ours. Must never reuse a connection where the first one is measured.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import sys
import time
from typing import Any

SECONDS = 60.0
Ask = dict[str, Any]


def opened(ask: Ask, host: str) -> ssl.SSLSocket:
    """A TLS connection that is for `host`."""
    if ask["to"]:
        wire = socket.create_connection(tuple(ask["to"]), SECONDS)
    else:
        port = int(os.environ["HTTPS_PROXY"].rpartition(":")[2])
        wire = socket.create_connection(("127.0.0.1", port), SECONDS)
        wire.sendall(f"CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n".encode())
        until(wire, b"\r\n\r\n", b" 200 ")
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context(ask).wrap_socket(wire, server_hostname=host)


def context(ask: Ask) -> ssl.SSLContext:
    if "context" not in ask:
        ask["context"] = ssl.create_default_context(cafile=ask["ca"])
    made: ssl.SSLContext = ask["context"]
    return made


def until(wire: socket.socket, end: bytes, wanted: bytes) -> bytes:
    data = b""
    while end not in data:
        piece = wire.recv(65536)
        if not piece:
            break
        data += piece
        if b"\r\n\r\n" in data and wanted not in data:
            break
    if wanted not in data:
        raise RuntimeError(data[:500].decode(errors="replace"))
    return data


def request(host: str, path: str, *, token: bool = True) -> bytes:
    bearer = f"Authorization: Bearer {os.environ.get('BENCH_TOKEN', 'x' * 40)}\r\n" if token else ""
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{bearer}\r\n".encode()


def asked(wire: ssl.SSLSocket, raw: bytes) -> None:
    wire.sendall(raw)
    until(wire, b"hello", b" 200 ")


def keep_alive(ask: Ask) -> Ask:
    """Milliseconds of each of `times` requests on one connection, the first left out."""
    raw, found = request(ask["host"], "/"), []
    with opened(ask, ask["host"]) as wire:
        asked(wire, raw)
        for _ in range(ask["times"]):
            begun = time.perf_counter()
            asked(wire, raw)
            found.append((time.perf_counter() - begun) * 1e3)
    return {"ms": found}


def first(ask: Ask) -> Ask:
    """Milliseconds of a connection and a request, for each of `hosts`, where the credential is not bound."""
    found = []
    context(ask)
    for host in ask["hosts"]:
        begun = time.perf_counter()
        with opened(ask, host) as wire:
            asked(wire, request(host, "/", token=False))
        found.append((time.perf_counter() - begun) * 1e3)
    return {"ms": found}


def stream(ask: Ask) -> Ask:
    """Bytes a second of one body."""
    with opened(ask, ask["host"]) as wire:
        begun, got = time.perf_counter(), 0
        wire.sendall(request(ask["host"], f"/bytes/{ask['bytes']}"))
        buffer = bytearray(256 << 10)
        while got < ask["bytes"]:
            size = wire.recv_into(buffer)
            if not size:
                raise RuntimeError("the body was cut")
            got += size
        return {"speed": got / (time.perf_counter() - begun)}


def events(ask: Ask) -> Ask:
    """Milliseconds from each event's being sent to its being read."""
    rest = b""
    found: list[float] = []
    with opened(ask, ask["host"]) as wire:
        wire.sendall(request(ask["host"], f"/sse/{ask['times']}/{ask['apart']}"))
        while len(found) < ask["times"]:
            piece = wire.recv(65536)
            now = time.monotonic()
            if not piece:
                raise RuntimeError("the events were cut")
            *lines, rest = (rest + piece).split(b"\n")
            found += [(now - float(line[6:])) * 1e3 for line in lines if line.startswith(b"data: ")]
    return {"ms": found}


def tokens(ask: Ask) -> Ask:
    """Milliseconds from the question to a model's first token."""
    if ask["to"]:
        wire, prefix, key = http.client.HTTPConnection(ask["to"][0], ask["to"][1], timeout=SECONDS), "/v1", "none"
    else:
        place, _, rest = os.environ["OPENAI_BASE_URL"].removeprefix("http://").partition("/")
        wire, prefix, key = http.client.HTTPConnection(place, timeout=SECONDS), f"/{rest}", os.environ["OPENAI_API_KEY"]
    body = json.dumps({"model": ask["model"], "stream": True, "messages": [{"role": "user", "content": "hello"}]})
    fields = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    found = []
    for _ in range(ask["times"]):
        begun = time.perf_counter()
        wire.request("POST", f"{prefix}/chat/completions", body, fields)
        answer = wire.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status} {answer.read()[:300]!r}")
        while not answer.readline().startswith(b"data:"):
            pass
        found.append((time.perf_counter() - begun) * 1e3)
        answer.read()
    return {"ms": found[1:]}


def rate(ask: Ask) -> Ask:
    """Requests a second of `sides` processes with a connection each."""
    readers = []
    for _ in range(ask["sides"]):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, str(_counted(ask)).encode())
            os._exit(0)
        os.close(writer)
        readers.append(reader)
    counts = []
    for reader in readers:
        with os.fdopen(reader) as said:
            counts.append(float(said.read()))
        os.wait()
    return {"rate": sum(counts)}


def _counted(ask: Ask) -> float:
    raw, count = request(ask["host"], "/"), 0
    with opened(ask, ask["host"]) as wire:
        asked(wire, raw)
        begun = time.perf_counter()
        while (now := time.perf_counter()) - begun < ask["seconds"]:
            asked(wire, raw)
            count += 1
    return count / (now - begun)


WHAT = {"keep_alive": keep_alive, "first": first, "stream": stream, "events": events, "tokens": tokens, "rate": rate}

if __name__ == "__main__":
    asked_for = json.loads(sys.stdin.read())
    print(json.dumps(WHAT[asked_for["what"]](asked_for)))  # noqa: T201
