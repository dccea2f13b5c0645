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
    ],
)
def test_keys_are_taken_out_wherever_they_stand(text):
    redacted = Redactor(["the-secret-key"])(text)
    assert "hunter2" not in redacted
    assert "the-secret-key" not in redacted
    assert REDACTED in redacted


def test_of_a_session_id_only_its_start_is_left():
    assert Redactor()(f"session {SESSION} ended") == "session 01234567… ended"


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
