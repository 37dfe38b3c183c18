"""A copy of the package for one throw-away installation, in which the agent loop does what an attacker would, and the
boxes of some users are jails.

guest/native.py differs, which is of the untrusted side: a hostile loop is any code in that process. host/engine/bringup.py
and outward.py differ in the kind that a box is. Everything that holds them (spawner, profile, filter, broker, driver) is
byte for byte the package that runs. Must never be installed anywhere else.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from ringfence.prove.programs import LOADER

SOURCE = Path(__file__).parents[1]  # the package that runs
MARK = "hostile-loop "  # a message that begins so is a payload, and the reply is what it said
_HOSTILE = f"""

_LOADER = {LOADER!r}
_honest = carry_out


def carry_out(start, host):  # what prove sends instead of a message is run in this very process
    said = start["messages"][-1] if start["messages"] else {{"text": ""}}
    if not said["text"].startswith({MARK!r}):
        return _honest(start, host)
    import json

    space = {{}}
    exec(_LOADER, space)
    try:
        text = json.dumps(space["load"](json.loads(said["text"][{len(MARK)}:]), loop=host, start=start))
    except BaseException as error:
        text = json.dumps({{"failed": f"{{type(error).__name__}}: {{error}}"}})
    host.ask("run.finish", text=text, seen=said["cursor"])
"""

JAIL, OTHER_JAIL = "jail", "other-jail"  # users whose box the driver makes as a skill's jail
_ASKED = "box.id, box.kind, box.limits"
_KIND = f"""

async def _kind(parts: Parts, box: Box) -> Any:  # no user has jails of her own yet: in prove some are one
    from ringfence.host.kernel.boxes import BoxKind

    name = (await parts.store.users.by_id(box.user)).name
    return BoxKind.SKILL if name in {(JAIL, OTHER_JAIL)!r} else box.kind
"""

_OUTWARD = {
    "        self._egress = parts.egress\n": "        self._egress, self._parts = parts.egress, parts\n",
    "and box.kind is BoxKind.HOME": "and await _kind(self._parts, box) is BoxKind.HOME",
    "if box.kind is not BoxKind.HOME": "if await _kind(self._parts, box) is not BoxKind.HOME",
}

Patch = Callable[[str], str]


def _outward(text: str) -> str:
    """A jail has no way out."""
    for before, after in _OUTWARD.items():
        if text.count(before) != 1:
            raise ValueError(f"a jail does not fit: {text.count(before)} times in the file: {before!r}")
        text = text.replace(before, after)
    return text + _KIND


HOSTILE: Mapping[str, Patch] = {
    "guest/native.py": lambda text: text + _HOSTILE,
    "host/engine/bringup.py": lambda text: (
        text.replace(_ASKED, "box.id, await _kind(self._parts, box), box.limits") + _KIND if _ASKED in text else text
    ),
    "host/engine/outward.py": _outward,
}


def copy(site: Path, patches: Mapping[str, Patch] = HOSTILE) -> None:
    """The package below `site`, with each named file changed by its function. ValueError: a change changes nothing."""
    package = site / "ringfence"
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, change in patches.items():
        before = (package / name).read_text()
        after = change(before)
        if after == before:
            raise ValueError(f"the patch of {name} changes nothing")
        (package / name).write_text(after)
