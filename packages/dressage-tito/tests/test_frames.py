"""A render whose frame is known is taken as it would be with all proofs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from dressage_tito import ChatCodec, Encoded, Message, Refusal
from dressage_tito.frames import Frames
from dressage_tito.template import ChatTemplate
from dressage_tito.toy import NOT_SPECIAL, SPECIAL
from hypothesis import given, settings
from hypothesis import strategies as st

CHATML = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + CONTENT + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
TEMPLATES = {
    "as it is": "m.content",
    "trimmed": "(m.content | trim)",
    "looked at": "('' if m.content.startswith('a') and loop.index > 2 else m.content)",
    "replaced": "(m.content | replace('b', 'c'))",
    "twice": "m.content + (m.content if m.role == 'user' else '')",
}
content = st.lists(
    st.sampled_from(["a", "b", "word", " ", "\n", "\u00e9", "\ufdd0", *SPECIAL, *NOT_SPECIAL]), max_size=5
).map("".join)
message = st.builds(
    lambda role, text, call: Message(role, text, tool_call_id=call if role == "tool" else ""),
    st.sampled_from(["user", "tool"]),
    content,
    st.sampled_from(["call1", "call2"]),
)
appendings = st.lists(st.lists(message, min_size=1, max_size=3), min_size=2, max_size=8)


def told(found: Encoded | Refusal) -> object:
    if isinstance(found, Refusal):
        return found
    return found.ids.tolist(), found.frame.tolist(), found.reasoning_open


@pytest.mark.parametrize("name", [*TEMPLATES, "toy"])
def test_what_was_rendered_before_changes_nothing(
    name: str, toy: ChatCodec, codec_with: Callable[..., ChatCodec]
) -> None:
    codec = toy if name == "toy" else codec_with(CHATML.replace("CONTENT", TEMPLATES[name]))
    prefix = np.array([5, *codec.stop_token_ids], np.int32)

    @settings(deadline=None, max_examples=60)
    @given(appendings)
    def same(many: list[list[Message]]) -> None:
        warm = codec.with_profile(codec.profile)
        for appended in many:
            fresh = codec.with_profile(codec.profile)
            assert told(warm.extend(prefix, appended)) == told(fresh.extend(prefix, appended))
            said = [Message("system", "s"), *appended]
            assert told(warm.start(said)) == told(fresh.start(said))

    same()


def test_a_known_frame_is_rendered_once(
    codec_with: Callable[..., ChatCodec], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the template does to contents what cannot be followed (see test_tails for where it can be)."""
    codec = codec_with(CHATML.replace("CONTENT", "(m.content | replace('Xq7none', ''))"))
    prefix = np.array([5, *codec.stop_token_ids], np.int32)
    renders = []
    render = ChatTemplate.render

    def counted(*args: object, **kwargs: object) -> str:
        renders.append(1)
        return render(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(ChatTemplate, "render", counted)
    counts = []
    for text in ("first", "second", "third"):
        codec.extend(prefix, [Message("user", text)])
        counts.append(len(renders))
    for text in ("first", "second", "third"):
        codec.start([Message("user", text)])
        counts.append(len(renders))
    assert counts == [2, 3, 4, 6, 7, 8]


def test_what_is_kept_is_bounded() -> None:
    frames = Frames()
    for count in range(1, 200):
        messages = [Message("user", "x")] * count
        spans = [(2 * place + 1, 2 * place + 2) for place in range(count)]
        frames.keep(messages, ["x"] * count, "-x" * count + "-", spans)
    assert len(frames._known) <= 64
    long = Frames()
    long.keep([Message("user", "x")], ["x"], "-" * 5000 + "x", [(5000, 5001)])
    assert not long._known
