"""`ringfence user export` and `user rm --dry-run`: what is a user's, in a file; what a removal would take."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from ringfence.cli import say_it
from ringfence.cli.calls import call
from ringfence.client.client import Client
from ringfence.client.errors import Failed, Invalid


def export(name: str, output: str, tenant: str, act_as: str | None, *, json: bool) -> None:
    """`user export`."""
    target = Path(output)
    if os.path.lexists(target):
        raise Invalid("invalid", f"{output} exists: an export overwrites nothing", "name another file")

    async def work(client: Client) -> dict[str, Any]:
        async with client.export_user(name) as chunks:
            return await kept(chunks, target)

    answer = call(work, tenant=tenant, act_as=act_as)
    if json:
        say_it.as_json({"user": name, "tenant": tenant, **answer})
    else:
        say_it.line(f"{say_it.plain(output)}: {answer['size_bytes']} bytes, sha256 {answer['sha256']}")


async def kept(chunks: AsyncIterator[bytes], target: Path) -> dict[str, Any]:
    """An answer that broke off leaves nothing."""
    digest, size = hashlib.sha256(), 0
    with new_file(target) as file:
        async for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
            file.write(chunk)
    return {"file": str(target), "size_bytes": size, "sha256": digest.hexdigest()}


@contextmanager
def new_file(target: Path) -> Iterator[BinaryIO]:
    """0600, on disk, and under its name only when all of it was written. Invalid, Failed."""
    part = target.parent / f".{target.name}.{secrets.token_hex(4)}.part"
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        what = f"cannot write {target}: {error.strerror}"
        raise Invalid("invalid", what, "name a file in a folder of yours") from None
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.link(part, target)  # fails where the name has been taken meanwhile, which a rename would not
    except FileExistsError:
        raise Invalid("invalid", f"{target} exists: nothing is overwritten", "name another file") from None
    except OSError as error:
        what = f"{target} cannot be written: {error.strerror}"
        raise Failed("disk_full", what, "take another place for it") from None
    finally:
        with suppress(OSError):
            part.unlink()


def rehearse(name: str, tenant: str, *, purge: bool, json: bool) -> None:
    """`user rm --dry-run`."""
    found = call(lambda client: client.removal(name), tenant=tenant)
    if json:
        say_it.as_json({"dry_run": True, "purge": purge, **found})
        return
    box = found["box"] or {"box": "-", "observed": "absent", "disk_bytes": 0}
    stays = "deleted for good" if purge else "kept on the disk until user rm --purge"
    say_it.line("would go")
    say_it.facts(
        {
            "box": f"{box['box']} ({box['observed']}), {say_it.size(box['disk_bytes'])}: its files are {stays}",
            "runs": found["runs"],
            "tokens": found["tokens"],
            "credentials": found["credentials"],
            "lent credentials": found["grants"],
            "bindings": found["bindings"],
            "egress rules": found["rules"],
            "threads nobody reads then": found["threads_alone"],
        }
    )
    say_it.line("would stay")
    say_it.facts(
        {
            "shared threads": found["threads_shared"],
            "messages": f"{found['messages']}, under the name of then",
            "audit": "all of it",
            "usage": "all of it",
        }
    )
    say_it.note("nothing was changed")
