"""Engines in plenty: discovered from a router, checked, passed over, and tried one after the other."""

import asyncio
import socket
from contextlib import AsyncExitStack

import numpy as np
import pytest
from dressage_proxy import ConfigError, ProxyConfig
from dressage_proxy.engine.choose import Choice, Step, Ticket
from dressage_proxy.engine.pool import EnginePool, PoolOptions
from dressage_proxy.engine.prompt import Prompt
from dressage_proxy.engine.router import workers
from dressage_proxy.engine.scripted import Fault, ScriptedEngine, letters, serve_scripted
from dressage_proxy.engine.scripted_router import ScriptedRouter, serve_scripted_router
from dressage_proxy.errors import EngineError, PassingEngineError, RouterError
from pydantic import ValidationError

IDS = np.zeros(4, np.int32)


def place(pool, session="s", avoid=()):
    return pool.place(Step(session, 4, 4), IDS, avoid)


@pytest.fixture
async def plenty(make_rig):
    """A proxy over three engines that sample letters of their own; the engines by URL."""
    async with AsyncExitStack() as stack:
        engines = {}
        for number in range(3):
            engine = ScriptedEngine(letters(4, low=64 + number, high=64 + number))
            engines[await stack.enter_async_context(serve_scripted(engine))] = engine

        async def make(**options):
            return await make_rig(
                engines=tuple(engines), engine=next(iter(engines.values())), **options
            ), engines

        yield make


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_router_names_the_engines_and_calls_go_to_them_directly(make_rig):
    engine = ScriptedEngine()
    router = ScriptedRouter()
    async with serve_scripted(engine) as url, serve_scripted_router(router) as router_url:
        router.add(url)
        rig = await make_rig(engine=engine, engines=(), router=router_url, router_refresh_s=0.02)
        session = await rig.open()
        await rig.chat(session, "hi")
        assert len(engine.requests) == 1
        assert rig.proxy.engines.urls == (url,)


async def test_workers_that_come_and_go_are_seen(make_rig):
    router = ScriptedRouter("http://one", "http://two")
    async with serve_scripted_router(router) as url, EnginePool(PoolOptions((), url, refresh_s=0.02)) as pool:
        assert set(pool.urls) == {"http://one", "http://two"}
        del router.workers[next(iter(router.workers))]
        router.add("http://three")
        router.add("http://sick", is_healthy=False)
        router.add("http://half", worker_type="prefill")
        await until(lambda: set(pool.urls) == {"http://two", "http://three"})


async def test_of_a_worker_that_left_nothing_is_kept_and_the_log_says_so(make_rig, caplog):
    engine = ScriptedEngine()
    router = ScriptedRouter()
    async with (
        serve_scripted(engine) as url,
        serve_scripted(ScriptedEngine()) as other,
        serve_scripted_router(router) as router_url,
    ):
        worker = router.add(url)
        rig = await make_rig(engine=engine, engines=(), router=router_url, router_refresh_s=0.02)
        pool = rig.proxy.engines
        session = await rig.open()
        await rig.chat(session, "hi")
        pool._failed[url] = 3
        del router.workers[worker]
        router.add(other)
        await until(lambda: pool.urls == (other,))
        assert url not in pool._client._data._idle
        assert url not in pool._failed, "what it was before says nothing of what comes back"
        assert f"{url} is no healthy worker" in caplog.text
        router.add(url)
        await until(lambda: set(pool.urls) == {url, other})
        await rig.chat(session, "again")


