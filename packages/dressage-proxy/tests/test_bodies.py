"""A body that goes on from an earlier one has the value that parsing it whole gives, whatever its JSON."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from typing import Any

import orjson
import pytest
from dressage_proxy import bodies
from dressage_proxy.bodies import Bodies
from dressage_proxy.surrogates import load_json
from hypothesis import given, settings
from hypothesis import strategies as st

TEXTS = st.text(max_size=6) | st.sampled_from(
    ['"', "\\", "],", '"messages":[', "[{", "\x00", "messages", "input"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(["messages", "input", "tools", "model", "\x00", "stream"])


def written(members: list[tuple[str, Any]], spaces: str, escaped: bool) -> bytes:
    """An object of JSON as any writer may write it, members named twice included."""
    separators = ("," + spaces, ":" + spaces)
    parts = [
        json.dumps(name, ensure_ascii=escaped)
        + separators[1]
        + json.dumps(value, separators=separators, ensure_ascii=escaped, indent=2 if "\n" in spaces else None)
        for name, value in members
    ]
    return ("{" + spaces + separators[0].join(parts) + spaces + "}").encode()


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """Bodies that mostly go on from one another, now and then cut, changed, or repeated."""
    before = draw(st.lists(st.tuples(NAMES, JSON), max_size=2))
    after = draw(st.lists(st.tuples(NAMES, JSON), max_size=2))
    name = draw(st.sampled_from(["messages", "input"]))
    spaces, escaped = draw(st.sampled_from(["", " ", "\n"])), draw(st.booleans())
    items: list[Any] = draw(st.lists(JSON, max_size=2))
    sent = []
    for _ in range(draw(st.integers(2, 5))):
        match draw(st.integers(0, 9)):
            case 0:
                items = items[:-1]
            case 1:
                after = draw(st.lists(st.tuples(NAMES, JSON), max_size=2))
            case 2:
                before = draw(st.lists(st.tuples(NAMES, JSON), max_size=2))
            case _:
                items = items + draw(st.lists(JSON, max_size=2))
        sent.append(written([*before, (name, items), *after], spaces, escaped))
    return sent


@settings(deadline=None, max_examples=500)
@given(conversations(), st.randoms(use_true_random=False))
def test_every_body_has_its_own_value(sent: list[bytes], random: Any) -> None:
    known = Bodies()
    for data in sent:
        if random.random() < 0.1:  # what is no JSON is refused as ever
            at = random.randrange(len(data))
            broken = data[:at] + random.choice([b"", b"]", b"{", b'"', b"1", b","]) + data[at + 1 :]
            try:
                expected = load_json(broken)
            except ValueError:
                with pytest.raises(ValueError):
                    known.load("s", broken)
            else:
                assert known.load("s", broken) == expected
        value, mended = known.load("s", data)
        assert (value, mended) == (orjson.loads(data), False)


@pytest.fixture(autouse=True)
def _short_bodies_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_WORTH_BYTES", 0)


def chat(count: int, tools: list[str]) -> bytes:
    messages = [{"role": "user", "content": f'{number} [ \\ " ]'} for number in range(count)]
    return orjson.dumps({"model": "m", "messages": messages, "tools": tools})


def test_only_what_is_new_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    known, parsed = Bodies(), []
    known.load("s", chat(100, ["a"]))
    known.load("s", chat(101, ["a"]))
    loads = orjson.loads
    monkeypatch.setattr(bodies.orjson, "loads", lambda data: (parsed.append(len(data)), loads(data))[1])
    for count in range(101, 110):  # the first of them is sent again
        value, _ = known.load("s", chat(count, ["a"]))
        assert [len(value["messages"]), value["tools"]] == [count, ["a"]]
    assert max(parsed) < 200


def test_what_comes_after_the_conversation_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Bodies()
    for count, tools in ((50, ["a"]), (51, ["a"]), (52, ["b"]), (53, ["b"]), (54, ["b"])):
        value, _ = known.load("s", chat(count, tools))
        assert [len(value["messages"]), value["tools"]] == [count, tools]


def test_items_that_were_read_before_are_the_same_objects() -> None:
    known = Bodies()
    known.load("s", chat(3, []))
    known.load("s", chat(5, []))
    first, _ = known.load("s", chat(7, []))
    second, _ = known.load("s", chat(9, []))
    assert all(one is two for one, two in zip(first["messages"], second["messages"], strict=False))


def test_a_number_that_goes_on_is_another_number() -> None:
    known = Bodies()
    for data in (b'{"input":[1]}', b'{"input":[1,2]}', b'{"input":[1,2.5]}', b'{"input":[1,25]}'):
        assert known.load("s", data)[0] == orjson.loads(data)


def test_the_last_of_two_lists_of_one_name_counts() -> None:
    known = Bodies()
    for data in (
        b'{"messages":[1],"a":0}',
        b'{"messages":[1,2],"a":0}',
        b'{"messages":[1,2,3],"messages":[4]}',
        b'{"messages":[1,2,3,9],"a":0}',
        b'{"messages":[1,2,3],"mess\\u0061ges":[4]}',
        b'{"messages":[1,2,3,9],"a":0}',
        b'{"messages":[0,0,0,0,0,0,0,0,0,0],"messages":[1]}',
        b'{"messages":[0,0,0,0,0,0,0,0,0,0,7]}',
        b'{"messages":[0],"messages":[1,2,3]}',
        b'{"messages":[0],"messages":[1,2,3,4]}',
        b'{"messages":[0],"messages":[1,2,3,4,5]}',
        b'{"messages":[0],"a":[1],"messages":[2]}',
        b'{"messages":[0],"a":[1],"messages":[2,3]}',
        b'{"messages":[0],"a":[1],"messages":[2,3,4]}',
    ):
        assert known.load("s", data)[0] == orjson.loads(data)


def test_a_member_whose_name_is_empty_is_read_as_ever() -> None:
    for first, last in (("true", "1"), ("0", "-0.0"), ("[null]", "[null]"), ("1", "2")):
        known = Bodies()
        for items in ("1", "1,2", "1,2,3"):
            data = b'{"":%b,"input":[%b],"":%b}' % (first.encode(), items.encode(), last.encode())
            assert repr(known.load("s", data)[0]) == repr(orjson.loads(data))


def test_halves_of_surrogate_pairs_are_mended_and_said_wherever_they_are() -> None:
    known = Bodies()
    for items in (b'"a"', b'"a","b"', b'"a","b","\\ud83d"', b'"a","b","\\ud83d","c"', b'"a","b","c"'):
        data = b'{"input":[' + items + b"]}"
        assert known.load("s", data) == load_json(data)


def test_what_is_kept_has_a_limit_and_is_forgotten() -> None:
    one = Bodies()
    one.load("a", chat(50, []))
    size = one.nbytes
    known = Bodies(kept_bytes=3 * size)
    for session in "abcde":
        known.load(session, chat(50, []))
    assert known.nbytes == 3 * size
    for count in range(51, 60):
        known.load("e", chat(count, []))
    assert known.nbytes <= 3 * size
    for branch in range(9):
        known.load("f", chat(10, []).replace(b"0 [", b"%d [" % branch))
    assert known.nbytes <= 3 * size
    for session in "abcdef":
        known.forget(session)
    assert known.nbytes == 0


@pytest.mark.parametrize(
    "item", ["[]", "{}", '{"a":1}', "1.5", '"word"', '{"role":"user","content":"a text"}']
)
def test_what_is_kept_is_counted_with_what_its_values_take(item: str) -> None:
    """A list of nothing takes twenty times its text."""
    known = Bodies()
    tracemalloc.start()
    for count in (5000, 10000, 15000):
        known.load("s", f'{{"input":[{",".join([item] * count)}]}}'.encode())
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken < 2 * known.nbytes


async def test_a_growing_conversation_is_read_on_and_nothing_of_it_is_left_after(rig: Any) -> None:
    session = await rig.open()
    messages: list[dict[str, str]] = []
    for number in range(5):
        messages.append({"role": "user", "content": f"{number} what?"})
        reply = await rig.post(session, {"model": "m", "messages": messages, "stream": False})
        messages.append(reply.json()["choices"][0]["message"])
    asked = [list(request.input_ids) for request in rig.engine.requests]
    assert all(after[: len(before)] == before for before, after in itertools.pairwise(asked))
    known = rig.proxy.pipeline.bodies
    assert known.nbytes
    await rig.end(session)
    late = await rig.post(session, {"model": "m", "messages": messages})
    assert late.status_code == 410
    assert known.nbytes == 0
