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

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from dressage_tito.canonical import NotAfterPromptError, canonical_reply, comparable, plain
from dressage_tito.codec import ChatCodec
from dressage_tito.fuzz import Conversation, Fuzzer
from dressage_tito.messages import Encoded, Message, Refusal

DIFFERENCES = {
    "reasoning_in_history": "the template strips reasoning from history, or adds some to the prompt alone",
    "stop_in_history": "the template writes a sampled stop in another way in history",
    "text_normalised_by_tokenizer": "the tokenizer itself changes the text (an NFC normaliser)",
    "content_beside_calls_is_reasoning": "the template prints content beside calls as reasoning",
}
"""Differences that are declared, and what each means."""


class Failed(Exception):  # noqa: N818 (a finding, not an error)
    """The check does not hold."""


class Refused(Exception):  # noqa: N818
    """The codec refused, with this reason."""


class NotApplicable(Exception):  # noqa: N818
    """The check says nothing about this conversation."""


class Subject:
    """A codec under test, and how conversations for it are made up."""

    def __init__(self, codec: ChatCodec, seed: int) -> None:
        self.codec = codec
        literals = sorted(codec.control_literals, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, literals)) or "(?!)")
        profile = codec.profile
        block = profile.reasoning_block
        skips = block is not None and block[1].strip() in profile.generation_prompt
        opens = block is not None and block[0] in profile.generation_prompt
        self.fuzzer = Fuzzer(
            seed,
            sorted(literals),
            tools=codec.supports_tools,
            reasoning=(bool(profile.reasoning_field) or opens) and not skips,
            system=isinstance(codec.start([Message("system", "s"), Message("user", "u")]), Encoded),
            call_id=codec.native_call_id,
            extra=_appendable(codec),
            parallel=profile.parallel_calls,
            content_beside_calls=profile.content_beside_calls,
        )

    def spells_control(self, conversation: Conversation) -> bool:
        """Whether content spells a control literal (the full render then takes it for one)."""
        return any(self._pattern.search(message.content) for message in conversation.messages())

    def harmless(self, messages: Sequence[Message]) -> list[Message]:
        """The same messages with other text (its own in each) in place of each control literal."""
        return [
            replace(message, content=self._pattern.sub(f"x{index}", message.content))
            for index, message in enumerate(messages)
        ]

    def full(
        self, messages: Sequence[Message], conversation: Conversation, *, generation: bool = True
    ) -> str:
        """The template's own render. Raises Refused."""
        text = self.codec.reference_text(messages, conversation.tools, generation=generation)
        if isinstance(text, Refusal):
            raise Refused(text.reason)
        return text

    def sampled(
        self, before: Sequence[Message], reply: Message, conversation: Conversation
    ) -> tuple[str, str]:
        """What a model writes that answers as the template renders the reply, and its closing."""
        prompt = self.full(before, conversation)
        whole = self.full([*before, reply], conversation, generation=False)
        try:
            return canonical_reply(self.codec, prompt, whole, reply)
        except NotAfterPromptError:
            raise Refused("reply_not_after_prompt") from None

    def differ(self, got: Sequence[int], wanted: Sequence[int]) -> str:
        """Where two rows of ids part, as text."""
        first = next((i for i, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), -1)
        if first < 0:
            first = min(len(got), len(wanted))
        show = slice(max(0, first - 3), first + 4)
        ours, theirs = (self.codec.decode(list(ids[show])) for ids in (got, wanted))
        return f"ids differ at {first}: {ours!r}, the full render has {theirs!r}"


def _appendable(codec: ChatCodec) -> list[str]:
    """Which of the rarer roles the template takes in mid-conversation."""
    user, reply = Message("user", "u"), Message("assistant", "a")
    later = {"system": [user, Message("system", "s")], "assistant": [Message("assistant", "b"), user]}
    return [
        role
        for role, appended in later.items()
        if not any(key.startswith(role) for key in codec.profile.not_appendable)
        and isinstance(codec.start([user, reply, *appended]), Encoded)
        and isinstance(codec.extend([1], appended), Encoded)
    ]


def _granted(result: Encoded | Refusal) -> Encoded:
    if isinstance(result, Refusal):
        raise Refused(result.reason)
    return result


def _check_start(subject: Subject, conversation: Conversation) -> str | None:
    if subject.spells_control(conversation):
        raise NotApplicable
    messages = conversation.messages()
    got = _granted(subject.codec.start(messages, conversation.tools)).ids.tolist()
    wanted = subject.codec.encode_sample(subject.full(messages, conversation))
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
            codec.start(item.appended, conversation.tools)
            if index == 0
            else codec.extend(ids, item.appended, conversation.tools)
        )
        ids += _granted(step).ids.tolist()
        ids += codec.encode_sample(subject.sampled(history, item.reply, conversation)[0])
        history.append(item.reply)
    return [*ids, *_granted(codec.extend(ids, conversation.last, conversation.tools)).ids.tolist()]


