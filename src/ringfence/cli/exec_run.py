"""`exec` at work: stdin, stdout, stderr, signals and the exit code pass through. Imports no option parser.

stdin is passed on when it is not a terminal; else the command gets /dev/null. SIGINT and SIGTERM are delivered to the
command; a third SIGINT ends this client, and with it the command.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from ringfence.cli import say_it, stdio
from ringfence.cli.calls import call
from ringfence.client.errors import Invalid

if TYPE_CHECKING:
    from ringfence.cli.exec_words import ExecWords
    from ringfence.client.client import Client
    from ringfence.client.command import Running

TIMED_OUT, LOST, NOT_STARTED, OUT_OF_MEMORY, PIPE_CLOSED = 124, 125, 127, 137, 141


def run(words: ExecWords) -> int:
    """The exit code of docs/operate.md: the command's own, or 124, 125, 127, 137; with --json 0 for every outcome."""
    options: dict[str, Any] = {
        "env": _environment(words.env),
        "cwd": words.cwd,
        "timeout": words.timeout,
        "stdin": _stdin_kind(),
        "output": "keep" if words.json else "stream",
    }

    async def work(client: Client) -> int:
        async with client.stream(words.user, words.command, **options) as running:
            return await _attend(running, options["stdin"] == "pipe", words.json)

    return call(work, tenant=words.tenant, act_as=words.act_as)


def _environment(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair or pair.startswith("="):
            raise Invalid("usage", f"--env {pair!r} is not K=V", "for example --env LANG=C")
    return dict(pair.split("=", 1) for pair in pairs)


def _stdin_kind() -> Literal["null", "pipe"]:
    found = os.fstat(0)
    nothing = stat.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(1, 3)  # /dev/null (Linux devices.txt)
    return "null" if nothing or os.isatty(0) else "pipe"


async def _attend(running: Running, feed: bool, json: bool) -> int:
    tasks = {asyncio.create_task(_forward(running, _catch_signals()))}
    if feed:
        tasks.add(asyncio.create_task(_feed(running)))
    try:
        if json:
            say_it.as_json(await running.outcome())
            return 0
        async for stream, data in running.output():
            await stdio.write(stream, data)
        return _end(await running.outcome())
    except BrokenPipeError:
        return PIPE_CLOSED  # as a shell reports SIGPIPE; leaving stops the command
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _feed(running: Running) -> None:
    with suppress(OSError):
        async for data in stdio.chunks(0):
            await running.write(data)
    await running.close_stdin()


def _catch_signals() -> asyncio.Queue[int]:
    """At once, before the first byte of output tells anybody that the command runs."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, arrived.put_nowait, int(number))
    return arrived


async def _forward(running: Running, arrived: asyncio.Queue[int]) -> None:
    interrupts = 0
    while True:
        number = await arrived.get()
        await running.signal(number)
        interrupts += number == signal.SIGINT
        if interrupts == 2:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)


def _end(outcome: dict[str, Any]) -> int:
    """The client's exit code, and the line that explains one that is not the command's own."""
    reason, message = outcome["reason"], str(outcome.get("message") or "")
    if reason == "timeout":
        return TIMED_OUT
    if reason == "oom":
        limit = say_it.size(outcome.get("memory_limit_bytes"))
        say_it.note(f"ringfence: {say_it.plain(message) or f'out of memory: the limit is {limit}'}")
        say_it.note("  raise it: ringfence box limits U --memory SIZE")
        return OUT_OF_MEMORY
    if reason == "disk_full":
        say_it.note(f"ringfence: {say_it.plain(message)}")
        say_it.note("  remove files (ringfence files rm U PATH), or raise it: ringfence box limits U --disk SIZE")
        if outcome.get("exit_code") is None and outcome.get("signal") is None:
            return LOST
    if reason == "spawn_failed":
        say_it.note(f"ringfence: the command did not start: {say_it.plain(message)}")
        say_it.note("  see what the box has: ringfence exec U -- sh -c 'pwd; ls; echo $PATH'")
        return NOT_STARTED
    if reason == "box_lost":
        say_it.note(f"ringfence: the box ended under the command: {say_it.plain(message)}")
        say_it.note("  the next command starts it again; what is in its files is kept")
        return LOST
    number = outcome.get("signal")
    return 128 + int(number) if number else int(outcome.get("exit_code") or 0)
