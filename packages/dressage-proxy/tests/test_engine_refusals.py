"""What an engine's error status means for the agent: its own mistake, ours, or a moment's trouble."""

import asyncio
import json
import socket

import pytest
from dressage_proxy.engine.complaints import Complaints
from dressage_proxy.engine.refusals import refusal, words
from dressage_proxy.engine.scripted import ScriptedEngine, serve_scripted
from dressage_proxy.engine.scripted_http import read_body, send_reply
from dressage_proxy.errors import EngineOverflowError, EngineRefusalError, StrangeEngineError
from hypothesis import given
from hypothesis import strategies as st

ROUTES = ("v1/chat/completions", "v1/responses", "v1/messages")
TOTAL = (
    "Requested token count exceeds the model's maximum context length of {window} tokens. You requested a "
    "total of {total} tokens: {prompt} tokens from the input messages and {left} tokens for the completion. "
    "Please reduce the number of tokens in the input messages or the completion to fit within the limit."
)
ABORT = {"type": "abort", "status_code": 500}
LONG = "The input ({prompt} tokens) is longer than the model's context length ({window} tokens)."


class Refusing(ScriptedEngine):
    """Answers the next calls with these statuses and bodies; then as ever."""

    def __init__(self, *answers, then=None, **options):
        super().__init__(**options)
        self.answers = list(answers)
        self.then = then
        self.asked = 0

    async def __call__(self, scope, receive, send):
        if scope["path"] != "/generate" or not (self.answers or self.then):
            await super().__call__(scope, receive, send)
            return
        body = await read_body(receive)
        self.asked += 1
        status, text = self.answers.pop(0) if self.answers else self.then
        if callable(text):
            text = text(json.loads(body))
        await send_reply(send, status, text.encode())


class Windowed(ScriptedEngine):
    """SGLang's check of lengths, with a context window of its own and ``reserved`` tokens of it."""

    def __init__(self, window, reserved=0, **options):
        super().__init__(**options)
        self.window, self.reserved = window, reserved
        self.refused = 0

    async def __call__(self, scope, receive, send):
        if scope["path"] != "/generate":
            await super().__call__(scope, receive, send)
            return
        body = await read_body(receive)
        asked = json.loads(body)
        prompt, left = len(asked["input_ids"]) + self.reserved, asked["sampling_params"]["max_new_tokens"]
        told = {"prompt": prompt, "left": left, "window": self.window, "total": prompt + left}
        text = LONG if prompt >= self.window else TOTAL if prompt + left > self.window else ""
        if text:
            self.refused += 1
            await send_reply(send, 400, json.dumps({"error": {"message": text.format(**told)}}).encode())
            return
        parts = iter([{"type": "http.request", "body": body}])

        async def again():
            return next(parts, None) or await receive()

        await super().__call__(scope, again, send)


def asking(route, text="hello", **more):
    if route == "v1/responses":
        return {"model": "m", "input": text, **more}
    return {"model": "m", "max_tokens": 30, "messages": [{"role": "user", "content": text}], **more}


def message(reply):
    return reply.json()["error"]["message"]


@pytest.mark.parametrize("route", ROUTES)
async def test_a_refused_parameter_is_the_agents_own_400_in_the_engines_words(make_rig, route):
    text = "top_p must be in (0, 1], got 7"
    engine = Refusing((400, json.dumps({"error": {"message": text}})))
    rig = await make_rig(engine=engine)
    session = await rig.open()
    reply = await rig.http.post(f"/s/{session}/{route}", json=asking(route))
    assert reply.status_code == 400
    assert "retry-after" not in reply.headers
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert text in message(reply)
    assert engine.asked == 1


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_session_tells_how_many_calls_failed_it_since_the_last_answer(make_rig, route, stream):
    """An agent that ends after them may have ended for want of an answer."""
    engine = Refusing(then=(500, "a broken kernel"))
    rig = await make_rig(engine=engine, engine_attempts=1)
    session = await rig.open()

    async def faults():
        return (await rig.http.get(f"/sessions/{session}")).json()["faults"]

    url = f"/s/{session}/{route}"
    for number in (1, 2):
        reply = await rig.http.post(url, json=asking(route, stream=stream))
        assert (reply.status_code, await faults()) == (503, number)
    engine.then = (400, "its own mistake")
    assert (await rig.http.post(url, json=asking(route, stream=stream))).status_code == 400
    assert await faults() == 2
    engine.then = None
    assert (await rig.http.post(url, json=asking(route, stream=stream))).status_code == 200
    assert await faults() == 0


