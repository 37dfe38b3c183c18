"""What has expired stays expired, whatever is done to the wall clock of a running server (F26)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ringfence.host.engine.presence import check_expiry
from ringfence.host.kernel.errors import Unauthenticated
from ringfence.host.kernel.onward import Onward
from tests.support.store import HandClock


@pytest.mark.parametrize("jump", [timedelta(hours=-1), timedelta(hours=-3), timedelta(days=-20_000)])
def test_a_token_that_expired_is_not_valid_again(jump: timedelta) -> None:
    clock = HandClock()
    onward = Onward(clock)
    expires = clock.now() + timedelta(hours=1)
    check_expiry(expires, onward.now())
    clock.pass_seconds(3599)
    clock.jump(jump)
    check_expiry(expires, onward.now())  # nor does it expire early
    clock.pass_seconds(1)
    check_expiry(expires, clock.now())  # control: the wall clock alone would let it in
    with pytest.raises(Unauthenticated, match="expired"):
        check_expiry(expires, onward.now())


@pytest.mark.parametrize("back", [timedelta(hours=-1), timedelta(hours=-2), timedelta(days=-400)])
def test_what_expired_by_a_clock_put_forward_stays_expired_when_that_is_put_right(back: timedelta) -> None:
    clock = HandClock()
    onward = Onward(clock)
    expires = clock.now() + timedelta(hours=1)
    clock.jump(timedelta(hours=2))
    with pytest.raises(Unauthenticated, match="expired"):
        check_expiry(expires, onward.now())
    said = onward.now()
    clock.jump(back)
    clock.pass_seconds(10)
    if back <= timedelta(hours=-2):
        check_expiry(expires, clock.now())  # control: the wall clock alone would let it in
    with pytest.raises(Unauthenticated, match="expired"):
        check_expiry(expires, onward.now())
    assert onward.now() == said + timedelta(seconds=10)


def test_a_clock_that_was_behind_and_is_put_right_counts_at_once() -> None:
    clock = HandClock()
    onward = Onward(clock)
    clock.jump(timedelta(hours=2))
    assert onward.now() == clock.now()


def test_a_kernel_whose_clock_is_behind_hears_the_servers() -> None:
    clock, server = HandClock(), HandClock()
    expires = clock.now() + timedelta(minutes=30)
    clock.jump(timedelta(hours=-1))
    onward = Onward(clock)
    server.pass_seconds(1800)
    check_expiry(expires, onward.now())  # control: nobody has told it
    onward.hear(server.now())
    with pytest.raises(Unauthenticated):
        check_expiry(expires, onward.now())
    clock.pass_seconds(10)
    assert onward.now() == server.now() + timedelta(seconds=10)
    onward.hear(server.now() - timedelta(hours=3))
    assert onward.now() == server.now() + timedelta(seconds=10), "a server that is behind takes nothing back"
