import asyncio
import base64
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator

import httpx
import numpy as np
import pytest
from dressage_proxy.controller import Controller
from dressage_proxy.engine.client import EngineClient
from dressage_proxy.engine.pool import EnginePool, PoolOptions
from dressage_proxy.engine.prompt import Prompt
from dressage_proxy.engine.scripted import (
    Fault,
    Output,
    ScriptedEngine,
    letters,
    logprob,
    replies,
    serve_scripted,
)
from dressage_proxy.engine.scripted.__main__ import main
from dressage_proxy.engine.wire import Call
from dressage_proxy.errors import EngineError, EngineRefusalError
from dressage_proxy.generation import Generator
from dressage_proxy.sampled import Reply
from dressage_proxy.sampling import Effective
from dressage_segments import LossCause
from hypothesis import given
from hypothesis import strategies as st

STOP = 300
PARAMS = {"max_new_tokens": 64, "stop_token_ids": [STOP]}
PROMPT = [5, 6, 7]


@contextlib.asynccontextmanager
async def client_of(engine: ScriptedEngine) -> AsyncIterator[httpx.AsyncClient]:
    """Straight into the application: no socket."""
    transport = httpx.ASGITransport(app=engine)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        yield client


def body(rid: str = "a" * 32, **more: object) -> dict[str, object]:
    return {"rid": rid, "input_ids": PROMPT, "sampling_params": PARAMS, "return_logprob": True, **more}


async def generate(engine: ScriptedEngine, **more: object) -> dict:
    async with client_of(engine) as client:
        response = await client.post("/generate", json=body(**more))
        assert response.status_code == 200, response.text
        return response.json()


async def test_a_reply_carries_ids_logprobs_counts_and_version() -> None:
    reply = await generate(ScriptedEngine(letters(4), weight_version="7"))
    ids, meta = reply["output_ids"], reply["meta_info"]
    assert len(ids) == 5
    assert ids[-1] == STOP
    assert meta["finish_reason"] == {"type": "stop", "matched": STOP}
    assert [entry[1] for entry in meta["output_token_logprobs"]] == ids
    assert [entry[0] for entry in meta["output_token_logprobs"]] == [
        logprob(token, 3 + place) for place, token in enumerate(ids)
    ]
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["weight_version"]) == (3, 5, "7")
    assert meta["id"] == "a" * 32


async def test_the_same_calls_in_the_same_order_give_the_same_replies() -> None:
    first, second = ScriptedEngine(), ScriptedEngine()
    for _ in range(3):
        assert await generate(first) == await generate(second)
    assert len({tuple(call.output_ids) for call in first.requests}) == 3


async def test_a_reply_is_cut_at_max_new_tokens_and_says_length() -> None:
    reply = await generate(ScriptedEngine(letters(8)), sampling_params={**PARAMS, "max_new_tokens": 3})
    assert len(reply["output_ids"]) == 3
    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 3}


@given(
    ids=st.lists(st.integers(0, 20), max_size=30),
    stops=st.lists(st.integers(0, 20), max_size=3),
    limit=st.integers(1, 40),
)
def test_every_reply_ends_where_an_engine_would_end_it(ids: list[int], stops: list[int], limit: int) -> None:
    params = {"max_new_tokens": limit, "stop_token_ids": stops}
    reply = asyncio.run(generate(ScriptedEngine(lambda *_: ids), sampling_params=params))
    out, finish = reply["output_ids"], reply["meta_info"]["finish_reason"]
    assert out == ids[: len(out)]
    assert len(out) <= limit
    assert not set(out[:-1]) & set(stops)
    assert (finish["type"] == "stop") == bool(out and out[-1] in stops)


async def test_a_policy_may_say_logprobs_and_the_stop_string_that_matched() -> None:
    output = Output([1, 2], logprobs=[-0.5, -0.25], matched="END")
    reply = await generate(ScriptedEngine(lambda *_: output))
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": "END"}
    assert reply["meta_info"]["output_token_logprobs"] == [[-0.5, 1, None], [-0.25, 2, None]]


async def test_replies_come_in_order_and_the_last_one_again() -> None:
    engine = ScriptedEngine(replies([[1, 2], [3, STOP]]))
    for _ in range(3):
        await generate(engine)
    assert [call.output_ids for call in engine.requests] == [[1, 2, STOP], [3, STOP], [3, STOP]]
    assert [call.number for call in engine.requests] == [0, 1, 2]
    assert engine.requests[0].input_ids == PROMPT


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sampling_params": {"max_tokens": 4}}, "max_tokens"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": "text"}, "input_ids"),
        ({"stream": True}, "stream"),
    ],
)
async def test_a_request_that_sglang_would_not_take_is_refused_by_name(
    change: dict[str, object], named: str
) -> None:
    engine = ScriptedEngine()
    async with client_of(engine) as client:
        response = await client.post("/generate", json=body(**change))
    assert response.status_code == 400
    assert named in response.json()["error"]["message"]
    assert engine.requests == []