async def test_a_refusal_is_asked_of_no_other_engine(make_rig):
    engines = [Refusing(then=(400, "grammar: no such rule")) for _ in range(2)]
    async with serve_scripted(engines[0]) as one, serve_scripted(engines[1]) as two:
        rig = await make_rig(engines=(one, two))
        session = await rig.open()
        reply = await rig.post(session, asking(ROUTES[0]))
    assert reply.status_code == 400
    assert sum(engine.asked for engine in engines) == 1


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_an_engine_finds_too_long_is_the_dialects_overflow(make_rig, route, stream):
    rig = await make_rig(engine=Windowed(16))
    session = await rig.open()
    body = asking(route, "a long prompt of many letters", stream=stream)
    reply = await rig.http.post(f"/s/{session}/{route}", json=body)
    assert reply.status_code == 400
    if route == "v1/messages":
        prompt, window = message(reply).removeprefix("prompt is too long: ").split(" tokens > ")
        assert (int(prompt) >= 16, window) == (True, "16 maximum")
    else:
        assert reply.json()["error"]["code"] == "context_length_exceeded"
        assert "maximum context length is 16 tokens" in message(reply)
    assert rig.engine.refused == 1


@pytest.mark.parametrize("reserved", [0, 3])
async def test_a_reply_gets_the_room_that_the_engine_has(make_rig, reserved):
    engine = Windowed(64, reserved)
    rig = await make_rig(engine=engine)
    rig.script("x" * 100)
    session = await rig.open()
    reply = await rig.chat(session, "hi", max_tokens=100)
    prompt = reply.usage.prompt_tokens
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 64 - prompt - reserved
    assert engine.refused == 1
    trajectory = await rig.end(session)
    assert trajectory.trained_tokens == reply.usage.completion_tokens


