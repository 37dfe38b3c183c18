"""`ringfence files`: the box's files from outside. Names are bytes; `-` is stdin or stdout."""

from __future__ import annotations

import asyncio
import os
import re
import stat
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from ringfence.cli import say_it, stdio
from ringfence.cli.calls import call
from ringfence.cli.checks import MAX_PAGE
from ringfence.cli.listing import Listing
from ringfence.cli.options import As, Json, Tenant, User
from ringfence.client.client import Client
from ringfence.client.errors import Invalid

files = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Files of a box, without following links out.")
BoxPath = Annotated[str, typer.Argument(metavar="PATH", help="Relative to HOME unless below /home/user or /workspace.")]
Local = Annotated[str | None, typer.Argument(metavar="LOCAL", help="- for stdin or stdout; default: PATH's last part.")]
READ = 1 << 20


@files.command("put")
def put(
    user: User,
    path: BoxPath,
    local: Local = None,
    mode: Annotated[str | None, typer.Option(help="Octal; default: the file's, 644 for stdin.")] = None,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Put a file into the box: all of it, or nothing."""
    source = _local(path, local)
    bits = _mode(mode, source)

    async def work(client: Client) -> dict[str, Any]:
        if source == "-":
            return await client.put_file(user, path, stdio.chunks(0), mode=bits)
        with _open(source) as file:
            return await client.put_file(user, path, _read(file), mode=bits)

    answer = call(work, tenant=tenant, act_as=act_as)
    say_it.as_json(answer) if json else say_it.note(f"{say_it.plain(path)}: {answer['size']} bytes")


@files.command("get")
def get(
    user: User,
    path: BoxPath,
    local: Local = None,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Get a file out of the box."""
    target = _local(path, local)

    async def work(client: Client) -> None:
        async with client.open_file(user, path) as chunks:
            if target == "-":
                async for data in chunks:
                    await stdio.write(1, data)
            else:
                await _save(chunks, Path(target))

    call(work, tenant=tenant, act_as=act_as)
    if json and target != "-":
        say_it.as_json({"saved": target})


@files.command("ls")
def ls(
    user: User,
    path: Annotated[str, typer.Argument(metavar="PATH")] = ".",
    after: Annotated[str | None, typer.Option(metavar="CURSOR", help="`next` of an earlier listing.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many entries; default: all.")] = None,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """List a folder, sorted by name, page by page as it comes."""
    listing = Listing(json)
    call(lambda client: _list(client, user, path, after, limit, listing), tenant=tenant, act_as=act_as)


async def _list(client: Client, user: str, path: str, after: str | None, limit: int | None, listing: Listing) -> None:
    """Holds one page at a time: a folder may have more names than there is memory."""
    left = limit
    while True:
        page = await client.list_page(user, path, after=after, limit=None if left is None else min(left, MAX_PAGE))
        listing.add(page["entries"])
        after, left = page["next"], None if left is None else left - len(page["entries"])
        if after is None or left == 0:
            listing.end(after)
            return


@files.command("stat")
def stat_file(user: User, path: BoxPath, act_as: As = None, tenant: Tenant = "default", json: Json = False) -> None:
    """Show what a path is. Links are not followed."""
    answer = call(lambda client: client.stat_file(user, path), tenant=tenant, act_as=act_as)
    say_it.as_json(answer) if json else say_it.facts(answer)


@files.command("rm")
def rm(
    user: User,
    path: BoxPath,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="A folder with all that is in it.")] = False,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Remove a file or folder."""
    call(lambda client: client.remove_file(user, path, recursive=recursive), tenant=tenant, act_as=act_as)
    if json:
        say_it.as_json({"removed": path})


def _local(path: str, local: str | None) -> str:
    name = local or os.path.basename(path.rstrip("/"))
    if name in ("", ".", ".."):
        raise typer.BadParameter("name the local file: it cannot be told from PATH")
    return name


def _mode(given: str | None, source: str) -> int:
    if given is not None:
        if not re.fullmatch("0*[0-7]{1,3}", given):
            raise Invalid("usage", f"--mode {given!r} is no octal number up to 777", "for example --mode 644")
        return int(given, 8)
    if source == "-":
        return 0o644
    with suppress(OSError):
        return stat.S_IMODE(os.stat(source).st_mode) & 0o777
    return 0o644


def _open(source: str) -> BinaryIO:
    try:
        return open(source, "rb")
    except OSError as error:
        raise Invalid("invalid", f"cannot read {source}: {error.strerror}", "name a file of this machine") from None


async def _read(file: BinaryIO) -> AsyncIterator[bytes]:
    while data := await asyncio.to_thread(file.read, READ):
        yield data


async def _save(chunks: AsyncIterator[bytes], local: Path) -> None:
    """A regular file, or none yet: under a temporary name beside it, then renamed, so that a broken download leaves no
    half file. What a link names is replaced, not the link. A device, pipe or other special file is written to and never
    replaced: a rename over /dev/null would take it from the whole machine."""
    try:
        target = _regular(local)
        if target is None:
            await _pour(chunks, local)
            return
        fd, part = tempfile.mkstemp(prefix=".ringfence-", dir=target.parent)
    except OSError as error:
        raise Invalid("invalid", f"cannot write {local}: {error.strerror}", "name another LOCAL") from None
    try:
        with os.fdopen(fd, "wb") as file:
            async for data in chunks:
                file.write(data)
        _keep(part, target)
    except BaseException:
        os.unlink(part)
        raise


def _regular(local: Path) -> Path | None:
    """The regular file that is there or is to be; None for a special one. Invalid: a folder. OSError."""
    try:
        kind = os.stat(local).st_mode
    except FileNotFoundError:
        return Path(os.path.realpath(local))
    if stat.S_ISDIR(kind):
        raise Invalid("invalid", f"cannot write {local}: it is a folder", "name the LOCAL file")
    return Path(os.path.realpath(local)) if stat.S_ISREG(kind) else None


async def _pour(chunks: AsyncIterator[bytes], special: Path) -> None:
    fd = await asyncio.to_thread(os.open, special, os.O_WRONLY)  # a pipe's open waits for its reader
    try:
        async for data in chunks:
            await stdio.write(fd, data)
    finally:
        os.close(fd)


def _keep(part: str, target: Path) -> None:
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(part, 0o666 & ~mask)
    os.replace(part, target)
