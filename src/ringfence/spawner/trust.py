"""Which certificates a box trusts: the host's public roots, those of the company ([egress] root_ca), and the CA of its user's
egress worker.

A box sees leaves of that CA alone, but for hosts that a rule passes through: there it verifies the server itself, so what the
worker believes has to be believed in the box too. ctl/ca.pem holds the CA's certificate, ctl/added.pem that and the company's
roots, ctl/bundle.pem the host's and these, made anew whenever one has changed. They are shown in the box read-only as
/etc/ringfence/ca.pem, for variables that add, and bundle.pem, for those that replace; the bundle also takes the place of the
host's own, for tools that ask no variable. Must never hold a key, nor show anything of a file but certificates.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat

from ringfence.spawner import paths

FOLDER = "ringfence"  # below the box's /etc
CERTIFICATE, ADDED, BUNDLE = "ca.pem", "added.pem", "bundle.pem"
SYSTEM = "ssl/certs/ca-certificates.crt"  # below /etc, of Debian's ca-certificates; update-ca-certificates(8)
_ROOTS = (f"/etc/{SYSTEM}", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
MAX_ROOTS = 4 << 20  # bytes; Mozilla's list has 220 KiB
MAX_COMPANY = 1 << 20  # bytes of the company's; with the host's it is in the launcher's root, of 8 MiB
_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----\r?\n[A-Za-z0-9+/=\r\n]+-----END CERTIFICATE-----(?=\r?\n|\Z)")


def roots() -> bytes:
    """The host's public roots, PEM; empty on a host without any."""
    for path in _ROOTS:
        with contextlib.suppress(OSError), open(path, "rb") as file:
            return file.read(MAX_ROOTS)
    return b""


def company(path: str) -> bytes:
    """The certificates in a file that the operator names, and nothing else of it; empty for none. What cannot be read adds no
    trust: the server has said so when it started."""
    if not path:
        return b""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            data = file.read(MAX_COMPANY) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        return b"".join(block.replace(b"\r", b"") + b"\n" for block in _BLOCK.findall(data))
    return b""


def joined(known: bytes, more: bytes) -> bytes:
    return known + (b"" if known.endswith(b"\n") or not known else b"\n") + more


def keep(box_fd: int, certificate: str) -> None:
    """Stores what protocol.Trust carries, durably. Raises SpawnerError."""
    control = paths.open_control(box_fd)
    try:
        paths.write_file(control, CERTIFICATE, certificate.encode(), 0o644)
    finally:
        os.close(control)


def open_parts(box_fd: int, root_ca: str) -> dict[str, int]:
    """Name below the box's /etc -> O_PATH descriptor, the caller's; none for a box that was given no certificate. `root_ca`:
    path of the company's roots, or ""."""
    control = paths.open_control(box_fd)
    try:
        certificate = paths.read_file(control, CERTIFICATE)
        if certificate is None:
            return {}
        ours, theirs = certificate, company(root_ca)
        shown = {f"{FOLDER}/{CERTIFICATE}": CERTIFICATE, f"{FOLDER}/{BUNDLE}": BUNDLE}
        if theirs:
            _made(control, ADDED, theirs + ours)
            shown[f"{FOLDER}/{CERTIFICATE}"] = ADDED
        _made(control, BUNDLE, joined(roots(), theirs + ours))
        if os.path.isfile(f"/etc/{SYSTEM}"):
            shown[SYSTEM] = BUNDLE
        return _opened(control, shown)
    finally:
        os.close(control)


def _opened(control: int, shown: dict[str, str]) -> dict[str, int]:
    """All of them, or none stays open."""
    fds: dict[str, int] = {}
    try:
        for target, name in shown.items():
            fds[target] = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=control)
    except BaseException:
        for fd in fds.values():
            os.close(fd)
        raise
    return fds


def _made(control: int, name: str, wanted: bytes) -> None:
    if paths.read_file(control, name, len(wanted) + 1) != wanted:
        paths.write_file(control, name, wanted, 0o644, durable=False)
