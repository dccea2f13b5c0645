"""The JSON of a prompt's ids is that of its ids, however much of it was kept."""

from __future__ import annotations

import json

import numpy as np
from dressage_proxy.engine.idtexts import IdTexts, ids_text
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
        text = texts.prompt(session, parent, prompt, len(walk))
        assert json.loads(b"[" + text + b"]") == prompt.tolist()
        texts.keep(session, parent, len(before), text, output)
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


def test_only_what_is_new_is_written(monkeypatch) -> None:
    written: list[int] = []

    def noted(new: np.ndarray) -> bytes:
        written.append(len(new))
        return ids_text(new)

    monkeypatch.setattr("dressage_proxy.engine.idtexts.ids_text", noted)
    texts = IdTexts()
    prompt = np.arange(1000, dtype=np.int32)
    text = texts.prompt("a", -1, prompt, 0)
    texts.keep("a", -1, 0, text, prompt[:10])
    texts.prompt("a", 0, np.concatenate([prompt, prompt[:10], prompt[:5]]), 1010)
    assert written == [1000, 10, 5]


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