async def test_what_is_under_way_at_a_worker_that_left_ends_and_leaves_nothing_behind(make_rig):
    engine, router = ScriptedEngine(), ScriptedRouter()
    async with (
        serve_scripted(engine) as url,
        serve_scripted(ScriptedEngine()) as other,
        serve_scripted_router(router) as router_url,
    ):
        worker = router.add(url)
        rig = await make_rig(engine=engine, engines=(), router=router_url, router_refresh_s=0.02)
        pool, session = rig.proxy.engines, await rig.open()
        engine.hold_after = 2
        asked = asyncio.create_task(rig.chat(session, "hi"))
        await engine.until_running(1)
        del router.workers[worker]
        router.add(other)
        await until(lambda: pool.urls == (other,))
        await engine.release()
        assert (await asked).choices
        assert url not in pool._client._data._idle
        pool._note({url: False, other: True})  # it was asked just before
        pool.failed(Ticket(url, Step("s", 1, 1), 0, 0.0, 0.0), PassingEngineError("gone", unreachable=True))
        assert url not in {**pool._failed, **pool._away}


async def test_a_router_that_names_no_worker_for_a_while_takes_no_engine_away(make_rig, caplog):
    """It has just started again, or all of its workers are busy with new weights: calls wait in a pause then,
    and are not refused."""
    engine = ScriptedEngine()
    router = ScriptedRouter()
    async with serve_scripted(engine) as url, serve_scripted_router(router) as router_url:
        router.add(url)
        rig = await make_rig(engine=engine, engines=(), router=router_url, router_refresh_s=0.02)
        session = await rig.open()
        assert (await rig.http.post("/rollout/pause", json={"timeout_s": 1})).json()["quiesced"]
        router.workers.clear()
        seen = router.asked
        await until(lambda: router.asked > seen + 3)
        asked = asyncio.create_task(rig.chat(session, "hi"))
        await until(lambda: rig.proxy.controller.waiting == 1)
        await rig.http.post("/rollout/resume", json={"version": 1})
        assert (await asked).choices
        assert caplog.text.count("the engines known before stay") == 1
        async with serve_scripted(ScriptedEngine()) as other:
            router.add(other)
            await until(lambda: rig.proxy.engines.urls == (other,))


async def test_engines_stay_while_the_router_is_away():
    router = ScriptedRouter("http://one")
    async with serve_scripted_router(router) as url, EnginePool(PoolOptions((), url, refresh_s=0.01)) as pool:
        router.failing = True
        await asyncio.sleep(0.05)
        assert pool.urls == ("http://one",)


async def test_a_router_that_is_not_there_is_said_at_the_start():
    pool = EnginePool(PoolOptions(router="http://127.0.0.1:9"))
    with pytest.raises(RouterError, match=r"127\.0\.0\.1:9/workers"):
        await pool.start()
    await pool.close()


async def test_no_worker_yet_is_an_error_that_says_when_to_ask_again(make_rig):
    async with serve_scripted_router(ScriptedRouter()) as url:
        rig = await make_rig(engines=(), engine=ScriptedEngine(), router=url)
        session = await rig.open()
        reply = await rig.post(session, {"messages": [{"role": "user", "content": "hi"}]})
        assert reply.status_code == 503
        assert reply.headers["retry-after"] == "10"
        assert (await rig.http.get("/ready")).status_code == 503


async def test_an_engine_that_says_nothing_does_not_hold_up_who_asks_for_readiness(make_rig, monkeypatch):
    monkeypatch.setattr("dressage_proxy.control._PROBE_S", 2.0)
    live = ScriptedEngine()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with serve_scripted(live) as url:
            mute = f"http://127.0.0.1:{silent.getsockname()[1]}"
            rig = await make_rig(engine=live, engines=(url, mute))
            async with asyncio.timeout(30):
                ready = await rig.http.get("/ready")
    assert (ready.status_code, ready.json()["engines"]) == (200, {url: True, mute: False})


@pytest.mark.parametrize("body", [b"no json", b"[]", b"{}", b'{"workers": {}}', b'{"workers": [1]}'])
def test_what_is_no_worker_list_is_refused(body):
    with pytest.raises(RouterError):
        workers(body)