async def test_bodies_that_are_no_json_object_and_unknown_routes_are_refused() -> None:
    async with client_of(ScriptedEngine()) as client:
        assert (await client.post("/generate", content=b"{")).status_code == 400
        assert (await client.post("/generate", content=b"[]")).status_code == 400
        assert (await client.get("/get_weight_version")).status_code == 404


async def test_an_abort_in_the_middle_returns_what_was_sampled() -> None:
    engine = ScriptedEngine(letters(8))
    engine.hold_after = 3
    async with serve_scripted(engine) as url, httpx.AsyncClient(base_url=url) as client:
        call = asyncio.create_task(client.post("/generate", json=body()))
        await engine.until_running(1)
        aborted = await client.post("/abort_request", json={"rid": "a" * 32})
        reply = (await call).json()
    assert (aborted.status_code, aborted.content) == (200, b"")
    assert len(reply["output_ids"]) == len(reply["meta_info"]["output_token_logprobs"]) == 3
    assert reply["meta_info"]["finish_reason"]["type"] == "abort"
    assert reply["meta_info"]["prompt_tokens"] == 3
    assert engine.requests[0].finish == "abort"


async def test_a_delay_costs_time_by_the_token_so_that_an_abort_finds_some() -> None:
    engine = ScriptedEngine(letters(1000), delay_s=0.002)
    async with serve_scripted(engine) as url, httpx.AsyncClient(base_url=url) as client:
        call = asyncio.create_task(
            client.post("/generate", json=body(sampling_params={"max_new_tokens": 1000}))
        )
        await engine.until_running(1)
        await asyncio.sleep(0.02)
        await client.post("/abort_request", json={"abort_all": True})
        reply = (await call).json()
    assert 10 <= len(reply["output_ids"]) < 1000


async def test_aborts_match_by_prefix_and_leave_others_running() -> None:
    engine = ScriptedEngine()
    engine.hold_after = 1
    async with serve_scripted(engine) as url, httpx.AsyncClient(base_url=url) as client:
        calls = [asyncio.create_task(client.post("/generate", json=body(rid))) for rid in ("ab1", "ab2", "b")]
        await engine.until_running(3)
        await client.post("/abort_request", json={"rid": "ab"})
        await engine.until_running(1)
        await engine.release()
        finishes = [(await call).json()["meta_info"]["finish_reason"]["type"] for call in calls]
    assert finishes == ["abort", "abort", "stop"]


async def test_a_client_that_leaves_aborts_its_call() -> None:
    engine = ScriptedEngine()
    engine.hold_after = 2
    async with serve_scripted(engine) as url:
        async with httpx.AsyncClient(base_url=url) as client:
            call = asyncio.create_task(client.post("/generate", json=body()))
            await engine.until_running(1)
            call.cancel()
            await asyncio.wait({call})
        await engine.until_running(0)
    assert [call.finish for call in engine.requests] == ["abort"]


async def test_a_pause_aborts_what_runs_and_holds_what_comes_until_it_is_continued() -> None:
    engine = ScriptedEngine(letters(4))
    engine.hold_after = 2
    async with serve_scripted(engine) as url, httpx.AsyncClient(base_url=url) as client:
        running = asyncio.create_task(client.post("/generate", json=body("r" * 32)))
        await engine.until_running(1)
        await client.post("/pause_generation", json={})
        assert len((await running).json()["output_ids"]) == 2
        await engine.release()
        queued = asyncio.create_task(client.post("/generate", json=body("q" * 32)))
        await engine.until_running(1)
        assert engine.paused
        await client.post("/continue_generation", json={})
        reply = (await queued).json()
    assert reply["meta_info"]["finish_reason"]["type"] == "stop"


async def test_an_abort_of_a_queued_call_has_no_counts_of_its_prompt() -> None:
    engine = ScriptedEngine()
    async with serve_scripted(engine) as url, httpx.AsyncClient(base_url=url) as client:
        await client.post("/pause_generation", json={})
        call = asyncio.create_task(client.post("/generate", json=body()))
        await engine.until_running(1)
        await client.post("/abort_request", json={"abort_all": True})
        reply = (await call).json()
    assert reply["output_ids"] == []
    assert reply["meta_info"].keys() & {"prompt_tokens", "cached_tokens", "routed_experts"} == set()


