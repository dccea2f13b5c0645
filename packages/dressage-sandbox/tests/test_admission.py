from __future__ import annotations

import asyncio

import pytest
from dressage_sandbox import BubblewrapProvider, Full, InvalidSpec, PooledProvider, SandboxSpec
from dressage_sandbox.admission import Admission
from hypothesis import given, settings
from hypothesis import strategies as st


async def test_who_waits_is_served_by_deadline_and_not_by_arrival() -> None:
    admission = Admission(1, 10)
    await admission.enter(0)
    order: list[str] = []

    async def visit(name: str, wait_s: float) -> None:
        await admission.enter(wait_s)
        order.append(name)
        admission.leave()

    visits = [asyncio.ensure_future(visit(*v)) for v in (("late", 30), ("soon", 10), ("middle", 20))]
    await asyncio.sleep(0)
    assert admission.waiting == 3
    admission.leave()
    await asyncio.gather(*visits)
    assert order == ["soon", "middle", "late"]
    assert (admission.taken, admission.waiting) == (0, 0)


async def test_a_full_queue_no_time_and_a_deadline_that_passes_are_told_apart_in_words() -> None:
    admission = Admission(1, 1)
    await admission.enter(0)
    with pytest.raises(Full, match=r"in use$"):
        await admission.enter(0)
    waiting = asyncio.ensure_future(admission.enter(0.05))
    await asyncio.sleep(0)
    with pytest.raises(Full, match="wait already"):
        await admission.enter(5)
    with pytest.raises(Full, match=r"0\.05 s"):
        await waiting
    admission.leave()
    assert admission.taken == 0


async def test_a_turn_that_comes_as_its_caller_leaves_is_the_next_ones() -> None:
    admission = Admission(1, 10)
    await admission.enter(0)
    leaving, next_one = [asyncio.ensure_future(admission.enter(60)) for _ in "ab"]
    await asyncio.sleep(0)
    admission.leave()  # the turn of the first, who is told at the loop's next round
    leaving.cancel()
    async with asyncio.timeout(30):
        await next_one
    assert leaving.cancelled()
    assert admission.taken == 1


async def test_a_place_that_is_given_back_as_the_only_waiter_leaves_is_free_for_the_next_caller() -> None:
    admission = Admission(1, 10)
    await admission.enter(0)
    leaving = asyncio.ensure_future(admission.enter(60))
    await asyncio.sleep(0)
    leaving.cancel()
    admission.leave()  # before the one that was cancelled could say so
    async with asyncio.timeout(30):
        await admission.enter(60)
    await asyncio.wait({leaving})
    assert (admission.taken, admission.waiting) == (1, 0)


async def test_callers_who_left_do_not_pile_up_while_nobody_gives_a_place_back() -> None:
    admission = Admission(1, 10)
    await admission.enter(0)
    patient = asyncio.ensure_future(admission.enter(60))
    for _ in range(200):
        leaving = asyncio.ensure_future(admission.enter(30))
        await asyncio.sleep(0)
        assert admission.waiting == 2
        leaving.cancel()
        await asyncio.wait({leaving})
    assert admission.waiting == 1
    assert len(admission._queue) < 30
    admission.leave()
    await patient
    assert (admission.taken, admission.waiting) == (1, 0)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 4),
    st.lists(
        st.tuples(st.sampled_from(["enter", "leave", "cancel", "turn"]), st.integers(0, 5)), max_size=40
    ),
)
def test_places_are_never_lost_nor_given_twice(most: int, steps: list[tuple[str, int]]) -> None:
    async def play() -> None:
        admission = Admission(most, 100)
        callers: list[asyncio.Task[None]] = []
        left: set[asyncio.Task[None]] = set()

        def holding() -> list[asyncio.Task[None]]:
            return [c for c in callers if c.done() and not c.cancelled() and c not in left]

        for step, number in steps:
            if step == "enter":
                callers.append(asyncio.ensure_future(admission.enter(60)))
            elif step == "turn":
                await asyncio.sleep(0)
            elif step == "leave" and (held := holding()):
                left.add(held[number % len(held)])
                admission.leave()
            elif step == "cancel" and callers:
                callers[number % len(callers)].cancel()
            assert len(holding()) <= most
            assert admission.taken <= most
        for _ in range(5):
            await asyncio.sleep(0)
        for _ in callers:
            for caller in holding():
                left.add(caller)
                admission.leave()
            for _ in range(3):
                await asyncio.sleep(0)
        assert all(caller.done() for caller in callers)
        assert (admission.taken, admission.waiting) == (0, 0)

    asyncio.run(play())


def test_bounds_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidSpec):
        Admission(0, 1)
    with pytest.raises(InvalidSpec):
        Admission(1, -1)


async def test_a_pool_hands_out_no_more_than_it_may_and_the_next_when_one_ends(
    provider: BubblewrapProvider,
) -> None:
    pool = PooledProvider(provider, SandboxSpec(), 1, most=2, wait_s=0)
    boxes = [await pool.create(SandboxSpec()) for _ in range(2)]
    with pytest.raises(Full):
        await pool.create(SandboxSpec())
    waiting = asyncio.ensure_future(pool.create(SandboxSpec(env={"OTHER": "1"}), wait_s=20))
    await asyncio.sleep(0)
    assert (pool.leased, pool.waiting) == (2, 1)
    await boxes[0].terminate()
    third = await waiting
    assert (await third.run("echo $OTHER")).stdout == b"1\n"
    assert pool.leased == 2
    await pool.close()
    assert pool.leased == 0


async def test_a_create_that_fails_or_is_cancelled_gives_its_place_back(provider: BubblewrapProvider) -> None:
    pool = PooledProvider(provider, SandboxSpec(), 1, most=1)
    with pytest.raises(InvalidSpec):
        await pool.create(SandboxSpec(workdir="/usr"))
    creating = asyncio.ensure_future(pool.create(SandboxSpec(env={"A": "1"})))
    while pool.leased == 0:
        await asyncio.sleep(0)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert pool.leased == 0
    await pool.create(SandboxSpec(), wait_s=0)
    await pool.close()