def test_a_worker_that_is_not_reached_over_http_is_refused_by_name():
    with pytest.raises(RouterError, match="grpc://one"):
        workers(b'{"workers": [{"url": "grpc://one"}]}')


@pytest.mark.parametrize("url", ["http://[::1", "http://e:port", "http://", "http://e:1/a b"])
async def test_a_worker_that_cannot_be_called_is_no_end_of_looking_for_others(url):
    """What is wrong with it is in the log at each look; once it is gone the others are taken."""
    router = ScriptedRouter("http://one:1")
    async with serve_scripted_router(router) as address:
        pool = EnginePool(PoolOptions(router=address, refresh_s=0.01))
        async with pool:
            wrong = router.add(url)
            seen = router.asked
            async with asyncio.timeout(10):
                while router.asked < seen + 3:
                    await asyncio.sleep(0.01)
            assert pool.urls == ("http://one:1",)
            del router.workers[wrong]
            router.add("http://two:1")
            async with asyncio.timeout(10):
                while "http://two:1" not in pool.urls:
                    await asyncio.sleep(0.01)


def test_a_workers_password_is_told_by_no_error():
    with pytest.raises(RouterError, match="user name") as refused:
        workers(b'{"workers": [{"url": "http://user:hunter2@e:1"}]}')
    assert "hunter2" not in str(refused.value)
    with pytest.raises(RouterError) as refused:
        workers(b'{"workers": [{"url": "http://user:hunter2@e:port"}]}')
    assert "hunter2" not in str(refused.value)


async def test_a_try_that_failed_goes_to_another_engine_without_a_back_off(plenty, monkeypatch):
    backed_off = []
    monkeypatch.setattr("dressage_proxy.generation._backoff", lambda attempt: backed_off.append(attempt) or 0)
    rig, engines = await plenty(engine_attempts=3)
    for fault in (Fault.BUSY, Fault.SERVER_ERROR, Fault.UNAVAILABLE, Fault.DROP):
        session = await rig.open()
        engines[place(rig.proxy.engines, session).url].inject(fault)
        await rig.chat(session, "hi")
        trajectory = await rig.end(session)
        assert trajectory.trained_tokens == trajectory.sampled_tokens
    assert not backed_off


async def test_each_engine_is_tried_before_one_is_tried_again(plenty):
    rig, engines = await plenty(engine_attempts=3)
    for engine in engines.values():
        engine.inject(Fault.SERVER_ERROR)
    session = await rig.open()
    reply = await rig.post(session, {"messages": [{"role": "user", "content": "hi"}]})
    assert reply.status_code == 503
    assert reply.headers["retry-after"] == "5"
    assert [len(engine.requests) for engine in engines.values()] == [1, 1, 1]


async def test_a_call_with_accepted_tokens_is_never_made_again_elsewhere(plenty):
    """An abort that kept tokens goes on from them: what was sampled is in the prompt of the next call."""
    rig, engines = await plenty(engine_choice=Choice.LEAST_LOADED)
    for engine in engines.values():
        engine.hold_after = 2
    session = await rig.open()
    turn = asyncio.create_task(rig.chat(session, "hi"))
    await until(lambda: sum(engine.running for engine in engines.values()) == 1)
    await rig.http.post("/rollout/pause", json={"timeout_s": 5})
    for engine in engines.values():
        await engine.release()
    await rig.http.post("/rollout/resume", json={"version": 1})
    await turn
    calls = sorted(
        (call for engine in engines.values() for call in engine.requests), key=lambda c: len(c.input_ids)
    )
    assert len(calls) == 2
    assert calls[1].input_ids == [*calls[0].input_ids, *calls[0].output_ids]


async def test_an_engine_that_fails_its_health_checks_is_passed_over_until_it_answers(plenty):
    rig, engines = await plenty(engine_health_s=0.02)
    pool = rig.proxy.engines
    sick = place(pool).url
    engines[sick].healthy = False
    await until(lambda: place(pool).url != sick)
    assert all(place(pool, f"s{n}").url != sick for n in range(20))
    engines[sick].healthy = True
    await until(lambda: place(pool).url == sick)


