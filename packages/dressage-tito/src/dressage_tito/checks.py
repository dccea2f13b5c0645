"""The checks of a certification, each on one made-up conversation.

- ``start``: its ids are the template's full render's;
- ``extend``: over canonical replies the ids are the full render's, or differ by what the profile declares
  (reasoning that the template strips from history or puts into the generation prompt alone; a sampled stop
  that the template writes in another way in history);
- ``prefix``: whatever a model sampled, and wherever it was cut, the same ids are appended to it, and the
  text is the full render's;
- ``policy``: under the policy ``as-template`` the text is always the full render's, and a new segment begins
  only where the template writes earlier text in another way;
- ``parse``: a rendered reply parses to itself;
- ``control``: control ids come from the frame alone, as many as without the literals that content spells, and
  the begin-of-sequence token stands once, at the start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dressage_tito.canonical import comparable, plain
from dressage_tito.fuzz import Conversation
from dressage_tito.messages import Encoded, Message, Refusal
from dressage_tito.subject import Failed, NotApplicable, Refused, Subject

__all__ = ["CHECKS", "DIFFERENCES", "Check", "Failed", "NotApplicable", "Refused", "Subject"]

DIFFERENCES = {
    "reasoning_in_history": "the template strips reasoning from history, or adds some to the prompt alone",
    "stop_in_history": "the template writes a sampled stop in another way in history",
    "text_normalised_by_tokenizer": "the tokenizer itself changes the text (an NFC normaliser)",
    "content_beside_calls_is_reasoning": "the template prints content beside calls as reasoning",
}
"""Differences that are declared, and what each means."""


def _granted(result: Encoded | Refusal) -> Encoded:
    if isinstance(result, Refusal):
        raise Refused(result.reason)
    return result


def _check_start(subject: Subject, conversation: Conversation) -> str | None:
    if subject.spells_control(conversation):
        raise NotApplicable
    messages = conversation.messages()
    got = _granted(subject.start(messages, conversation)).ids.tolist()
    wanted = subject.ids(subject.full(messages, conversation))
    if got != wanted:
        raise Failed(subject.differ(got, wanted))
    return None


def _walk(subject: Subject, conversation: Conversation) -> list[int]:
    """The ids of the conversation as the codec builds them over canonical replies."""
    codec = subject.codec
    history: list[Message] = []
    ids: list[int] = []
    for index, item in enumerate(conversation.rounds):
        history += item.appended
        step = (
            subject.start(item.appended, conversation)
            if index == 0
            else codec.extend(ids, item.appended, conversation.tools)
        )
        ids += _granted(step).ids.tolist()
        ids += subject.ids(subject.sampled(history, item.reply, conversation)[0])
        history.append(item.reply)
    return [*ids, *_granted(codec.extend(ids, conversation.last, conversation.tools)).ids.tolist()]


def _check_extend(subject: Subject, conversation: Conversation) -> str | None:
    if subject.spells_control(conversation) or subject.loses_blanks(conversation):
        raise NotApplicable
    codec = subject.codec
    _granted(subject.start(conversation.messages(), conversation))
    got = _walk(subject, conversation)
    wanted = subject.ids(subject.full(conversation.messages(), conversation))
    if got == wanted:
        return None
    ours, theirs = (comparable(codec, codec.decode(ids)) for ids in (got, wanted))
    if ours != theirs:
        raise Failed(subject.differ(got, wanted))
    stops = {sampled for sampled, _ in codec.profile.closing_stops}
    return "stop_in_history" if stops & set(got) else "reasoning_in_history"


def _check_prefix(subject: Subject, conversation: Conversation) -> str | None:
    first = conversation.rounds[0]
    codec, draw = subject.codec, subject.fuzzer
    prompt = _granted(subject.start(first.appended, conversation)).ids.tolist()
    text, end = subject.sampled(list(first.appended), first.reply, conversation)
    sampled, stop = subject.ids(text), subject.ids(end)
    pieces = [token for piece in draw.split(text.removesuffix(end)) for token in codec.encode_plain(piece)]
    appended = conversation.rounds[1].appended if len(conversation.rounds) > 1 else conversation.last
    _granted(subject.start([*first.appended, first.reply, *appended], conversation))
    canonical = _granted(codec.extend([*prompt, *sampled], appended, conversation.tools))
    odd = _granted(codec.extend([*prompt, *pieces, *stop], appended, conversation.tools))
    if not np.array_equal(canonical.ids, odd.ids):
        raise Failed("another segmentation of the reply changes what is appended")
    if not subject.spells_control(conversation) and not subject.loses_blanks(conversation):
        whole = subject.full([*first.appended, first.reply, *appended], conversation)
        wanted = comparable(codec, codec.decode(subject.ids(whole)))
        got = comparable(codec, codec.decode([*prompt, *pieces, *stop, *odd.ids.tolist()]))
        if got != wanted:
            raise Failed(f"the text is {got!r}, the full render has {wanted!r}")
    if not stop:
        if appended:
            _check_opener(subject, [*prompt, *sampled], canonical, appended, conversation)
        return None
    cut = sampled[: draw.cut(len(sampled) - len(stop) + 1)]
    as_calls = first.reply.tool_calls and codec.profile.calls_close_ids != codec.profile.turn_close_ids
    if not appended and (not cut or as_calls):
        return None  # there is no turn, or one in which the call may be cut off
    closed = _granted(codec.extend([*prompt, *cut], appended, conversation.tools))
    printed = dict(codec.profile.closing_stops)
    closing = [printed.get(token, token) for token in stop]
    for count in range(len(closing), 0, -1):
        if cut[-count:] == closing[:count]:  # a part of the turn ended there, or began to, as the turn does
            closing = closing[count:]
            break
    if closed.ids.tolist() != [*closing, *canonical.ids.tolist()]:
        raise Failed(f"a turn cut after {codec.decode(cut)!r} is not closed by {codec.decode(closing)!r}")
    if not closed.frame[0]:
        raise Failed("the closing of a cut turn is not marked as frame")
    return None


def _check_opener(
    subject: Subject, prefix: list[int], canonical: Encoded, appended: Sequence[Message], of: Conversation
) -> None:
    """Where nothing closes a turn, the next block's opener ends it: sampled, it stands once."""
    opener = int(canonical.ids[0])
    if opener not in subject.codec.control_ids:
        return  # results follow the calls' own end
    opened = _granted(subject.codec.extend([*prefix, opener], appended, of.tools))
    if opened.ids.tolist() != canonical.ids[1:].tolist():
        raise Failed(f"the sampled opener {subject.codec.decode([opener])!r} does not stand once")


