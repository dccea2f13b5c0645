"""Defects once found in reading an engine's reply."""

import json
from typing import Any

import numpy as np
import pytest
from dressage_proxy.engine.prompt import Prompt
from dressage_proxy.engine.wire import Call, CallResult, decode_reply
from dressage_proxy.errors import EngineError
from dressage_segments import LossCause
from hypothesis import given, settings
from hypothesis import strategies as st

IDS = [5, 6, 7]


def decoded(dispatch_version: int = 9, finish: str = "stop", **meta: Any) -> CallResult:
    """The reply of a call over 2 prompt tokens; a field that is ``...`` is left out."""
    fields = {
        "finish_reason": {"type": finish},
        "prompt_tokens": 2,
        "completion_tokens": len(IDS),
        "output_token_logprobs": [[-0.5, token, None] for token in IDS],
        "weight_version": "4",
        **meta,
    }
    kept = {name: value for name, value in fields.items() if value is not ...}
    body = json.dumps({"output_ids": IDS, "meta_info": kept}).encode()
    return decode_reply(body, Call("r", Prompt.of(np.zeros(2, np.int32)), {}, dispatch_version))


SPANS = [
    ([{"version": "3", "start": 0, "end": 2}, {"version": "4", "start": 2, "end": 3}], [3, 3, 4]),
    ([{"version": 3, "start": 1, "end": 2}], [-1, 3, -1]),
    ([{"version": "default", "start": 0, "end": 3}], [-1, -1, -1]),
    ([], [4, 4, 4]),
    (None, [4, 4, 4]),
]
MALFORMED = [
    [{"version": "3", "start": 0}],
    [{"version": "3", "start": "a", "end": 9}],
    [{"version": "3", "start": 0, "end": 99}],
    [{"version": "3", "start": True, "end": 3}],
    [{"version": "3", "start": 0, "end": 2}, {"version": "4", "start": 1, "end": 3}],
    [{"version": "3", "start": -1, "end": 2}],
    [{"version": "3", "start": 0, "end": 2}, None],
    [[0, 3]],
    "x",
    7,
    {"version": "3", "start": 0, "end": 3},
]


@pytest.mark.parametrize(("spans", "versions"), SPANS)
def test_spans_label_the_tokens_that_they_cover(spans: Any, versions: list[int]) -> None:
    assert decoded(weight_versions=spans).versions.tolist() == versions


@pytest.mark.parametrize("spans", MALFORMED)
def test_spans_that_do_not_fit_the_output_make_every_version_unknown(spans: Any) -> None:
    result = decoded(weight_versions=spans)
    assert result.versions.tolist() == [-1, -1, -1]
    assert result.output_ids.tolist() == IDS


@pytest.mark.parametrize("label", ["default", "", "v3", "-1", "1.5", "9" * 5000, True, 2**31, 1.0, ["3"]])
def test_a_label_that_is_no_version_is_unknown_whatever_was_announced(label: Any) -> None:
    assert decoded(weight_version=label).versions.tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    "entries",
    [
        [["-0.5", 5, None], [-0.5, 6, None], [-0.5, 7, None]],
        [[True, 5, None], [True, 6, None], [True, 7, None]],
        [[-0.5, 5.5, None], [-0.5, 6, None], [-0.5, 7, None]],
        [[-0.5, 2**63, None], [-0.5, 6, None], [-0.5, 7, None]],
        [[-0.5, "5", None], [-0.5, "6", None], [-0.5, "7", None]],
        [[[1, 2], 5, None], [-0.5, 6, None], [-0.5, 7, None]],
        [[-0.5], [-0.5], [-0.5]],
        [{"logprob": -0.5}] * 3,
        [None, None, None],
        "abc",
    ],
)
def test_nothing_is_cast_into_a_logprob_or_an_id(entries: Any) -> None:
    result = decoded(output_token_logprobs=entries)
    assert result.untrainable in (LossCause.MISALIGNED, LossCause.MISSING_LOGPROBS)
    assert result.output_ids.tolist() == IDS


@pytest.mark.parametrize("dispatch_version", [-1, 9])
def test_an_abort_without_a_version_is_kept_but_not_trained(dispatch_version: int) -> None:
    result = decoded(dispatch_version, "abort", weight_version=...)
    assert result.untrainable == LossCause.VERSION_RULE
    assert result.output_ids.tolist() == IDS
    assert result.versions.tolist() == [dispatch_version] * 3


def test_an_abort_with_its_version_and_a_stop_without_one_are_trained() -> None:
    assert decoded(finish="abort").untrainable == ""
    assert decoded(weight_version=...).untrainable == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
FIELDS = [
    "finish_reason", "prompt_tokens", "completion_tokens", "output_token_logprobs", "weight_version",
    "weight_versions", "cached_tokens",
]  # fmt: skip
SPAN = st.dictionaries(st.sampled_from(["version", "start", "end"]), JSON)
ENTRY = st.lists(JSON, max_size=3)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(FIELDS), JSON | st.lists(SPAN, max_size=3) | st.lists(ENTRY, max_size=3)),
    JSON | st.lists(st.integers(0, 9), max_size=3),
)
def test_any_reply_is_evidence_of_one_length_or_an_engine_error(meta: dict[str, Any], ids: Any) -> None:
    fields = {"finish_reason": {"type": "stop"}, **meta}
    body = json.dumps({"output_ids": ids, "meta_info": fields}, allow_nan=True).encode()
    try:
        result = decode_reply(body, Call("r", Prompt.of(np.zeros(2, np.int32)), {}, 3))
    except EngineError:
        return
    size = len(result.output_ids)
    assert result.logprobs.shape == result.versions.shape == (size,)
    assert (result.output_ids.dtype, result.logprobs.dtype, result.versions.dtype) == (
        np.int32,
        np.float32,
        np.int32,
    )
    assert result.untrainable in ("", *LossCause)
    assert result.cached_tokens is None or 0 <= result.cached_tokens <= 2


@pytest.mark.parametrize("cached", [-1, 2**40, True, 1.0, "1", None])
def test_a_count_of_cached_tokens_that_cannot_be_is_none(cached: Any) -> None:
    assert decoded(cached_tokens=cached).cached_tokens is None
    assert decoded(cached_tokens=0).cached_tokens == 0