async def test_where_none_answers_any_is_tried():
    async with EnginePool(PoolOptions(("http://127.0.0.1:9", "http://127.0.0.1:10"), health_s=0.01)) as pool:
        await asyncio.sleep(0.1)
        assert place(pool).url in pool.urls


async def test_prefix_aware_sends_the_next_turn_to_the_engine_that_has_the_first(plenty):
    rig, _ = await plenty(engine_choice=Choice.PREFIX_AWARE)
    for number in range(6):
        session = await rig.open()
        text = f"{number} " * 400
        first = await rig.chat(session, text)
        await rig.chat(session, text, first.choices[0].message.model_dump(exclude_none=True), "go on")
        made = {call.engine for turn in rig.tree(session).turns for call in turn.calls}
        assert len(made) == 1


async def test_load_is_nothing_after_failures_and_clients_that_left(plenty):
    rig, engines = await plenty(engine_attempts=2, engine_choice=Choice.LEAST_LOADED)
    session = await rig.open()
    for engine in engines.values():
        engine.inject(Fault.DROP, Fault.BAD_REQUEST)
    for _ in range(4):
        await rig.post(session, {"messages": [{"role": "user", "content": "hi"}]})
    for engine in engines.values():
        engine.hold_after = 1
    left = asyncio.create_task(rig.post(session, {"messages": [{"role": "user", "content": "leave"}]}))
    await until(lambda: sum(engine.running for engine in engines.values()) == 1)
    left.cancel()
    await until(lambda: set(rig.proxy.engines.loads.values()) == {0})


def test_neither_engines_nor_router_is_refused(tmp_path):
    with pytest.raises(ValidationError, match="at least one engine, or a router"):
        ProxyConfig(tokenizer=tmp_path, store=tmp_path, control_key="k" * 16)


async def test_an_engine_without_a_place_is_an_error():
    async with EnginePool(PoolOptions()) as pool:
        with pytest.raises(EngineError, match="no engine is known"):
            place(pool)


def test_a_closed_port_is_unreachable_and_costs_no_abort():
    """The other kinds of passing failures may have left a call behind; this one cannot."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]

        async def call():
            async with EnginePool(PoolOptions((f"http://127.0.0.1:{port}",))) as pool:
                from dressage_proxy.engine.wire import Call

                await pool.begin(pool.urls[0], Call("r", Prompt.of(IDS), {}))

        with pytest.raises(EngineError) as caught:
            asyncio.run(call())
    assert caught.value.unreachable
    assert not caught.value.lost


def test_config_errors_are_one_kind():
    assert issubclass(ConfigError, ValueError)


async def test_an_engine_that_hangs_is_asked_once_to_abort_a_call_that_is_given_up(make_rig, monkeypatch):
    """Hundreds of calls may be given up at once: each new try would be one connection more."""
    monkeypatch.setattr("dressage_proxy.generation._DRAIN_S", 0.4)
    monkeypatch.setattr("dressage_proxy.generation._REPEAT_ABORT_S", 0.02)
    asked, hung = [], asyncio.Event()

    class Hanging(ScriptedEngine):
        async def __call__(self, scope, receive, send):
            if scope["path"] == "/abort_request":
                asked.append(scope["path"])
                await hung.wait()
            await super().__call__(scope, receive, send)

    rig = await make_rig(engine=Hanging())
    rig.engine.hold_after = 2
    asking = asyncio.create_task(
        rig.post(await rig.open(), {"messages": [{"role": "user", "content": "hi"}]})
    )
    await rig.engine.until_running(1)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await until(lambda: not rig.proxy.pipeline.attempts.total)
    assert asked == ["/abort_request"]
    hung.set()
    await until(lambda: not rig.proxy.engines._aborting)