async def test_a_pause_in_place_ends_no_call_before_it_is_continued() -> None:
    engine = ScriptedEngine(letters(4))
    engine.hold_after = 2
    async with serve_scripted(engine) as url, httpx.AsyncClient(base_url=url) as client:
        call = asyncio.create_task(client.post("/generate", json=body()))
        await engine.until_running(1)
        await client.post("/pause_generation", json={"mode": "in_place"})
        await engine.release()
        assert not call.done()
        assert engine.running == 1
        await client.post("/continue_generation", json={})
        assert (await call).json()["meta_info"]["finish_reason"]["type"] == "stop"
        assert (await client.post("/pause_generation", json={"mode": "later"})).status_code == 400


async def test_a_version_update_aborts_by_default_and_labels_old_tokens_with_the_old_version() -> None:
    engine = ScriptedEngine(letters(4), weight_version="1")
    engine.hold_after = 2
    async with serve_scripted(engine) as url, httpx.AsyncClient(base_url=url) as client:
        call = asyncio.create_task(client.post("/generate", json=body()))
        await engine.until_running(1)
        reply = await client.post("/update_weight_version", json={"new_version": 2})
        assert reply.json()["new_version"] == "2"
        meta = (await call).json()["meta_info"]
        assert (meta["finish_reason"]["type"], meta["weight_version"]) == ("abort", "1")
        assert (await client.get("/model_info")).json()["weight_version"] == "2"
        assert (await client.post("/update_weight_version", json={})).status_code == 400


async def test_an_update_in_the_middle_shows_as_spans_over_the_output() -> None:
    engine = ScriptedEngine(letters(4), weight_version="1", spans=True)
    engine.hold_after = 2
    async with serve_scripted(engine) as url, httpx.AsyncClient(base_url=url) as client:
        call = asyncio.create_task(client.post("/generate", json=body()))
        await engine.until_running(1)
        await client.post("/update_weights_from_disk", json={"model_path": "x", "weight_version": "2"})
        await engine.release()
        meta = (await call).json()["meta_info"]
    assert meta["weight_versions"] == [
        {"version": "1", "start": 0, "end": 2},
        {"version": "2", "start": 2, "end": 5},
    ]


async def test_health_and_info_routes_answer() -> None:
    engine = ScriptedEngine()
    async with client_of(engine) as client:
        for path in ("/health", "/health_generate", "/flush_cache"):
            assert (await client.get(path)).status_code == 200
        assert (await client.get("/server_info")).json()["incremental_streaming_output"] is False
        engine.healthy = False
        assert (await client.get("/health")).status_code == 503


async def test_routed_experts_cover_the_prompt_and_all_but_the_last_token() -> None:
    engine = ScriptedEngine(letters(3), experts=(2, 4, 16))
    reply = await generate(engine, return_routed_experts=True, routed_experts_start_len=1)
    rows = np.frombuffer(base64.b64decode(reply["meta_info"]["routed_experts"]), np.int32)
    assert rows.reshape(-1, 2, 4).shape == (3 + 4 - 1 - 1, 2, 4)
    assert rows.min() >= 0
    assert rows.max() < 16
    assert "routed_experts" not in (await generate(engine))["meta_info"]


UNTRAINABLE = {
    Fault.SHORT_LOGPROBS: LossCause.MISALIGNED,
    Fault.LONG_LOGPROBS: LossCause.MISALIGNED,
    Fault.OTHER_IDS: LossCause.MISALIGNED,
    Fault.WRONG_COUNT: LossCause.MISALIGNED,
    Fault.NO_LOGPROBS: LossCause.MISSING_LOGPROBS,
    Fault.NULL_LOGPROB: LossCause.MISSING_LOGPROBS,
}
ABSORBED = (Fault.DROP, Fault.BUSY, Fault.SERVER_ERROR, Fault.UNAVAILABLE, Fault.FAILED_ABORT, Fault.SLOW)
REFUSED = [(Fault.BAD_REQUEST, EngineRefusalError), (Fault.NO_JSON, EngineError)]


async def asked(engine: ScriptedEngine, dispatch_version: int = 9):
    async with serve_scripted(engine) as url, EngineClient(timeout_s=10) as client:
        call = Call("a" * 32, Prompt.of(np.array(PROMPT, np.int32)), PARAMS, dispatch_version)
        return await client.result(url, call, await client.begin(url, call))


