"""A session's policy for thinking that the chat template leaves out of history (as Qwen3's does)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dressage_segments import audit
from dressage_tito import ChatCodec
from dressage_tito.toy import write_toy_tokenizer

KEEPS = "{%- if message.reasoning_content %}"
STRIPS = (
    "{%- set later = messages[loop.index0 + 1:] | selectattr('role', 'equalto', 'user') | list %}"
    "{%- if message.reasoning_content and not later %}"
)
FIRST, SECOND = "<think>\nso and so\n</think>\n\none", "<think>\nagain\n</think>\n\ntwo"


@pytest.fixture(scope="module")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_toy_tokenizer(tmp_path_factory.mktemp("strips"))
    changed = 0
    for path in folder.iterdir():
        text = path.read_text(encoding="utf-8")
        for plain, other in ((KEEPS, STRIPS), (_json(KEEPS), _json(STRIPS))):
            changed += plain in text
            text = text.replace(plain, other)
        path.write_text(text, encoding="utf-8")
    assert changed == 1
    return folder


@pytest.fixture(scope="module")
def codec(toy_folder: Path) -> ChatCodec:
    made = ChatCodec.from_folder(toy_folder)
    assert made.profile.thinking_in_history == "strips"
    return made


async def two_turns(rig: Any, **body: Any) -> tuple[Any, list[int]]:
    """The ended session, and the second prompt."""
    session = await rig.open(**body)
    rig.script(f"{FIRST}<|im_end|>", f"{SECOND}<|im_end|>")
    reply = (await rig.chat(session, "q1")).choices[0].message
    echo = {"role": "assistant", "content": reply.content, "reasoning_content": reply.reasoning_content}
    await rig.chat(session, "q1", echo, "q2")
    return await rig.end(session), rig.engine.requests[-1].input_ids


async def test_c09_thinking_is_kept_in_one_segment_unless_asked_otherwise(rig: Any) -> None:
    trajectory, prompt = await two_turns(rig)
    assert "so and so" in rig.codec.decode(prompt)
    assert len(trajectory.segments) == 1


async def test_c09_as_template_cuts_a_segment_whose_copied_context_is_not_trained(rig: Any) -> None:
    trajectory, prompt = await two_turns(rig, thinking="as-template")
    text = rig.codec.decode(prompt)
    assert "so and so" not in text
    assert "one" in text
    first, second = trajectory.segments
    assert (first.anchor, second.anchor) == (False, True)
    assert second.cut_reason == "refused_thinking_stripped"
    assert rig.codec.decode(second.token_ids[second.loss_mask.astype(bool)]).startswith("<think>\nagain")
    assert first.trained_tokens + second.trained_tokens == trajectory.trained_tokens
    assert trajectory.lost_tokens == {}
    assert audit(rig.store.records(trajectory.session_id), trajectory).ok


async def test_an_unknown_policy_is_refused_by_its_field(rig: Any) -> None:
    reply = await rig.http.post("/sessions", json={"instance_id": "i", "thinking": "drop"})
    assert reply.status_code == 422
    assert reply.json()["error"]["field"] == "thinking"


def _json(text: str) -> str:
    return text.replace('"', '\\"')
