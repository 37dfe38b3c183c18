"""Group F: readers and writers on the host, in a tree that a hostile box has made. The files API is all of them so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from ringfence.client.errors import ApiError
from ringfence.prove.attacks.planting import SECONDS
from ringfence.prove.attacks.trying import DONE
from ringfence.prove.row import Control, Row, Tries, absent, ran
from ringfence.prove.stage import VICTIM, Stage

USER = "fiona"
PLACE = "/home/user/planted"
WALL = "openat2 beneath the tree's descriptor, without magic links, in a process with the box's id"
READ_NAMES = ("absolute", "relative", "chain", "shadow", "other", "rootward", "folder/../secret", "folder")
MAGIC_NAMES = ("environ", "by-root", "by-cwd", "by-init", "by-fd")
ODD_NAMES = ("fifo", "socket")
QUICK_SECONDS = 1.0  # ODD_NAMES: who opens one waits without end. The helper refuses in a millisecond
DEPTH, MANY = 3000, 1500  # a page has 1,000


def planted(stage: Stage) -> str:
    stage.attack("s", stage.user(USER), "planting", "links", *canary_words(stage, PLACE))
    return USER


def canary_words(stage: Stage, place: str) -> tuple[str, ...]:
    """Arguments of the program that plants links in `place`."""
    canaries, other = stage.canaries, stage.directory(VICTIM) / "tree"
    return (place, str(canaries.host / "secret"), str(canaries.host / "open"), str(other))


def reading(names: tuple[str, ...]) -> Callable[[Stage, str], Tries]:
    def attack(stage: Stage, _runner: str) -> Tries:
        user = planted(stage)
        found = {name: read(stage, user, f"{PLACE}/{name}") for name in names}
        plain = read(stage, user, f"{PLACE}/plain")
        return Tries({**found, "a plain file": plain if plain.startswith("10 bytes") else f"{DONE} not read, {plain}"})

    return attack


def read(stage: Stage, user: str, path: str) -> str:
    """What stopped it; `done` when a canary came out, or one of ODD_NAMES held the reader up."""
    begun = time.monotonic()
    try:
        data = bytes(stage.client.get_file(user, path))
    except ApiError as error:
        took = time.monotonic() - begun
        held_up = took >= QUICK_SECONDS and path.rpartition("/")[2] in ODD_NAMES
        return f"{DONE} refused after {took:.1f} s" if held_up else error.code
    secrets = (stage.canaries.secret, stage.canaries.flag, "root:", "PATH=")
    leaked = any(secret.encode() in data for secret in secrets)
    return f"{DONE} the canary" if leaked else f"{len(data)} bytes of the box"


def raced_reading(stage: Stage, _runner: str) -> Tries:
    """F02."""
    reads = {"canary": 0, "own": 0, "refused": 0}
    with racing(stage, stage.canaries.host):
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            try:
                data = bytes(stage.client.get_file(USER, "race/d/secret"))
            except ApiError:
                reads["refused"] += 1
                continue
            reads["canary" if stage.canaries.secret.encode() in data else "own"] += 1
    word = f"{DONE} " if reads["canary"] else ""
    return Tries(
        {
            "race": f"{word}{reads}".replace("{", "").replace("}", "").replace("'", ""),
            "reader": "saw the folder" if reads["own"] else f"{DONE} never got in",
        }
    )


@contextmanager
def racing(stage: Stage, canary: Path) -> Iterator[None]:
    """A race that the box runs meanwhile."""
    words = ("/home/user/race", str(canary), str(SECONDS + 0.5))
    user = stage.user(USER)
    with ThreadPoolExecutor(1) as pool:
        box = pool.submit(stage.attack, "s", user, "planting", "race", *words)
        time.sleep(0.3)  # until it runs
        yield
        box.result()


def canary_folder(stage: Stage, name: str) -> Path:
    """A folder that anybody may write in, with a file that anybody may remove."""
    folder = stage.canaries.host / "open" / name
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    (folder / "victim").write_text("host")
    (folder / "victim").chmod(0o666)
    return folder


def removing(stage: Stage, _runner: str) -> Tries:
    """F06."""
    folder = canary_folder(stage, "remove")
    user, tried = stage.user(USER), 0
    with racing(stage, folder):
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            tried += 1
            for path in ("race/d/victim", "race/l/victim", "race"):
                try:
                    stage.client.remove_file(user, path, recursive=True)
                except ApiError:
                    continue
    return Tries({"remove": f"{tried} rounds, nothing outside" if (folder / "victim").exists() else f"{DONE} removed"})


def writing(stage: Stage, _runner: str) -> Tries:
    """F07: into a folder and over a file that are links by the time it is written."""
    folder = canary_folder(stage, "write")
    user = planted(stage)
    stage.shell(user, f"ln -sfn {folder}/victim {PLACE}/target; ln -sfn {folder} {PLACE}/into")
    told = {name: put(stage, user, f"{PLACE}/{name}") for name in ("target", "into/new", "folder/new")}
    tried = 0
    with racing(stage, folder):
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            tried += 1
            put(stage, user, "race/d/new")
    outside = sorted(path.name for path in folder.iterdir() if path.name != "victim")
    changed = (folder / "victim").read_text() != "host" or (folder.parent / "new").exists()
    told["race"] = f"{DONE} {outside}" if outside or changed else f"{tried} rounds, nothing outside"
    return Tries(told)


def put(stage: Stage, user: str, path: str) -> str:
    try:
        stage.client.put_file(user, path, b"attacker")
    except ApiError as error:
        return error.code
    return "replaced, not followed"


def deep(stage: Stage, _runner: str) -> Tries:
    """F16."""
    user = stage.user(USER)
    stage.attack("s", user, "planting", "deep", "/home/user/deep", str(DEPTH))
    try:
        stage.client.remove_file(user, "deep", recursive=True)
    except ApiError as error:
        return Tries({"remove": f"{DONE} {error.code}: {error.message}"})
    return Tries({"remove": f"{DEPTH} levels removed"})


def many(stage: Stage, _runner: str) -> Tries:
    """F17."""
    user = stage.user(USER)
    stage.attack("s", user, "planting", "many", "/home/user/many", str(MANY))
    found = len(stage.client.list_files(user, "many"))
    stage.client.remove_file(user, "many", recursive=True)
    return Tries({"list": f"{found} listed in pages" if found == MANY else f"{DONE} {found} of {MANY}"})


def naive(name: str) -> Control:
    def how(stage: Stage) -> Tries:
        host = stage.canaries.host
        second = host / "secret" if name == "naive_reading" else host
        return stage.bare("planting", name, str(host / "open"), str(second), str(host / "open"))

    return ran(how)


def _host(row_id: str, attempt: str, expected: str, attack: Callable[[Stage, str], Tries], control: Control) -> Row:
    return Row(row_id, attempt, expected, WALL, attack, control, "h")


_LATER = "is a reader that this release does not have"
ROWS: tuple[Row, ...] = (
    _host(
        "F01",
        "links to the host and to another box, in what is read",
        "refused",
        reading(READ_NAMES),
        naive("naive_reading"),
    ),
    Row(
        "F02",
        "a folder and a link change places while it is read",
        "no canary in any read",
        WALL,
        raced_reading,
        naive("naive_race"),
        "h",
        alone=True,
    ),
    _host("F03", "magic links", "refused", reading(MAGIC_NAMES), naive("naive_reading")),
    _host(
        "F04", "a FIFO and a socket in place of a file", "refused at once", reading(ODD_NAMES), naive("naive_blocking")
    ),
    Row(
        "F06",
        "a folder becomes a link while it is removed",
        "nothing outside is removed",
        WALL,
        removing,
        naive("naive_writing"),
        "h",
        alone=True,
    ),
    Row(
        "F07",
        "a target becomes a link between look and write",
        "inside only",
        WALL,
        writing,
        naive("naive_writing"),
        "h",
        alone=True,
    ),
    absent(
        "F08",
        "a hostile tar",
        "refused",
        "extraction with the box's id",
        f"an upload of archives {_LATER}; of copies: F10",
    ),
    absent("F12", "git run on the host in a box's repository", "never", "in the box only", f"git {_LATER}"),
    absent("F14", "HTML of a box on the server's origin", "sandboxed", "headers", f"a page that shows files {_LATER}"),
    _host("F16", f"a tree {DEPTH} levels deep", "removed", deep, naive("naive_deep")),
    Row(
        "F17",
        f"{MANY} files in a folder",
        "listed in pages",
        "bounded pages of the files wire",
        many,
        ran(lambda _stage: Tries({"one answer": f"{DONE} {MANY} names are more than a page"})),
        "h",
    ),
)
