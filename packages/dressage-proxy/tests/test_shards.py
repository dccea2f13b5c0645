"""Shards: one address, sessions by id, a crash that only its own sessions notice."""

import asyncio
import errno
import os
import signal
import socket
import sys
import threading
import time

import httpx
import pytest
from dressage_proxy import ConfigError
from dressage_proxy.options import check_shards
from dressage_proxy.session_ids import new_session_id, session_in, shard_of
from dressage_proxy.shards.dispatch import Dispatcher
from dressage_proxy.shards.exposition import merged
from dressage_proxy.shards.forward import Peer
from dressage_proxy.shards.front import _PROBE_PATIENCE_S
from dressage_proxy.shards.shard import Shard
from dressage_segments import audit
from dressage_store import FilesStore
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.heavy

KEY = "control-key-of-these-tests"
AUTH = {"Authorization": f"Bearer {KEY}"}


@given(st.text(max_size=40), st.integers(1, 64))
def test_every_id_has_one_shard(session_id, shards):
    assert 0 <= shard_of(session_id, shards) < shards
    assert shard_of(session_id, shards) == shard_of(session_id, shards)


@given(st.integers(1, 16), st.data())
def test_a_new_id_lives_in_its_shard(shards, data):
    shard = data.draw(st.integers(0, shards - 1))
    made = {new_session_id(shard, shards) for _ in range(5)}
    assert len(made) == 5
    assert {shard_of(session_id, shards) for session_id in made} == {shard}


@pytest.mark.parametrize(
    ("path", "session"),
    [
        ("/s/abc/v1/models", "abc"),
        ("/s/abc", "abc"),
        ("/sessions/abc/finalize", "abc"),
        ("/s/", None),
        ("/sessions", None),
        ("/rollout", None),
        ("/", None),
    ],
)
def test_the_session_of_a_path(path, session):
    assert session_in(path) == session


def test_expositions_are_merged_under_a_label():
    counter = "# TYPE a_total counter\na_total 1.0\n"
    one = counter + '# TYPE h histogram\nh_bucket{le="+Inf"} 2.0\nh_count 2.0\nh_sum 3.0\n'
    text = merged({"0": one, "1": one}).decode()
    assert text.count("# TYPE a_total counter") == 1
    for shard in "01":
        assert f'a_total{{shard="{shard}"}} 1.0' in text
        assert f'h_bucket{{le="+Inf",shard="{shard}"}} 2.0' in text


def test_a_store_says_how_many_shards_it_was_made_with(tmp_path):
    check_shards(tmp_path / "new", 2)
    check_shards(tmp_path / "new", 2)
    with pytest.raises(ConfigError, match="made with 2"):
        check_shards(tmp_path / "new", 3)
    with pytest.raises(ConfigError, match="made with 2"):
        check_shards(tmp_path / "new", 1)
    FilesStore(tmp_path / "old").close()
    with pytest.raises(ConfigError, match="made with 1"):
        check_shards(tmp_path / "old", 2)


def test_the_number_of_shards_survives_a_start_that_is_killed_or_finds_the_disk_full(tmp_path, monkeypatch):
    check_shards(tmp_path, 2)

    def full(*_args, **_more):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr("dressage_proxy.options.replace_file", full)
    monkeypatch.setattr("pathlib.Path.write_text", full)
    check_shards(tmp_path, 2)  # it says so already: nothing is written
    with pytest.raises(ConfigError, match="no space left"):
        check_shards(tmp_path / "new", 2)
    monkeypatch.undo()
    assert not (tmp_path / "new" / "shards").exists()
    (tmp_path / "new" / "shards.tmp").write_text("2")  # it was killed before the file had its name
    (tmp_path / "new" / "control.key.tmp").write_text("k")
    check_shards(tmp_path / "new", 2)
    assert (tmp_path / "new" / "shards").read_text() == "2\n"
    (tmp_path / "shards").write_text("")
    with pytest.raises(ConfigError, match="holds no number: write"):
        check_shards(tmp_path, 2)


