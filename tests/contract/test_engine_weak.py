"""What a host cannot enforce, and what was accepted by name, stands in `status`, on the box's page and in the prompt."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from ringfence.host.kernel.posture import weaknesses
from ringfence.host.kernel.settings import ACCEPT
from ringfence.spawner import cgroup_host, config
from ringfence.spawner import weaknesses as spawner_weaknesses
from ringfence.spawner.all_boxes import Hierarchy
from ringfence.spawner.cgroups import Cgroups
from ringfence.spawner.errors import StartRefused, of_cgroup_error
from tests.support.engine_rig import OPERATOR, Rig, rig
from tests.support.fakes import parked
from tests.unit.spawner.test_config import GOOD

ROW = "C06"  # of prove, accepted though it is open
OF_CONFIG = ("unproved", ROW)  # known from the last prove, not from the driver


async def told(r: Rig, thread: str) -> tuple[list[str], list[str], str]:
    """(of status, of the box's page, the paragraph of the prompt)."""
    status = await r.engine.health.status(OPERATOR)
    page = await r.engine.boxes.show(OPERATOR, "default", "alice")
    said = await r.say("alice", "go", thread)
    loop = await r.loop(said)
    await r.engine.runs.cancel(r.actors["alice"], said.run.id)
    await r.ended(said.run.id)
    return status["weak"], page.weak, str(loop.start["posture"])


async def test_each_is_in_all_three_places(tmp_path: Path) -> None:
    async with rig(tmp_path, ("alice",), parked, open=OF_CONFIG) as r:
        facts = r.engine._parts.facts
        of_driver = [one for one in ACCEPT if one not in OF_CONFIG]
        facts["weak"] = of_driver
        status, page, prompt = await told(r, "weak")
        assert status == page == [*of_driver, *OF_CONFIG]
        for clause in weaknesses([*ACCEPT, ROW]):
            assert clause in prompt


async def test_where_nothing_is_missing_nothing_is_said(tmp_path: Path) -> None:
    """The control."""
    async with rig(tmp_path, ("alice",), parked) as r:
        status, page, prompt = await told(r, "strong")
        assert status == [] and [one for one in page if one != "no-disk-quota"] == []  # the rig's driver only counts
        assert "does not enforce" not in prompt


async def test_a_limit_of_all_boxes_that_is_not_in_force_stands_in_status(tmp_path: Path) -> None:
    """Boxes outlive servers, and a lower limit than they use holds once they have ended."""
    whole = {"memory": 1 << 30, "pids": 700}
    unmet = {"memory": {"wanted": 1 << 30, "now": 2 << 30}}
    async with rig(tmp_path, ("alice",)) as r:

        async def facts() -> dict[str, object]:
            return {"cgroups": "v1", "limits_all": dict(whole), "limits_unmet": dict(unmet)}

        r.driver.facts = facts  # type: ignore[method-assign]
        status = await r.engine.health.status(OPERATOR)
        limits = status["parts"]["limits"]
        assert (status["ok"], limits["ok"], limits["not_in_force"]) == (False, False, unmet)
        assert limits["memory"] == 1 << 30 and "box stop" in limits["remedy"]
        unmet.clear()
        status = await r.engine.health.status(OPERATOR)
        assert (status["ok"], status["parts"]["limits"]) == (True, {"ok": True, **whole})
        assert "limits_all" not in status["parts"]["spawner"]


def test_a_cgroup_that_cannot_be_set_up_is_named_with_its_cause() -> None:
    tree = Hierarchy(1, frozenset({"memory", "pids"}), "/proc/no-such-folder/ringfence")
    found = cgroup_host._prepared(Cgroups("v1", (tree,)), None, config.parse(json.dumps(GOOD)))
    assert found.kind == "none" and "No such file" in found.why and "/proc/no-such-folder" in found.why
    with pytest.raises(StartRefused, match="No such file") as raised:
        spawner_weaknesses.refuse_unaccepted(("no-cgroup",), frozenset(), found.why)
    assert "limits_all" in raised.value.remedy and "--accept no-cgroup" in raised.value.remedy
    with pytest.raises(StartRefused, match="gives the server no cgroup"):  # the control
        spawner_weaknesses.refuse_unaccepted(("no-cgroup",), frozenset())
    spawner_weaknesses.refuse_unaccepted(("no-cgroup",), frozenset({"no-cgroup"}), found.why)


def test_without_memory_for_a_cgroup_the_limit_to_raise_is_named() -> None:
    error = of_cgroup_error(OSError(errno.ENOMEM, "Cannot allocate memory"))
    assert error.code == "unavailable" and "limits_all.memory" in error.remedy


def test_what_the_spawner_refuses_can_be_accepted_by_the_same_name() -> None:
    assert set(spawner_weaknesses._MUST_ACCEPT) <= set(ACCEPT)
    everything = spawner_weaknesses.find("shared", "none", rules=False, lacks=("no-cpu-limit", "no-swap-limit"))
    assert set(everything) <= set(ACCEPT)
