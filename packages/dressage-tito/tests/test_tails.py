"""What follows a turn is printed without the template as the template would print it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import numpy as np
import pytest
from dressage_tito import ChatCodec, Encoded, Message, Refusal
from dressage_tito.tails import Tails
from dressage_tito.template import ChatTemplate
from dressage_tito.toy import NOT_SPECIAL, SPECIAL
from hypothesis import given, settings
from hypothesis import strategies as st

CHATML = (
    "{{- HEAD }}{%- for m in messages %}{%- set before = messages[loop.index0 - 1] %}"
    "{%- if m.role == 'tool' and STRICT and before.role == 'assistant' and not before.tool_calls %}"
    "{{- raise_exception('no call is answered') }}{%- endif %}"
    "{{- '<|im_start|>' + m.role + '\n' }}"
    "{%- for call in m.tool_calls %}{%- set f = call.function %}{{- '<tool_call>' }}"
    '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}AFTER}</tool_call>'
    "{%- endfor %}{{- CONTENT + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
CONTENTS = {
    "as it is": "m.content",
    "trimmed": "(m.content | trim)",
    "looked at": "('' if m.content.startswith('a') and loop.index > 2 else m.content)",
    "looked into": "(('!' if '\\n' in m.content else '?') ~ m.content)",
    "with an end": "(m.content ~ ('' if m.role == 'assistant' else '\\n(end)'))",
    "after a turn that is looked at": (
        "(('x' if m.role == 'user' and messages[1] and '\ufdd3' in messages[1].content else '') + m.content)"
    ),
    "with its id": "((m.tool_call_id ~ ':' ~ m.content) if m.tool_call_id else m.content)",
    "the id asked for": "('0' + m.content if m.tool_call_id and m.tool_call_id == 'call1' else m.content)",
    "with its name": "((m.name or '') + m.content)",
    "twice": "m.content + (m.content if m.role == 'user' else '')",
    "by kwargs": "(m.content + ('x' if switch is defined and switch else ''))",
    "in a macro": "say(m.content)",
    "of the day": "(strftime_now('%d') + m.content)",
    "cut": "m.content[:100]",
}
content = st.lists(
    st.sampled_from(
        ["a", "b", "word", " ", "\n", "\u00e9", "\ufdd0", "call1", "user", *SPECIAL, *NOT_SPECIAL]
    ),
    max_size=5,
).map("".join)
message = st.builds(
    lambda role, text, call, name: Message(
        role, text, tool_call_id=call if role == "tool" else "", name=name if role == "tool" else ""
    ),
    st.sampled_from(["user", "tool"]),
    content,
    st.sampled_from(["call1", "call00001", "other", "<|im_end|>", ""]),
    st.sampled_from(["f", "g", ""]),
)
asked = st.tuples(st.lists(message, min_size=1, max_size=3), st.sampled_from([{}, {"switch": True}]))


def template(text: str = "m.content", *, head: str = "''", after: str = "", strict: bool = False) -> str:
    """``strict``: results are taken after calls alone."""
    macro = "{%- macro say(t) %}{{ t }}{% endmacro %}" if "say(" in text else ""
    source = macro + CHATML.replace("HEAD", head).replace("AFTER", after).replace("CONTENT", text)
    return source.replace("STRICT", str(strict).lower())


def told(found: Encoded | Refusal) -> object:
    if isinstance(found, Refusal):
        return found
    return found.ids.tolist(), found.frame.tolist(), found.reasoning_open


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The renders meanwhile."""
    renders: list[int] = []
    render = ChatTemplate.render

    def counting(*args: object, **kwargs: object) -> str:
        renders.append(1)
        return render(*args, **kwargs)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(ChatTemplate, "render", counting)
        yield renders


def prefix_of(codec: ChatCodec) -> np.ndarray:
    return np.array([5, *codec.stop_token_ids[:1]], np.int32)