async def given_away(*pieces, close=False):
    """What path a connection was given away with, and the bytes that were there to read then."""
    taken = asyncio.get_running_loop().create_future()

    async def handler(connection, path):
        taken.set_result((path, connection.recv(4096)))
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(Dispatcher(listener, handler).serve())
        _, writer = await asyncio.open_connection(*listener.getsockname())
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.02)
        if close:
            writer.close()
        try:
            async with asyncio.timeout(0.5 if close else 10):
                return await asyncio.shield(taken)
        except TimeoutError:
            return None
        finally:
            writer.close()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_connection_is_given_away_with_its_bytes_untouched():
    request = b"POST /s/abc/v1/models?x=1 HTTP/1.1\r\nhost: h\r\n\r\n"
    assert await given_away(request) == ("/s/abc/v1/models", request)
    assert await given_away(request[:9], request[9:]) == ("/s/abc/v1/models", request)


async def test_what_is_no_request_is_given_to_the_server_that_says_so_and_silence_to_nobody():
    assert await given_away(b"hello\r\n") == ("", b"hello\r\n")
    assert await given_away(b"POST /s", close=True) is None


async def test_what_cannot_be_accepted_is_said_now_and_then_and_not_at_each_try(monkeypatch, caplog):
    loop = asyncio.get_running_loop()
    tries = []

    async def none_left(listener):
        tries.append(listener)
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr("dressage_proxy.shards.dispatch._POLL_S", 0.0)
    monkeypatch.setattr(loop, "sock_accept", none_left)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(Dispatcher(listener, None).serve())
        async with asyncio.timeout(10):
            while len(tries) < 100:
                await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert 1 <= caplog.text.count("cannot accept a connection") < 10


async def test_a_peer_that_is_away_for_long_is_told_as_unavailable(tmp_path, monkeypatch):
    monkeypatch.setattr("dressage_proxy.shards.forward._PATIENCE_S", 0.2)
    sent = []

    async def receive():
        if not receive.first:
            await asyncio.Event().wait()
        receive.first = False
        return {"type": "http.request", "body": b""}

    async def send(message):
        sent.append(message)

    receive.first = True
    peer = Peer(tmp_path / "nobody.sock", 1024)
    await peer.forward({"method": "GET", "path": "/s/a", "headers": []}, receive, send)
    await peer.close()
    assert sent[0]["status"] == 503
    assert (b"retry-after", b"1") in sent[0]["headers"]


TALKATIVE = """
import socket, sys, time
channel = socket.socket(fileno=int(sys.argv[sys.argv.index("--shard-channel") + 1]))
print("a hook says something before the shard is up", flush=True)
if "fails" in sys.argv:
    sys.exit(3)
channel.send(b"up")
sys.stdout.write("x" * 1_000_000)
sys.stdout.flush()
channel.send(b"done")
channel.recv(1)
"""


async def test_what_a_shard_prints_neither_stops_it_nor_makes_it_ready(capfd):
    """A tool hook may print: nobody reads a pipe, and what came first was once taken for readiness."""
    shard = Shard(0, [sys.executable, "-c", TALKATIVE], dict(os.environ), str)
    keeping = asyncio.create_task(shard.keep())
    async with asyncio.timeout(20):
        await shard.wait_up()
        assert await asyncio.get_running_loop().sock_recv(shard._channel, 64) == b"done"
    await shard.stop(0)
    await keeping
    assert "before the shard is up" in capfd.readouterr().err
    silent = Shard(0, [sys.executable, "-c", TALKATIVE, "fails"], dict(os.environ), str)
    with pytest.raises(ConfigError, match="did not start"):
        await silent.keep()
    assert not silent.up


ASKING = """
import os, socket, sys, time
channel = socket.socket(fileno=int(sys.argv[sys.argv.index("--shard-channel") + 1]))
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
channel.send(b"state")
told = channel.recv(1000)
channel.send(b"up")
channel.send(told)
channel.recv(1)
"""


