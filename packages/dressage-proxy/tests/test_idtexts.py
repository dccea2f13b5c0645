"""The JSON of a prompt's ids is that of its ids, however much of it was kept."""

from __future__ import annotations

import json

import numpy as np
import pytest
from dressage_proxy.engine import idtexts
from dressage_proxy.engine.idtexts import IdTexts, further, ids_text
from dressage_proxy.engine.prompt import Prompt
from dressage_segments import IdsDigest
from hypothesis import given
from hypothesis import strategies as st

ids = st.lists(st.integers(0, 2**31 - 1), max_size=12).map(lambda values: np.array(values, np.int32))
step = st.tuples(st.sampled_from("ab"), st.integers(0, 5), ids, ids)


@given(st.lists(step, max_size=30), st.integers(0, 600))
def test_whatever_is_kept_a_prompt_is_its_ids(steps: list[tuple], limit: int) -> None:
    """Sessions a and b, turns that hang on any turn before: forks, retries and turns that were forgotten."""
    texts = IdTexts(limit)
    walks: dict[str, list[np.ndarray]] = {"a": [], "b": []}
    for session, back, delta, output in steps:
        before = walks[session]
        parent = len(before) - back if 0 < back <= len(before) else -1
        walk = before[parent] if parent >= 0 else np.empty(0, np.int32)
        prompt = np.concatenate([walk, delta])
        known = texts.walk(session, parent)
        text = further((ids_text(walk),) if known is None and len(walk) else known or (), delta)
        assert json.loads(b"[" + b"".join(text) + b"]") == prompt.tolist()
        texts.keep(session, parent, len(before), further(text, output))
        before.append(np.concatenate([prompt, output]))
        assert texts.nbytes <= limit
        held = sum(
            len(part) for walks_ in texts._kept.values() for walk_ in walks_.values() for part in walk_
        )
        assert texts.nbytes == held
        assert all(len(kept) <= 4 for kept in texts._kept.values())
    for session in walks:
        texts.forget(session)
    assert texts.nbytes == 0
    assert not texts._kept


@given(st.lists(ids, max_size=8), st.integers(0, 40))
def test_pieces_follow_one_another_whatever_their_size(parts: list[np.ndarray], piece: int) -> None:
    text: idtexts.Text = ()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(idtexts, "_PIECE_BYTES", piece)
        for part in parts:
            text = further(text, part)
    assert json.loads(b"[" + b"".join(text) + b"]") == [int(token) for part in parts for token in part]
    assert all(len(one) >= piece for one in text[:-1])


def test_only_what_is_new_is_written_and_copied() -> None:
    text = further((), np.arange(100_000, dtype=np.int32))
    longer = further(text, np.arange(5, dtype=np.int32))
    assert longer[0] is text[0]
    assert longer[1] == b",0,1,2,3,4"


def test_a_prompt_that_goes_on_is_its_ids_with_their_digest_and_text() -> None:
    one, two, three = (np.arange(size, dtype=np.int32) for size in (5, 3, 2))
    prompt = Prompt(one, two, IdsDigest(one).update(two)).followed_by(three)
    whole = Prompt.of(np.concatenate([one, two, three]))
    assert len(prompt) == len(whole) == 10
    assert prompt.ids.tolist() == whole.ids.tolist()
    assert prompt.digest.hexdigest() == whole.digest.hexdigest()
    assert b"".join(prompt.json()) == b"".join(whole.json())


def test_a_prompt_of_no_ids_goes_on_as_any_other() -> None:
    prompt = Prompt.of(np.empty(0, np.int32)).followed_by(np.array([4, 5], np.int32))
    assert json.loads(b"[%b]" % b"".join(prompt.json())) == [4, 5]


async def test_a_session_that_ended_keeps_no_text(rig) -> None:
    """Its prompts are the engine's ids turn by turn, and nothing is left of them after."""
    session = await rig.open()
    one = await rig.chat(session, "first")
    texts = rig.proxy.pipeline.texts
    assert texts.nbytes
    first = rig.engine.requests[0]
    await rig.post(session, {
        "model": "m",
        "messages": [
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": one.choices[0].message.content},
            {"role": "user", "content": "second"},
        ],
    })  # fmt: skip
    second = rig.engine.requests[1].input_ids
    assert list(second[: len(first.input_ids)]) == list(first.input_ids)
    await rig.end(session)
    assert texts.nbytes == 0
