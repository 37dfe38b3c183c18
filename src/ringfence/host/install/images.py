"""`ringfence image`: builds images below the state, says which there are and who uses them, takes them away. Acts of whoever owns the
state, with or without a server.

    H/images (0711)/ lock  names.json  <32 digits>/ usr etc image.json   .build-<hex> .gone-<hex>

An image has its name only when it is whole, tried and on disk; what is half made is locked by who makes it, and anybody's to take
away once it is not. One that a box has, or is to have, stays. Must never write into an image that has its name.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ringfence.host.install import atomic, database, images_bootstrap, images_tree, jobs, prepare, runtime
from ringfence.host.install.images_tree import Copied, Copier
from ringfence.host.install.images_try import tried
from ringfence.host.install.layout import Layout, home_of
from ringfence.host.kernel.errors import Conflict, Failed, Invalid, NotFound
from ringfence.host.kernel.images import HOST, ID, MOST_NAMES, Image, Use, check_name, digits_of, uses

HALF = re.compile(r"\.(build|gone)-[0-9a-f]{1,32}\Z")  # as spawner/images.py
_DIGITS = re.compile(r"[0-9a-f]{32}\Z")
_STATUS = Path("/var/lib/dpkg/status")


@dataclass(frozen=True, slots=True)
class Wish:
    name: str
    source: str | None = None  # a folder, or `host`
    suite: str | None = None
    include: tuple[str, ...] = ()
    mirror: str = ""


class Images:
    def __init__(self, environment: Mapping[str, str]) -> None:
        """Unavailable: no installation. Refused: others could exchange it."""
        self._environment = environment
        self._layout = Layout(home_of(environment, os.geteuid()))
        self._there = jobs.found(self._layout)
        self._folder = self._layout.home / "images"

    # --- build -------------------------------------------------------------------------------------------------------------

    def build(self, wish: Wish) -> dict[str, Any]:
        """Nothing is kept of what does not work. The same tree as that of an image that is there: that one has the name too."""
        check_name(wish.name)
        if (wish.source is None) == (wish.suite is None):
            raise Invalid("an image is made of a folder or of a suite", remedy="--from DIR, or --suite SUITE")
        if wish.suite is None and (wish.include or wish.mirror):
            raise Invalid("--include and --mirror belong to --suite", remedy="--from DIR alone")
        asked = images_bootstrap.Wish(wish.suite or "", wish.include, wish.mirror)
        if wish.suite is not None:
            images_bootstrap.check(asked)
        self._make_folder()
        self.clear()
        with self._half("build") as place:
            if wish.suite is not None:
                system = place / "system"
                system.mkdir(mode=0o755)
                images_bootstrap.made(asked, system)
                source, says = system, f"debootstrap {wish.suite}{' ' + ','.join(wish.include) if wish.include else ''}"
            else:
                source = Path("/") if wish.source == HOST else Path(str(wish.source)).absolute()
                says = HOST if wish.source == HOST else "a folder"
            return self._built(wish.name, place, source, says)

    def _built(self, name: str, place: Path, source: Path, says: str) -> dict[str, Any]:
        tree = place / "image"
        tree.mkdir(mode=0o711)
        try:
            there = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise Invalid(
                f"{source} cannot be read: {error.strerror}", remedy="--from: a folder that has usr in it"
            ) from error
        here = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            copier = Copier(there, here)
            image = copier.run()
        finally:
            os.close(there)
            os.close(here)
        self._try(tree)
        self._describe(tree, image, copier.copied, says)
        with self._locked():
            new = self._keep(tree, image)
            self._name(name, image)
        left_out = copier.copied.left_out
        return {**self._known(image).as_json(), "new": new, "left_out": left_out}

    def _try(self, tree: Path) -> None:
        settings = prepare.read_settings(self._layout.settings, missing_ok=True)
        prepare.check_host(jobs.accepting(settings))
        copied = runtime.install(self._layout.runtime, settings.python)
        asked = "import sys; print('%d.%d' % sys.version_info[:2])"
        version = subprocess.run(
            [settings.python, "-I", "-S", "-c", asked],
            env=prepare.minimal_environment(),
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        account = self._there.ids[1] if os.geteuid() == 0 else 0
        tried(tree, copied.path / "guest", settings.bwrap, settings.python, account, version)

    def _describe(self, tree: Path, image: str, copied: Copied, says: str) -> None:
        facts = {
            "version": 1,
            "id": image,
            "bytes": copied.bytes,
            "entries": copied.entries,
            "source": says,
            "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        atomic.write_json(tree / "image.json", facts, mode=0o644)

    def _keep(self, tree: Path, image: str) -> bool:
        """False: it was there."""
        final = self._folder / digits_of(image)
        if final.exists():
            return False
        with _open(tree) as fd:
            images_tree.synced(fd)
        tree.rename(final)
        with _open(self._folder) as fd:
            os.fsync(fd)
        return True

    # --- ls, rm --------------------------------------------------------------------------------------------------------------

    def all(self) -> list[Image]:
        """The host's own first, then by when they were made."""
        known = self._names()
        found = [self._described(path, known) for path in self._whole()]
        rows, default = self._uses(), self._default()
        host = Image(_of_host(), (HOST,), source=HOST)
        listed = [host, *sorted(found, key=lambda each: (each.made_at, each.id))]
        return [self._used(each, rows, default) for each in listed]

    def remove(self, wanted: str) -> dict[str, Any]:
        """A name of several goes alone; with the last one, or by its id, the image. Conflict: a box has it, or is to have it, or it
        is what the settings say."""
        if wanted == HOST or wanted.partition(":")[0] == HOST:
            raise Invalid("the host's own /usr is no image that could be removed", remedy="ringfence image ls")
        self._existing()
        with self._locked():
            names = self._names()
            image = wanted if ID.match(wanted) else f"tree:{names[wanted]}" if wanted in names else ""
            mine = tuple(name for name, digits in names.items() if f"tree:{digits}" == image)
            there = bool(image) and (self._folder / digits_of(image)).is_dir()
            if not there and not mine:
                raise NotFound(f"there is no image {wanted[:80]!r}", remedy="ringfence image ls")
            whole = not there or ID.match(wanted) is not None or len(mine) == 1
            going = mine if whole else (wanted,)
            self._unused(image if whole else "", going)
            if there and whole:
                self._gone(image, going)
            self._write_names({name: digits for name, digits in names.items() if name not in going})
        self.clear()
        return {"id": image, "names": list(going), "removed": there and whole}

    def _gone(self, image: str, names: tuple[str, ...]) -> None:
        """Out of sight first: what was given to a box meanwhile is then in a row, or that box's start fails and says why."""
        with self._half("gone") as place:
            final = self._folder / digits_of(image)
            final.rename(place / "image")
            try:
                self._unused(image, names)
            except BaseException:  # also who is interrupted has not been told that nobody has it
                (place / "image").rename(final)
                raise

    def _unused(self, image: str, names: tuple[str, ...]) -> None:
        default = self._default()
        if default in (image, *names):
            raise Conflict(
                f"it is what boxes have by the settings: image = {default!r}", remedy='[boxes] image = "host"'
            )
        using = self._used(Image(image, names), self._uses(), default)
        if using.running or using.wanted:
            boxes = list(dict.fromkeys([each.who for each in (*using.running, *using.wanted)]))
            raise Conflict(
                f"{len(boxes)} box{'es have' if len(boxes) > 1 else ' has'} it or would start with it: {', '.join(boxes[:10])}",
                remedy="ringfence box upgrade USER --image host",
                boxes=boxes[:100],
            )

    def _used(self, image: Image, rows: list[Use], default: str) -> Image:
        names = tuple(name for name in image.names if name != HOST)
        key = HOST if HOST in image.names else image.id
        told = [(row, uses(row, key, names, default)) for row in rows]
        return replace(
            image, running=[r for r, (runs, _) in told if runs], wanted=[r for r, (_, wants) in told if wants]
        )

    def _uses(self) -> list[Use]:
        facts = database.work(database.find(self._environment, None), "images", {}, held=False)
        return [Use(**each) for each in facts["boxes"]]

    def _default(self) -> str:
        return prepare.read_settings(self._layout.settings, missing_ok=True).boxes.image

    # --- the folder ------------------------------------------------------------------------------------------------------------

    def _make_folder(self) -> None:
        with contextlib.suppress(FileExistsError):
            self._folder.mkdir(mode=0o711)
        self._existing()
        self._folder.chmod(0o711)

    def _existing(self) -> None:
        """NotFound: no image was ever built."""
        try:
            status = self._folder.lstat()
        except FileNotFoundError:
            raise NotFound("there is no image on this host", remedy="ringfence image build NAME --from DIR") from None
        if (
            self._folder.is_symlink()
            or not self._folder.is_dir()
            or status.st_uid != os.geteuid()
            or status.st_mode & 0o022
        ):
            raise Failed(
                f"{self._folder} is not a folder of its owner alone", remedy=f"look at it: ls -ld {self._folder}"
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One change of names at a time."""
        fd = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    @contextmanager
    def _half(self, kind: str) -> Iterator[Path]:
        """A folder that is this process's while it is locked, and is taken away at the end, with what is left in it."""
        while True:
            place = self._folder / f".{kind}-{os.urandom(8).hex()}"
            place.mkdir(mode=0o711)
            fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:  # else a sweep had it before the lock
                break
            os.close(fd)
        try:
            place.chmod(0o711)
            yield place
        finally:
            shutil.rmtree(place)
            os.close(fd)

    def clear(self) -> None:
        """What a build, or a removal, that was killed has left."""
        for path in self._folder.iterdir():
            if HALF.match(path.name):
                with contextlib.suppress(FileNotFoundError), _open(path) as fd:
                    try:
                        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        continue
                    shutil.rmtree(path)

    def _whole(self) -> list[Path]:
        found = self._folder.iterdir() if self._folder.is_dir() else []
        return [path for path in found if _DIGITS.match(path.name) and path.is_dir() and not path.is_symlink()]

    def _known(self, image: str) -> Image:
        return self._described(self._folder / digits_of(image), self._names())

    def _described(self, path: Path, names: Mapping[str, str]) -> Image:
        said: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            said = json.loads(atomic.read(path / "image.json"))
        return Image(
            f"tree:{path.name}",
            tuple(sorted(name for name, digits in names.items() if digits == path.name)),
            int(said.get("bytes", 0)),
            int(said.get("entries", 0)),
            str(said.get("made_at", "")),
            str(said.get("source", "")),
        )

    def _names(self) -> dict[str, str]:
        try:
            found = json.loads(atomic.read(self._folder / "names.json"))
            return {str(name): str(digits) for name, digits in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError) as error:
            where = self._folder / "names.json"
            raise Failed(
                f"{where} cannot be read: {error}", remedy=f"rm {where}, then build again: the images stay"
            ) from error

    def _name(self, name: str, image: str) -> None:
        names = {**self._names(), name: digits_of(image)}
        if len(names) > MOST_NAMES:
            raise Conflict(f"there are {MOST_NAMES} names of images", remedy="ringfence image rm NAME")
        self._write_names(names)

    def _write_names(self, names: Mapping[str, str]) -> None:
        atomic.write_json(self._folder / "names.json", dict(names), mode=0o644)


@contextmanager
def _open(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _of_host() -> str:
    """As spawner/images.py."""

    try:
        with _STATUS.open("rb") as file:
            return f"host:{hashlib.file_digest(file, 'sha256').hexdigest()[:32]}"
    except OSError:
        return HOST