async def test_a_shard_that_is_long_in_starting_is_told_what_was_asked_meanwhile(tmp_path):
    state = ["as it was when the shard was started"]
    command = [sys.executable, "-c", ASKING, str(tmp_path / "slow no more")]
    shard = Shard(0, command, dict(os.environ), lambda: state[0])
    keeping = asyncio.create_task(shard.keep())
    async with asyncio.timeout(20):
        while shard.pid is None:
            await asyncio.sleep(0.01)
        assert not shard.up
        state[0] = "as it is once it asks"
        (tmp_path / "slow no more").touch()
        await shard.wait_up()
        assert await asyncio.get_running_loop().sock_recv(shard._channel, 64) == b"as it is once it asks"
        await shard.stop(0)
        await keeping


async def test_a_shard_that_is_away_is_not_started_again_once_all_are_stopped(monkeypatch):
    """Its back-off may end in the middle of the others' drain."""
    monkeypatch.setattr("dressage_proxy.shards.shard._BACKOFF_S", 0.2)
    shard = Shard(0, [sys.executable, "-c", TALKATIVE], dict(os.environ), str)
    keeping = asyncio.create_task(shard.keep())
    async with asyncio.timeout(30):
        for _ in range(2):  # the second time it does not start again at once
            await shard.wait_up()
            os.kill(shard.pid, signal.SIGKILL)
            while shard.up:
                await asyncio.sleep(0.001)
        await shard.stop(0)
        await keeping
    assert shard.pid is None


async def test_a_shard_that_the_system_has_no_process_for_is_started_once_it_has(monkeypatch, caplog):
    shard = Shard(0, [sys.executable, "-c", TALKATIVE], dict(os.environ), str)
    spawn, failures = asyncio.create_subprocess_exec, iter([True, True, False])

    async def meagre(*args, **options):
        if next(failures):
            raise BlockingIOError(errno.EAGAIN, "no process can be made")
        return await spawn(*args, **options)

    keeping = asyncio.create_task(shard.keep())
    async with asyncio.timeout(30):
        await shard.wait_up()
        monkeypatch.setattr(asyncio, "create_subprocess_exec", meagre)
        os.kill(shard.pid, signal.SIGKILL)
        while shard.up:
            await asyncio.sleep(0.001)
        await shard.wait_up()
        await shard.stop(0)
        await keeping
    assert caplog.text.count("no process can be made") == 2
    failures = iter([True])
    with pytest.raises(ConfigError, match="cannot be started"):
        await Shard(0, ["/no-such-program"], dict(os.environ), str).keep()


OBEDIENT = """
import signal, socket, sys
channel = socket.socket(fileno=int(sys.argv[sys.argv.index("--shard-channel") + 1]))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
channel.send(b"up")
sys.exit(0 if channel.recv(64) == b"stop" else 1)
"""


async def test_a_shard_is_asked_to_stop_and_not_signalled():
    """Who stops a group of processes signals the shards, too: a second signal would cut the drain short."""
    shard = Shard(0, [sys.executable, "-c", OBEDIENT], dict(os.environ), str)
    keeping = asyncio.create_task(shard.keep())
    async with asyncio.timeout(20):
        await shard.wait_up()
        process = shard._process
        await shard.stop(0)
        await keeping
    assert process.returncode == 0


class Served:
    """Two shards as the real command, and a client of them."""

    def __init__(self, spawn, toy_folder, store, engine, *flags):
        self.process = spawn(
            "dressage_proxy.cli", "serve", "--tokenizer", toy_folder, "--engine", engine, "--store", store,
            "--port", "0", "--shards", "2", "--log-level", "error", *flags,
            DRESSAGE_CONTROL_KEY=KEY,
        )  # fmt: skip
        self.http = httpx.Client(
            base_url=self.ready["control_url"], headers=AUTH, timeout=20, trust_env=False
        )

    @property
    def ready(self):
        return self.process.ready

    def open(self, count):
        return [
            self.http.post("/sessions", json={"instance_id": "i"}).json()["session_id"] for _ in range(count)
        ]

    def chat(self, session, *texts, http=None):
        messages = [
            {"role": "user" if n % 2 == 0 else "assistant", "content": t} for n, t in enumerate(texts)
        ]
        url = f"{self.ready['data_url']}/s/{session}/v1/chat/completions"
        return (http or self.http).post(url, json={"messages": messages})


def text_of(reply):
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"]["content"]


