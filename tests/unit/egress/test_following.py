"""A look at what other kernels change that ends by whatever error: what cannot be known is not gone on by. No store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ringfence.host.egress import following
from ringfence.host.egress.chores import Chores
from ringfence.host.egress.following import UNHEARD, Following
from ringfence.host.kernel.errors import Unavailable

ERRORS = pytest.mark.parametrize(
    "error",
    [Unavailable("the database does not answer"), KeyError("roll"), ValueError("a row"), OSError("no descriptor")],
    ids=lambda error: type(error).__name__,
)


class Stage:
    """`news`: what the next looks find; an error is raised. The last one stays."""

    def __init__(self) -> None:
        self.now, self.looks, self.chores = 0.0, 0, Chores()
        self.found: list[str] | Exception = []
        self.failing: Exception | None = None  # of what is done about it
        self.cuts: list[str] = []
        self.revoked: list[str] = []
        rolls: Any = SimpleNamespace(news=self._news, noticed=list)
        self.following = Following(
            rolls,
            SimpleNamespace(),
            self.chores,
            lambda: self.now,
            shared=True,
            people=lambda _: (),
            reload=self._reload,
            revoke=self._revoke,
            cut=self.cuts.append,
        )

    async def _news(self, after: int | None) -> tuple[int, list[str]]:
        self.looks += 1
        if isinstance(self.found, Exception):
            raise self.found
        return self.looks, self.found

    async def _reload(self, users: object) -> None: ...

    async def _revoke(self, credential: str) -> None:
        if self.failing is not None:
            raise self.failing
        self.revoked.append(credential)


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not met():
            await asyncio.sleep(0.001)


@ERRORS
async def test_who_does_not_hear_goes_on_with_nothing_and_hears_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: for as long as a look may fail without harm, nothing is ended."""
    monkeypatch.setattr(following, "EVERY", 0.001)
    s = Stage()
    await s.following.begin()
    s.found = error
    await until(lambda: s.looks >= 5)
    assert not s.cuts
    s.now = UNHEARD + 1
    await until(lambda: bool(s.cuts))
    s.found = ["credential:crd_1"]
    await until(lambda: "crd_1" in s.revoked)
    await s.chores.close()


@ERRORS
async def test_what_is_heard_and_cannot_be_done_is_tried_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ours ends the workers at once: nobody knows how far it came."""
    monkeypatch.setattr(following, "EVERY", 0.001)
    s = Stage()
    await s.following.begin()
    s.failing, s.found = error, ["credential:crd_1"]
    looks = s.looks
    await until(lambda: s.looks >= looks + 5)
    s.found = []
    assert bool(s.cuts) == (not isinstance(error, Unavailable))
    s.failing = None
    await until(lambda: "crd_1" in s.revoked)
    await s.chores.close()
