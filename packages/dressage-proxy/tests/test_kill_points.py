"""P6 at every step: kill -9 at the n-th call or return of the proxy's own code while a session lives.

pytestmark = pytest.mark.heavy

DRESSAGE_KILL_POINTS=200 takes so many points, spread evenly from the first request to the last.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field

import httpx
import pytest
from dressage_segments import audit, tree_from_records
from dressage_store import FilesStore

KEY = "control-key-of-these-tests"
POINTS = int(os.environ.get("DRESSAGE_KILL_POINTS", "4"))
TURNS = 2

NURSERY = """
import json, os, signal, sys
from dressage_proxy import options
from dressage_proxy.app import CombinedApp
from dressage_proxy.cli import _parser, main

PACKAGES = tuple(f"{os.sep}dressage_{name}{os.sep}" for name in ("proxy", "store", "segments"))
count = 0
serve = CombinedApp.__call__


def profile(frame, event, argument):
    global count
    if any(name in frame.f_code.co_filename for name in PACKAGES):
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


async def armed(self, scope, receive, send):
    sys.setprofile(profile)  # from the first request on
    await serve(self, scope, receive, send)


CombinedApp.__call__ = armed
codecs = {}
load = options.codec
options.codec = lambda args: codecs.get(args.tokenizer) or codecs.setdefault(args.tokenizer, load(args))
for line in sys.stdin:
    kill_at, arguments = json.loads(line)
    options.codec(_parser().parse_args(arguments))  # once, before the first fork
    pid = os.fork()
    if pid == 0:
        print(os.getpid(), flush=True)
        code = main(arguments)
        sys.setprofile(None)
        print("steps", count, flush=True)
        os._exit(code)
    print("ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Nursery:
    """Proxies forked from a process that has imported everything: the start of an interpreter is most of a
    restart, and no part of what is tested."""

    def __init__(self, arguments):
        self.arguments = [str(argument) for argument in arguments]
        self.process = subprocess.Popen(
            [sys.executable, "-c", NURSERY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "DRESSAGE_CONTROL_KEY": KEY},
        )
        self.pid = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
        self.process.communicate(timeout=10)

    def line(self):
        line = self.process.stdout.readline()
        assert line, "the nursery ended"
        return line

    def serve(self, kill_at=0):
        """Start one that kills itself at that step (0: never); its address."""
        self.process.stdin.write(json.dumps([kill_at, self.arguments]) + "\n")
        self.process.stdin.flush()
        self.pid = int(self.line())
        return json.loads(self.line())["data_url"]

    def stop(self):
        """SIGTERM; the steps that it took, or None where it killed itself on its way out."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        self.pid = None
        first = self.line().split()
        if first[0] == "ended":
            assert first[1] == str(-signal.SIGKILL)
            return None
        assert self.line().split() == ["ended", "0"]
        return int(first[1])

    def buried(self):
        """It killed itself: note that it did."""
        self.pid = None
        assert self.line().split() == ["ended", str(-signal.SIGKILL)]


@dataclass
class Life:
    """One session from open to ack, whatever happens to the proxy meanwhile."""

    nursery: Nursery
    url: str
    killed: bool = False
    session: str = ""
    replies: list[str] = field(default_factory=list)
    trained: int = 0

    def ask(self, method, path, body=None):
        """Until an answer comes; a proxy that killed itself is started again, once."""
        headers = {} if path.startswith("/s/") else {"Authorization": f"Bearer {KEY}"}
        while True:
            try:
                with httpx.Client(timeout=10, trust_env=False, verify=False) as http:
                    return http.request(method, self.url + path, json=body, headers=headers)
            except httpx.TransportError:
                assert not self.killed, "it is killed once"
                self.killed = True
                self.nursery.buried()
                self.url = self.nursery.serve()

    def live(self):
        opened = self.ask("POST", "/sessions", {"instance_id": "i"})
        assert opened.status_code == 201, opened.text
        self.session = opened.json()["session_id"]
        messages = []
        for turn in range(TURNS):
            messages.append({"role": "user", "content": f"turn {turn}"})
            reply = self.ask("POST", f"/s/{self.session}/v1/chat/completions", {"messages": messages})
            assert reply.status_code == 200, reply.text
            self.replies.append(reply.json()["choices"][0]["message"]["content"])
            messages.append({"role": "assistant", "content": self.replies[-1]})
        path = f"/sessions/{self.session}"
        final = self.ask("POST", f"{path}/finalize", {"outcome": {"reward": 1.0}})
        assert final.status_code == 200, final.text
        self.trained = final.json()["trained_tokens"]
        read = self.ask("GET", f"{path}/segments")
        assert read.status_code == 200, read.text
        ack = self.ask("POST", f"{path}/ack", {"generation": int(read.headers["etag"].strip('"'))})
        assert ack.status_code == 204, ack.text
        assert self.ask("GET", f"{path}/segments").status_code == 410


def check(store, codec, life):
    """0 acknowledged turns lost, 0 there twice, and each token accounted for."""
    records = list(store.records(life.session))
    tree = tree_from_records(records)
    texts = [codec.decode(turn.output_ids).removesuffix("<|im_end|>") for turn in tree.turns]
    parent = -1
    for reply in life.replies:
        assert texts.count(reply) == 1
        index = texts.index(reply)
        assert tree.turn(index).parent == parent
        parent = index
    trajectory = store.inspect(life.session)
    assert trajectory.trained_tokens == life.trained > 0
    assert set(trajectory.lost_tokens) <= {"retry", "undelivered"}, "only what nobody saw is lost"
    report = audit(records, trajectory)
    assert report.ok, report.findings


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs co_qualname")
def test_kill_9_at_every_step_loses_no_turn_that_was_seen_and_keeps_none_twice(
    toy_folder, tmp_path, codec, spawn
):
    engine = spawn("dressage_proxy.engine.scripted").ready["url"]
    root = tmp_path / "store"
    arguments = ["serve", "--tokenizer", toy_folder, "--engine", engine, "--store", root, "--port", "0"]
    lives = []
    with Nursery([*arguments, "--log-level", "error", "--store-retain"]) as nursery:
        whole = Life(nursery, nursery.serve())
        whole.live()
        lives.append(whole)
        steps = nursery.stop()
        assert steps > 1000
        started, killed = time.monotonic(), 0
        for point in range(POINTS):
            life = Life(nursery, nursery.serve(1 + point * (steps - 1) // POINTS))
            life.live()
            lives.append(life)
            killed += life.killed or nursery.stop() is None
            if nursery.pid is not None:
                nursery.stop()
        took = time.monotonic() - started
    print(f"{killed} of {POINTS} points killed, {steps} steps a life, {took:.1f} s")
    assert killed >= POINTS * 0.9
    with FilesStore(root, read_only=True) as store:
        assert not store.pending()
        for life in lives:
            check(store, codec, life)