@pytest.mark.alone
def test_a_killed_shard_starts_again_and_resumes_its_sessions_while_the_others_go_on(
    spawn, toy_folder, tmp_path
):
    engine = spawn("dressage_proxy.engine.scripted").ready["url"]
    served = Served(spawn, toy_folder, tmp_path / "store", engine, "--control-port", "0", "--store-retain")
    sessions = served.open(4)
    assert sorted(shard_of(session, 2) for session in sessions) == [0, 0, 1, 1]
    said = {session: text_of(served.chat(session, "one")) for session in sessions}
    assert served.http.post("/rollout/resume", json={"version": 3}).json()["version"] == 3
    os.kill(served.ready["shards"][0], signal.SIGKILL)
    spared = next(session for session in sessions if shard_of(session, 2) == 1)
    crashed = time.monotonic()
    with httpx.Client(timeout=20, trust_env=False) as http:
        text_of(served.chat(spared, "one", said[spared], "two", http=http))
    answered = time.monotonic() - crashed
    for session in sessions:
        if session != spared:
            with httpx.Client(timeout=20, trust_env=False) as http:
                text_of(served.chat(session, "one", said[session], "two", http=http))
    back = time.monotonic() - crashed
    assert answered < back / 2, "another shard's crash is nothing to this session"
    assert served.http.get("/rollout").json() == {
        "state": "running",
        "version": 3,
        "in_flight": 0,
        "waiting": 0,
    }
    for session in sessions:
        final = served.http.post(f"/sessions/{session}/finalize").json()
        assert (final["segments"], final["lost_tokens"]) == (1, {})
    served.http.close()
    assert served.process.stop() == 0
    for session in sessions:
        with FilesStore(tmp_path / "store" / f"shard-{shard_of(session, 2)}", read_only=True) as store:
            assert audit(store.records(session), store.inspect(session)).ok


