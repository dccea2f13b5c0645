"""P1 on real templates: 3 to 10 turns, any segmentation of what was sampled, prefixes equal on ids."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from dressage_tito import ChatCodec, Encoded, Message, Refusal, TokenBuffer
from dressage_tito.canonical import comparable
from dressage_tito.checks import NotApplicable, Refused, Subject
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.heavy

FAMILIES = ["qwen3", "glm4_5", "glm4_7", "kimi_k2", "minimax_m2", "lfm2", "gemma4", "nemotron_3-nano", "phi3"]


@pytest.mark.parametrize("name", FAMILIES)
@given(seed=st.integers(0, 2**32), data=st.data())
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_p1_prefixes_hold_on_ids_for_any_segmentation_of_what_was_sampled(
    name: str, real_codec: Callable[[str], ChatCodec], seed: int, data: st.DataObject
) -> None:
    codec = real_codec(name)
    subject = Subject(codec, seed)
    conversation = subject.fuzzer.conversation(spelled=False, rounds=data.draw(st.integers(3, 10)))
    buffer = TokenBuffer()
    history: list[Message] = []
    try:
        for appended, reply in [(r.appended, r.reply) for r in conversation.rounds]:
            before = buffer.ids.copy()
            delta = _delta(codec, buffer, history, appended, conversation.tools)
            buffer.append(delta.ids)
            assert buffer.ids[: len(before)].tolist() == before.tolist()
            history += appended
            text, end = subject.sampled(history, reply, conversation)
            body = text.removesuffix(end)
            cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
            pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
            sampled = [token for piece in pieces for token in codec.encode_sample(piece)]
            buffer.append([*sampled, *codec.encode_sample(end)])
            history.append(reply)
        delta = _delta(codec, buffer, history, conversation.last, conversation.tools)
        whole = subject.full([*history, *conversation.last], conversation)
    except (Refused, NotApplicable):
        return  # the template cannot express this conversation, or writes an earlier turn anew
    got = comparable(codec, codec.decode([*buffer.ids.tolist(), *delta.ids.tolist()]))
    assert got == comparable(codec, codec.decode(codec.encode_sample(whole)))


def _delta(
    codec: ChatCodec,
    buffer: TokenBuffer,
    history: list[Message],
    appended: tuple[Message, ...],
    tools: object,
) -> Encoded:
    if isinstance(codec.start([*history, *appended], tools), Refusal):  # type: ignore[arg-type]
        raise Refused("start")
    step = codec.extend(buffer.ids, appended, tools) if len(buffer) else codec.start(appended, tools)  # type: ignore[arg-type]
    if isinstance(step, Refusal):
        raise Refused(step.reason)
    return step
