"""Rows of group F about whole trees: what a copy takes along, what a copy that somebody has changed does, reset against a writer."""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ringfence.client.errors import ApiError
from ringfence.prove.attacks.trying import DONE
from ringfence.prove.row import NotHere, Row, Tries, ran
from ringfence.prove.rows_f import canary_words
from ringfence.prove.stage import Stage

USER = "fritz"
PLACE = "/home/user/copied"
ZSTD = "/usr/bin/zstd"


def follows(stage: Stage, _runner: str) -> Tries:
    """F11."""
    user = stage.user(USER)
    stage.attack("s", user, "planting", "links", *canary_words(stage, PLACE))
    with _snapshot(stage, user) as archive:
        told = {}
        for name, data in _members(archive):
            if any(secret.encode() in data for secret in (stage.canaries.secret, "root:x:0")):
                told[name] = f"{DONE} the canary"
    return Tries({"files with a canary": "none", **told})


def followed(stage: Stage) -> Tries:
    """Its control: tar as root, told to follow links."""
    user = stage.user(USER)
    links = stage.directory(user) / "tree" / "home" / PLACE.rpartition("/")[2]
    done = subprocess.run(["tar", "-chf", "-", "-C", str(links), "absolute"], capture_output=True, check=False)
    return Tries({"tar -h": f"{DONE} the canary" if stage.canaries.secret.encode() in done.stdout else "no canary"})


def changed(stage: Stage, _runner: str) -> Tries:
    """F10, F08: a copy is an upload, whoever made it. Its file is made anew by who can write the host's state."""
    user = stage.user(USER)
    stage.client.exec(user, ["sh", "-c", "echo kept > kept"])
    taken = stage.client.snapshot(user)["snapshot"]["id"]
    stage.client.restore_box(user, taken, force=True, keep=False)  # as it was made it is taken
    path = _file(stage, taken)
    path.write_bytes(_packed(path, _hostile(stage)))
    told = {}
    try:
        stage.client.restore_box(user, taken, force=True, keep=False)
        told["restore"] = f"{DONE} taken"
    except ApiError as error:
        told["restore"] = "its digest is another" if "digest" in error.message else f"{DONE} {error.message[:100]}"
    kept = stage.client.exec(user, ["cat", "kept"]).get("stdout")
    told["the tree of before"] = "as it was" if kept == "kept\n" else f"{DONE} {kept}"
    outside = stage.canaries.host / "by-restore"
    told["outside"] = f"{DONE} written" if outside.exists() else "nothing"
    with suppress(ApiError):
        stage.client.remove_snapshot(user, taken)
    return Tries(told)


def trusted(stage: Stage) -> Tries:
    """Its control: what an extraction that trusts names does."""
    place = stage.canaries.host / "extracted" / "below"
    place.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(_names("../by-restore"))) as archive:
        for member in archive:
            target = place / member.name
            target.parent.mkdir(exist_ok=True, parents=True)
            target.write_bytes(b"x")
    led_out = (place.parent / "by-restore").exists()
    shutil.rmtree(place.parent)
    return Tries({"a name": f"{DONE} led out" if led_out else "led nowhere"})


def while_it_writes(stage: Stage, _runner: str) -> Tries:
    """F15."""
    user = stage.user("frida")
    writer = "(while :; do n=$((n+1)); echo $n > f$((n % 50)); mkdir -p d/$n; done) >/dev/null 2>&1 & echo up"
    stage.client.exec(user, ["sh", "-c", writer])
    stage.client.reset_box(user, force=True, keep=False)
    tree = stage.directory(user) / "tree" / "home"
    left = stage.client.list_files(user, ".") if not tree.is_dir() else [path.name for path in tree.iterdir()]
    running = [] if stage.mode == "shared" else stage.processes(user)
    return Tries(
        {
            "files of before": f"{DONE} {left[:3]}" if left else "none",
            "writers": f"{DONE} {len(running)}" if running else "none",
        }
    )


def emptied_under_it(stage: Stage) -> Tries:
    """Its control: who empties a folder under a writer leaves what it writes."""
    user = stage.user("frieda")
    writer = "(while :; do n=$((n+1)); echo $n > f$((n % 50)); done) >/dev/null 2>&1 & sleep 0.2; rm -rf f*; sleep 0.2; ls | wc -l"
    left = stage.client.exec(user, ["sh", "-c", writer]).get("stdout")
    stage.client.stop_box(user)
    return Tries({"rm": f"{DONE} {left} files" if str(left).strip() not in ("", "0") else "nothing left"})


@contextmanager
def _snapshot(stage: Stage, user: str) -> Iterator[Path]:
    """A copy's file, as the server's account keeps it."""
    taken = str(stage.client.snapshot(user, force=True)["snapshot"]["id"])
    try:
        yield _file(stage, taken)
    finally:
        stage.client.remove_snapshot(user, taken)


def _file(stage: Stage, copy: str) -> Path:
    try:
        return next((stage.made.home / "snapshots").glob(f"{copy}.*"))
    except (StopIteration, PermissionError):
        raise NotHere("this account cannot read the server's copies") from None


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(_unpacked(path))) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isreg() else None
            yield member.name, b"" if file is None else file.read()


def _unpacked(path: Path) -> bytes:
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes())
    return subprocess.run([ZSTD, "-dc", str(path)], capture_output=True, check=True).stdout


def _packed(path: Path, data: bytes) -> bytes:
    if path.suffix == ".gz":
        return gzip.compress(data)
    return subprocess.run([ZSTD, "-qc"], input=data, capture_output=True, check=True).stdout


def _hostile(stage: Stage) -> bytes:
    return _names(
        f"../../../../../../../../..{stage.canaries.host}/by-restore", str(stage.canaries.host / "by-restore")
    )


def _names(*names: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"x"))
    return out.getvalue()


ROWS: tuple[Row, ...] = (
    Row(
        "F10",
        "a copy that somebody has changed is put back",
        "refused, the tree of before as it was",
        "its digest, which the database has",
        changed,
        ran(trusted),
        "h",
    ),
    Row(
        "F11",
        "a copy of a tree with links to the host's files",
        "no byte of them",
        "walked by descriptors beneath the tree, by a child with the box's id",
        follows,
        ran(followed),
        "h",
    ),
    Row(
        "F15",
        "a reset while the box writes",
        "no mixed state",
        "the box is down first; a new tree takes the old one's place at once",
        while_it_writes,
        ran(emptied_under_it),
        "h",
    ),
)
