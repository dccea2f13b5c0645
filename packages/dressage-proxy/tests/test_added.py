"""Text that agents put behind what was sampled, in the same assistant message."""

from types import SimpleNamespace

import numpy as np
import pytest
from dressage_proxy.added import behind
from dressage_proxy.canonical import message_key
from dressage_proxy.engine.scripted import Output
from dressage_segments import Origin
from dressage_tito import Message
from hypothesis import given, settings
from hypothesis import strategies as st

STEP = 'Thought: look\nAction: shell\nAction Input: {"command": "ls"}'
STOP = "\nObservation:"
END = "Thought: done\nFinal Answer: 42"


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def at_stop(rig, text):
    """What an engine samples that ends at a stop string: with its ids, without one that closes a turn."""
    return Output(rig.ids(text + STOP), matched=STOP)


async def ask(rig, session, messages, stop=(STOP,), **body):
    sent = {"messages": messages, "stop": list(stop), **body}
    reply = await rig.post(session, sent)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"]["content"]


async def test_an_observation_behind_a_restored_stop_string_is_in_the_same_message_and_untrained(rig):
    rig.script_raw(at_stop(rig, STEP), at_stop(rig, STEP), rig.ids(END + "<|im_end|>"))
    session = await rig.open()
    messages = [user("q")]
    for number in range(3):
        said = await ask(rig, session, messages)
        messages += [assistant(f"{said}{STOP} out {number}"), user("go on")]
    prompt = rig.engine.requests[2].input_ids
    one = f"<|im_start|>assistant\n{STEP}{STOP} out %d<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n"
    assert rig.codec.decode(prompt).endswith(one % 0 + one % 1 + "<|im_start|>assistant\n")
    (segment,) = (await rig.end(session)).segments
    assert segment.trained_tokens == len(rig.ids(STEP + STOP)) * 2 + len(rig.ids(END + "<|im_end|>"))
    trained = rig.codec.decode(segment.token_ids[segment.loss_mask.astype(bool)])
    assert "out" not in trained
    assert "out 0" in rig.codec.decode(segment.token_ids[segment.origin == Origin.ENVIRONMENT])


async def test_what_is_put_behind_a_closed_turn_follows_it_as_a_message_of_its_own(rig):
    rig.script(STEP, END)
    session = await rig.open()
    said = await ask(rig, session, [user("q")])
    await ask(rig, session, [user("q"), assistant(f"{said}{STOP} out"), user("go on")])
    prompt = rig.codec.decode(rig.engine.requests[1].input_ids)
    step = f"<|im_start|>assistant\n{STEP}<|im_end|>\n<|im_start|>assistant\n{STOP} out<|im_end|>\n"
    assert step in prompt
    assert rig.tree(session).turn(1).extra["flags"] == [
        "messages[2] was put behind what the model said, in the same message"
    ]
    assert len((await rig.end(session)).segments) == 1


@pytest.mark.parametrize("restored", [STEP + STOP, STEP + STOP + "\n", STEP])
async def test_a_stop_string_that_is_put_back_makes_it_no_other_turn(rig, restored):
    rig.script_raw(at_stop(rig, STEP), rig.ids(END + "<|im_end|>"))
    session = await rig.open()
    await ask(rig, session, [user("q")])
    await ask(rig, session, [user("q"), assistant(restored), user("go on")])
    assert "flags" not in rig.tree(session).turn(1).extra
    assert len((await rig.end(session)).segments) == 1


@pytest.mark.parametrize("reset", [False, True], ids=["remembered", "read anew"])
async def test_a_long_conversation_of_observations_keeps_one_branch(rig, reset):
    rig.script_raw(*[at_stop(rig, f"{STEP} {number}") for number in range(6)])
    session = await rig.open()
    messages = [user("q")]
    for number in range(6):
        said = await ask(rig, session, messages)
        behind = f"{said}{STOP} out {number % 2}"
        parts = [{"type": "text", "text": behind[:9]}, {"type": "text", "text": behind[9:]}]
        messages += [assistant(parts if number == 3 else behind), user("go on")]
        if reset:
            live = rig.proxy.sessions.live(session)
            live.recents.clear()
            live.echoes.added.clear()
    assert [turn.parent for turn in rig.tree(session).turns] == [-1, 0, 1, 2, 3, 4]
    assert len((await rig.end(session)).segments) == 1


