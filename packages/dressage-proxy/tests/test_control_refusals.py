"""What the control plane refuses: keys, routes, fields, in one error shape."""

import json

import pytest
from dressage_proxy import Limits, Proxy, ProxyConfig, Sampling
from dressage_proxy.app import CombinedApp
from dressage_store import FilesStore


def error_of(reply, status):
    """The error of a reply, whose shape is checked."""
    assert reply.status_code == status, reply.text
    body = reply.json()
    assert set(body) == {"error"}
    assert set(body["error"]) <= {"code", "message", "field", "fix"}
    assert body["error"]["code"]
    assert body["error"]["message"]
    return body["error"]


async def test_an_unknown_session_is_a_404(rig):
    for method, path in ROUTES[1:6]:
        body = {"generation": 1} if path.endswith("ack") else None
        error = error_of(await rig.http.request(method, path, json=body), 404)
        assert error["code"] == "session_not_found"
    reply = await rig.http.post("/rollout/pause", json={"session_id": "x"})
    assert error_of(reply, 404)["code"] == "session_not_found"


UNKNOWN = [
    ("/sessions", {"instance_id": "i", "groupid": "g"}, "groupid"),
    ("/sessions", {"instance_id": "i", "sampling": {"temp": 1}}, "sampling.temp"),
    ("/sessions", {"instance_id": "i", "limits": {"steps": 1}}, "limits.steps"),
    ("/sessions/x/finalize", {"reward": 1}, "reward"),
    ("/sessions/x/ack", {"generation": 1, "more": 1}, "more"),
    ("/rollout/pause", {"session": "x"}, "session"),
    ("/rollout/resume", {"version": 1, "v": 1}, "v"),
]


async def test_an_unknown_field_is_refused_by_name(rig):
    for path, body, field in UNKNOWN:
        error = error_of(await rig.http.post(path, json=body), 422)
        assert (error["code"], error["field"]) == ("unknown_field", field)


RAW = [
    ("/sessions", '{"instance_id": "i", "sampling": {"temperature": Infinity}}', "sampling.temperature"),
    ("/sessions", '{"instance_id": "i", "sampling": {"seed": 18446744073709551616}}', "sampling.seed"),
    ("/sessions", '{"instance_id": "i", "sampling": {"stop": ["\\ud800"]}}', "sampling.stop.0"),
    ("/sessions", '{"instance_id": "i", "sampling": {"stop": [""]}}', "sampling.stop.0"),
    ("/sessions", '{"instance_id": "i", "labels": {"a": "\\udc00"}}', "labels"),
    ("/sessions", '{"instance_id": "i", "labels": {"\\udc00": 1}}', "labels.\ufffd\ufffd\ufffd"),
    ("/sessions", '{"instance_id": "i", "\\udc00": 1}', "body"),
    ("/sessions/x/finalize", '{"outcome": {"reward": NaN}}', "outcome"),
    ("/sessions/x/finalize", '{"outcome": {"reward": [1e400]}}', "outcome"),
    ("/sessions/x/finalize", '{"outcome": {"\\ud800": 1}}', "outcome"),
    ("/sessions/x/ack", '{"generation": true}', "generation"),
    ("/rollout/resume", '{"version": true}', "version"),
    ("/rollout/resume", '{"version": 2147483648}', "version"),
]


async def test_what_the_log_cannot_keep_is_refused_by_name(rig):
    for path, body, field in RAW:
        reply = await rig.http.post(path, content=body, headers={"content-type": "application/json"})
        assert error_of(reply, 422)["field"] == field, body


async def test_a_body_that_does_not_say_that_it_is_json_is_told_how(rig):
    reply = await rig.http.post("/sessions", content='{"instance_id": "i"}')
    assert "Content-Type: application/json" in error_of(reply, 422)["fix"]


BAD = [
    *[
        ("/sessions", {"instance_id": "i", group: {name: wrong}}, f"{group}.{name}")
        for group, model in (("sampling", Sampling), ("limits", Limits))
        for name in model.model_fields
        if name != "stop"
        for wrong in (True, "1", [1])
    ],
    ("/sessions", {}, "instance_id"),
    ("/sessions", {"instance_id": ""}, "instance_id"),
    ("/sessions", {"instance_id": "x" * 513}, "instance_id"),
    ("/sessions", {"instance_id": 5}, "instance_id"),
    ("/sessions", {"instance_id": "i", "sampling": {"temperature": -1}}, "sampling.temperature"),
    ("/sessions", {"instance_id": "i", "sampling": {"top_k": 0}}, "sampling.top_k"),
    ("/sessions", {"instance_id": "i", "limits": {"max_steps": 0}}, "limits.max_steps"),
    ("/sessions", {"instance_id": "i", "labels": {"a": 1}}, "labels.a"),
    ("/sessions/x/finalize", {"failure_class": "bad luck"}, "failure_class"),
    ("/sessions/x/finalize", {"outcome": 1}, "outcome"),
    ("/sessions/x/ack", {}, "generation"),
    ("/sessions/x/ack", {"generation": 0}, "generation"),
    ("/rollout/pause", {"timeout_s": -1}, "timeout_s"),
    ("/rollout/pause", {"timeout_s": "1"}, "timeout_s"),
    ("/rollout/pause", {"timeout_s": True}, "timeout_s"),
    ("/rollout/pause", {"force": 1}, "force"),
    ("/rollout/pause", {"force": "yes"}, "force"),
    ("/rollout/resume", {}, "version"),
    ("/rollout/resume", {"version": -1}, "version"),
    ("/rollout/resume", {"version": "three"}, "version"),
]


