"""P6: kill -9 of the proxy at random points, restarts on the same store, and clients that go on."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

import httpx
import pytest
from dressage_segments import audit, iter_frames, segment_from_bytes, tree_from_records
from dressage_store import FilesStore

pytestmark = pytest.mark.heavy

KEY = "control-key-of-these-tests"
KILLS = 21
TESTS = 3
CLIENTS = 5
ENOUGH = 40
"""Replies that a test sees at least."""


@dataclass
class Said:
    """What one session's client was told: replies by text, in order, and that it acked."""

    replies: list[str] = field(default_factory=list)
    trained: int | None = None
    acked: bool = False


class Client(threading.Thread):
    """Runs sessions one after the other; whatever breaks is asked again, as agents and trainers do."""

    def __init__(self, world, seed):
        super().__init__(daemon=True)
        self.world = world
        self.rng = random.Random(seed)
        self.said: dict[str, Said] = {}
        self.broken = 0
        self.error: BaseException | None = None

    def run(self):
        try:
            with httpx.Client(timeout=5, trust_env=False, verify=False) as self.http:
                while not self.world.stop.is_set():
                    self.session()
        except Stopped:
            pass
        except BaseException as error:
            self.error = error
            raise

    def ask(self, method, path, body=None):
        """Until an answer comes, over as many restarts as it takes."""
        while True:
            if self.world.stop.is_set():
                raise Stopped
            try:
                return self.http.request(
                    method,
                    self.world.url + path,
                    json=body,
                    headers={"Authorization": f"Bearer {KEY}"} if not path.startswith("/s/") else {},
                )
            except httpx.TransportError:
                self.broken += 1
                time.sleep(0.005)

    def session(self):
        opened = self.ask("POST", "/sessions", {"instance_id": "i"})
        assert opened.status_code == 201, opened.text
        session = opened.json()["session_id"]
        said = self.said[session] = Said()
        messages = []
        for turn in range(self.rng.randint(1, 5)):
            messages.append({"role": "user", "content": f"turn {turn} of {session}"})
            reply = self.ask("POST", f"/s/{session}/v1/chat/completions", {"messages": messages})
            assert reply.status_code == 200, reply.text
            message = reply.json()["choices"][0]["message"]
            said.replies.append(message["content"])
            messages.append({"role": "assistant", "content": message["content"]})
        if self.rng.random() < 0.3:
            return  # left open
        final = self.ask("POST", f"/sessions/{session}/finalize", {"outcome": {"reward": 1.0}})
        assert final.status_code == 200, final.text
        said.trained = final.json()["trained_tokens"]
        read = self.ask("GET", f"/sessions/{session}/segments")
        assert read.status_code == 200, read.text
        segments = [segment_from_bytes(buffer) for buffer in iter_frames(read.content)]
        assert sum(segment.trained_tokens for segment in segments) == said.trained
        if self.rng.random() < 0.3:
            return  # read, not acked
        ack = self.ask(
            "POST", f"/sessions/{session}/ack", {"generation": int(read.headers["etag"].strip('"'))}
        )
        assert ack.status_code == 204, ack.text
        said.acked = True
        assert self.ask("GET", f"/sessions/{session}/segments").status_code == 410


class Stopped(Exception):
    """The test is over."""


NURSERY = """
import os, sys
from dressage_proxy.cli import main

for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        print(os.getpid(), flush=True)
        os._exit(main(line.rstrip().split("|")))
    print("ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Nursery:
    """``dressage-proxy serve`` in a process of its own each time, forked from one that has imported it: the
    start of an interpreter is most of a restart, and no part of what is tested."""

    def __init__(self, arguments):
        self.arguments = "|".join(map(str, arguments)) + "\n"
        environment = {**os.environ, "DRESSAGE_CONTROL_KEY": KEY}
        self.process = subprocess.Popen(
            [sys.executable, "-c", NURSERY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.pid = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
        self.process.communicate(timeout=10)

    def serve(self):
        """Start one; its address."""
        self.process.stdin.write(self.arguments)
        self.process.stdin.flush()
        self.pid = int(self.process.stdout.readline())
        return json.loads(self.process.stdout.readline())["data_url"]

    def kill(self):
        """SIGKILL, and wait until it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        self.pid = None
        assert self.process.stdout.readline().split() == ["ended", str(-signal.SIGKILL)]

    def stop(self):
        """SIGTERM; its exit code."""
        os.kill(self.pid, signal.SIGTERM)
        self.pid = None
        return int(self.process.stdout.readline().split()[1])


