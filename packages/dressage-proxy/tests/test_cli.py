"""``dressage-proxy serve`` as a process: what it needs, how it says no, how it ends."""

import json
import logging
import math
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from dressage_proxy import cli

KEY = "control-key-of-these-tests"


@pytest.fixture
def refused(capsys, toy_folder, tmp_path, monkeypatch):
    """Run ``serve`` with flags that cannot work; the one line that it says."""
    monkeypatch.delenv(cli.KEY_VARIABLE, raising=False)

    def run(**changed):
        flags = {"tokenizer": toy_folder, "engine": "http://127.0.0.1:1", "store": tmp_path / "s", "port": 0}
        flags |= changed
        arguments = ["serve"]
        for name, value in flags.items():
            arguments += ["--" + name.replace("_", "-")] + ([] if value is True else [str(value)])
        assert cli.main(arguments) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("dressage-proxy: ")
        assert said.err.count("\n") == 1, "one line"
        return said.err

    return run


def test_a_port_in_use_is_named_with_its_flag(refused):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(port=port)
        assert f"--port {port}" in said
        assert "0 for a free one" in said
        assert f"--control-port {port}" in refused(control_port=port)


def test_a_port_that_is_none_and_a_host_that_is_not_here_are_refused(refused):
    assert "--port 70000" in refused(port=70000)
    assert "--port 0" in refused(host="192.0.2.1")


def test_a_missing_tokenizer_folder_is_refused(refused, tmp_path):
    said = refused(tokenizer=tmp_path / "nothing")
    assert "--tokenizer" in said
    assert str(tmp_path / "nothing") in said


def test_a_folder_without_a_chat_template_is_refused(refused, toy_folder, tmp_path):
    folder = tmp_path / "plain"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((toy_folder / name).read_bytes())
    said = refused(tokenizer=folder)
    assert "--tokenizer" in said
    assert "template" in said


def test_a_folder_without_a_tokenizer_is_refused(refused, tmp_path):
    (tmp_path / "empty").mkdir()
    said = refused(tokenizer=tmp_path / "empty")
    assert "--tokenizer" in said
    assert "tokenizer.json" in said


def test_a_store_of_another_version_is_refused_and_left_alone(refused, tmp_path):
    store = tmp_path / "old"
    store.mkdir()
    (store / "FORMAT").write_text("dressage.store/999\n")
    said = refused(store=store)
    assert "--store" in said
    assert "dressage.store/999" in said
    assert "new folder" in said
    assert (store / "FORMAT").read_text() == "dressage.store/999\n"
    assert not (store / "control.key").exists()