def _check_policy(subject: Subject, conversation: Conversation) -> str | None:
    if subject.spells_control(conversation) or subject.loses_blanks(conversation) or not conversation.rounds:
        raise NotApplicable
    codec = subject.codec
    _granted(subject.start(conversation.messages(), conversation))
    history: list[Message] = []
    ids: list[int] = []
    parts = [(item.appended, item.reply) for item in conversation.rounds]
    for appended, reply in [*parts, (conversation.last, None)]:
        history += appended
        wanted = plain(codec.decode(subject.ids(subject.full(history, conversation))))
        step = codec.extend(ids, appended, conversation.tools, thinking="as-template") if ids else None
        if isinstance(step, Refusal) and step.reason in ("thinking_stripped", "stop_rewritten"):
            if wanted.startswith(plain(codec.decode(ids))):
                raise Failed(f"{step.reason}, though the template leaves {codec.decode(ids)!r} as it is")
            step, ids = None, []
        delta = _granted(subject.start(history, conversation) if step is None else step)
        ids = [*ids, *delta.ids.tolist()]
        if plain(codec.decode(ids)) != wanted:
            raise Failed(f"the text is {codec.decode(ids)!r}, the full render has {wanted!r}")
        if reply is not None:
            ids += subject.ids(subject.sampled(history, reply, conversation)[0])
            history.append(reply)
    return None


def _check_parse(subject: Subject, conversation: Conversation) -> str | None:
    codec = subject.codec
    first = conversation.rounds[0]
    prompt = _granted(subject.start(first.appended, conversation))
    _granted(subject.start([*first.appended, first.reply], conversation))
    text, _ = subject.sampled(list(first.appended), first.reply, conversation)
    ids = subject.ids(text)
    if codec.decode(ids) != text:
        return "text_normalised_by_tokenizer"
    turn = codec.parse(
        ids, reasoning_open=prompt.reasoning_open, finish_reason="stop", tools=conversation.tools
    )
    got = (turn.content, turn.reasoning, [(call.name, dict(call.arguments)) for call in turn.tool_calls])
    reply = first.reply
    calls = [(call.name, dict(call.arguments)) for call in reply.tool_calls]
    if got == (reply.content, reply.reasoning, calls):
        return None
    if calls and not reply.reasoning and got == ("", reply.content, calls):
        return "content_beside_calls_is_reasoning"
    names = [call.name for call in turn.tool_calls] == [call.name for call in reply.tool_calls]
    if "arguments" in codec.profile.lossy and got[:2] == (reply.content, reply.reasoning) and names:
        return "arguments_not_readable"
    raise Failed(f"{text!r} parses to {got!r}")


def _check_control(subject: Subject, conversation: Conversation) -> str | None:
    codec = subject.codec
    messages = conversation.messages()
    encoded = _granted(subject.start(messages, conversation))
    control_ids = list(codec.control_ids)
    control = np.isin(encoded.ids, control_ids)
    if bool(np.any(control & ~encoded.frame)):
        raise Failed("content produced a control id")
    frame = subject.ids(subject.full(subject.harmless(messages), conversation))
    expected = int(np.isin(frame, control_ids).sum())
    if int(control.sum()) != expected:
        raise Failed(f"{int(control.sum())} control ids, the frame has {expected}")
    bos = codec.bos_id
    if bos is not None and encoded.ids.tolist().count(bos) != 1:
        raise Failed("the begin-of-sequence token does not stand once")
    return None


Check = Callable[[Subject, Conversation], str | None]
CHECKS: dict[str, Check] = {
    "start": _check_start,
    "extend": _check_extend,
    "prefix": _check_prefix,
    "policy": _check_policy,
    "parse": _check_parse,
    "control": _check_control,
}
