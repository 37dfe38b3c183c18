"""What the `image` verbs say: facts of images.py as text or JSON, with the exit code. Prints nothing itself."""

from __future__ import annotations

import errno
import json
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from ringfence.host.install.commands import Answer, failure
from ringfence.host.install.images import Images, Wish
from ringfence.host.kernel.errors import DiskFull, RingfenceError, Unavailable
from ringfence.host.kernel.sizes import size_text

Facts = dict[str, Any]


def build(environment: Mapping[str, str], wish: Wish, *, as_json: bool) -> Answer:
    """JSON: `{"id", "names", "bytes", "entries", "made_at", "source", "running", "wanted", "new", "left_out"}`."""

    def lines(facts: Facts) -> list[str]:
        out = [f"left out  {number} {kind}" for kind, number in sorted(facts["left_out"].items())]
        was = "" if facts["new"] else ": the very same tree as an image that was there"
        return [
            f"image     {facts['id']}{was}",
            f"names     {', '.join(facts['names'])}",
            f"size      {facts['bytes'] >> 20} MiB, {facts['entries']} entries",
            *out,
            f"          give it to a box: ringfence box upgrade USER --image {wish.name}",
        ]

    return _answered(lambda: Images(environment).build(wish), lines, as_json=as_json)


def ls(environment: Mapping[str, str], *, as_json: bool) -> Answer:
    """JSON: `{"images": [{"id", "names", "bytes", "entries", "made_at", "source", "running", "wanted"}]}`; the last two are ids of
    boxes."""

    def lines(facts: Facts) -> list[str]:
        rows = [("ID", "NAMES", "SIZE", "MADE", "OF", "RUNNING", "WANTED")]
        for each in facts["images"]:
            size = size_text(each["bytes"]) if each["bytes"] else "-"
            counts = (str(len(each["running"])), str(len(each["wanted"])))
            rows.append(
                (
                    each["id"],
                    ",".join(each["names"]) or "-",
                    size,
                    each["made_at"] or "-",
                    each["source"] or "-",
                    *counts,
                )
            )
        widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
        return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]

    return _answered(lambda: {"images": [each.as_json() for each in Images(environment).all()]}, lines, as_json=as_json)


def rm(environment: Mapping[str, str], wanted: str, *, as_json: bool) -> Answer:
    """JSON: `{"id", "names", "removed"}`: of what was removed; `removed` false: the names alone."""

    def lines(facts: Facts) -> list[str]:
        names = ", ".join(facts["names"])
        if facts["removed"]:
            return [f"removed {facts['id']}" + (f" ({names})" if names else "")]
        return [f"removed the name {names} of {facts['id']}"]

    return _answered(lambda: Images(environment).remove(wanted), lines, as_json=as_json)


def _answered(work: Callable[[], Facts], lines: Callable[[Facts], list[str]], *, as_json: bool) -> Answer:
    try:
        facts = work()
    except RingfenceError as error:
        return failure(error, as_json=as_json)
    except OSError as error:
        return failure(_of_os(error), as_json=as_json)
    except subprocess.CalledProcessError as error:
        return failure(Unavailable(f"{error.cmd[0]} does not run", remedy="ringfence doctor"), as_json=as_json)
    return Answer(0, json.dumps(facts) + "\n" if as_json else "\n".join([*lines(facts), ""]))


def _of_os(error: OSError) -> RingfenceError:

    kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else Unavailable
    return kind(f"{error.filename or 'the images'}: {error.strerror}", remedy="df -h; df -i; ringfence doctor")
