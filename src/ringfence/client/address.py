"""Where the server is, and why it does not answer. Reads the environment; opens nothing but one socket to find out."""

from __future__ import annotations

import os
import socket as sockets
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from ringfence.client.errors import ApiError, Invalid, Unavailable


@dataclass(frozen=True, slots=True)
class Address:
    """A unix socket, or a URL with a token. The token never shows in a repr. Invalid: neither can be what it is given as;
    libraries below would each fail on it in a way of their own."""

    socket: str | None = None
    url: str | None = None
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.url is not None and not _is_address(self.url):
            raise Invalid(
                "invalid",
                f"{self.url!r} is no address of a server",
                "check RINGFENCE_URL; such as http://127.0.0.1:8377",
            )
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise Invalid(
                "invalid",
                "the token has characters that no token has",
                "check RINGFENCE_TOKEN: one line, as it was shown",
            )

    def __str__(self) -> str:
        return self.url or self.socket or "nowhere"

    @property
    def base(self) -> str:
        """The URL that requests are relative to; behind a socket the name says nothing."""
        return (self.url or "http://localhost").rstrip("/")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port  # ValueError above 65535
    except ValueError:
        return False
    named = parts.scheme in ("http", "https") and parts.hostname and port != 0
    return bool(named) and url.isascii() and url.isprintable() and " " not in url


def from_environment() -> Address:
    """RINGFENCE_URL (with RINGFENCE_TOKEN), else the operator socket below $RINGFENCE_HOME."""
    url = os.environ.get("RINGFENCE_URL")
    if url:
        return Address(url=url, token=os.environ.get("RINGFENCE_TOKEN") or None)
    return Address(socket=str(_home() / "run" / "api.sock"))


def _home() -> Path:
    given = os.environ.get("RINGFENCE_HOME")
    if given:
        return Path(given)
    if os.geteuid() == 0:
        return Path("/var/lib/ringfence")
    data = os.environ.get("XDG_DATA_HOME") or ""
    # the XDG specification: a relative value is ignored, as the server does
    return (Path(data) if data.startswith("/") else Path.home() / ".local/share") / "ringfence"


def unreachable(address: Address, reason: str = "") -> ApiError:
    """What to tell somebody whose connection was not made."""
    if address.socket is None:
        return Unavailable(
            "unavailable", f"no server answers at {address}{': ' if reason else ''}{reason}", "check RINGFENCE_URL"
        )
    try:
        with sockets.socket(sockets.AF_UNIX) as probe:
            probe.connect(address.socket)
    except PermissionError:
        return _forbidden(address.socket)
    except OSError:
        pass
    return Unavailable("unavailable", f"no server answers at {address.socket}", "start one: ringfence serve")


def _forbidden(path: str) -> ApiError:
    import grp

    for place in (Path(path), Path(path).parent):
        try:
            gid = place.stat().st_gid
            break
        except OSError:
            continue
    else:
        return Unavailable("unavailable", f"this account may not open {path}", "run it as the server's account")
    try:
        group = grp.getgrgid(gid).gr_name
    except KeyError:
        group = str(gid)
    return Unavailable(
        "unavailable",
        f"this account may not open {path}: it is for the group {group}",
        f'join it: sudo usermod -aG {group} "$USER", then sign in again; or set RINGFENCE_URL and RINGFENCE_TOKEN',
    )
