"""What watchers get: only of their own runs, in order, a bounded number of it, and nothing is kept of who has left."""

from __future__ import annotations

import asyncio

from ringfence.host.engine.viewers import MAX_ITEMS, Viewers
from ringfence.host.kernel.ids import ThreadId, UserId

THREAD, OTHER = ThreadId("thr_a"), ThreadId("thr_b")
ALICE, BOB = UserId("usr_a"), UserId("usr_b")


async def unchanged(thread: ThreadId, after: int, seconds: float) -> bool:
    raise AssertionError("nobody asks here")


async def test_an_item_reaches_its_actors_watches_of_that_thread_only() -> None:
    viewers = Viewers(unchanged)
    mine, again = viewers.watch(THREAD, ALICE), viewers.watch(THREAD, ALICE)
    bobs, elsewhere = viewers.watch(THREAD, BOB), viewers.watch(OTHER, ALICE)
    viewers.publish(THREAD, ALICE, {"text": "a"})
    viewers.publish(THREAD, ALICE, {"text": "b"})
    for watch in (mine, again):
        await asyncio.wait_for(watch.wait(), 30)
        assert watch.take() == [{"text": "a"}, {"text": "b"}]
        assert watch.take() == []
    assert (bobs.take(), elsewhere.take()) == ([], [])


async def test_a_reader_waits_and_is_woken() -> None:
    viewers = Viewers(unchanged)
    watch = viewers.watch(THREAD, ALICE)
    waiting = asyncio.ensure_future(watch.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    viewers.publish(THREAD, ALICE, {"n": 1})
    await asyncio.wait_for(waiting, 30)
    watch.take()
    waiting = asyncio.ensure_future(watch.wait())  # what was taken is no news
    await asyncio.sleep(0.01)
    assert not waiting.done()
    waiting.cancel()


async def test_a_slow_reader_loses_the_oldest() -> None:
    viewers = Viewers(unchanged)
    watch = viewers.watch(THREAD, ALICE)
    for n in range(MAX_ITEMS + 10):
        viewers.publish(THREAD, ALICE, {"n": n})
    found = watch.take()
    assert len(found) == MAX_ITEMS
    assert (found[0], found[-1]) == ({"n": 10}, {"n": MAX_ITEMS + 9})


async def test_nothing_is_left_of_closed_watches() -> None:
    viewers = Viewers(unchanged)
    for _ in range(3):
        first, second = viewers.watch(THREAD, ALICE), viewers.watch(THREAD, ALICE)
        assert len(viewers) == 2
        first.close()
        first.close()
        assert len(viewers) == 1
        viewers.publish(THREAD, ALICE, {"n": 1})
        assert (first.take(), second.take()) == ([], [{"n": 1}])
        second.close()
    viewers.publish(THREAD, ALICE, {"n": 2})
    assert vars(viewers) == {"_changed": unchanged, "_watches": {}}


async def test_who_is_dropped_gets_nothing_more_and_others_do() -> None:
    viewers = Viewers(unchanged)
    gone, stays = viewers.watch(THREAD, ALICE), viewers.watch(THREAD, BOB)
    viewers.publish(THREAD, ALICE, {"n": 1})
    viewers.drop(THREAD, ALICE)
    for actor in (ALICE, BOB):
        viewers.publish(THREAD, actor, {"n": 2})
    assert (gone.take(), stays.take(), len(viewers)) == ([], [{"n": 2}], 1)
    waiting = asyncio.ensure_future(gone.wait())
    await asyncio.sleep(0.01)
    assert not waiting.done()  # else its reader would go round and round
    waiting.cancel()
    gone.close()


async def test_a_silent_watch() -> None:
    watch = Viewers(unchanged).silent(THREAD)
    assert watch.take() == []
    watch.close()


def test_a_removed_user_watches_nothing_anywhere() -> None:
    viewers = Viewers(unchanged)
    gone = [viewers.watch(THREAD, ALICE), viewers.watch(OTHER, ALICE)]
    bobs = viewers.watch(THREAD, BOB)
    viewers.forget(ALICE)
    assert len(viewers) == 1
    for thread in (THREAD, OTHER):
        viewers.publish(thread, ALICE, {"text": "a"})
    viewers.publish(THREAD, BOB, {"text": "b"})
    assert [watch.take() for watch in gone] == [[], []]
    assert bobs.take() == [{"text": "b"}]