async def sampled(engine: ScriptedEngine) -> Reply:
    """A reply of two tries at most."""
    async with serve_scripted(engine) as url, EnginePool(PoolOptions((url,))) as client:
        generator = Generator(client, Controller(client), (STOP,), str, 2)
        ids = np.array(PROMPT, np.int32)
        reply = Reply()
        await generator.sample("s", Prompt.of(ids), Effective({}, {}, 64), reply)
        return reply


@pytest.mark.parametrize("fault", UNTRAINABLE)
async def test_a_reply_whose_evidence_disagrees_is_untrainable_with_its_cause(fault: Fault) -> None:
    engine = ScriptedEngine()
    engine.inject(fault)
    result = await asked(engine)
    assert result.untrainable == UNTRAINABLE[fault]
    assert result.output_ids.tolist() == engine.requests[0].output_ids


@pytest.mark.parametrize("fault", ABSORBED)
async def test_a_fault_that_may_pass_is_tried_again(fault: Fault) -> None:
    engine = ScriptedEngine(slow_s=0.01)
    engine.inject(fault)
    reply = await sampled(engine)
    (call,) = reply.calls
    assert call.untrainable == ""
    assert len(engine.requests) == (1 if fault is Fault.SLOW else 2)
    assert reply.ids.tolist() == engine.requests[-1].output_ids
    assert call.call_id == engine.requests[-1].rid


@pytest.mark.parametrize("fault", ABSORBED[:-1])
async def test_a_fault_that_stays_is_an_engine_error_with_the_number_of_tries(fault: Fault) -> None:
    engine = ScriptedEngine()
    engine.inject(fault, fault)
    with pytest.raises(EngineError, match="2 tries"):
        await sampled(engine)


@pytest.mark.parametrize(("fault", "error"), REFUSED)
async def test_a_refusal_or_a_stranger_is_told_at_once(fault: Fault, error: type[Exception]) -> None:
    engine = ScriptedEngine()
    engine.inject(fault)
    with pytest.raises(error):
        await sampled(engine)
    assert len(engine.requests) == 1


@pytest.mark.parametrize(
    ("fault", "version"), [(Fault.NO_VERSION, 9), (Fault.DEFAULT_VERSION, -1), (None, 0)]
)
async def test_versions_come_from_the_reply_else_from_the_dispatch(fault: Fault | None, version: int) -> None:
    engine = ScriptedEngine()
    if fault:
        engine.inject(fault)
    result = await asked(engine)
    assert result.versions.tolist() == [version] * len(result.output_ids)


async def test_a_queued_abort_is_an_abort_without_tokens_and_without_a_cause_of_loss() -> None:
    engine = ScriptedEngine()
    engine.inject(Fault.QUEUED_ABORT)
    result = await asked(engine)
    assert (len(result.output_ids), result.finish_reason, result.untrainable) == (0, "abort", "")


def test_every_fault_is_covered_here() -> None:
    versions = {Fault.NO_VERSION, Fault.DEFAULT_VERSION, Fault.QUEUED_ABORT}
    experts = {Fault.NO_EXPERTS, Fault.SHORT_EXPERTS, Fault.WILD_EXPERT}  # in test_routed_experts
    assert set(Fault) == {*UNTRAINABLE, *ABSORBED, *dict(REFUSED), *versions, *experts}


async def test_a_taken_port_is_said() -> None:
    async with serve_scripted(ScriptedEngine()) as url:
        with pytest.raises(OSError, match="in use"):
            async with serve_scripted(ScriptedEngine(), port=int(url.rsplit(":", 1)[1])):
                pass


def test_the_program_says_where_it_listens_and_stops_on_sigterm() -> None:
    command = [
        sys.executable,
        "-m",
        "dressage_proxy.engine.scripted",
        "--tokens",
        "2",
        "--weight-version",
        "5",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        reply = httpx.post(f"{ready['url']}/generate", json=body(), trust_env=False).json()
        process.terminate()
        assert process.wait(10) == 0
    assert ready["event"] == "ready"
    assert len(reply["output_ids"]) == 3
    assert reply["meta_info"]["weight_version"] == "5"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--routed-experts", "3,4"], "LAYERS,TOPK,EXPERTS"),
        (["--reply-text-file", "nowhere"], "needs --tokenizer"),
        (["--reply-text-file", "nowhere", "--tokenizer", "nowhere"], "--reply-text-file"),
        (["--port", "70000"], "--port 70000"),
    ],
)
def test_the_program_names_the_flag_at_fault(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert named in capsys.readouterr().err
