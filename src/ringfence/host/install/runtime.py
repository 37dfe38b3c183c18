"""The copy that a server runs from: H/runtime/<digest>/{site,guest,guest.digest}.

Server and boxes load nothing from where the package was installed: that may lie below /root, where the kernel's account
cannot read, and may change under a running server. A copy is made under another name and then renamed, so a runtime that
has its name is whole. It belongs to whoever starts the server; no box and no kernel account can write it.
"""

from __future__ import annotations

import compileall
import ctypes
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ringfence.host.install import guest_tree
from ringfence.host.kernel.errors import Unavailable

PACKAGE = "ringfence"
SOURCE = Path(__file__).parents[2]  # of the package that runs now
KEPT = 3  # the newest runtimes stay, so that a step back after an upgrade copies nothing
_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")


@dataclass(frozen=True, slots=True)
class Runtime:
    path: Path
    guest_digest: str

    @property
    def site(self) -> Path:
        return self.path / "site"


def requirement(text: str) -> tuple[str, frozenset[str], str | None]:
    """(name, extras asked for, extra that it belongs to) of one Requires-Dist line."""
    match = _NAME.match(text)
    if match is None:
        raise ValueError(f"no requirement: {text!r}")
    extras = frozenset(e.strip() for e in (match[2] or "").split(",") if e.strip())
    marker = _EXTRA.search(text.partition(";")[2])
    return re.sub(r"[-_.]+", "-", match[1]).lower(), extras, marker[1] if marker else None


def distributions(name: str = PACKAGE) -> list[metadata.Distribution]:
    """What `name` needs at run time, by name, itself left out. Environment markers are not evaluated: what is installed
    and named is taken, so at most a package too many is copied."""
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    todo = [(name, "")]
    while todo:
        current, wanted_extra = todo.pop()
        if (current, wanted_extra) in seen:
            continue
        seen.add((current, wanted_extra))
        try:
            dist = metadata.distribution(current)
        except metadata.PackageNotFoundError:
            continue
        if current != name:
            found[current] = dist
        for line in dist.requires or []:
            needed, extras, belongs_to = requirement(line)
            if belongs_to is None or belongs_to == wanted_extra:
                todo += [(needed, ""), *((needed, extra) for extra in extras)]
    return [found[key] for key in sorted(found)]


def _own_files(source: Path) -> Iterator[tuple[Path, Path]]:
    """(path relative to a site folder, absolute path) of the package's own files."""
    for path in sorted(source.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield Path(PACKAGE) / path.relative_to(source), path


def _files_of(dist: metadata.Distribution) -> Iterator[tuple[Path, Path]]:
    for file in dist.files or []:
        relative = Path(str(file))
        if relative.is_absolute() or ".." in relative.parts:
            continue  # scripts and manual pages, outside the site folder
        yield relative, Path(str(dist.locate_file(file)))


def _own_record() -> Iterator[tuple[Path, Path]]:
    """The package's own METADATA, by which the copy knows its version."""
    try:
        own = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        return
    for relative, path in _files_of(own):
        if relative.name == "METADATA" and path.is_file():
            yield relative, path


def digest_of(source: Path, dists: list[metadata.Distribution]) -> str:
    """Names a runtime: the package's contents, each distribution's own list of its files, and the interpreter."""
    total = hashlib.sha256(f"1 {sys.implementation.cache_tag} {sys.version}".encode())
    for relative, path in [*_own_files(source), *_own_record()]:
        total.update(f"\0{relative}\0{hashlib.sha256(path.read_bytes()).hexdigest()}".encode())
    for dist in dists:
        total.update(f"\0{dist.name}\0{dist.version}\0{dist.read_text('RECORD') or ''}".encode())
    return total.hexdigest()[:32]


def install(folder: Path, python: str) -> Runtime:
    """The runtime of the package that runs now, copied below `folder` unless it is there. Unavailable: no room."""
    dists = distributions()
    final = folder / digest_of(SOURCE, dists)
    if not final.is_dir():
        temporary = folder / f".{final.name}.{os.urandom(6).hex()}"
        try:
            _fill(temporary, SOURCE, dists, python)
            _sync(temporary)
            _rename(temporary, final)
        except OSError as error:
            raise Unavailable(
                f"the runtime cannot be copied to {folder}: {error}", remedy=f"make room: df -h {folder}"
            ) from error
        finally:
            if temporary.exists():
                shutil.rmtree(temporary)
    os.utime(final)  # the newest, for `prune`
    return Runtime(final, (final / "guest.digest").read_text().strip())


def _rename(temporary: Path, final: Path) -> None:
    try:
        temporary.rename(final)
    except OSError:
        if not final.is_dir():  # else another server made the same one meanwhile
            raise


def _fill(target: Path, source: Path, dists: list[metadata.Distribution], python: str) -> None:
    before = os.umask(0o022)
    try:
        site = target / "site"
        site.mkdir(parents=True)
        for relative, path in _own_files(source):
            _copy(path, site / relative)
        for relative, path in _own_record():
            _copy(path, site / relative)
        for dist in dists:
            for relative, path in _files_of(dist):
                if path.is_file():
                    _copy(path, site / relative)
        # Compiled by time stamp, which the copy keeps; quiet=2: a package may carry a file of another Python's syntax.
        compileall.compile_dir(site, quiet=2, workers=1)
        digest = guest_tree.build(target / "guest", python)
        (target / "guest.digest").write_text(digest + "\n")
    finally:
        os.umask(before)


def _copy(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)
    status = path.stat()
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _sync(path: Path) -> None:
    """syncfs(2): the rename must not become durable before the files."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        libc.syncfs(fd)
    finally:
        os.close(fd)


def prune(folder: Path, current: Path, boxes: Path, proc: Path = Path("/proc")) -> list[str]:
    """Removes runtimes but the newest KEPT, the current one and those that a box has mounted. Names of the removed."""
    known = sorted((p for p in folder.iterdir() if not p.name.startswith(".")), key=lambda p: p.stat().st_mtime_ns)
    old = [p for p in known[:-KEPT] if p != current]
    if not old:
        return []
    used = _in_use({p.name for p in old}, boxes, proc)
    removed = [p for p in old if p.name not in used]
    for path in removed:
        shutil.rmtree(path)
    return [p.name for p in removed]


def _in_use(names: set[str], boxes: Path, proc: Path) -> set[str]:
    """Of `names`, those that a box's record mentions or a process's mounts or command line show. Boxes outlive servers,
    so a record alone is not trusted to be complete."""
    texts = [p for pattern in ("*/live.json", "*/box.json") for p in boxes.glob(pattern)]
    for entry in proc.iterdir():
        if entry.name.isdigit():
            texts += [entry / "mountinfo", entry / "cmdline"]
    used: set[str] = set()
    for path in texts:
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        used |= {name for name in names - used if name in text}
    return used
