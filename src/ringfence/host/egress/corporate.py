"""The way through the proxy of an installation's company: a CONNECT in clear, then the tunnel. Nothing else is said to it.

It must never see a header of the box, nor a secret: what follows is TLS to the server, verified as without it.
"""

from __future__ import annotations

import asyncio
import socket

_MOST = 16 << 10  # bytes of its answer's head
_END = b"\r\n\r\n"


class ProxyFailed(Exception):
    """It said no, or something else than HTTP. `status` 0: that."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the proxy answered {status}" if status else "the proxy did not answer in HTTP")
        self.status = status


async def tunnel(sock: socket.socket, host: str, port: int) -> None:
    """On a connected non-blocking socket. What follows is the server's. ProxyFailed, OSError."""
    loop = asyncio.get_running_loop()
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    await loop.sock_sendall(sock, f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
    head = bytearray()
    while _END not in head:
        if len(head) > _MOST:
            raise ProxyFailed(0)
        piece = await loop.sock_recv(sock, 4096)
        if not piece:
            raise ProxyFailed(0)
        head += piece
    status = _status(head)
    # A server of TLS or HTTP waits for the first word: bytes behind the head are the proxy's own, in the server's name.
    if not 200 <= status < 300 or not head.endswith(_END) or head.index(_END) != len(head) - len(_END):
        raise ProxyFailed(0 if 200 <= status < 300 else status)


def _status(head: bytearray) -> int:
    version, _, rest = bytes(head).partition(b" ")
    digits = rest[:3]
    if version not in (b"HTTP/1.1", b"HTTP/1.0") or not digits.isdigit() or rest[3:4] not in (b" ", b"\r"):
        return 0
    return int(digits)
