"""Packets of the spawner's end: bytes of the kernel's to requests, answers to bytes. Pure. Must raise nothing but
BadRequest, whatever the bytes, and let nothing through that is not a field of protocol.py."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import asdict, fields
from typing import Any, get_args

from ringfence.spawner.protocol import (
    BOUNDS,
    BOX_ID,
    HOST_IMAGE,
    IMAGE_ID,
    IMAGE_NAME,
    MAX_CERTIFICATE,
    MAX_PACKET,
    PROXY_PORTS,
    REQUESTS,
    BoxKind,
    DebrisKind,
    FindImage,
    Limits,
    Request,
    Said,
)

_PEM = re.compile(
    r"-----BEGIN CERTIFICATE-----\n(?:[A-Za-z0-9+/]{64}\n)*[A-Za-z0-9+/]{1,64}={0,2}\n-----END CERTIFICATE-----\n\Z"
)


class BadRequest(ValueError):
    """A packet that is no request of this protocol."""


def _limits(value: object) -> Limits:
    names = {f.name for f in fields(Limits)}
    if not isinstance(value, dict) or set(value) != names:
        raise BadRequest(f"limits must have exactly {sorted(names)}")
    for name, number in value.items():
        low, high = BOUNDS[name]
        if type(number) is not int or not low <= number <= high:
            raise BadRequest(f"limit {name} must be a whole number from {low} to {high}, not {number!r}")
    return Limits(**value)


def _is_image(value: object, *, named: bool) -> bool:
    if not isinstance(value, str):
        return False
    return value == HOST_IMAGE or bool(IMAGE_ID.match(value) or (named and IMAGE_NAME.match(value)))


def _is_port(value: object) -> bool:
    return type(value) is int and (value == 0 or PROXY_PORTS[0] <= value <= PROXY_PORTS[1])


def _is_certificate(value: object) -> bool:
    """RFC 7468 strictly: one block, lines of 64, nothing around it, a DER SEQUENCE that ends where the data ends. It is
    written into files that tools of a box parse, so nothing else may come along."""
    if not isinstance(value, str) or len(value) > MAX_CERTIFICATE or not _PEM.match(value):
        return False
    try:
        der = base64.b64decode("".join(value.split("\n")[1:-2]), validate=True)
    except ValueError:
        return False
    return der[:2] == b"\x30\x82" and len(der) == 4 + int.from_bytes(der[2:4], "big")


def parse_request(packet: bytes) -> tuple[int, Request]:
    """(request id, request). Raises BadRequest; never anything else, whatever the bytes."""
    if len(packet) > MAX_PACKET:
        raise BadRequest("packet too large")
    try:
        raw = json.loads(packet)
    except (ValueError, RecursionError) as error:
        raise BadRequest("packet is not JSON") from error
    if not isinstance(raw, dict):
        raise BadRequest("packet is not an object")
    number, op = raw.pop("id", None), raw.pop("op", None)
    if type(number) is not int or not 0 <= number < 1 << 53:
        raise BadRequest("id must be a whole number")
    kind = REQUESTS.get(op) if isinstance(op, str) else None
    if kind is None:
        raise BadRequest(f"no operation {str(op)[:40]!r}")
    wanted = {f.name for f in fields(kind)}
    if set(raw) != wanted:
        raise BadRequest(f"{op} takes exactly {sorted(wanted)}")
    of_none = ("debris" in raw or kind is Said) and raw.get("box") == ""
    if "box" in raw and not of_none and not (isinstance(raw["box"], str) and BOX_ID.match(raw["box"])):
        raise BadRequest("box must be 16 characters of a-z2-7")
    if "after" in raw and not (raw["after"] == "" or (isinstance(raw["after"], str) and BOX_ID.match(raw["after"]))):
        raise BadRequest("after must be a box id or empty")
    if "kind" in raw and raw["kind"] not in get_args(BoxKind):
        raise BadRequest("no such kind of box")
    if "debris" in raw and raw["debris"] not in get_args(DebrisKind):
        raise BadRequest("no such kind of debris")
    if "version" in raw and type(raw["version"]) is not int:
        raise BadRequest("version must be a whole number")
    if "port" in raw and not _is_port(raw["port"]):
        raise BadRequest(f"port must be 0 or from {PROXY_PORTS[0]} to {PROXY_PORTS[1]}")
    if "certificate" in raw and not _is_certificate(raw["certificate"]):
        raise BadRequest(f"certificate must be one, as PEM of at most {MAX_CERTIFICATE} bytes")
    if "image" in raw and not _is_image(raw["image"], named=kind is FindImage):
        raise BadRequest("image must be host or the id of one")
    if "whole" in raw and type(raw["whole"]) is not bool:
        raise BadRequest("whole must be true or false")
    if "limits" in raw:
        raw["limits"] = _limits(raw["limits"])
    request: Request = kind(**raw)
    return number, request


def encode_reply(number: int, reply: Any) -> bytes:
    return json.dumps({"id": number, "ok": asdict(reply) if reply is not None else {}}).encode()


def encode_error(number: int, code: str, message: str, remedy: str = "", of_host: str = "") -> bytes:
    """Codes: bad_request, not_found, refused, busy, no_space, unavailable, failed."""
    error = {"code": code, "message": message, "remedy": remedy, "of_host": of_host}
    return json.dumps({"id": number, "error": error}).encode()
