"""What was seen of credentials and rolls, kept outside the database: for each the newest version, or that it was revoked. Blocks.

A store whose rows were put back to an older state is whole in itself; only what was seen elsewhere tells. A file for each
credential or roll, in a folder of the vault; nothing secret is in it. A restored store (a higher generation, which generations.py
knows) may have older versions, but what was revoked stays so. A file of what is gone stays for as long as a key is here that
could open, or judge genuine, what was stored then: a name that is used again is another id, so its first version is no older
one. Must never be written before the store has the version.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ringfence.host.kernel.errors import Failed, Unavailable

_NAME = re.compile(r"(crd|roll)_[a-z0-9]{1,64}")
GENERATION = "generation"  # beside the others: generations.py
_MAX_BYTES = 32 * 1024  # one is about 100; with each key that there is, 1,000 at most, 19 more


@dataclass(frozen=True, slots=True)
class Seen:
    version: int
    generation: int  # agreed to when it was seen
    revoked: bool = False
    keys: tuple[str, ...] = ()  # ids of those that were here then


class Witnesses:
    """Used by one thread at a time."""

    def __init__(self, folder: Path, generation: int) -> None:
        self._folder, self.generation = folder, generation
        self._known: dict[str, Seen | None] = {}

    def agree(self, generation: int) -> None:
        """As generations.agree; it counts at once. OSError."""
        written(self._folder, GENERATION, str(generation))
        self.generation = generation

    def check(self, credential: str, version: int) -> bool:
        """Whether it is to be noted: it is newer than what was seen. Failed: older, or revoked. Unavailable."""
        seen = self._get(credential)
        if seen is None:
            return True
        if seen.revoked:
            raise _older(credential, "it was revoked")
        if version < seen.version and self.generation <= seen.generation:
            raise _older(credential, f"version {version} is there, and version {seen.version} was")
        return (version, self.generation) != (seen.version, seen.generation)

    def remembers(self, credential: str) -> bool:
        """Whether `check` opens no file."""
        return credential in self._known

    def ended(self, credential: str) -> bool:
        """Whether it was noted that it was revoked. Unavailable."""
        seen = self._get(credential)
        return seen is not None and seen.revoked

    def check_new(self, credential: str, version: int) -> None:
        """Of one that is about to be stored. Failed: it is no newer than what was seen, as the store was put back."""
        if not self.check(credential, version):
            raise _older(credential, f"version {version} is to be stored, and it was there before")

    def under(self, name: str, key: str) -> bool:
        """Whether it was noted with that key. Unavailable."""
        seen = self._get(name)
        return seen is not None and key in seen.keys

    def note(self, credential: str, version: int, keys: Sequence[str] = ()) -> None:
        """On disk when it returns. `keys`: ids of those that are here. OSError."""
        self._keep(credential, Seen(version, self.generation, keys=tuple(keys)))

    def revoked(self, credential: str, keys: Sequence[str] = ()) -> None:
        """For as long as one of `keys` is here; whatever was noted before. OSError."""
        try:
            seen = self._get(credential)
        except Unavailable:  # nothing says more than this
            seen = None
        version = seen.version if seen else 0
        self._keep(credential, Seen(version, self.generation, revoked=True, keys=tuple(keys)))

    def prune(self, keys: Collection[str], gone: Collection[str] = ()) -> int:
        """Takes away what was noted of the revoked, and of `gone`, under keys of which none is among `keys`: nothing that was
        stored then opens here, or is judged genuine, so nothing of it can be put back. What was noted without a key stays.
        How many. OSError."""
        pruned = 0
        for name in self.names():
            with suppress(Unavailable):
                seen = self._read(self._folder / name)
                if seen is not None and seen.keys and (seen.revoked or name in gone) and not {*seen.keys} & {*keys}:
                    (self._folder / name).unlink(missing_ok=True)
                    self._known.pop(name, None)
                    pruned += 1
        return pruned

    def names(self) -> list[str]:
        """Of whatever something is noted. OSError."""
        try:
            return [name for name in os.listdir(self._folder) if _NAME.fullmatch(name)]
        except FileNotFoundError:
            return []

    def _get(self, credential: str) -> Seen | None:
        with suppress(KeyError):  # one look: a thread whose caller has gone may be pruning
            return self._known[credential]
        seen = self._known[credential] = self._read(self._path(credential))
        return seen

    def _path(self, credential: str) -> Path:
        if not _NAME.fullmatch(credential):
            raise Failed("that is no id of a credential")
        return self._folder / credential

    def _read(self, path: Path) -> Seen | None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(fd, "rb") as file:
                said = json.loads(file.read(_MAX_BYTES))
            keys = tuple(str(each) for each in said["keys"])
            return Seen(int(said["version"]), int(said["generation"]), said["revoked"] is True, keys)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Unavailable(
                f"{path}, what was seen of a credential, cannot be read",
                remedy=f"rm {path}, when the database was not put back to an older state by hand",
            ) from error

    def _keep(self, credential: str, seen: Seen) -> None:
        written(self._folder, self._path(credential).name, json.dumps(asdict(seen)))
        self._known[credential] = seen


def written(folder: Path, name: str, text: str) -> None:
    """A file of the folder, on disk and whole when it returns. OSError."""
    folder.mkdir(mode=0o700, exist_ok=True)
    fresh = folder / f"{name}.new"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(fd)
    fresh.replace(folder / name)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _older(credential: str, what: str) -> Failed:
    return Failed(
        f"the database is older than what was seen of {credential}: {what}",
        remedy="remove it and store it again: ringfence secret rm, secret set; and look who writes to the database",
        credential=credential,
    )
