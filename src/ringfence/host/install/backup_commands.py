"""What `ringfence backup` says and does where no server does it: create without one, verify, restore. Prints nothing itself."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ringfence.host.install import jobs, owned, prepare, whole_restore
from ringfence.host.install.commands import Answer, failure
from ringfence.host.install.layout import Layout, home_of
from ringfence.host.install.whole_restore import Wish
from ringfence.host.kernel.errors import RingfenceError

Result = TypeVar("Result")
Facts = dict[str, Any]
WITH_KEY = "the key of the vault is in it: whoever has this file has every secret. Keep it as you keep the key"
WITHOUT_KEY = "the key of the vault is not in it: keep vault/master.key elsewhere, without it no secret opens again"
_PIECE = 1 << 20


def name_of(installation: str) -> str:
    """Of a file that nobody named."""
    return f"ringfence-{installation}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar"


def installation_of(environment: Mapping[str, str]) -> str:
    """Unavailable: there is none."""
    return jobs.found(Layout(home_of(environment, os.geteuid()))).id


def stream(environment: Mapping[str, str], options: Mapping[str, Any], write: Callable[[bytes], None]) -> None:
    """The bytes of a backup, made without a server. RingfenceError. Whether they are whole their end says."""
    layout = Layout(home_of(environment, os.geteuid()))
    ready = jobs.ready_of(layout)
    text = None
    if layout.settings.exists():
        text = owned.read_text(layout.settings, prepare.MAX_SETTINGS_BYTES)
    with jobs.running(ready, "backup", {**options, "settings_text": text}) as at:
        got = 0
        while data := at.stream.recv(_PIECE):
            got += len(data)
            if got == len(data) and data.startswith(b"{"):  # an answer in the place of the first byte of a tar
                raise jobs.told(data, at)
            write(data)
        if not got:
            raise jobs.told(b"", at)


def caught(work: Callable[[], Result]) -> tuple[Result | None, Facts]:
    """(what came of it, nothing), or (None, `{"error": {"code", "message", "remedy", "details"}, "status": HTTP status}`)."""
    try:
        return work(), {}
    except RingfenceError as error:
        return None, {"error": error.as_json(), "status": error.http_status}


def made(facts: Facts, *, as_json: bool) -> Answer:
    if as_json:
        return Answer(0, json.dumps(facts) + "\n")
    return Answer(0, "\n".join([*_lines(facts), f"            {WITH_KEY if facts['with_key'] else WITHOUT_KEY}", ""]))


def _lines(facts: Facts) -> list[str]:
    left = [f"note: box {box} was removed while the backup was made: its tree is not in it" for box in facts["gone"]]
    left += [f"note: the file of {copy} is not there" for copy in facts["lacks"]]
    left += _images(facts)
    return [
        f"file        {facts['file']} ({facts['size_bytes']} bytes, of {facts['content_bytes']})",
        f"of          {facts['installation']} at {facts['created_at']}, release {facts['release']}",
        f"in it       {facts['boxes']} boxes, {facts['rows']} rows ({facts['dialect']}, schema {facts['schema']})",
        *left,
    ]


def verify(file: str, *, as_json: bool) -> Answer:
    """JSON: as `create`, and `settings`."""

    def work() -> Answer:
        facts = whole_restore.verify(Path(file))
        if as_json:
            return Answer(0, json.dumps(facts) + "\n")
        named = (
            f"its settings name what root would run or read: {', '.join(facts['settings'])}"
            if facts["settings"]
            else ""
        )
        key = "the key of the vault is in it" if facts["with_key"] else "the key of the vault is not in it"
        return Answer(0, "\n".join(["whole", *_lines(facts), f"            {key}", *([named] if named else []), ""]))

    return _answered(work, as_json=as_json)


def restore(environment: Mapping[str, str], wish: Wish, *, as_json: bool) -> Answer:
    def work() -> Answer:
        facts = whole_restore.restore(environment, wish)
        return Answer(0, json.dumps(facts) + "\n" if as_json else "\n".join([*_restored(facts), ""]))

    return _answered(work, as_json=as_json)


def _restored(facts: Facts) -> list[str]:
    moved = [f"moved       what was there is {facts['moved']}"] if facts["moved"] else []
    sealed = f"sealed      the key of the vault was not in it: put it in place as {facts['home']}/vault/master.key"
    return [
        f"restored    {facts['home']}: {facts['boxes']} boxes, {facts['rows']} rows, generation {facts['generation']}",
        *moved,
        f"runs        {facts['runs_to_redrive']} were at work and are decided anew when the server starts",
        *([f"note: {facts['boxes_empty']} boxes begin with an empty tree"] if facts["boxes_empty"] else []),
        *([f"note: {facts['snapshots_gone']} copies of trees are gone"] if facts["snapshots_gone"] else []),
        *(f"note: {note}" for note in facts["notes"]),
        *_images(facts["backup"]),
        *([] if facts["with_key"] else [sealed, "            (mode 0600, of the server's account) before it starts"]),
        "            tokens, members and users are those of then: revoke again what was revoked since;",
        "            never let the host it was made on work on: ringfence uninstall --purge there",
        f"next        RINGFENCE_HOME={facts['home']} ringfence serve",
    ]


def _images(facts: Facts) -> list[str]:
    """They are in no backup: a box that is bound to one starts on a host that has it."""
    return [
        f"note: boxes start with {image}: build it there, or ringfence box upgrade USER --image host"
        for image in facts["images"]
    ]


def _answered(work: Callable[[], Answer], *, as_json: bool) -> Answer:
    try:
        return work()
    except RingfenceError as error:
        return failure(error, as_json=as_json)