async def test_a_history_that_is_rewritten_before_it_copies_the_sampled_ids(rig):
    rig.script_raw(at_stop(rig, STEP), at_stop(rig, STEP), rig.ids(END + "<|im_end|>"))
    session = await rig.open()
    echo = assistant(f"{STEP}{STOP} out")
    await ask(rig, session, [user("q")])
    await ask(rig, session, [user("q"), echo, user("go on")])
    await ask(rig, session, [user("another"), echo, user("go on")])
    turn = rig.tree(session).turn(2)
    assert (turn.parent, turn.extra["copied"]) == (-1, 1)
    prompt = rig.codec.decode(rig.engine.requests[2].input_ids)
    assert f"{STEP}{STOP} out<|im_end|>" in prompt
    await rig.end(session)


@pytest.mark.parametrize(
    "echo",
    [
        STEP.replace("look", "see") + STOP + " out",
        STEP[:-1] + "x",
        f"Well. {STEP}{STOP} out",
        STEP + "!",
    ],
    ids=["changed", "another end", "before it", "no line of its own"],
)
async def test_text_that_does_not_begin_with_all_that_was_said_is_another_message(rig, echo):
    rig.script(STEP, END)
    session = await rig.open()
    await ask(rig, session, [user("q")])
    await ask(rig, session, [user("q"), assistant(echo), user("go on")])
    assert rig.tree(session).turn(1).parent == -1
    assert rig.codec.decode(rig.engine.requests[1].input_ids).count("<|im_start|>assistant") == 2


@pytest.mark.parametrize("first", ["longer", "shorter"])
async def test_of_two_samples_it_goes_on_from_the_one_that_says_most_of_it(rig, first):
    longer, shorter = at_stop(rig, STEP + "\nand more"), rig.ids(STEP + "<|im_end|>")
    rig.script_raw(*([longer, shorter] if first == "longer" else [shorter, longer]), rig.ids("<|im_end|>"))
    session = await rig.open()
    await ask(rig, session, [user("q")])
    await ask(rig, session, [user("q")])
    await ask(rig, session, [user("q"), assistant(f"{STEP}\nand more{STOP} out"), user("go on")])
    assert rig.tree(session).turn(2).parent == (0 if first == "longer" else 1)
    await rig.end(session)


async def test_what_is_the_beginning_of_one_sample_is_not_taken_for_more_than_another(rig):
    rig.script(STEP + "\nand more and more", STEP, "done")
    session = await rig.open()
    await ask(rig, session, [user("q")])
    await ask(rig, session, [user("q")])
    await ask(rig, session, [user("q"), assistant(STEP + "\nand more"), user("go on")])
    assert (
        "messages[1] is the beginning of what was returned as turn 0"
        in rig.tree(session).turn(2).extra["flags"]
    )
    await rig.end(session)


async def test_what_is_put_behind_text_under_a_handle_is_not_lost(rig):
    rig.script(f"<think>\nhm\n</think>\n\n{STEP}", END)
    session = await rig.open()
    base = {"model": "m", "max_tokens": 99}
    first = await rig.http.post(f"/s/{session}/v1/messages", json={**base, "messages": [user("q")]})
    thought, text = first.json()["content"]
    said = {"role": "assistant", "content": [thought, {**text, "text": text["text"] + "\nObservation: out"}]}
    messages = [user("q"), said, user("go on")]
    second = await rig.http.post(f"/s/{session}/v1/messages", json={**base, "messages": messages})
    assert second.status_code == 200, second.text
    assert "Observation: out" in rig.codec.decode(rig.engine.requests[1].input_ids)
    assert len((await rig.end(session)).segments) == 1


async def test_counting_a_prompt_with_an_observation_tells_what_it_will_be(rig):
    rig.script_raw(at_stop(rig, STEP), rig.ids(END + "<|im_end|>"))
    session = await rig.open()
    await ask(rig, session, [user("q")])
    messages = [user("q"), assistant(f"{STEP}{STOP} out"), user("go on")]
    body = {"model": "m", "max_tokens": 9, "messages": messages}
    counted = await rig.http.post(f"/s/{session}/v1/messages/count_tokens", json=body)
    await ask(rig, session, messages)
    assert counted.json()["input_tokens"] == len(rig.engine.requests[1].input_ids)