def _check_extend(subject: Subject, conversation: Conversation) -> str | None:
    if subject.spells_control(conversation):
        raise NotApplicable
    codec = subject.codec
    _granted(codec.start(conversation.messages(), conversation.tools))
    got = _walk(subject, conversation)
    wanted = codec.encode_sample(subject.full(conversation.messages(), conversation))
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
    prompt = _granted(codec.start(first.appended, conversation.tools)).ids.tolist()
    text, end = subject.sampled(list(first.appended), first.reply, conversation)
    sampled, stop = codec.encode_sample(text), codec.encode_sample(end)
    pieces = [token for piece in draw.split(text.removesuffix(end)) for token in codec.encode_plain(piece)]
    appended = conversation.rounds[1].appended if len(conversation.rounds) > 1 else conversation.last
    _granted(codec.start([*first.appended, first.reply, *appended], conversation.tools))
    canonical = _granted(codec.extend([*prompt, *sampled], appended, conversation.tools))
    odd = _granted(codec.extend([*prompt, *pieces, *stop], appended, conversation.tools))
    if not np.array_equal(canonical.ids, odd.ids):
        raise Failed("another segmentation of the reply changes what is appended")
    if not subject.spells_control(conversation):
        whole = subject.full([*first.appended, first.reply, *appended], conversation)
        wanted = comparable(codec, codec.decode(codec.encode_sample(whole)))
        got = comparable(codec, codec.decode([*prompt, *pieces, *stop, *odd.ids.tolist()]))
        if got != wanted:
            raise Failed(f"the text is {got!r}, the full render has {wanted!r}")
    if not stop:
        _check_opener(subject, [*prompt, *sampled], canonical, appended, conversation)
        return None
    cut = sampled[: draw.cut(len(sampled) - len(stop) + 1)]
    closed = _granted(codec.extend([*prompt, *cut], appended, conversation.tools))
    printed = dict(codec.profile.closing_stops)
    closing = [printed.get(token, token) for token in stop]
    if cut[-len(closing) :] == closing:  # a message inside the turn ended there, as the turn itself does
        closing = []
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
    opened = _granted(subject.codec.extend([*prefix, opener], appended, of.tools))
    if opened.ids.tolist() != canonical.ids[1:].tolist():
        raise Failed(f"the sampled opener {subject.codec.decode([opener])!r} does not stand once")


def _check_policy(subject: Subject, conversation: Conversation) -> str | None:
    if subject.spells_control(conversation) or not conversation.rounds:
        raise NotApplicable
    codec = subject.codec
    _granted(codec.start(conversation.messages(), conversation.tools))
    history: list[Message] = []
    ids: list[int] = []
    parts = [(item.appended, item.reply) for item in conversation.rounds]
    for appended, reply in [*parts, (conversation.last, None)]:
        history += appended
        wanted = plain(codec.decode(codec.encode_sample(subject.full(history, conversation))))
        step = codec.extend(ids, appended, conversation.tools, thinking="as-template") if ids else None
        if isinstance(step, Refusal) and step.reason in ("thinking_stripped", "stop_rewritten"):
            if wanted.startswith(plain(codec.decode(ids))):
                raise Failed(f"{step.reason}, though the template leaves {codec.decode(ids)!r} as it is")
            step, ids = None, []
        delta = _granted(codec.start(history, conversation.tools) if step is None else step)
        ids = [*ids, *delta.ids.tolist()]
        if plain(codec.decode(ids)) != wanted:
            raise Failed(f"the text is {codec.decode(ids)!r}, the full render has {wanted!r}")
        if reply is not None:
            ids += codec.encode_sample(subject.sampled(history, reply, conversation)[0])
            history.append(reply)
    return None


def _check_parse(subject: Subject, conversation: Conversation) -> str | None:
    codec = subject.codec
    first = conversation.rounds[0]
    prompt = _granted(codec.start(first.appended, conversation.tools))
    _granted(codec.start([*first.appended, first.reply], conversation.tools))
    text, _ = subject.sampled(list(first.appended), first.reply, conversation)
    ids = codec.encode_sample(text)
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
    encoded = _granted(codec.start(messages, conversation.tools))
    control = np.isin(encoded.ids, list(codec.control_ids))
    if bool(np.any(control & ~encoded.frame)):
        raise Failed("content produced a control id")
    frame = codec.encode_sample(subject.full(subject.harmless(messages), conversation))
    expected = sum(token in codec.control_ids for token in frame)
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
