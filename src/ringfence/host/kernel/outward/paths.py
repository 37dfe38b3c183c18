"""Patterns of paths, by segment, and many of them at once: a tree that a path is walked through. Pure.

`*` is one segment that is not empty, `**` any number of segments (none too), both as whole segments; the rest is
literal, and a star that is meant is written %2A. An encoded slash (%2F) divides like a slash, but only for a pattern
that has it in the same place: no wildcard spans one, and behind one `**` is no pattern. Who refuses reads more widely:
for a deny an encoded slash is also a plain one, and a segment is what a lenient server makes of it (`_loosely`).

No regular expression: the time is linear in the path, times the number of wildcards that are open at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.outward.targets import ENCODED_SLASH, canonical, segments

T = TypeVar("T")

MAX_PATTERN = 1024  # characters
EVERY = "/**"
_ONE, _MANY, _ONE_ESCAPED = "*", "**", ENCODED_SLASH + "*"
_STAR = "%2A"


def path_pattern(text: str) -> str:
    """The canonical form. Invalid: no path, too long, a star inside of a segment, or `**` behind an encoded slash."""
    if not text.startswith("/") or len(text) > MAX_PATTERN or not text.isascii() or not text.isprintable():
        raise Invalid(
            f"the path {text[:80]!a} does not begin with / or is not 1 to {MAX_PATTERN} ASCII characters",
            remedy="write it as /repos/*/issues or /repos/**",
        )
    if any(each in text for each in " ?#"):
        raise Invalid(f"the path {text[:80]!a} has a space, a query or a fragment", remedy="write the path alone")
    escaped = text.replace("%2f", ENCODED_SLASH).replace("%2a", _STAR)
    if "//" in escaped.replace(ENCODED_SLASH, "/"):
        raise Invalid(f"the path {text[:80]!a} has an empty segment", remedy="no request with one is let through")
    return "/" + "/".join(_piece(each) for each in escaped[1:].split("/"))


def literal_pattern(path: str) -> str:
    """The pattern that matches this canonical path and no other."""
    return path.replace("*", _STAR)


class Paths(Generic[T]):
    """Patterns (canonical) with what they stand for. `widely`: what a lenient server would take for the path counts
    too."""

    __slots__ = ("_root", "_widely")

    def __init__(self, items: Iterable[tuple[str, T]], *, widely: bool) -> None:
        self._root: _Node[T] = _Node()
        self._widely = widely
        for pattern, item in items:
            node = self._root
            for segment in _all_loosely(segments(pattern)) if widely else segments(pattern):
                node = node.child(segment)
            node.here.append(item)

    def matching(self, path: str) -> Iterator[T]:
        """For a canonical path. What several patterns stand for may come several times."""
        if not self._widely:
            yield from _walk(self._root, segments(path))
            return
        yield from _walk(self._root, _all_loosely(segments(path)))
        if ENCODED_SLASH in path:
            yield from _walk(self._root, _all_loosely(path.replace(ENCODED_SLASH, "/").split("/")[1:]))


def _all_loosely(path: list[str]) -> list[str]:
    """Without the slash at its end; that of `/` is all there is of it."""
    read = [_loosely(each) for each in path]
    while len(read) > 1 and read[-1] in ("", ENCODED_SLASH):
        read.pop()
    return read


def _loosely(segment: str) -> str:
    """Without parameters (`;`: servers of Java), in lower case (file systems of Windows and macOS; routers of ASP.NET,
    Express), without spaces and dots at its end (Windows). One that is nothing else stays."""
    if segment in (_ONE, _MANY, _ONE_ESCAPED):
        return segment
    escaped = segment.startswith(ENCODED_SLASH)
    text = segment.removeprefix(ENCODED_SLASH).partition("%3B")[0]
    while (cut := text.rstrip(".").removesuffix("%20")) != text:
        text = cut
    folded = text.casefold().replace(_STAR.casefold(), _STAR)  # of a pattern: it stands for a star
    return (ENCODED_SLASH if escaped else "") + folded if text else segment


class _Node(Generic[T]):
    """Where a walk has come to. `loops`: this is behind a `**`, and stays for every further segment."""

    __slots__ = ("here", "literal", "loops", "many", "one", "one_escaped")

    def __init__(self, *, loops: bool = False) -> None:
        self.literal: dict[str, _Node[T]] = {}
        self.one: _Node[T] | None = None
        self.one_escaped: _Node[T] | None = None
        self.many: _Node[T] | None = None
        self.loops = loops
        self.here: list[T] = []

    def child(self, segment: str) -> _Node[T]:
        if segment == _MANY:
            if self.loops:  # `**/**` is `**`
                return self
            self.many = self.many or _Node(loops=True)
            return self.many
        if segment == _ONE:
            self.one = self.one or _Node()
            return self.one
        if segment == _ONE_ESCAPED:
            self.one_escaped = self.one_escaped or _Node()
            return self.one_escaped
        return self.literal.setdefault(segment.replace(_STAR, "*"), _Node())

    def step(self, segment: str, escaped: bool) -> Iterator[_Node[T]]:
        if (child := self.literal.get(segment)) is not None:
            yield child
        wild = self.one_escaped if escaped else self.one
        if wild is not None and segment and segment != ENCODED_SLASH:
            yield wild
        if self.loops and not escaped:
            yield self


def _walk(root: _Node[T], path: list[str]) -> Iterator[T]:
    nodes = _opened([root])
    for segment in path:
        escaped = segment.startswith(ENCODED_SLASH)
        nodes = _opened([child for node in nodes for child in node.step(segment, escaped)])
        if not nodes:
            return
    for node in nodes:
        yield from node.here


def _opened(nodes: list[_Node[T]]) -> list[_Node[T]]:
    """Each once, and what is behind a `**` of no segment."""
    behind = [node.many for node in nodes if node.many is not None]
    return list(dict.fromkeys(nodes + behind)) if behind or len(nodes) > 1 else nodes


def _piece(text: str) -> str:
    """What stands between two slashes of a pattern."""
    parts = text.split(ENCODED_SLASH)
    if _MANY in parts[1:]:
        raise Invalid(
            f"{text[:80]!a}: ** stands behind an encoded slash",
            remedy="write how many segments there are (/*%2F*, /*%2F*%2F*); what follows a plain slash may be **",
        )
    return ENCODED_SLASH.join(map(_literal, parts))


def _literal(segment: str) -> str:
    """A segment of a pattern, or what an encoded slash divides of one."""
    if segment in (_ONE, _MANY, ""):
        return segment
    if "*" in segment:
        raise Invalid(
            f"{segment[:80]!a}: a star is a whole segment", remedy="write * or **; a star that is meant is %2A"
        )
    return canonical("/" + segment)[1:].replace("*", _STAR)