@dataclass
class World:
    """Where the proxy is now, and whether it is over."""

    url: str = "http://127.0.0.1:1"
    stop: threading.Event = field(default_factory=threading.Event)


@pytest.mark.parametrize("seed", range(TESTS))
def test_p6_a_proxy_killed_at_random_points_loses_no_seen_reply_and_is_read_once(
    spawn, toy_folder, tmp_path, codec, seed
):
    root = tmp_path / "store"
    engine = spawn("dressage_proxy.engine.scripted", "--delay", "0.002", "--port", "0")
    world = World()
    clients = [Client(world, 100 * seed + number) for number in range(CLIENTS)]
    rng = random.Random(seed)

    arguments = (
        "serve", "--tokenizer", toy_folder, "--engine", engine.ready["url"], "--store", root,
        "--port", "0", "--store-retain", "--log-level", "error",
    )  # fmt: skip
    with Nursery(arguments) as nursery:
        world.url = nursery.serve()
        for client in clients:
            client.start()
        try:
            for number in range(10 * KILLS):
                time.sleep(rng.uniform(0.05, 0.4))
                nursery.kill()
                world.url = nursery.serve()
                # A busy machine answers little between two kills.
                if number + 1 >= KILLS // TESTS and enough(clients):
                    break
            time.sleep(0.3)
        finally:
            world.stop.set()
        for client in clients:
            client.join(10)
            assert client.error is None
        said = {session: told for client in clients for session, told in client.said.items()}
        assert sum(client.broken for client in clients) > KILLS // TESTS, "the kills hit calls on their way"
        finish(world.url, said)
        assert nursery.stop() == 0
    check_store(root, codec, said)


def enough(clients):
    """Whether they have seen enough so far, to the end of a session too."""
    said = [told for client in clients for told in list(client.said.values())]
    return sum(len(told.replies) for told in said) > ENOUGH and any(told.acked for told in said)


def finish(url, said):
    """What is still open can be ended, and what was acked is gone."""
    with httpx.Client(
        base_url=url,
        headers={"Authorization": f"Bearer {KEY}"},
        timeout=10,
        trust_env=False,
        verify=False,
    ) as http:
        for session, told in said.items():
            reply = http.post(f"/sessions/{session}/finalize")
            if told.acked:
                assert reply.status_code == 410
            elif reply.status_code == 410:
                assert told.trained is not None, "an ack whose answer was lost came after a finalize"
            elif told.trained is not None:
                assert reply.json()["trained_tokens"] == told.trained, "finalize answers the same for ever"


def check_store(root, codec, said):
    assert any(told.acked for told in said.values())
    with FilesStore(root, read_only=True) as store:
        pending = store.pending()
        assert len(set(pending)) == len(pending)
        for session, told in said.items():
            assert not (told.acked and session in pending), "nothing is read twice"
            records = list(store.records(session))
            tree = tree_from_records(records)
            texts = [codec.decode(turn.output_ids).removesuffix("<|im_end|>") for turn in tree.turns]
            parent = -1
            for reply in told.replies:
                assert texts.count(reply) == 1, "every reply that was seen is in the log exactly once"
                index = texts.index(reply)
                assert tree.turn(index).parent == parent, "it was sampled after the replies seen before"
                parent = index
            trajectory = store.inspect(session)
            report = audit(records, trajectory)
            assert report.ok, report.findings
            if told.replies:
                lost = set(trajectory.lost_tokens)
                assert lost <= {"retry", "undelivered"}, "only what nobody saw is lost"
