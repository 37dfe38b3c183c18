"""Which CA a box is started with: its user's present one, and none that cannot be had keeps it from starting."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ringfence.host.kernel.errors import Failed, RingfenceError, Unavailable
from ringfence.host.kernel.outward.ports import Authority
from ringfence.host.kernel.outward.secret import Secret
from tests.support.outpost_rig import BOX, TENANT, USER, Stage, staged


class Ca:
    """ports.Authorities; and of Outlets what the box is told to trust."""

    def __init__(self, stage: Stage) -> None:
        self.error: RingfenceError | None = None
        self.number, self.trusted = 1, list[str]()
        for part, names in ((stage.rows, ("authority", "forget")), (stage.outlets, ("trust",))):
            for name in names:
                setattr(part, name, getattr(self, name))

    async def authority(self, *_: object) -> Authority:
        if self.error is not None:
            raise self.error
        return Authority(f"certificate {self.number}", Secret(b"key"), datetime.max.replace(tzinfo=UTC))

    async def forget(self, *_: object) -> None:
        self.error, self.number = None, self.number + 1

    async def trust(self, _: object, certificate: str) -> None:
        self.trusted.append(certificate)


async def test_a_box_is_started_with_the_present_one() -> None:
    """Also when the one before would have been right for a year: it was given up since."""
    async with staged() as stage:
        ca = Ca(stage)
        for _ in range(2):
            await stage.way_out.prepare(BOX, TENANT, USER)
        assert ca.trusted == ["certificate 1"], "what the box has is not given again"
        await stage.way_out.forget_authority(TENANT, USER)
        await stage.way_out.prepare(BOX, TENANT, USER)
        assert ca.trusted == ["certificate 1", "certificate 2"]


@pytest.mark.parametrize("error", [Unavailable("sealed"), Failed("altered")])
async def test_one_that_cannot_be_had_keeps_no_box_from_starting(error: RingfenceError) -> None:
    """What was altered is told to the audit. Control: once it was given up there is another."""
    async with staged() as stage:
        ca = Ca(stage)
        ca.error = error
        await stage.way_out.prepare(BOX, TENANT, USER)
        told = [action for action, _ in stage.rows.audited]
        assert ca.trusted == [] and told == (["egress.no_ca"] if isinstance(error, Failed) else [])
        await stage.way_out.forget_authority(TENANT, USER)
        await stage.way_out.prepare(BOX, TENANT, USER)
        assert ca.trusted == ["certificate 2"]