def test_a_folder_that_is_no_store_is_refused(refused, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    said = refused(store=tmp_path / "mine")
    assert "--store" in said
    assert "thesis.tex" in said
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_a_store_that_cannot_be_made_is_refused(refused, tmp_path):
    (tmp_path / "file").write_text("x")
    assert "--store" in refused(store=tmp_path / "file" / "store")
    assert "--store" in refused(store=tmp_path / "file")
    assert "--store" in refused(store="/proc/no-such/store"), "a file system that takes no files"


def test_a_store_that_another_process_writes_to_is_refused(refused, tmp_path):
    from dressage_store import FilesStore

    with FilesStore(tmp_path / "s"):
        said = refused()
    assert "--store" in said
    assert str(os.getpid()) in said


@pytest.mark.parametrize(
    "url",
    [
        "localhost:30000", "ftp://e:1", "http://", "http://e:port", "", ",", "http://e?x=1", "http://[::1",
        "http://m\N{LATIN SMALL LETTER U WITH DIAERESIS}nchen:1", "http://e:1/a b", "http://e..f:1",
        "http://e:1/?", "http://e:1#",
        f"http://{'e' * 64}:1",
    ],
)  # fmt: skip
def test_an_engine_that_is_no_base_url_is_refused(refused, url):
    assert "--engine" in refused(engine=url)


def test_a_router_that_does_not_answer_is_named_with_its_flag(refused):
    assert "--router http://127.0.0.1:1/workers" in refused(engine="", router="http://127.0.0.1:1")


def test_an_engines_url_tells_no_secret(refused):
    said = refused(engine="http://user:hunter2@e:1")
    assert "--engine" in said
    assert "hunter2" not in said


def test_values_out_of_range_are_refused_by_the_name_of_their_flag(refused):
    for name, value in (
        ("context_window", 3), ("max_output_tokens", 0), ("keepalive", 0), ("max_sessions", 0),
        ("max_body_bytes", 10), ("shards", 0), ("keepalive", math.inf), ("idle_timeout", math.inf),
        ("engine_timeout", 0), ("engine_timeout", math.inf),
        ("model_name", ""),
        ("template_kwargs", "{"), ("template_kwargs", "[]"), ("template_kwargs", '{"messages": 1}'),
    ):  # fmt: skip
        assert "--" + name.replace("_", "-") in refused(**{name: value})


def test_a_control_key_that_does_not_do_is_refused(refused, tmp_path, monkeypatch):
    assert "--control-key-file" in refused(control_key_file=tmp_path / "nothing")
    (tmp_path / "short").write_text("abc\n")
    assert "--control-key-file" in refused(control_key_file=tmp_path / "short")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe" * 20)
    assert "--control-key-file" in refused(control_key_file=tmp_path / "bytes")
    for text in (
        "schl\N{LATIN SMALL LETTER U WITH DIAERESIS}ssel-of-these-tests",
        "key-of-these\ntests-and-more",
    ):
        (tmp_path / "unsent").write_text(text, encoding="utf-8")
        said = refused(control_key_file=tmp_path / "unsent")
        assert "--control-key-file" in said
        assert "header" in said
    (tmp_path / "empty").write_text(" \n")
    assert "empty" in refused(control_key_file=tmp_path / "empty"), "a key that nobody has must not be made"
    assert "empty" in refused(control_key_file=tmp_path / "empty", shards=2)
    monkeypatch.setenv(cli.KEY_VARIABLE, "abc")
    assert cli.KEY_VARIABLE in refused()


def test_a_missing_flag_is_told_by_the_parser(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve", "--engine", "http://e:1"])
    assert ended.value.code == 2
    assert "--tokenizer" in capsys.readouterr().err


def test_help_names_where_the_key_comes_from(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve", "--help"])
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "--control-key-file" in said
    assert "$DRESSAGE_CONTROL_KEY" in said
    assert "control.key" in said


def test_the_error_of_the_real_command_is_one_line_and_exit_2(toy_folder, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "dressage_proxy.cli", "serve", "--tokenizer", tmp_path / "none",
         "--engine", "http://127.0.0.1:1", "--store", tmp_path / "s"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "s").exists()


def control(served, key):
    return httpx.Client(
        base_url=served.ready["control_url"],
        headers={"Authorization": f"Bearer {key}"},
        trust_env=False,
        verify=False,
    )


def test_serve_prints_both_addresses_and_ends_with_0_on_sigterm_and_goes_on_after(
    spawn, toy_folder, tmp_path
):
    """The two planes on two ports, a key of its own, a drained end, and the same store again."""
    engine = spawn("dressage_proxy.engine.scripted", "--port", "0")
    flags = ("serve", "--tokenizer", toy_folder, "--engine", engine.ready["url"], "--store", tmp_path / "s")
    served = spawn(
        "dressage_proxy.cli", *flags, "--port", "0", "--control-port", "0", DRESSAGE_CONTROL_KEY=""
    )
    assert served.ready["event"] == "ready"
    data, url = served.ready["data_url"], served.ready["control_url"]
    assert data != url
    key_file = tmp_path / "s" / "control.key"
    assert served.ready["control_key_file"] == str(key_file)
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    key = key_file.read_text()
    with control(served, key) as http:
        opened = http.post("/sessions", json={"instance_id": "i"}).json()
        session = opened["session_id"]
        assert opened["base_urls"]["openai"] == f"{data}/s/{session}/v1"
        assert http.post(f"/s/{session}/v1/chat/completions", json={}).status_code == 404, "control alone"
        assert httpx.get(f"{data}/rollout", verify=False).status_code == 404, "data alone"
        body = {"messages": [{"role": "user", "content": "hi"}]}
        address = f"{data}/s/{session}/v1/chat/completions"
        reply = httpx.post(address, json=body, verify=False)
        assert reply.status_code == 200
    assert served.stop() == 0
    again = spawn("dressage_proxy.cli", *flags, "--port", "0", DRESSAGE_CONTROL_KEY="")
    assert again.ready["data_url"] == again.ready["control_url"]
    assert key_file.read_text() == key, "who holds the key is not locked out by a restart"
    with control(again, key) as http:
        assert http.get(f"/sessions/{session}").json()["steps"] == 1
    again.process.send_signal(signal.SIGINT)
    assert again.process.wait(20) == 0


def test_sigterm_lets_a_reply_in_the_making_finish(spawn, toy_folder, tmp_path):
    engine = spawn("dressage_proxy.engine.scripted", "--port", "0", "--delay", "0.1")
    key_file = tmp_path / "key"
    key_file.write_text(KEY)
    served = spawn(
        "dressage_proxy.cli", "serve", "--tokenizer", toy_folder, "--engine", engine.ready["url"],
        "--store", tmp_path / "s", "--port", "0", "--control-key-file", key_file,
    )  # fmt: skip
    assert served.ready["control_key_file"] == str(key_file)
    with control(served, KEY) as http:
        session = http.post("/sessions", json={"instance_id": "i"}).json()["session_id"]
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        path = f"/s/{session}/v1/chat/completions"
        with ThreadPoolExecutor(1) as threads:
            replying = threads.submit(http.post, path, json=body)
            while not http.get("/rollout").json()["in_flight"]:
                time.sleep(0.01)
            served.process.send_signal(signal.SIGTERM)
            reply = replying.result()
        assert reply.status_code == 200
        assert reply.text.endswith("data: [DONE]\n\n")
        assert json.loads(reply.text.split("\n\n")[0].removeprefix("data: "))["choices"]
    assert served.process.wait(20) == 0


def test_a_second_signal_ends_the_drain_and_one_that_comes_right_after_is_the_same(
    spawn, toy_folder, tmp_path
):
    engine = spawn("dressage_proxy.engine.scripted", "--port", "0", "--delay", "5")
    served = spawn(
        "dressage_proxy.cli", "serve", "--tokenizer", toy_folder, "--engine", engine.ready["url"],
        "--store", tmp_path / "s", "--port", "0", "--drain", "60", DRESSAGE_CONTROL_KEY=KEY,
    )  # fmt: skip
    with control(served, KEY) as http, ThreadPoolExecutor(1) as threads:
        session = http.post("/sessions", json={"instance_id": "i"}).json()["session_id"]
        address = f"{served.ready['data_url']}/s/{session}/v1/chat/completions"
        body = {"messages": [{"role": "user", "content": "hi"}]}
        reply = threads.submit(httpx.post, address, json=body, timeout=20, trust_env=False)
        while not http.get("/rollout").json()["in_flight"]:
            time.sleep(0.02)
        for _ in range(2):  # as a terminal and a wrapper pass on one Ctrl-C
            served.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert served.process.poll() is None
        assert http.get("/rollout").json()["in_flight"] == 1
        assert http.post("/sessions", json={"instance_id": "i"}).status_code == 503
        served.process.send_signal(signal.SIGTERM)
        refused = reply.result(10)
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
    assert served.process.wait(10) == 0


@pytest.mark.parametrize("given", [None, "a-key-that-a-file-holds"])
@pytest.mark.parametrize("shards", [1, 2])
def test_the_control_key_is_in_no_line_of_the_log(monkeypatch, capsys, toy_folder, tmp_path, given, shards):
    monkeypatch.delenv(cli.KEY_VARIABLE, raising=False)
    file = tmp_path / "key"
    flags = ["--control-key-file", str(file)] if given else []
    if given:
        file.write_text(given)
    else:
        file = tmp_path / "s" / "control.key"

    def run(serve):
        serve.close()
        logging.getLogger("any").warning("a header: %s", file.read_text())

    monkeypatch.setattr(cli, "_run", run)
    before = logging.getLogger().handlers[:]
    arguments = ["serve", "--tokenizer", str(toy_folder), "--engine", "http://e:1", "--port", "0"]
    try:
        assert cli.main([*arguments, "--store", str(tmp_path / "s"), "--shards", str(shards), *flags]) == 0
    finally:
        logging.getLogger().handlers[:] = before
    said = capsys.readouterr().err
    assert "a header: [redacted]" in said
    assert file.read_text() not in said


@pytest.mark.parametrize("host", ["0", "0.0.0.0", "127.0.0.1"])
def test_agents_get_an_address_that_they_reach_however_all_addresses_are_called(
    spawn, toy_folder, tmp_path, host
):
    flags = ("--tokenizer", str(toy_folder), "--engine", "http://127.0.0.1:1", "--store", str(tmp_path / "s"))
    served = spawn(
        "dressage_proxy.cli", "serve", *flags, "--host", host, "--port", "0", DRESSAGE_CONTROL_KEY=KEY
    )
    port = str(served.ready["data_url"]).rpartition(":")[2]
    opened = httpx.post(
        f"http://127.0.0.1:{port}/sessions",
        json={"instance_id": "i"},
        headers={"Authorization": f"Bearer {KEY}"},
        trust_env=False,
    )
    assert opened.json()["base_urls"]["anthropic"].startswith(f"http://127.0.0.1:{port}/s/")


@pytest.mark.parametrize("shards", [1, 2])
def test_each_process_that_accepts_connections_sees_to_its_open_files(
    monkeypatch, toy_folder, tmp_path, shards
):
    allowed = []
    monkeypatch.setattr(cli, "allow_open_files", allowed.append)
    monkeypatch.setattr(cli, "_run", lambda serve: serve.close())
    handlers = logging.getLogger().handlers[:]
    arguments = ["serve", "--tokenizer", str(toy_folder), "--engine", "http://e:1", "--port", "0"]
    try:
        assert cli.main([*arguments, "--store", str(tmp_path / "s"), "--shards", str(shards)]) == 0
    finally:
        logging.getLogger().handlers[:] = handlers
    assert allowed == [4096 // shards]


@pytest.mark.parametrize("shards", ["1", "2"])
def test_what_the_http_server_says_is_a_line_like_all_others(spawn, toy_folder, tmp_path, capfd, shards):
    flags = ("--tokenizer", str(toy_folder), "--engine", "http://127.0.0.1:1", "--store", str(tmp_path / "s"))
    flags = ("serve", *flags, "--port", "0", "--shards", shards, "--log-format", "json")
    served = spawn("dressage_proxy.cli", *flags)
    host, port = str(served.ready["data_url"]).removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as strange:
        strange.sendall(b"GET /s/x HTTP/9.9\r\n\r\n")
        assert b" 400 " in strange.recv(100)
    served.process.terminate()
    assert served.process.wait(20) == 0
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["logger"] for line in lines if "Invalid HTTP" in line["message"]] == ["uvicorn.error"]
