"""Group I: what a box leaves behind for its next start, for the host, or for whoever gets the name after it."""

from __future__ import annotations

from pathlib import Path

from ringfence.client.errors import ApiError
from ringfence.prove.attacks.trying import DONE
from ringfence.prove.outside import lives
from ringfence.prove.row import NotHere, Row, Tries, absent, no_control, ran
from ringfence.prove.rows_f import canary_folder
from ringfence.prove.stage import Stage


def restart(stage: Stage, user: str) -> None:
    stage.client.stop_box(user)
    stage.client.start_box(user)


def rc_files(stage: Stage, _runner: str) -> Tries:
    """I01."""
    user = stage.user("ines")
    stage.attack("s", user, "siblings", "plant")
    restart(stage, user)
    for argv in (["sh", "-c", "true"], ["bash", "-c", "true"], ["true"]):
        stage.exec(user, argv)
    return Tries({**stage.attack("s", user, "siblings", "hooked").outcomes})


def read_when_asked(stage: Stage) -> Tries:
    """Its control: a shell that is told to be interactive reads them."""
    user = stage.user("ines")
    stage.exec(user, ["bash", "-ic", "true"])
    return stage.attack("s", user, "siblings", "hooked")


def set_up_links(stage: Stage, _runner: str) -> Tries:
    """I02: CVE-2026-87766."""
    user, folder = stage.user("iris"), canary_folder(stage, "set-up")
    stage.attack("s", user, "poison", "set_up_links", str(folder))
    restart(stage, user)
    started = stage.shell(user, "echo up").get("stdout") == "up\n"
    made = sorted(path.name for path in folder.iterdir() if path.name != "victim")
    stage.attack("s", user, "poison", "unplant")
    return Tries(
        {
            "on the host": f"{DONE} made {made}" if made else "nothing was made",
            "the box": "starts" if started else f"{DONE} does not start",
        }
    )


def vulnerable_layout(stage: Stage) -> Tries:
    """Its control: bubblewrap told to make a folder below the user's tree, which the product never tells it."""
    folder = canary_folder(stage, "set-up-control")
    stage.loose("poison", "unplant")  # makes the room
    link = stage.root / "loose" / "home" / "planted"
    if not link.is_symlink():
        link.symlink_to(f"/oldroot{folder}")
    try:
        stage.loose("poison", "unplant", extra=("--dir", "/home/user/planted/made"))
    finally:
        link.unlink()
    return Tries({"made": DONE if (folder / "made").exists() else "nothing was made"})


def roots(stage: Stage, _runner: str) -> Tries:
    """I03."""
    user = stage.user("irma")
    told = stage.attack("s", user, "poison", "roots").outcomes
    restart(stage, user)
    links = stage.shell(user, "for d in /home/user /workspace /tmp; do test -L $d && echo $d; done; true").get("stdout")
    return Tries({**told, "after a restart": f"{DONE} {links}" if links else "folders"})


def settings(stage: Stage, _runner: str) -> Tries:
    """I04."""
    user = stage.user("isa")
    before = stage.box(user)["limits"]
    stage.attack("s", user, "poison", "settings")
    restart(stage, user)
    after = stage.box(user)["limits"]
    return Tries({"limits": "unchanged" if after == before else f"{DONE} {after}"})


def stay(stage: Stage, _runner: str) -> Tries:
    """I05."""
    user = stage.user("ivy")
    stage.attack("s", user, "poison", "stay")
    stage.client.stop_box(user)
    left = [pid for pid in stage.processes(user) if lives(pid)]
    stage.client.start_box(user)
    found = str(stage.shell(user, "pgrep -cx sleep").get("stdout")).strip()
    return Tries(
        {
            "after stop": f"{DONE} {len(left)} left" if left else "none left",
            "after the next start": "none" if found == "0" else f"{DONE} {found}",
        }
    )


def stays(stage: Stage) -> Tries:
    """Its control: until the stop they live."""
    user = stage.user("ivo")
    stage.attack("s", user, "poison", "stay")
    found = str(stage.shell(user, "pgrep -cx sleep").get("stdout")).strip()
    stage.client.stop_box(user)
    return Tries({"after the command": f"{DONE} {found}" if found not in ("", "0") else "none"})


