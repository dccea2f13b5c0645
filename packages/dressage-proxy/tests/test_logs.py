"""Logs: one JSON object a line, and no secret in any of them."""

import io
import json
import logging

import pytest
from dressage_proxy.logs import REDACTED, Redactor, configure_logs
from hypothesis import given
from hypothesis import strategies as st

SESSION = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def root():
    """The root logger, put back afterwards."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield logger
    logger.handlers[:], logger.level = handlers, level


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer hunter2-hunter2",
        "authorization: bearer   hunter2-hunter2",
        "{'x-api-key': 'hunter2-hunter2'}",
        "api_key=hunter2-hunter2",
        'config {"api-key":"hunter2-hunter2"}',
        "sk-hunter2-hunter2",
        "the-secret-key hunter2-hunter2"[:14],
        "Authorization: Basic hunter2-hunter2",
        "{'Authorization': 'Basic hunter2-hunter2'}",
        "no connection to http://user:hunter2-hunter2@engine:30000/generate",
        "no connection to https://hunter2-hunter2@engine",
    ],
)
def test_keys_are_taken_out_wherever_they_stand(text):
    redacted = Redactor(["the-secret-key"])(text)
    assert "hunter2" not in redacted
    assert "the-secret-key" not in redacted
    assert REDACTED in redacted


def test_of_a_session_id_only_its_start_is_left():
    assert Redactor()(f"session {SESSION} ended") == "session 01234567… ended"
    assert SESSION not in Redactor()(f"/s/{SESSION}/v1 x_{SESSION}_x")


SECRETS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=16, max_size=30)
SHAPES = [
    "{}",
    'headers {{"Authorization": "Bearer {}"}}',
    '{{"api_key":"{}"}}',
    "http://user:{}@h:1",
    '"{}"\n',
]


@given(SECRETS, st.sampled_from(SHAPES), st.booleans())
def test_whatever_a_secret_is_made_of_it_is_in_no_line_and_json_stays_json(secret, shape, as_json):
    """Quotes and backslashes too, which JSON writes in another way than the secret has them."""
    stream = io.StringIO()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    text = shape.format(secret)
    try:
        configure_logs("info", as_json=as_json, secrets=[secret], stream=stream)
        root.info("%s", text, extra={"given": {text: [text, float("nan"), 1, None]}})
    finally:
        root.handlers[:], root.level = handlers, level
    said = stream.getvalue()
    assert secret not in said
    if as_json:
        (line,) = said.splitlines()
        assert secret not in repr(json.loads(line))
        assert json.dumps(secret)[1:-1] not in line
        assert json.loads(line)["given"].popitem()[1][1:] == ["nan", 1, None]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_a_secret_is_nowhere_in_a_line_that_stays_json(noise):
    stream = io.StringIO()
    logger = logging.getLogger("dressage.test-logs")
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        configure_logs("info", as_json=True, secrets=["the-secret-key"], stream=stream)
        logger.info("%s the-secret-key %s", noise, SESSION, extra={"key": f"the-secret-key{noise}"})
    finally:
        root.handlers[:], root.level = handlers, level
    line = json.loads(stream.getvalue())
    assert "the-secret-key" not in stream.getvalue()
    assert line["level"] == "info"
    assert line["logger"] == "dressage.test-logs"
    assert line["key"].startswith(REDACTED)


@pytest.mark.parametrize("as_json", [True, False])
def test_a_traceback_is_redacted_too(root, as_json):
    stream = io.StringIO()
    configure_logs("info", as_json=as_json, secrets=["the-secret-key"], stream=stream)
    try:
        raise ValueError("the-secret-key")
    except ValueError:
        root.exception("failed")
    assert "ValueError" in stream.getvalue()
    assert "the-secret-key" not in stream.getvalue()


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("shard", [None, 0, 7])
def test_a_line_says_which_shard_it_is_of(root, as_json, shard):
    stream = io.StringIO()
    configure_logs("info", as_json=as_json, stream=stream, shard=shard)
    root.info("resumed")
    if as_json:
        assert json.loads(stream.getvalue()).get("shard") == shard
    else:
        assert stream.getvalue().endswith(" root resumed\n" if shard is None else f" shard-{shard} resumed\n")