async def test_a_template_that_wants_turns_to_alternate_has_it_in_one_message(make_rig, toy_folder, tmp_path):
    from dressage_tito import ChatCodec
    from dressage_tito.toy import TEMPLATE, write_toy_tokenizer

    strict = (
        "{%- for message in messages %}{%- if not loop.first and message.role == 'assistant' and "
        "messages[loop.index0 - 1].role == 'assistant' %}{{- raise_exception('roles must alternate') }}"
        "{%- endif %}{%- endfor %}\n" + TEMPLATE
    )
    codec = ChatCodec.from_folder(write_toy_tokenizer(tmp_path / "strict", template=strict))
    rig = await make_rig(codec=codec)
    rig.script(STEP, END)
    session = await rig.open()
    await ask(rig, session, [user("q")])
    await ask(rig, session, [user("q"), assistant(f"{STEP}{STOP} out"), user("go on")])
    assert f"{STEP}{STOP} out<|im_end|>" in codec.decode(rig.engine.requests[1].input_ids)
    assert np.sum([segment.trained_tokens for segment in (await rig.end(session)).segments]) > 0


WORDS = st.lists(st.sampled_from(["look", " ", "\n", "é", "Obs", ":", "\t", "<b>"]), max_size=8).map("".join)


@settings(max_examples=120, deadline=None)
@given(said=WORDS, put=WORDS, stop=st.sampled_from(["", "Obs:", "\nObs:"]), ends=st.booleans())
def test_a_turns_text_and_what_was_put_behind_it_are_the_message_again(codec, said, put, stop, ends):
    ids = np.asarray(codec.encode_sample(said + stop + ("<|im_end|>" if ends else "")), np.int32)
    told = said + stop
    told = told[: told.rfind(stop)] if stop else told
    turn = SimpleNamespace(
        output_ids=ids, extra={}, finish_reason="stop" if ends or stop else "length",
        sampling={"stop": [stop] if stop else []}, reply_key=message_key(Message("assistant", told)),
    )  # fmt: skip
    echo = said + stop + put
    found = behind(codec, turn, Message("assistant", echo))
    whole = (said + stop).strip()
    if not whole:
        assert found is None or echo.strip().startswith(told.strip())
        return
    if found is None:
        rest = echo.strip()[len(whole) :]
        assert ends, "only behind a closed turn may it be another message"
        assert rest[0].isspace() is False
        return
    assert message_key(Message("assistant", found.told)) == turn.reply_key
    assert (said + stop + found.text).strip() == echo.strip()


@pytest.mark.parametrize("restored", [STOP, ""])
async def test_what_is_written_as_text_has_the_stop_string_where_the_client_has_it(rig, restored):
    rig.script_raw(at_stop(rig, STEP), *[rig.ids(END + "<|im_end|>")] * 3)
    session = await rig.open(thinking="as-template")
    echo = assistant(f"{STEP}{restored} out")
    for conversation in (
        [user("q")],
        [user("q"), echo],
        [user("q"), echo, user("go on")],
        [user("another"), echo, user("go on")],
    ):
        await ask(rig, session, conversation)
    assert "copied" not in rig.tree(session).turn(3).extra
    for number, stop in ((1, STOP), (3, restored)):  # the first goes on from what was sampled
        prompt = rig.codec.decode(rig.engine.requests[number].input_ids)
        assert f"<|im_start|>assistant\n{STEP}{stop} out<|im_end|>" in prompt


async def test_counting_keeps_nothing_of_what_is_behind_a_turn(rig):
    rig.script_raw(at_stop(rig, STEP))
    session = await rig.open()
    await ask(rig, session, [user("q")])
    messages = [user("q"), assistant(f"{STEP}{STOP} out"), user("go on")]
    body = {"model": "m", "messages": messages}
    reply = await rig.http.post(f"/s/{session}/v1/messages/count_tokens", json=body)
    assert reply.status_code == 200, reply.text
    assert rig.proxy.sessions.live(session).echoes.added == {}


async def test_a_message_after_text_behind_a_turn_is_refused_by_the_clients_own_count(rig):
    rig.script_raw(at_stop(rig, STEP), at_stop(rig, STEP))
    session = await rig.open()
    messages = [user("q")]
    for _ in range(2):
        await ask(rig, session, messages)
        messages += [assistant(f"{STEP}{STOP} out"), user("go on")]
    for _ in range(2):  # parted as it is read, and parted before
        reply = await rig.post(session, {"messages": [*messages, {"role": "nobody"}], "stop": [STOP]})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "messages[5].role")
