"""Group J: reaches past the approval, from wherever the program is: the receiver itself, and the API that takes answers.

Arguments: the receiver's port; the API's socket; a gate. Must never send the receiver a body that counts as somebody's.
"""

from __future__ import annotations

import json
import socket

from ringfence.prove.attacks.trying import Outcomes, Place, each

SECONDS = 5.0


def receive(port: int) -> None:
    """Sends it something: a box that gets there needs no host for it."""
    with socket.create_connection(("127.0.0.1", port), SECONDS) as there:
        there.sendall(b"POST /pay HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
        _status(there)


def approve(path: str, gate: str) -> None:
    """A yes to the gate, by the socket of the API and in nobody's name."""
    body = json.dumps({"answer": "allow", "key": None}).encode()
    head = f"POST /v1/gates/{gate}/answer HTTP/1.0\r\nHost: api\r\nContent-Type: application/json\r\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as there:
        there.settimeout(SECONDS)
        there.connect(path)
        there.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        _status(there)


def _status(there: socket.socket) -> None:
    """RuntimeError: not 2xx."""
    words = there.recv(4096).decode(errors="replace").split(" ")
    if len(words) < 2 or not words[1].startswith("2"):
        raise RuntimeError(f"answered {words[1] if len(words) > 1 else 'nothing'}")


def around(place: Place) -> Outcomes:
    port, path, gate = place.arguments
    return each(receiver=lambda: receive(int(port)), api=lambda: approve(path, gate))


def receiver(place: Place) -> Outcomes:
    return each(receiver=lambda: receive(int(place.arguments[0])))


def api(place: Place) -> Outcomes:
    path, gate = place.arguments
    return each(api=lambda: approve(path, gate))


ATTACKS = {"around": around, "receiver": receiver, "api": api}