async def test_a_bad_value_is_refused_by_name(rig):
    for path, body, field in BAD:
        error = error_of(await rig.http.post(path, json=body), 422)
        assert (error["code"], error["field"]) == ("invalid_field", field)
        assert error["fix"]


async def test_a_body_that_is_no_json_is_a_400(rig):
    reply = await rig.http.post("/sessions", content=b"{oops", headers={"content-type": "application/json"})
    assert error_of(reply, 400)["code"] == "invalid_json"


ROUTES = [
    ("POST", "/sessions"), ("GET", "/sessions/x"), ("POST", "/sessions/x/finalize"),
    ("GET", "/sessions/x/segments"), ("POST", "/sessions/x/ack"), ("DELETE", "/sessions/x"),
    ("POST", "/rollout/pause"), ("POST", "/rollout/resume"), ("GET", "/rollout"), ("GET", "/metrics"),
]  # fmt: skip


async def test_every_route_of_the_control_plane_wants_the_key(rig):
    for method, path in ROUTES:
        for given in ("", "Bearer wrong", "Bearer", "Basic x", rig.key):
            headers = {"Authorization": given}
            error = error_of(await rig.http.request(method, path, headers=headers, json={}), 401)
            assert error["code"] == "unauthorized"
            assert "Bearer" in error["fix"]


async def test_the_session_id_is_no_key_of_the_control_plane(rig):
    session = await rig.open()
    reply = await rig.http.post("/sessions", headers={"Authorization": f"Bearer {session}"}, json={})
    assert error_of(reply, 401)


async def test_unknown_routes_and_methods_have_the_same_error_shape(rig):
    assert error_of(await rig.http.get("/nowhere"), 404)["code"] == "unknown_route"
    assert error_of(await rig.http.put("/sessions"), 405)["code"] == "method_not_allowed"


async def test_a_store_that_fails_on_open_is_a_503(rig, monkeypatch):
    def refuse(*_):
        raise OSError("no space left")

    monkeypatch.setattr(FilesStore, "append", refuse)
    error = error_of(await rig.http.post("/sessions", json={"instance_id": "i"}), 503)
    assert error["code"] == "store_failed"
    assert "no space left" in error["message"]


async def test_too_many_sessions_is_a_503_that_says_what_to_do(make_rig):
    rig = await make_rig(max_sessions=1)
    session = await rig.open()
    error = error_of(await rig.http.post("/sessions", json={"instance_id": "i"}), 503)
    assert error["code"] == "too_many_sessions"
    await rig.end(session)
    assert (await rig.http.post(f"/sessions/{session}/ack", json={"generation": 1})).status_code == 204
    await rig.open()


async def test_the_data_plane_alone_knows_no_control_route(rig):
    app = CombinedApp(rig.proxy.data_app(), None)
    for path in ("/sessions", "/rollout/pause", "/metrics", "/", "/s", "/s/", "/x/y/v1/chat/completions"):
        sent: list = []

        async def send(message, sent=sent):
            sent.append(message)

        async def receive():
            return {"type": "http.request", "body": b"{}", "more_body": False}

        await app({"type": "http", "path": path, "method": "POST", "headers": []}, receive, send)
        assert sent[0]["status"] == 404
        assert json.loads(sent[1]["body"])["error"]["code"] in ("unknown_route", "session_not_found")


def test_a_configuration_is_frozen_and_checked(toy_folder, tmp_path, codec):
    given = {"tokenizer": toy_folder, "store": tmp_path, "control_key": "k" * 16, "engines": ("http://e:1/",)}
    config = ProxyConfig(**given)
    assert config.engines == ("http://e:1",)
    assert "k" * 16 not in repr(config)
    with pytest.raises(ValueError, match="frozen"):
        config.retain = True
    for bad in (
        {"engines": ()}, {"engines": ("e:1",)}, {"engines": ("http://",)}, {"engines": ("http://e:x",)},
        {"engines": ("http://e/?a=1",)}, {"engines": ("ftp://e",)}, {"control_key": "short"}, {"other": 1},
        {"context_window": 0},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=next(iter(bad))):
            ProxyConfig(**{**given, **bad})
    with FilesStore(tmp_path / "s") as store:
        assert isinstance(Proxy.build(config, store, codec), Proxy)
