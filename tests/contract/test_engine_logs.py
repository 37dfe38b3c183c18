"""`box logs` through the engine: whose words are told where, what is recorded of who looked, and what the audit adds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ringfence.host.drivers.box_logs import FileLogs
from ringfence.host.kernel.audit import Lane
from ringfence.host.kernel.errors import NotFound
from ringfence.host.kernel.life.logs import Said, Source
from tests.support.engine_rig import OPERATOR, RealClock, Rig, rig


async def _told(r: Rig, home: Path) -> FileLogs:
    """The rig's engine with real files behind it."""
    (home / "logs").mkdir(exist_ok=True)
    logs = FileLogs(home, RealClock())
    r.engine.logs._parts = replace(r.engine.logs._parts, logs=logs)
    return logs


async def _texts(r: Rig, user: str = "alice", lines: int = 100) -> list[str]:
    found = await r.engine.logs.read(OPERATOR, "default", user, None, lines)
    return [line.text for line in found.lines]


async def test_what_a_box_says_is_in_its_own_log_alone(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await _told(r, tmp_path)
        alice, bob = [await r.engine.boxes.show(OPERATOR, "default", name) for name in ("alice", "bob")]
        r.world.said = [Said(alice.box, "guest: one\nguest: two\n", "", 0), Said(bob.box, "of bob", "", 0)]  # type: ignore[arg-type]
        assert await _texts(r) == ["guest: one", "guest: two"]
        assert await _texts(r, "bob") == ["of bob"]


async def test_an_operators_look_is_recorded_once_for_a_while_and_the_audit_is_of_that_box_alone(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        logs = await _told(r, tmp_path)
        box = await r.engine.boxes.show(OPERATOR, "default", "alice")
        logs.tell(box.box, Source.LIFE, "started")  # type: ignore[arg-type]
        await r.store.audit.record(None, "wire.broken", f"box:{box.box}", {"why": "a frame"})
        await r.store.audit.record(None, "wire.broken", "box:another", {"why": "not this"})
        await r.engine.boxes.start(OPERATOR, "default", "alice")
        for _ in range(3):
            texts = await _texts(r)
        assert texts[:2] == ["started", "wire.broken why=a frame"]
        assert [text for text in texts if text.startswith("box.start by an operator")]
        assert not any("not this" in text or text.startswith("box.logs") for text in texts)
        rows = await r.store.audit.page({Lane.ACT}, None, None, 100)
        assert len([row for row in rows if row["action"] == "box.logs"]) == 1
        await _texts(r, "bob")
        rows = await r.store.audit.page({Lane.ACT}, None, None, 100)
        assert len([row for row in rows if row["action"] == "box.logs"]) == 2


async def test_nobody_elses_log_is_there(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        with pytest.raises(NotFound, match="no such user: 'bob'"):
            await r.engine.logs.read(r.actors["alice"], "default", "bob", None, 10)
        assert list((await r.engine.logs.read(r.actors["alice"], "default", "alice", None, 10)).lines) == []


async def test_a_look_starts_nothing_and_keeps_nothing_awake(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        box = await r.engine.boxes.start(OPERATOR, "default", "alice")
        before = r.engine._links.slot(box.box).active_at  # type: ignore[arg-type]
        await _texts(r)
        assert r.engine._links.slot(box.box).active_at == before  # type: ignore[arg-type]
        await _texts(r, "bob")
        assert (await r.engine.boxes.show(OPERATOR, "default", "bob")).observed == "stopped"
