"""The build flag of the drills: a copy of the package in which one scope of ours can be broken on purpose, and its walls
taken away one by one.

What is broken is said by the file `drill` in the state of the one installation that runs the copy: `{"break": id, "walls":
[names of walls taken away], ...}`. The package that people install has no line of this and no way to read that file. Must
never be applied to anything but a throw-away copy.
"""

from __future__ import annotations

from collections.abc import Mapping

from ringfence.prove.copied import HOSTILE, Patch

FLAG_FILE = "drill"

# Read anew each time: one server plays every drill. `_HOME` is an expression that each patched file understands.
_READ = '''

def _drill(home, name, wall=""):
    """The flag's object when `name` is broken; with `wall`, only when that wall is taken away as well."""
    import json

    try:
        with open(f"{home}/drill", encoding="utf-8") as file:
            flag = json.load(file)
    except (OSError, ValueError):
        return None
    return flag if flag["break"] == name and (not wall or wall in flag["walls"]) else None


def _kernel_drill(name, wall=""):
    import os

    return _drill(os.environ.get("RINGFENCE_HOME", ""), name, wall)
'''

_MIXED = '''

_OTHERS = {}


def _mixed_up(actor):
    """D-1: bob's connection is taken for alice's, by a cache (swap) or an edit. D-7: it is nobody's."""
    from dataclasses import replace

    name = actor.user.name if actor.user is not None else ""
    if name == "alice":
        _OTHERS[name] = actor
    flag = _kernel_drill("D-1")
    if flag and name == "bob" and "alice" in _OTHERS:
        other = _OTHERS["alice"]
        return other if flag["how"] == "swap" else replace(actor, user=other.user)
    if name == "bob" and _kernel_drill("D-7"):
        return replace(actor, user=None) if _kernel_drill("D-7")["how"] == "nobody" else actor
    return actor
'''


def _changed(*changes: tuple[str, str], tail: str = "") -> Patch:
    """Each old text, which is there exactly once, by its new one; `tail` at the end."""

    def change(text: str) -> str:
        for old, new in changes:
            if text.count(old) != 1:
                raise ValueError(f"a drill does not fit: {text.count(old)} times in the file: {old!r}")
            text = text.replace(old, new)
        return text + _READ + tail

    return change


