"""A conversation that was read before is read to the same messages, and only its end anew."""

from dressage_proxy.dialects.memo import Memo
from dressage_proxy.dialects.messages_input import Conversation as MessagesConversation
from dressage_proxy.dialects.messages_input import read_messages
from dressage_proxy.dialects.messages_tools import Tools
from dressage_proxy.dialects.responses_input import Conversation as ResponsesConversation
from dressage_proxy.dialects.responses_input import read_input
from dressage_proxy.errors import RequestError
from hypothesis import given
from hypothesis import strategies as st

TEXT = st.sampled_from(["a", "b"])
HANDLE = st.sampled_from(["h1", "h2"])
ITEM = st.one_of(
    st.builds(lambda r, t: {"type": "message", "role": r, "content": t},
              st.sampled_from(["user", "assistant", "developer"]), TEXT),
    st.builds(lambda h, t: {"type": "reasoning", "encrypted_content": h,
                            "summary": [{"type": "summary_text", "text": t}]}, HANDLE, TEXT),
    st.builds(lambda n: {"type": "function_call", "call_id": n, "name": "f", "arguments": "{}"}, HANDLE),
    st.builds(lambda n, t: {"type": "function_call_output", "call_id": n, "output": t}, HANDLE, TEXT),
)  # fmt: skip
THINKING = st.builds(lambda h: {"type": "thinking", "thinking": "t", "signature": h}, HANDLE)
RESULT = st.builds(lambda n, t: {"type": "tool_result", "tool_use_id": n, "content": t}, HANDLE, TEXT)
MESSAGE = st.one_of(
    st.builds(lambda t: {"role": "user", "content": t}, TEXT),
    st.builds(lambda t: {"role": "user", "content": [{"type": "text", "text": t}]}, TEXT),
    st.builds(lambda r: {"role": "user", "content": r}, st.lists(RESULT, min_size=1, max_size=2)),
    st.builds(lambda b: {"role": "assistant", "content": b}, st.lists(THINKING, max_size=1)),
    st.builds(lambda t: {"role": "system", "content": t}, TEXT),
)


def requests(item):
    """Histories as agents send them: each goes on from an earlier one, at its end or before it."""
    step = st.tuples(st.integers(0, 9), st.integers(0, 9), st.lists(item, min_size=1, max_size=3))
    return st.lists(step, min_size=1, max_size=6)


def histories(steps):
    made = [[]]
    for base, cut, new in steps:
        old = made[base % len(made)]
        made.append(old[: len(old) - cut % 3] + new)
    return made[1:]


@given(steps=requests(ITEM), instructions=st.none() | TEXT)
def test_a_memo_changes_nothing_of_what_responses_are_read_to(steps, instructions):
    memo = Memo()
    for items in histories(steps):
        results = []
        for used in (memo, Memo()):
            try:
                raw, reading = read_input({"input": items, "instructions": instructions}, used, {})
                results.append((raw, reading.handles, reading.notes))
            except RequestError as error:
                results.append(str(error))
        assert results[0] == results[1]


@given(steps=requests(MESSAGE), system=st.none() | TEXT)
def test_a_memo_changes_nothing_of_what_messages_are_read_to(steps, system):
    memo = Memo()
    for items in histories(steps):
        body = {"messages": items, "system": system}
        assert read_messages(body, memo, Tools()) == read_messages(body, Memo(), Tools())


def test_only_what_is_new_is_read(monkeypatch):
    read = []
    for conversation, method in ((MessagesConversation, "message"), (ResponsesConversation, "item")):
        original = getattr(conversation, method)

        def counted(self, item, where, original=original):
            read.append(where)
            original(self, item, where)

        monkeypatch.setattr(conversation, method, counted)
    said = [{"role": "user", "content": str(number)} for number in range(200)]
    messages, items = Memo(), Memo()
    for count in (100, 150, 200):
        read_messages({"messages": said[:count]}, messages, Tools())
        read_input({"input": said[:count]}, items, {})
    assert len(read) == 2 * 200


def test_a_conversation_that_goes_on_is_kept_once_though_its_last_message_is_written_anew():
    memo = Memo()
    items = []
    for number in range(20):
        blocks = [{"type": "text", "text": str(number)}]
        read_messages({"messages": [*items, {"role": "user", "content": blocks}]}, memo, Tools())
        said = {"role": "assistant", "content": "yes"}
        items = [*items, {"role": "user", "content": str(number)}, said]
    assert len(memo._kept) <= 2
    for other in ("a", "b", "c", "d", "e"):
        read_messages({"messages": [{"role": "user", "content": other}] * 9}, memo, Tools())
    assert len(memo._kept) == 4
    memo.clear()
    assert memo._kept == []
