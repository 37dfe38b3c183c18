"""Maps the path that a user names to the path in the box's tree. Pure: it opens and resolves nothing.

A relative path is below HOME. Only what can be said without the file system is refused here; links are the helper's
matter, and `..` that stays inside is left for it to resolve.
"""

from __future__ import annotations

from ringfence.host.kernel.errors import Invalid, Refused

# Where the tree's top folders are mounted in the box; longest first is not needed, none is a prefix of another's parts.
MOUNTS: tuple[tuple[tuple[bytes, ...], bytes], ...] = (
    ((b"home", b"user"), b"home"),
    ((b"workspace",), b"workspace"),
    ((b"tmp",), b"tmp"),
)
PATH_MAX = 4096  # linux/limits.h, with the final NUL; the tree's own prefix needs less than 16 of it
LONGEST = PATH_MAX - 16
REMEDY = "paths are relative to the home folder, or below /home/user, /workspace or /tmp"


def tree_path(path: bytes) -> bytes:
    """`home/...`, `workspace/...` or `tmp/...`; a trailing slash is kept.

    Invalid: empty, with a NUL byte, or longer than the kernel takes. Refused: absolute elsewhere, or leading out by `..`.
    """
    if not path:
        raise Invalid("a path must not be empty", remedy=REMEDY)
    if b"\0" in path:
        raise Invalid("a path must not have a NUL byte", remedy=REMEDY)
    if len(path) > LONGEST:
        raise Invalid(f"a path of {len(path)} bytes; the limit is {LONGEST}", remedy="shorten the path")
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    top = b"home"
    if path.startswith(b"/"):
        top, parts = _mount(path, parts)
    if _climbs(parts):
        raise Refused(f"{shown(path)} leads out of the box's folders", remedy=REMEDY)
    return b"/".join([top, *parts]) + (b"/" if path.endswith((b"/", b"/.")) and parts else b"")


def _mount(path: bytes, parts: list[bytes]) -> tuple[bytes, list[bytes]]:
    for where, top in MOUNTS:
        if tuple(parts[: len(where)]) == where:
            return top, parts[len(where) :]
    raise Refused(f"{shown(path)} is not in the box's folders", remedy=REMEDY)


def _climbs(parts: list[bytes]) -> bool:
    depth = 0
    for part in parts:
        depth += -1 if part == b".." else 1
        if depth < 0:
            return True
    return False


def shown(path: bytes) -> str:
    """For messages: what is no UTF-8 or no printable character is escaped, at most 200 characters."""
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in path.decode("utf-8", "backslashreplace"))
    return text if len(text) <= 200 else text[:197] + "..."