def check_same(codec: ChatCodec, roles: st.SearchStrategy[object], examples: int) -> None:
    """What was asked before changes nothing."""
    prefix = prefix_of(codec)

    @settings(deadline=None, max_examples=examples)
    @given(st.lists(roles, min_size=2, max_size=6))
    def same(many: list[tuple[list[Message], dict[str, object]]]) -> None:
        warm = codec.with_profile(codec.profile)
        for appended, kwargs in many:
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(Tails, "printed", lambda *_: None)
                plainly = codec.with_profile(codec.profile).extend(prefix, appended, template_kwargs=kwargs)
            assert told(warm.extend(prefix, appended, template_kwargs=kwargs)) == told(plainly)

    same()


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", CONTENTS)
def test_what_follows_a_turn_is_what_the_template_prints(
    name: str, strict: bool, codec_with: Callable[..., ChatCodec]
) -> None:
    check_same(codec_with(template(CONTENTS[name], strict=strict)), asked, 60)


def test_what_follows_a_turn_of_the_toy_is_so_too(toy: ChatCodec) -> None:
    check_same(toy, asked, 60)


@pytest.mark.parametrize(
    ("name", "first", "then"),
    [
        ("twice", Message("user", "a"), Message("user", "a ")),
        ("with its name", Message("tool", "a", name="f"), Message("tool", "a", name="g")),
        ("with its id", Message("tool", "a", tool_call_id=""), Message("tool", "a", tool_call_id="x")),
        ("the id asked for", Message("tool", "a"), Message("tool", "a", tool_call_id="call1")),
        ("as it is", Message("user", "a"), Message("user", " ")),
        ("after a turn that is looked at", Message("user", "a\ufdd0"), Message("user", "a\u00e9")),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_another_message_is_printed_as_if_it_were_the_first(
    name: str, first: Message, then: Message, strict: bool, codec_with: Callable[..., ChatCodec]
) -> None:
    warm = codec_with(template(CONTENTS[name], strict=strict))
    fresh = warm.with_profile(warm.profile)
    warm.extend(prefix_of(warm), [first])
    assert told(warm.extend(prefix_of(warm), [then])) == told(fresh.extend(prefix_of(fresh), [then]))


@pytest.mark.parametrize("name", ["qwen3", "llama3_2", "gpt-oss", "deepseek_v3_1", "mistral-nemo", "kimi_k2"])
def test_real_templates_print_so_too(name: str, real_codec: Callable[[str], ChatCodec]) -> None:
    check_same(real_codec(name), asked, 25)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("role", ["user", "tool"])
def test_the_template_is_asked_once_for_plain_messages(
    role: str, strict: bool, codec_with: Callable[..., ChatCodec], monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = codec_with(template(CONTENTS["with its id"], strict=strict))
    assert codec.profile.calls_before_tool == strict
    with counted(monkeypatch) as renders:
        for number in range(4):
            call = f"call{number}" if role == "tool" else ""
            found = codec.extend(prefix_of(codec), [Message(role, f"text {number}", tool_call_id=call)])
            assert isinstance(found, Encoded)
            assert f"{call}:text {number}".removeprefix(":") in codec.decode(found.ids)
    assert len(renders) == 2  # bare and marked, the first time


@pytest.mark.parametrize(
    ("first", "then"),
    [("word", " word"), ("word", "word\n"), ("word", "aword"), ("aword", "word"), ("word", "  ")],
)
def test_a_text_that_the_template_may_take_in_another_way_is_rendered(
    first: str, then: str, codec_with: Callable[..., ChatCodec], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "(m.content | trim) + ('!' if m.content.startswith('a') else '')"
    codec = codec_with(template(text))
    codec.extend(prefix_of(codec), [Message("user", first)])
    with counted(monkeypatch) as renders:
        codec.extend(prefix_of(codec), [Message("user", then)])
    assert renders


def test_an_id_that_happens_to_be_the_dummys_teaches_nothing(codec_with: Callable[..., ChatCodec]) -> None:
    """A call's id after its arguments is a part of the turn's closing, which is known for one id alone."""
    source = template(CONTENTS["with its id"], after=', "id": "{{ call.id }}"', strict=True)
    codec = codec_with(source)
    fresh = codec.with_profile(codec.profile)
    prefix = prefix_of(codec)
    assert isinstance(codec.extend(prefix, [Message("tool", "text", tool_call_id="call00001")]), Encoded)
    later = [Message("tool", "text", tool_call_id="other")]
    assert isinstance(fresh.extend(prefix, later), Refusal)
    assert told(codec.extend(prefix, later)) == told(fresh.extend(prefix, later))


def test_a_date_before_the_turn_is_no_hindrance_and_one_after_it_is_asked_anew(
    codec_with: Callable[..., ChatCodec], monkeypatch: pytest.MonkeyPatch
) -> None:
    days = iter(range(1, 29))
    now = [datetime(2026, 2, 1, tzinfo=UTC)]

    def extended(codec: ChatCodec) -> str:
        found = codec.extend(prefix_of(codec), [Message("user", "text")])
        assert isinstance(found, Encoded)
        return codec.decode(found.ids)

    before = codec_with(template(head="strftime_now('%d %B')"), clock=lambda: now[0])
    first = extended(before)
    with counted(monkeypatch) as renders:
        now[0] = now[0].replace(day=next(days) + 1)
        assert extended(before) == first
    assert not renders

    after = codec_with(template(CONTENTS["of the day"]), clock=lambda: now[0])
    for day in range(3, 7):
        now[0] = now[0].replace(day=day)
        assert f"0{day}text" in extended(after)


def test_what_a_callers_function_gives_is_asked_anew(codec_with: Callable[..., ChatCodec]) -> None:
    """Arguments of a template may be more than JSON."""
    word = ["one"]
    for source, kwargs in (
        (template("((now() if now is defined else '') + m.content)"), {"now": lambda: word[0]}),
        (template("(strftime_now('%d') + m.content)"), {"strftime_now": lambda _: word[0]}),
    ):
        codec = codec_with(source, clock=lambda: datetime(2026, 2, 1, tzinfo=UTC), template_kwargs=kwargs)
        for word[0] in ("one", "two"):
            found = codec.extend(prefix_of(codec), [Message("user", "text")])
            assert isinstance(found, Encoded)
            assert f"{word[0]}text" in codec.decode(found.ids)


def test_an_argument_hides_what_the_template_would_be_given(codec_with: Callable[..., ChatCodec]) -> None:
    source = template("(m.content + ('!' if strftime_now is string and m.content == 'a' else ''))")
    codec = codec_with(source, template_kwargs={"strftime_now": "today"})
    fresh = codec.with_profile(codec.profile)
    codec.extend(prefix_of(codec), [Message("user", "b")])
    assert told(codec.extend(prefix_of(codec), [Message("user", "a")])) == told(
        fresh.extend(prefix_of(fresh), [Message("user", "a")])
    )


def test_half_a_character_is_refused_as_before(toy: ChatCodec) -> None:
    codec = toy.with_profile(toy.profile)
    for _ in range(2):
        assert isinstance(codec.extend(prefix_of(codec), [Message("user", "text")]), Encoded)
        refused = codec.extend(prefix_of(codec), [Message("user", "half \ud800")])
        assert isinstance(refused, Refusal)
        assert refused.reason == "half_a_character"


def test_what_is_kept_is_bounded(toy: ChatCodec) -> None:
    codec = toy.with_profile(toy.profile)
    for number in range(150):
        codec.extend(prefix_of(codec), [Message("user", "text", name=f"name{number}")])
        tails = codec._renderer._tails
        assert len(tails._known) <= 64
        assert len(tails._tries) <= 64


@pytest.mark.parametrize(
    ("appended", "kwargs"),
    [
        ([Message("user", "text", name="n" * 5000)], {}),
        ([Message("user", "text")] * 500, {}),
        ([Message("user", "text")], {"switch": "on" * 2500}),
    ],
)
def test_nothing_is_kept_of_what_is_long(
    appended: list[Message], kwargs: dict[str, object], codec_with: Callable[..., ChatCodec]
) -> None:
    """A client chooses names and arguments: what is kept has a bound in bytes."""
    codec = codec_with(template())
    for _ in range(2):
        assert isinstance(codec.extend(prefix_of(codec), appended, template_kwargs=kwargs), Encoded)
    assert not codec._renderer._tails._tries
    assert not codec._renderer._tails._known
    assert codec._renderer.opening("user", kwargs) == "<|im_start|>user\n"
    assert len(codec._renderer._openings) == (not kwargs)


def test_what_cannot_be_followed_is_tried_ever_more_seldom(
    codec_with: Callable[..., ChatCodec], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []
    traced = ChatTemplate.traced

    def counting(*args: object) -> object:
        tries.append(1)
        return traced(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(ChatTemplate, "traced", counting)
    codec = codec_with(template(CONTENTS["cut"]))
    for number in range(100):
        codec.extend(prefix_of(codec), [Message("user", f"text {number}")])
    assert len(tries) == 3 + len((4, 8, 16, 32, 64))
