"""A turn from its message to its end: posting it, seeing it through whatever breaks on the way, and saying what came of it.

Once the server has accepted a message, every error says so and names the turn and the run: nobody is left to guess whether
to say it again.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from ringfence.client.connection import Json
from ringfence.client.errors import ApiError, Unavailable
from ringfence.client.gates import Gates
from ringfence.client.threads import RESUME_PAUSE, STREAM, Threads, message_body

RESTS = frozenset({"run.ended", "run.parked"})  # behind which the turn may have come to rest
FINAL = frozenset({"completed", "failed", "cancelled", "parked"})
Seen = Callable[[Json], None]


@dataclass(slots=True)
class _Story:
    """What is known of the turn so far."""

    told: Seen | None
    posted: Json | None = None  # what the server accepted
    last: Json = field(default_factory=dict)  # the last durable thing of the turn
    detail: str = ""  # why its run failed, in the words for its actor

    def see(self, item: Json) -> None:
        self.posted = self.posted or item
        if "cursor" in item:
            self.last = item
        if item["kind"] == "run.detail":
            self.detail = str((item.get("body") or {}).get("message") or "")
        elif item["kind"] == "run.queued":  # tried again by hand: what failed before says nothing of this time
            self.detail = ""
        if self.told is not None:
            self.told(item)

    @property
    def why(self) -> str:
        general = str((self.last.get("body") or {}).get("message") or "")
        return ": ".join(part for part in (general, "" if self.detail in general else self.detail) if part)


class Saying(Threads, Gates):
    async def say(
        self,
        thread: str,
        text: str,
        *,
        mode: str = "queue",
        key: str | None = None,
        attachments: Sequence[str] = (),
        tenant: str | None = None,
        seen: Seen | None = None,
    ) -> Json:
        """Posts and waits for the end of the turn. `seen` is called with what `post_message` answers as {"kind":
        "accepted", ...}, then with each event of the turn and what happens live in it (see follow). The object of
        `say --json`; its status is `rejected` when the lane was busy and the mode was reject. `attachments`: files of
        the author's box.

        ApiError: with `turn`, `run` and `message` in its details when the message was accepted, and only its turn could
        not be followed to the end. Of code `connection_lost` without them: whether it was accepted is not known."""
        story = _Story(seen)
        try:
            return await self._whole(thread, message_body(text, mode, key, attachments), tenant, story)
        except ApiError as error:
            if story.posted is not None:
                raise _cut_off(error, story.posted) from error
            if error.code == "lane_busy":
                return _said({"thread": thread}, {"state": "rejected", "reason": error.code}, error.message)
            if error.code == "connection_lost":
                raise _in_doubt(error, thread, key) from error
            raise

    async def _whole(self, thread: str, body: Json, tenant: str | None, story: _Story) -> Json:
        posted = await self._posted(f"{self._thread(thread, tenant)}/messages", body, story)
        turn = await self._known(posted["turn"]) if story.last["kind"] in RESTS else posted
        if turn.get("state") not in FINAL:
            await self._ended(thread, posted["turn"], tenant, story)
            turn = await self._known(posted["turn"])
        rows = await self.gates(run=turn["run"], tenant=tenant) if turn["state"] == "parked" else []
        gates = [await self.gate(row["gate"]) for row in rows]
        return _said(posted, turn, "" if turn["state"] == "completed" else story.why, gates)

    async def _posted(self, path: str, body: Json, story: _Story) -> Json:
        """What was accepted, once the answer has ended."""
        try:
            async with self._stream("POST", path, STREAM, body) as items:
                async for item in items:
                    story.see(item)
        except Unavailable:
            if story.posted is None:
                raise
        if story.posted is None:
            raise Unavailable("connection_lost", "the server's answer ended before it began", "run: ringfence status")
        return story.posted

    async def _ended(self, thread: str, turn: str, tenant: str | None, story: _Story) -> None:
        """The turn's end, after a connection was lost: behind the last event that was seen."""
        good = asyncio.get_running_loop().time()
        async with aclosing(self._follow(thread, int(story.last["cursor"]), tenant, good)) as items:
            async for item in items:
                if item.get("turn") != turn:
                    continue
                story.see(item)
                if item["kind"] in RESTS and (await self._known(turn))["state"] in FINAL:
                    return
        raise Unavailable("unavailable", "the stream of events ended", "run: ringfence status")

    async def _known(self, turn: str) -> Json:
        """The turn as it is: a server that restarts right now is waited for like that of a stream."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.resume_seconds
        while True:
            try:
                return await self.turn(turn)
            except Unavailable:
                if loop.time() > until:
                    raise
            await asyncio.sleep(RESUME_PAUSE)


def _cut_off(error: ApiError, posted: Json) -> ApiError:
    """`error`, that came after the message was accepted."""
    look = f"ringfence run show {posted['run']}"
    mend = f"{error.remedy}; then: {look}" if isinstance(error, Unavailable) and error.remedy else f"see: {look}"
    what = f"the message was accepted, but its turn cannot be followed any more: {error.message}"
    ids = {name: posted[name] for name in ("thread", "turn", "run", "message")}
    return type(error)(error.code, what, mend, {**error.details, **ids})


def _in_doubt(error: ApiError, thread: str, key: str | None) -> ApiError:
    """`error`, that came before the server said whether it took the message."""
    what = f"{error.message}; whether the message was accepted is not known"
    look = f"see whether it is there: ringfence events {shlex.quote(thread)}"
    mend = (
        f"{look}; with a --key it could be said again safely"
        if key is None
        else "say it again with the same --key: it is said once"
    )
    return Unavailable(error.code, what, mend, {**error.details, "thread": thread})


def _said(posted: Json, turn: Json, why: str, gates: Sequence[Json] = ()) -> Json:
    return {
        "thread": posted["thread"],
        "message": posted.get("message"),
        "turn": posted.get("turn"),
        "run": turn.get("run") or posted.get("run"),
        "reply": turn.get("reply"),
        "status": turn["state"],
        "reason": turn.get("reason", ""),
        "why": why,
        "steered": posted.get("steered", False),
        "gates": list(gates),  # open ones of the turn's run
    }
