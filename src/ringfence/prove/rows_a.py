"""Group A: other people's files and the host's secrets (docs/threats.md)."""

from __future__ import annotations

import os

from ringfence.prove import outside, outside_limits
from ringfence.prove.row import NotHere, Row, Tries, program, ran
from ringfence.prove.stage import ATTACKER, FLAG, VICTIM, Stage
from ringfence.spawner.paths import TREES
from ringfence.spawner.profile import SOURCE

FOLDERS = ("/home", "/root", "/var", "/srv", "/workspace", "/run", "/mnt", "/media", "/boot", "/opt", "/tmp", "/dev")
VIEW = "mount namespace: the box's root is an empty tmpfs with what is listed in the profile"


def _vault(stage: Stage) -> str:
    return str(stage.made.home / "vault" / "master.key")


def _secret(stage: Stage) -> str:
    return str(stage.canaries.host / "secret")


def _wrong_tree(stage: Stage, _runner: str) -> Tries:
    """As if the attacker's box had been given the victim's directory by mistake: only the ids stand between."""
    tree = stage.directory(VICTIM) / "tree"
    home, tmp = tree / "home", tree / "tmp"  # anybody may write in the second: only the tree's own mode keeps them out
    told = stage.as_box(ATTACKER, "files", "mine_and_theirs", str(home / FLAG), str(home)).outcomes
    public = stage.as_box(ATTACKER, "files", "mine_and_theirs", str(home / FLAG), str(tmp)).outcomes
    return Tries({**told, **{f"{name} in tmp": word for name, word in public.items()}})


def _right_tree(stage: Stage) -> Tries:
    home = stage.directory(VICTIM) / "tree" / "home"
    return stage.as_box(VICTIM, "files", "mine_and_theirs", str(home / FLAG), str(home))


def _private(stage: Stage, _runner: str) -> Tries:
    return stage.as_box(ATTACKER, "files", "reading", str(stage.canaries.host / "private"))


def _setuid(stage: Stage, _runner: str) -> Tries:
    """Another account of the host tries to start a set-user-id program that a box left in its tree: in a folder that is
    the box's alone, and in one that anybody may search."""
    if stage.mode != "root":
        raise NotHere("only root has another account to try it with")
    tree = stage.directory(ATTACKER) / "tree"
    told: dict[str, str] = {}
    for folder in ("workspace", "tmp"):
        stage.shell(ATTACKER, f"cp /usr/bin/id /{folder}/left && chmod 6755 /{folder}/left")
        found = stage.bare("files", "setuid_file", str(tree / folder / "left")).outcomes
        told |= {f"{name} in {folder}": word for name, word in found.items()}
    return Tries(told)


def _mounts(stage: Stage, _runner: str) -> Tries:
    """What bubblewrap was given to bind, in the view of its own process; and the image that the tree is on."""
    if stage.mode != "root":
        raise NotHere("only root sees what bubblewrap was given")
    given = outside_limits.mounts(outside.outer(stage.processes(ATTACKER)), SOURCE).outcomes
    told = {f"given: {place}": given.get(f"/{place}", "not there") for place in TREES}
    try:
        tree = str(stage.directory(ATTACKER) / "tree")
        (told["image"],) = outside_limits.mounts(_server(stage), tree).outcomes.values()
    except NotHere:
        told["image"] = "none: the tree is a folder"
    return Tries(told)


def _server(stage: Stage) -> int:
    assert stage.made.server is not None
    return stage.made.server.pid


def _groups(stage: Stage, _runner: str) -> Tries:
    pids = stage.processes(ATTACKER)
    if stage.mode != "root":
        raise NotHere("an ordinary user's processes keep that user's groups; the server's account should have none")
    return outside.groups(pids, int(stage.box(ATTACKER)["uid"]))