def same_name(stage: Stage, _runner: str) -> Tries:
    """I08."""
    user = stage.user("ilse")
    stage.shell(user, "echo mine > file; ln -s / link; mkdir -m 0 closed; true")
    first = stage.box(user)
    directory = stage.directory(user)
    stage.client.remove_user(user, purge=True)
    gone = _gone(stage, user)
    stage.client.add_user(user)
    stage.client.start_box(user)
    second = stage.box(user)
    files = stage.shell(user, "ls -A").get("stdout")
    same_id = second["uid"] == first["uid"] and stage.mode != "shared"
    return Tries(
        {
            "in between": gone,
            "files": f"{DONE} {files}" if files else "empty",
            "host id": f"{DONE} the same" if same_id else "another",
            "box": f"{DONE} the same" if second["box"] == first["box"] else "another",
            "tree": f"{DONE} still there" if directory.exists() else "deleted",
        }
    )


def _gone(stage: Stage, user: str) -> str:
    try:
        stage.client.box(user)
    except ApiError as error:
        return error.code
    return f"{DONE} still there"


def kept(stage: Stage) -> Tries:
    """Its control: over a mere restart files stay."""
    user = stage.user("ilka")
    stage.shell(user, "echo mine > file")
    restart(stage, user)
    return Tries({"file": DONE if stage.shell(user, "cat file").get("stdout") == "mine\n" else "gone"})


def ids_come_back_unused(stage: Stage, _runner: str) -> Tries:
    """M08: after a user is gone nothing runs, and nothing is, under their host id."""
    if stage.mode == "shared":
        raise NotHere("all boxes share the server's id here")
    user = stage.user("mara")
    uid = int(stage.box(user)["uid"])
    stage.attack("s", user, "poison", "stay")
    running = stage.processes(user)
    stage.client.remove_user(user, purge=True)
    left = [pid for pid in running if lives(pid)]
    keys = [line for line in Path("/proc/key-users").read_text().splitlines() if line.split(":")[0].strip() == str(uid)]
    files = [str(path) for path in stage.made.home.glob("boxes/*/tree/*") if _owner(path) == uid]
    return Tries(
        {
            "processes": f"{DONE} {left}" if left else "none",
            "keys": f"{DONE} {keys}" if keys else "none",
            "files": f"{DONE} {files}" if files else "none",
        }
    )


def _owner(path: Path) -> int:
    try:
        return path.lstat().st_uid
    except OSError:
        return -1


def runs_under_it(stage: Stage) -> Tries:
    found = stage.processes(stage.user("mira"))
    return Tries({"processes": f"{DONE} {len(found)}" if found else "none"})


ROWS: tuple[Row, ...] = (
    Row(
        "I01",
        "rc files and module names in HOME",
        "no command that is not interactive reads them",
        "no rc files; the environment is built by the host",
        rc_files,
        ran(read_when_asked),
        "h",
    ),
    Row(
        "I02",
        "links that the next set-up of the box would follow out (CVE-2026-87766)",
        "nothing is made on the host; the box starts",
        "nothing is mounted or made below what the user can write; the trees are bound last",
        set_up_links,
        ran(vulnerable_layout, "this bubblewrap does not follow them"),
        "h",
    ),
    Row(
        "I03",
        "the bound folders exchanged for links",
        "EBUSY, EROFS",
        "they are mounts, below a read-only root; sources are opened without following links",
        roots,
        ran(lambda stage: stage.bare("poison", "roots", str(stage.canaries.host / "open"))),
        "h",
    ),
    Row(
        "I04",
        "settings of the server in a box's tree (CVE-2026-25725)",
        "not read",
        "settings are read from the state directory only",
        settings,
        no_control("the server has no code that reads settings below boxes/"),
        "h",
    ),
    Row(
        "I05",
        "processes left for the next run",
        "ended with stop",
        "cgroup.kill; the pid namespace ends with PID 1",
        stay,
        ran(stays),
        "h",
    ),
    absent(
        "I07",
        "poisoned memory instructs later runs",
        "cannot grant",
        "approvals are bound to calls",
        "memory comes later",
    ),
    Row(
        "I08",
        "the same name again after a user was removed",
        "empty, another host id",
        "box ids are random; host ids of homes are never used again",
        same_name,
        ran(kept),
        "h",
    ),
)