_LOGIN = _changed(
    (
        "    return await _acting(door.engine, actor, connection)",
        "    return _mixed_up(await _acting(door.engine, actor, connection))",
    ),
    tail=_MIXED,
)
_SEALS = _changed(
    (
        "        shown = self._shown.get()\n        if shown is not None and not",
        '        shown = None if _kernel_drill("D-1", "seal") or _kernel_drill("D-7", "seal") else self._shown.get()\n'
        "        if shown is not None and not",
    )
)
_HOMES = _changed(
    (
        "    named = bool(user.id and user.tenant)\n",
        '    if _kernel_drill("D-6", "owner") or _kernel_drill("D-7", "owner"):\n        return True\n'
        "    named = bool(user.id and user.tenant)\n",
    )
)
_COMMANDS = _changed(
    (
        "        box = self._homes.get(target.id)\n",
        '        if (flag := _kernel_drill("D-7")) and flag["how"] == "cache":\n'
        '            self._homes.setdefault("", await home_of(self._parts, target))\n'
        '            return await proven(self._parts, self._homes[""], target)\n'
        "        box = self._homes.get(target.id)\n",
    )
)
_BOXES = _changed(
    (
        "    row = owned_row(found, user=user)\n",
        '    if _kernel_drill("D-6"):\n'
        "        found = connection.execute(sa.select(boxes).order_by(boxes.c.created_at)).first()\n"
        "    row = owned_row(found, user=user)\n",
    )
)
_MESSAGES = _changed(
    (
        "    return [message_of(row) for row in owned(connection.execute(_BEFORE, which), thread=thread)]\n",
        '    if _kernel_drill("D-6"):\n'
        "        every = connection.execute(sa.select(messages).order_by(messages.c.cursor.desc()))\n"
        "        return [message_of(row) for row in owned(every, thread=thread)]\n"
        "    return [message_of(row) for row in owned(connection.execute(_BEFORE, which), thread=thread)]\n",
    )
)
_OWNED = _changed(
    (
        "    given = list(rows)\n",
        '    given = list(rows)\n    if _kernel_drill("D-6", "keys"):\n        return given\n',
    )
)
_BROKER = _changed(
    (
        "        if not self._record.runs.proves(run, params.token):\n",
        '        if (flag := _kernel_drill("D-3")) and run == flag["run"] and method.name == "run.finish":\n'
        '            run = flag["other"]\n'
        '            if _kernel_drill("D-3", "token"):\n'
        "                return await self._host.ask(self._record.box, RunId(run), method.name, params)\n"
        "        if not self._record.runs.proves(run, params.token):\n",
    )
)
_ENGINE_ASKS = _changed(
    (
        "        return held if held is not None and held.box == box and held.started else None\n",
        '        if _kernel_drill("D-3", "box"):\n            return held\n'
        "        return held if held is not None and held.box == box and held.started else None\n",
    )
)
_OPERATIONS = _changed(
    (
        "            tree = opened.keep(paths.open_tree(box, entry.uid))\n            pid = sweep.as_account(\n",
        '            flag = _drill(self._host.config.home, "D-2")\n'
        '            if flag and flag["box"] != entry.box:\n'
        '                with paths.box_directory(self._host.state, flag["box"]) as other:\n'
        '                    tree = opened.keep(paths._open_in(other, b"tree"))\n'
        "            else:\n"
        "                tree = opened.keep(paths.open_tree(box, entry.uid))\n"
        "            pid = sweep.as_account(\n",
    )
)
_SOURCES = _changed(
    (
        '        mounts["guest"] = opened.keep(os.dup(host.runtime))\n',
        '        flag = _drill(host.config.home, "D-4")\n'
        '        if flag and flag["box"] != entry.box:\n'
        '            with paths.box_directory(host.state, flag["box"]) as other:\n'
        '                tree = opened.keep(paths._open_in(other, b"tree"))\n'
        "            mounts = {name: opened.keep(paths._open_in(tree, name.encode())) for name in paths.TREES}\n"
        '        mounts["guest"] = opened.keep(os.dup(host.runtime))\n',
    )
)
_ELSEWHERE = '''

_OUTPOSTS = {}


def _elsewhere(outpost, worker, live):
    """D-5: what listens for a command of bob's is given to alice's worker; without `attribution` as if it were for hers."""
    _OUTPOSTS[outpost.home.box] = outpost
    flag = _kernel_drill("D-5")
    if not flag or outpost.home.box == flag["box"]:
        return worker, live.id
    other = _OUTPOSTS[flag["box"]]
    hers = next(iter(other.live))
    return other._worker, hers if _kernel_drill("D-5", "attribution") else live.id
'''
_OUTPOST = _changed(
    (
        "        worker.listen(listener, live.id)\n",
        "        whose, command = _elsewhere(self, worker, live)\n        whose.listen(listener, command)\n",
    ),
    tail=_ELSEWHERE,
)

# File of the package -> its change. Walls that can be taken away: seal (D-1, D-7), token and box (D-3), keys and owner
# (D-6), owner (D-7), attribution (D-5). Of D-2 and D-4 the wall is the kernel's: uid against mode 0700; it is taken away by chmod.
BREAKS: Mapping[str, Patch] = {
    **HOSTILE,
    "host/web/login.py": _LOGIN,
    "host/egress/outpost.py": _OUTPOST,
    "host/engine/seals.py": _SEALS,
    "host/engine/homes.py": _HOMES,
    "host/engine/commands.py": _COMMANDS,
    "host/engine/asks.py": _ENGINE_ASKS,
    "host/broker/asks.py": _BROKER,
    "host/store/boxes.py": _BOXES,
    "host/store/messages.py": _MESSAGES,
    "host/store/owned.py": _OWNED,
    "spawner/operations.py": _OPERATIONS,
    "spawner/sources.py": _SOURCES,
}