ROWS: tuple[Row, ...] = (
    program(
        "A01",
        "look for other people's files in every folder",
        "nothing of others is found",
        VIEW,
        ("files", "others"),
        ran(lambda stage: stage.bare("files", "others", "secret", str(stage.canaries.host))),
        arguments=lambda _stage: (FLAG, *FOLDERS),
    ),
    program(
        "A02",
        "read the server's master key and a file of the host that anybody may read",
        "ENOENT",
        f"{VIEW}; second: 0600 of the server's account below a 0700 directory",
        ("files", "reading"),
        ran(lambda stage: stage.bare("files", "reading", _secret(stage))),
        arguments=lambda stage: (_vault(stage), _secret(stage)),
    ),
    Row(
        "A03",
        "with the victim's directory bound by mistake: list it, read the flag, make a file",
        "EACCES",
        "the box's own host id against mode 0700",
        _wrong_tree,
        ran(_right_tree),
        "h",
    ),
    Row(
        "A04",
        "read a file of root's with mode 0600 that the box can see",
        "EACCES",
        "bubblewrap is never started with uid 0",
        _private,
        ran(lambda stage: stage.rooted("files", "reading", str(stage.canaries.host / "private"))),
        "h",
    ),
    program(
        "A05",
        "the same file through /proc/self/root, /proc/1/root, cwd and ..",
        "ENOENT",
        "pivot_root; no list of forbidden names is used",
        ("files", "aliases"),
        ran(lambda stage: stage.bare("files", "aliases", _secret(stage))),
        arguments=lambda stage: [_secret(stage)],
    ),
    program(
        "A06",
        "/proc/self/mountinfo: names of users in paths of the host",
        "no name",
        "opaque box ids are the directories' names",
        ("files", "words"),
        ran(
            lambda stage: stage.loose(
                "files",
                "words",
                VICTIM,
                "/proc/self/mountinfo",
                extra=("--ro-bind", str(stage.canaries.host / f"of-{VICTIM}"), "/workspace"),
            )
        ),
        arguments=lambda _stage: (f"{VICTIM},{ATTACKER}", "/proc/self/mountinfo", "/proc/1/mountinfo"),
    ),
    program(
        "A08",
        "name_to_handle_at, open_by_handle_at",
        "EPERM",
        "seccomp; second: no CAP_DAC_READ_SEARCH",
        ("files", "handles"),
        ran(lambda stage: stage.loose("files", "handles", without=("--seccomp",))),
    ),
    Row(
        "A09",
        "a set-user-id program left in the tree, started by another account of the host",
        "EACCES",
        "the tree is 0700 of the box's id",
        _setuid,
        ran(lambda stage: stage.bare("files", "setuid_file", "/usr/bin/su")),
        "h",
    ),
    program(
        "A10",
        "set-user-id bits and device nodes in every place that the box can write",
        "nosuid, nodev",
        "mount flags",
        ("files", "mount_flags"),
        ran(lambda stage: stage.bare("files", "mount_flags", "/proc/self", "/usr")),
        arguments=lambda _stage: ("/home/user", "/workspace", "/tmp", "/dev/shm", "/run"),
    ),
    Row(
        "A11",
        "supplementary groups of whoever started the server",
        "none",
        "setgroups([]) before the id is dropped",
        _groups,
        ran(lambda _stage: outside.with_a_group()),
        "h",
    ),
    program(
        "A12",
        "/proc: processes of the host and of other boxes",
        "own processes only",
        "pid namespace with its own /proc",
        ("files", "processes"),
        ran(lambda stage: stage.bare("files", "processes", str(stage.made.home))),
        arguments=lambda stage: [str(stage.made.home)],
    ),
    Row(
        "A13",
        "from the host: options of the mounts that a box's trees come from",
        "nosuid, nodev",
        "set on each tree before bubblewrap has it, and on the image",
        _mounts,
        ran(lambda _stage: outside_limits.mounts(os.getpid(), "/")),
        "h",
    ),
)
