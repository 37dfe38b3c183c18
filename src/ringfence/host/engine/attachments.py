"""Files that a message names: each is looked at in its author's own box, and only looked at.

Through the driver's files helper, so that nothing is followed out of the box; the box need not run, nor ever have run.
A name and a size are kept with the message, never a byte of the content: the file stays where it is, and may change.
"""

from __future__ import annotations

from collections.abc import Sequence

from ringfence.host.engine.bringup import BringUp
from ringfence.host.engine.files import in_place
from ringfence.host.engine.homes import home_of
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.errors import Conflict, Invalid, NotFound, Refused, TooLarge
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.people import User
from ringfence.host.kernel.ports import BoxFiles, FileInfo
from ringfence.host.kernel.threads import MAX_ATTACHMENTS, Attachment

# Of all paths of a message together: with its text of 256 KiB they have to fit into what a loop is given at once.
MAX_PATHS_BYTES = 16 * 1024
_REMEDY = "name a file of your own box: ringfence files ls"
_SHOWN = 200  # characters of a path in a message


class Attachments:
    def __init__(self, parts: Parts, bringup: BringUp) -> None:
        self._parts, self._bringup = parts, bringup

    async def checked(self, user: User, paths: Sequence[str]) -> tuple[Attachment, ...]:
        """In the order given, each with its size of now; a link counts as the file that it leads to. Each error names the
        path: NotFound; Invalid: no text that a file's name can be, no regular file, leads out of the box. TooLarge: more
        than MAX_ATTACHMENTS, or more than MAX_PATHS_BYTES of paths. Refused: the box is in quarantine. Conflict: its tree is being
        put away, or replaced."""
        if not paths:
            return ()
        names = [_encoded(path) for path in paths]
        _bounded(names)
        infos, home = [], await home_of(self._parts, user)
        place = in_place(self._parts, self._bringup, home, operator=False)
        async with place as box, self._parts.driver.files(box.id) as files:
            for path, name in zip(paths, names, strict=True):
                infos.append(await self._seen(box.id, files, path, name))
        return tuple(Attachment(path, info.size) for path, info in zip(paths, infos, strict=True))

    async def _seen(self, box: BoxId, files: BoxFiles, path: str, name: bytes) -> FileInfo:
        try:
            info = await files.stat(name)
            if info.kind == "symlink":  # to be opened: on a wire of its own, for a fetch that is not read ends its wire
                async with self._parts.driver.files(box) as others, others.fetch(name) as (info, _):
                    pass
        except NotFound:
            raise NotFound(f"no such file in your box: {shown(path)}", remedy=_REMEDY) from None
        except (Refused, Conflict, Invalid) as error:
            raise Invalid(f"{shown(path)} cannot be attached: {error.message}", remedy=_REMEDY) from None
        if info.kind != "file":
            what = "a folder" if info.kind == "directory" else "not a regular file"
            raise Invalid(f"{shown(path)} cannot be attached: it is {what}", remedy=_REMEDY)
        return info


def _encoded(path: str) -> bytes:
    if not path or "\0" in path:
        raise Invalid(f"{shown(path)} cannot be attached: a path is not empty and has no NUL", remedy=_REMEDY)
    try:
        return path.encode()
    except UnicodeEncodeError:
        raise Invalid(
            f"{shown(path)} cannot be attached: it is no Unicode text", remedy="give the file a name in UTF-8"
        ) from None


def _bounded(names: Sequence[bytes]) -> None:
    if len(names) > MAX_ATTACHMENTS:
        raise TooLarge(
            f"{len(names)} attachments; the limit is {MAX_ATTACHMENTS}", remedy="put them into one folder or archive"
        )
    size = sum(len(name) for name in names)
    if size > MAX_PATHS_BYTES:
        raise TooLarge(
            f"the paths of the attachments have {size} bytes; the limit is {MAX_PATHS_BYTES}", remedy="shorten them"
        )


def shown(path: str) -> str:
    """For messages: quoted, on one line, bounded."""
    return ascii(path) if len(path) <= _SHOWN else ascii(path[: _SHOWN - 3]) + "..."
