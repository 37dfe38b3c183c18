"""A command as one request and one answer. The streamed form is in exec_stream.py."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from ringfence.host.kernel.errors import Invalid, Unauthenticated, Unavailable
from ringfence.host.kernel.ports import Command, Outcome
from ringfence.host.web import shapes, shaping
from ringfence.host.web.login import CurrentActor, CurrentEngine, KnownFirst
from ringfence.host.web.names import Name
from ringfence.host.web.ports import ExecRequest, Presence
from ringfence.host.web.race import race

router = APIRouter(prefix="/v1/tenants/{tenant}/users/{user}", route_class=KnownFirst, tags=["commands"])
GRACE_SECONDS = 2.0  # between TERM and KILL for a command whose client has left


def argv_of(new: shapes.NewCommand | shapes.StreamCommand) -> list[bytes]:
    if (new.argv is None) == (new.argv_b64 is None):
        raise Invalid("give exactly one of argv and argv_b64", remedy="argv_b64 is for arguments that are not UTF-8")
    if new.argv_b64 is not None:
        return [shaping.unb64(each, "argv_b64") for each in new.argv_b64]
    return [_utf8(each) for each in new.argv or []]


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Invalid("a lone surrogate is no text", remedy="send the bytes in base64") from None


def env_of(env: dict[str, str], env_b64: dict[str, str]) -> dict[str, bytes]:
    plain = {name: _utf8(value) for name, value in env.items()}
    return plain | {name: shaping.unb64(value, "env_b64") for name, value in env_b64.items()}


def _stdin(new: shapes.NewCommand) -> bytes | None:
    if new.stdin is not None and new.stdin_b64 is not None:
        raise Invalid("give one of stdin and stdin_b64, not both")
    if new.stdin_b64 is not None:
        return shaping.unb64(new.stdin_b64, "stdin_b64")
    return None if new.stdin is None else _utf8(new.stdin)


@router.post("/exec", response_model=shapes.OutcomeShape, response_model_exclude_unset=True)
async def exec_command(
    request: Request, engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, new: shapes.NewCommand
) -> dict[str, Any]:
    stdin = _stdin(new)
    wanted = ExecRequest(
        argv=argv_of(new),
        env=env_of(new.env, {}),
        cwd=new.cwd,
        timeout=new.timeout,
        stdin="null" if stdin is None else "pipe",
        output="keep",
    )
    presence = engine.people.presence(actor)
    try:
        command = await engine.commands.run(actor, tenant, user, wanted)
        outcome = await _attended(request, command, stdin, presence)
        await command.release()
        if outcome is None:
            presence.check()
            raise Unauthenticated("you may not speak any more: the command was stopped")
        return shaping.outcome(outcome)
    finally:
        presence.close()


async def _attended(request: Request, command: Command, stdin: bytes | None, presence: Presence) -> Outcome | None:
    """The outcome; a client that leaves before stops the command. None: so did one that may not speak any more. Unavailable: this
    server stops, and the command goes on."""

    async def fed() -> Outcome:
        if stdin is None:
            return await command.outcome()
        async with asyncio.TaskGroup() as group:
            feeding = group.create_task(_feed(command, stdin))
            outcome = await command.outcome()
            feeding.cancel()
        return outcome

    stopping: asyncio.Event = request.app.state.stopping
    ended, _, over, stops = await race(fed(), _disconnected(request), presence.over(), stopping.wait())
    if not ended.cancelled() and over.cancelled():
        outcome: Outcome = ended.result()
        return outcome
    if not stops.cancelled() and over.cancelled():
        raise Unavailable(
            "the server stops; the command goes on in the box, and nobody will have its outcome",
            remedy="ringfence exec USER -- ps, once the server is back",
        )
    await command.stop(GRACE_SECONDS)
    outcome = await command.outcome()
    return outcome if over.cancelled() else None


async def _feed(command: Command, stdin: bytes) -> None:
    await command.write(stdin)
    await command.close_stdin()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
