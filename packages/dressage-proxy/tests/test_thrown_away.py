"""Replies that an agent threw away after their stream broke, and said so."""

from __future__ import annotations

import pytest
from dressage_proxy.thrown import BROKEN_MARKS, thrown_away
from dressage_segments import SessionInfo, TrajectoryTree
from hypothesis import given
from hypothesis import strategies as st

CLAUDE = (
    "<system-reminder>\nYour response above was cut off mid-stream. Resume directly from where it stops — no "
    "apology, no recap. If none of it survived, answer the request from the start.\n</system-reminder>"
)
OPENCLAW = (
    "[Mon 2026-11-30 15:02 UTC] Continue the current task from the existing transcript, preserving completed "
    "work. If an action was interrupted, inspect its state before deciding whether to retry it."
)


@pytest.mark.parametrize("news", [CLAUDE, OPENCLAW])
@pytest.mark.parametrize("merged", [True, False])
async def test_a_reply_whose_stream_broke_is_lost_where_the_agent_says_so_and_asks_on_without_it(
    rig, news, merged
):
    rig.script("first", "never heard", "second", "third")
    session = await rig.open()
    said = (await rig.chat(session, "q")).choices[0].message.content
    begin = ["q", {"role": "assistant", "content": said}]
    await rig.chat(session, *begin, "go on")
    unheard = len(rig.tree(session).turn(1).output_ids)
    asked = [f"go on\n{news}"] if merged else ["go on", news]
    again = (await rig.chat(session, *begin, *asked)).choices[0].message.content
    await rig.chat(session, *begin, *asked, {"role": "assistant", "content": again}, "more")
    trajectory = await rig.end(session)
    assert trajectory.lost_tokens == {"undelivered": unheard}
    assert [segment.kind for segment in trajectory.segments] == ["main"]


@pytest.mark.parametrize("merged", [True, False])
async def test_replies_that_broke_one_after_the_other_are_all_lost(rig, merged):
    rig.script("first", "never heard", "nor this one", "third")
    session = await rig.open()
    said = (await rig.chat(session, "q")).choices[0].message.content
    begin = ["q", {"role": "assistant", "content": said}]
    await rig.chat(session, *begin, "go on")
    for times in (1, 2):
        news = ["go on" + f"\n{CLAUDE}" * times] if merged else ["go on", *[CLAUDE] * times]
        await rig.chat(session, *begin, *news)
    unheard = sum(len(rig.tree(session).turn(index).output_ids) for index in (1, 2))
    assert (await rig.end(session)).lost_tokens == {"undelivered": unheard}


async def test_what_the_user_says_after_the_news_hides_it_not(rig):
    rig.script("first", "never heard", "second")
    session = await rig.open()
    said = (await rig.chat(session, "q")).choices[0].message.content
    begin = ["q", {"role": "assistant", "content": said}]
    await rig.chat(session, *begin, "go on")
    await rig.chat(session, *begin, "go on", CLAUDE, "and be quick")
    unheard = len(rig.tree(session).turn(1).output_ids)
    assert (await rig.end(session)).lost_tokens == {"undelivered": unheard}


async def test_a_first_reply_whose_stream_broke_is_lost_too(rig):
    rig.script("never heard", "second")
    session = await rig.open()
    await rig.chat(session, "q")
    await rig.chat(session, {"role": "user", "content": [{"type": "text", "text": f"q\n\n{CLAUDE}"}]})
    trajectory = await rig.end(session)
    assert trajectory.lost_tokens == {"undelivered": len(rig.tree(session).turn(0).output_ids)}


@pytest.mark.parametrize("end", ["", "\n", " ", "\n\n"])
@pytest.mark.parametrize("dialect", ["messages", "chat/completions"])
async def test_how_the_text_before_the_news_ends_is_no_matter(rig, dialect, end):
    rig.script("never heard", "second")
    session = await rig.open()
    texts = ["see\n", f"q{end}"]
    for said in (texts, [*texts, CLAUDE if dialect == "messages" else f"\n{CLAUDE}"]):
        content = [{"type": "text", "text": text} for text in said]
        body = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": content}]}
        assert (await rig.http.post(f"/s/{session}/v1/{dialect}", json=body)).status_code == 200
    unheard = len(rig.tree(session).turn(0).output_ids)
    assert (await rig.end(session)).lost_tokens == {"undelivered": unheard}


@pytest.mark.parametrize("news", [CLAUDE, OPENCLAW])
async def test_a_reply_that_is_sent_back_before_the_news_is_trained(rig, news):
    rig.script("first", "second")
    session = await rig.open()
    said = (await rig.chat(session, "q")).choices[0].message.content
    await rig.chat(session, "q", {"role": "assistant", "content": said}, news)
    assert (await rig.end(session)).lost_tokens == {}


@pytest.mark.parametrize(
    "text",
    [
        "go on\nWhy was it that your response above was cut off mid-stream?",
        "go on\nIt said: Your response above was cut off mid-stream",
        "go on\nContinue the current task",
        "on\n" + CLAUDE,
    ],
)
async def test_other_words_throw_no_reply_away(rig, text):
    rig.script("first", "second", "third")
    session = await rig.open()
    said = (await rig.chat(session, "q")).choices[0].message.content
    begin = ["q", {"role": "assistant", "content": said}]
    await rig.chat(session, *begin, "go on")
    await rig.chat(session, *begin, text)
    assert (await rig.end(session)).lost_tokens == {}


async def test_a_reply_that_was_gone_on_from_is_not_thrown_away_by_a_later_branch(rig):
    rig.script("first", "second", "third")
    session = await rig.open()
    said = (await rig.chat(session, "q")).choices[0].message.content
    await rig.chat(session, "q", {"role": "assistant", "content": said}, "on")
    await rig.chat(session, "q", CLAUDE)
    assert (await rig.end(session)).lost_tokens == {}


@pytest.mark.parametrize(
    "left", [{"content": ""}, {"content": None}, {"content": [], "reasoning_content": "t"}]
)
async def test_an_empty_message_that_a_broken_stream_left_before_a_turn_of_calls_is_a_part_of_it(
    rig, shell, call, left
):
    rig.script("never heard", "look " + call(a=1), "done")
    session = await rig.open()
    await rig.chat(session, "q", tools=[shell])
    made = (await rig.chat(session, "q", tools=[shell])).choices[0].message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": made["tool_calls"][0]["id"], "content": "r"}
    await rig.chat(session, "q", {"role": "assistant", **left}, made, result, tools=[shell])
    assert [turn.parent for turn in rig.tree(session).turns] == [-1, -1, 1]
    assert len((await rig.end(session)).segments) == 1


@given(st.text(), st.sampled_from(sorted(BROKEN_MARKS)), st.text())
def test_whatever_stands_around_the_news_is_read(before, news, after):
    raw = [{"role": "user", "content": before + news + after}]
    assert thrown_away(TrajectoryTree(SessionInfo("s")), -1, raw, ["k"], {}, 0) == ()