def test_one_address_and_one_connection_serve_every_session_and_both_planes(spawn, toy_folder, tmp_path):
    engine = spawn("dressage_proxy.engine.scripted").ready["url"]
    served = Served(spawn, toy_folder, tmp_path / "store", engine)
    assert served.ready["data_url"] == served.ready["control_url"]
    sessions = served.open(4)
    limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
    with httpx.Client(
        base_url=served.ready["data_url"], headers=AUTH, limits=limits, trust_env=False
    ) as http:
        for session in (*sessions, *sessions):  # whoever took the connection passes on what is not its own
            text_of(served.chat(session, "hi", http=http))
            assert http.get(f"/sessions/{session}").json()["steps"] >= 1
        assert http.post("/rollout/pause", json={"timeout_s": 1}).json()["quiesced"]
        assert http.get("/rollout").json()["state"] == "paused"
        http.post("/rollout/resume", json={"version": 1})
        assert http.get("/ready").json()["ready"]
        metrics = http.get("/metrics").text
        assert 'dressage_open_sessions{shard="0"} 2.0' in metrics
        assert 'dressage_open_sessions{shard="1"} 2.0' in metrics
        assert http.get(f"/s/{'0' * 32}/v1/models").status_code == 404
        assert http.get("/rollout", headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert http.post("/rollout/pause", json={"timeout_s": -1}).status_code == 422
        scoped = http.post("/rollout/pause", json={"session_id": sessions[0], "timeout_s": 1})
        assert scoped.json()["quiesced"]
        assert http.get("/rollout").json()["state"] == "running"
    served.http.close()
    assert served.process.stop() == 0


def test_planes_on_two_ports_are_apart_and_answer_as_one_process_does(spawn, toy_folder, tmp_path):
    engine = spawn("dressage_proxy.engine.scripted").ready["url"]
    served = Served(spawn, toy_folder, tmp_path / "store", engine, "--control-port", "0")
    data, control = served.ready["data_url"], served.ready["control_url"]
    sessions = served.open(2)
    calls = [
        ("POST", "/sessions"), ("GET", f"/sessions/{sessions[0]}"), ("GET", "/rollout"), ("GET", "/metrics"),
        ("POST", f"/sessions/{sessions[1]}/finalize"), ("GET", "/ready"), ("GET", "/health"),
    ]  # fmt: skip
    limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
    with httpx.Client(base_url=data, headers=AUTH, limits=limits, trust_env=False, timeout=20) as http:
        for session in sessions:  # on a connection that names no session first, and on one that does
            for method, path in calls:
                assert http.request(method, path, json={"instance_id": "i"}).status_code == 404, path
            text_of(served.chat(session, "hi", http=http))
    for session in sessions:
        reply = served.http.post(f"/s/{session}/v1/chat/completions", json={})
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unknown_route")
        assert served.http.get(f"/sessions/{session}").json()["state"] == "open"
    ready = served.http.get("/ready").json()
    assert (ready["ready"], ready["engines"], ready["warnings"]) == (True, {engine: True}, [])
    assert (ready["store_writable"], ready["draining"], len(ready["shards"])) == (True, False, 2)
    reply = served.http.get("/rollout")
    assert len(reply.headers.get_list("date")) == 1
    assert httpx.get(f"{control}/rollout", trust_env=False).status_code == 401
    os.kill(served.ready["shards"][0], signal.SIGSTOP)
    started = time.monotonic()
    assert served.http.get("/health").status_code == 200, "one shard is no reason to end them all"
    assert time.monotonic() - started < _PROBE_PATIENCE_S, "it was not waited for"
    os.kill(served.ready["shards"][0], signal.SIGCONT)
    served.http.close()
    assert served.process.stop() == 0


def asked_in_another_thread(served, session):
    """A chat whose reply is in the making."""
    replies = []

    def ask():
        with httpx.Client(timeout=20, trust_env=False) as http:
            replies.append(served.chat(session, "hi", http=http))

    thread = threading.Thread(target=ask)
    thread.start()
    while not served.http.get("/rollout").json()["in_flight"]:
        time.sleep(0.02)
    return thread, replies


@pytest.mark.alone
def test_what_is_asked_during_the_drain_is_told_to_come_again_and_a_second_signal_ends_it(
    spawn, toy_folder, tmp_path
):
    engine = spawn("dressage_proxy.engine.scripted", "--delay", "5").ready["url"]
    served = Served(spawn, toy_folder, tmp_path / "store", engine, "--drain", "60")
    (busy,) = served.open(1)
    thread, replies = asked_in_another_thread(served, busy)
    served.process.process.terminate()
    with httpx.Client(
        base_url=served.ready["control_url"], headers=AUTH, trust_env=False, timeout=20
    ) as http:
        while (ready := http.get("/ready")).is_success:
            time.sleep(0.02)
        assert (ready.status_code, ready.json()["draining"]) == (503, True)
        for reply in (
            served.chat(busy, "else", http=http),
            http.post("/sessions", json={"instance_id": "i"}),
        ):
            assert reply.status_code == 503
            assert reply.headers["retry-after"]
    time.sleep(0.3)
    served.process.process.terminate()
    assert served.process.process.wait(10) == 0
    thread.join(10)
    assert [reply.status_code for reply in replies] == [503]
    served.http.close()


@pytest.mark.alone
def test_after_the_parent_was_killed_the_command_starts_again_at_once(spawn, toy_folder, tmp_path):
    """What its shards were doing keeps them no longer: they hold the stores."""
    engine = spawn("dressage_proxy.engine.scripted", "--delay", "5").ready["url"]
    served = Served(spawn, toy_folder, tmp_path / "store", engine, "--drain", "60")
    (session,) = served.open(1)
    thread, replies = asked_in_another_thread(served, session)
    served.process.process.kill()
    again = Served(spawn, toy_folder, tmp_path / "store", engine)
    assert again.http.get(f"/sessions/{session}").json()["state"] == "open"
    thread.join(10)
    assert [reply.status_code for reply in replies] == [503]
    for one in (served, again):
        one.http.close()
    assert again.process.stop() == 0


def test_a_shard_that_cannot_start_ends_the_command(spawn, toy_folder, tmp_path):
    with pytest.raises(AssertionError, match="ended with 2 before it was ready"):
        spawn(
            "dressage_proxy.cli", "serve", "--tokenizer", toy_folder, "--router", "http://127.0.0.1:9",
            "--store", tmp_path / "store", "--port", "0", "--shards", "2",
        )  # fmt: skip