@pytest.mark.parametrize("status", [401, 403, 404, 405, 422, 302])
async def test_what_is_no_engine_is_ours_to_mend_and_never_the_agents_fault(make_rig, status, caplog):
    rig = await make_rig(engine=Refusing(then=(status, json.dumps({"detail": "Not Found"}))))
    session = await rig.open()
    reply = await rig.post(session, asking(ROUTES[0]))
    assert reply.status_code == 502
    assert int(reply.headers["retry-after"]) > 0
    assert reply.json()["error"]["code"] == "engine_misconfigured"
    assert rig.engine.asked == 1
    (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert rig.proxy.engines.urls[0] in line.message
    assert f"status {status}: Not Found" in line.message
    assert "--engine" in line.message


async def test_an_engine_that_is_none_is_passed_over_for_one_that_is(make_rig):
    wrong = Refusing(then=(404, "<html>nothing here</html>"))
    live = await make_rig()
    async with serve_scripted(wrong) as url:
        rig = await make_rig(engines=(url, *live.proxy.engines.urls), store=live.store)
        for _ in range(6):
            assert (await rig.chat(await rig.open(), "hi")).choices
    assert wrong.asked == 1, "after its first answer others are preferred for a while"


@pytest.mark.parametrize(
    "answer",
    [
        (500, "Traceback: worker http://10.1.2.3:30000 failed"),
        (503, '{"error": "no worker at engine-0.cluster.local:30000"}'),
        (404, "no route at http://10.1.2.3:30000"),
        (200, "<html>http://10.1.2.3:30000</html>"),
        (200, json.dumps({"meta_info": {"finish_reason": {**ABORT, "message": "10.1.2.3:30000"}}})),
        (400, "top_p is wrong, says engine-0.cluster.local:30000 (http://10.1.2.3:30000/generate)"),
    ],
)
@pytest.mark.parametrize("route", ROUTES)
async def test_no_agent_reads_where_an_engine_is(make_rig, answer, route):
    rig = await make_rig(engine=Refusing(then=answer), engine_attempts=1)
    session = await rig.open()
    for stream in (False, True):
        reply = await rig.http.post(f"/s/{session}/{route}", json=asking(route, stream=stream))
        assert reply.status_code >= 400
        for secret in ("10.1.2.3", "30000", "cluster.local", rig.proxy.engines.urls[0].split("//")[1]):
            assert secret not in reply.text


async def test_no_agent_reads_where_an_engine_was(make_rig, caplog):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        rig = await make_rig(engines=(f"http://127.0.0.1:{port}",), engine_attempts=1)
        session = await rig.open()
        reply = await rig.post(session, asking(ROUTES[0]))
    assert reply.status_code == 503
    assert "127.0.0.1" not in reply.text
    assert port not in reply.text
    assert f"engine http://127.0.0.1:{port}: the engine cannot be reached" in caplog.text


async def test_an_abort_that_is_told_as_an_error_is_an_abort(make_rig):
    text = "Request abc was aborted"
    engine = Refusing((499, text), (400, json.dumps({"error": {"message": "Aborted by AbortReq."}})))
    rig = await make_rig(engine=engine)
    session = await rig.open()
    assert (await rig.chat(session, "hi")).choices[0].finish_reason == "stop"
    assert engine.asked == 2
    trajectory = await rig.end(session)
    assert trajectory.lost_tokens == {}


@pytest.mark.parametrize(
    ("text", "window", "excess"),
    [
        (LONG.format(prompt=100, window=64), 64, 0),
        (TOTAL.format(prompt=100, window=128, left=50, total=150), 128, 22),
        (TOTAL.format(prompt=100, window=150, left=50, total=150), 150, 1),
        ("Input length (100 tokens) exceeds the maximum allowed length (64 tokens).", 64, 0),
        ("Input length 100 exceeds the maximum allowed input length of 64 tokens.", 64, 0),
        ("input_ids has 100 ids, the context is 64: shorten it", 64, 0),
        ("Request requires more tokens than the KV cache can hold", None, 0),
    ],
)
def test_the_ways_in_which_engines_say_that_a_prompt_is_too_long(text, window, excess):
    error = refusal(400, text, prompt_tokens=100, max_tokens=50)
    assert isinstance(error, EngineOverflowError)
    assert (error.window, error.excess, error.code) == (window, excess, "context_length_exceeded")


@pytest.mark.parametrize(
    "text",
    [
        "The input_ids [1, 99999999] contains values greater than the vocab size (151936).",
        "The server is not configured to return routed experts.",
        "Start the engine with `--enable-return-routed-experts`.",
    ],
)
def test_a_400_that_tells_how_an_engine_was_started_is_ours(text):
    assert isinstance(refusal(400, text, prompt_tokens=1, max_tokens=1), StrangeEngineError)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": {"message": "a\\nb"}}', "a b"),
        (b'{"error": "a b"}', "a b"),
        (b'{"object": "error", "message": "a b", "code": 400}', "a b"),
        (b'{"detail": [{"loc": ["body"], "msg": "a b"}]}', "a b"),
        (b"a  b", "a b"),
        (b"", ""),
        (b'{"error": null}', '{"error": null}'),
        (b"\xff", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_the_words_of_an_error(body, text):
    assert words(body) == text


@given(st.integers(300, 499), st.text(max_size=400), st.integers(1, 1000), st.integers(0, 1000))
def test_every_refusal_is_an_error_of_one_line_that_an_agent_may_read(status, text, prompt, left):
    error = refusal(status, " ".join(text.split()), prompt_tokens=prompt, max_tokens=left)
    assert error.status in (400, 413, 502, 503)
    assert len(error.message) < 600
    if isinstance(error, EngineRefusalError):
        assert error.retry_after_s is None
    if isinstance(error, EngineOverflowError):
        assert error.excess >= 0
        assert error.excess == 0 or prompt < (error.window or 0)


@given(
    st.ip_addresses().map(lambda ip: f"[{ip}]" if ip.version == 6 else str(ip)),
    st.integers(1024, 65535),
    st.sampled_from(
        ["{host}:{port}", "http://{host}:{port}/generate", "at {host}:{port}, it", "({host}:{port})"]
    ),
)
def test_no_address_stays_in_what_an_agent_reads(host, port, shape):
    error = refusal(400, "bad: " + shape.format(host=host, port=port), prompt_tokens=1, max_tokens=1)
    assert host not in error.message
    assert str(port) not in error.message


def test_trouble_at_an_engine_is_a_line_now_and_then_with_how_often_it_was(caplog):
    now = 0.0
    complaints = Complaints(lambda: now)
    for now in (0.0, 1.0, 2.0, 7.0):
        complaints.note("http://one", f"failed at {now}", 30)
    complaints.note("http://two", "failed too", 30)
    assert [record.message for record in caplog.records] == [
        "engine http://one: failed at 0.0",
        "engine http://one: failed at 7.0 (2 more of it before)",
        "engine http://two: failed too",
    ]


async def test_an_engine_that_hangs_keeps_nobody_who_gives_up_on_it(make_rig):
    """Its aborts hang, too: they are asked on without who waits."""
    hung = asyncio.Event()

    class Hanging(ScriptedEngine):
        async def __call__(self, scope, receive, send):
            if scope["path"] == "/abort_request":
                await hung.wait()
            await super().__call__(scope, receive, send)

    rig = await make_rig(engine=Hanging())
    rig.engine.hold_after = 1
    session = await rig.open()
    reply = asyncio.create_task(rig.post(session, asking(ROUTES[0])))
    await rig.engine.until_running(1)
    async with asyncio.timeout(6):
        assert (await rig.http.delete(f"/sessions/{session}")).status_code == 204
    assert (await reply).status_code == 410
    assert rig.proxy.controller.in_flight == 0
    hung.set()


async def test_a_passing_failure_says_in_the_log_at_which_engine(make_rig, caplog):
    rig = await make_rig(engine=Refusing((503, "busy"), (503, "busy")))
    await asyncio.gather(*[rig.chat(await rig.open(), "hi") for _ in range(2)])
    (line,) = [record for record in caplog.records if record.name == "dressage.proxy"]
    assert line.message.startswith(f"engine {rig.proxy.engines.urls[0]}: the engine answers with status 503")
