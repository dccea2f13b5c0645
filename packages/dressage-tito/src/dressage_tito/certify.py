"""Certification: does the codec do, for this tokenizer and this template, what it promises?

Made-up conversations are compared with the template's own full render:

- ``start``: its ids are the full render's;
- ``extend``: over canonical replies the ids are the full render's, or differ only by reasoning that the
  template strips from history or puts into the generation prompt alone (a declared difference);
- ``prefix``: whatever a model sampled, and wherever it was cut, the same ids are appended to it;
- ``parse``: a rendered reply parses to itself;
- ``control``: control ids come from the frame alone, as many as without the literals that content spells.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dressage_tito.codec import ChatCodec
from dressage_tito.fuzz import Conversation, Fuzzer, smaller
from dressage_tito.messages import Encoded, Message, Refusal
from dressage_tito.wire import message_to_json

_MAX_SHRINKS = 400
_MAX_FAILURES = 5


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A check that failed, on a conversation made small."""

    check: str
    detail: str
    messages: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What certification found. ``passed`` counts conversations by check, ``refused`` refusals by reason,
    ``declared`` conversations with a declared difference by its name."""

    path: str
    tokenizer_hash: str
    template_hash: str
    supports_tools: bool
    passed: dict[str, int]
    refused: dict[str, int]
    declared: dict[str, int]
    failures: tuple[Counterexample, ...]

    @property
    def certified(self) -> bool:
        """No check failed, and each check passed at least once."""
        return not self.failures and all(self.passed.get(name, 0) > 0 for name in CHECKS)


class _Failed(Exception):  # noqa: N818 (a finding, not an error)
    pass


class _Refused(Exception):  # noqa: N818
    pass


class _NotApplicable(Exception):  # noqa: N818
    pass


def certify(path: str | Path, *, conversations: int = 150, seed: int = 0) -> Report:
    """Certify the folder at ``path``. Raises FolderError or ProfileError where it cannot be loaded."""
    return certify_codec(ChatCodec.from_folder(path), str(path), conversations=conversations, seed=seed)


def certify_codec(codec: ChatCodec, name: str, *, conversations: int = 150, seed: int = 0) -> Report:
    """Certify a codec as it is set up (its profile and template arguments included)."""
    run = _Run(codec, seed)
    for index in range(conversations):
        conversation = run.fuzzer.conversation(spelled=index % 3 == 2)
        for check, function in CHECKS.items():
            run.try_check(check, function, conversation)
        if len(run.failures) >= _MAX_FAILURES:
            break
    return Report(
        path=name,
        tokenizer_hash=codec.tokenizer_hash,
        template_hash=codec.template_hash,
        supports_tools=codec.supports_tools,
        passed=dict(run.passed),
        refused=dict(run.refused),
        declared=dict(run.declared),
        failures=tuple(run.failures),
    )


class _Run:
    def __init__(self, codec: ChatCodec, seed: int) -> None:
        self.codec = codec
        self.literals = sorted(codec.control_literals)
        self._pattern = re.compile("|".join(map(re.escape, sorted(self.literals, key=len, reverse=True))))
        system = isinstance(codec.start([Message("system", "s"), Message("user", "u")]), Encoded)
        self.fuzzer = Fuzzer(
            seed,
            self.literals,
            tools=codec.supports_tools,
            reasoning=bool(codec.profile.reasoning_field),
            system=system,
        )
        self.passed: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.declared: Counter[str] = Counter()
        self.failures: list[Counterexample] = []

    def try_check(
        self, name: str, function: Callable[[_Run, Conversation], str | None], conversation: Conversation
    ) -> None:
        try:
            declared = function(self, conversation)
        except _NotApplicable:
            return
        except _Refused as refusal:
            self.refused[str(refusal)] += 1
        except _Failed as failure:
            small, detail = self._shrink(function, conversation, str(failure))
            messages = tuple(message_to_json(message) for message in small.messages())
            self.failures.append(Counterexample(name, detail, messages))
        else:
            self.passed[name] += 1
            if declared:
                self.declared[declared] += 1

    def _shrink(
        self, function: Callable[[_Run, Conversation], str | None], conversation: Conversation, detail: str
    ) -> tuple[Conversation, str]:
        tries = _MAX_SHRINKS
        found = True
        while found and tries > 0:
            found = False
            for candidate in islice(smaller(conversation), tries):
                tries -= 1
                try:
                    function(self, candidate)
                except _Failed as failure:
                    conversation, detail, found = candidate, str(failure), True
                    break
                except (_Refused, _NotApplicable):
                    continue
        return conversation, detail

    def spells_control(self, conversation: Conversation) -> bool:
        return any(self._pattern.search(message.content) for message in conversation.messages())

    def harmless(self, messages: list[Message]) -> list[Message]:
        """The same messages with other text in place of each control literal."""
        return [Message(m.role, self._pattern.sub("x", m.content), m.reasoning, m.tool_calls,
                        m.tool_call_id, m.name) for m in messages]  # fmt: skip

    def full(self, messages: list[Message], conversation: Conversation, *, generation: bool = True) -> str:
        text = self.codec.reference_text(messages, conversation.tools, generation=generation)
        if isinstance(text, Refusal):
            raise _Refused(text.reason)
        return text

    def sampled_text(self, before: list[Message], reply: Message, conversation: Conversation) -> str:
        """What a model writes that answers as the template renders the reply, closing included."""
        prompt = self.full(before, conversation)
        whole = self.full([*before, reply], conversation, generation=False)
        if not whole.startswith(prompt):
            raise _Refused("reply_not_after_prompt")
        close = self.codec.profile.turn_close_text
        text = whole[len(prompt) :]
        end = self.codec.decode(list(self.codec.profile.turn_close_ids[:1]))
        return text[: len(text) - len(close)] + end if close and text.endswith(close) else text


def _granted(result: Encoded | Refusal) -> Encoded:
    if isinstance(result, Refusal):
        raise _Refused(result.reason)
    return result


def _differ(run: _Run, got: list[int], wanted: list[int]) -> str:
    first = next((i for i, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), -1)
    if first < 0:
        first = min(len(got), len(wanted))
    show = slice(max(0, first - 3), first + 4)
    decode = run.codec.decode
    return f"ids differ at {first}: {decode(got[show])!r}, the full render has {decode(wanted[show])!r}"


def _check_start(run: _Run, conversation: Conversation) -> str | None:
    if run.spells_control(conversation):
        raise _NotApplicable
    messages = conversation.messages()
    got = _granted(run.codec.start(messages, conversation.tools)).ids.tolist()
    wanted = run.codec.encode_sample(run.full(messages, conversation))
    if got != wanted:
        raise _Failed(_differ(run, got, wanted))
    return None


def _walk(run: _Run, conversation: Conversation) -> list[int]:
    """The ids of the conversation as the codec builds them over canonical replies."""
    history: list[Message] = []
    ids: list[int] = []
    for index, item in enumerate(conversation.rounds):
        history += item.appended
        step = (
            run.codec.start(item.appended, conversation.tools)
            if index == 0
            else run.codec.extend(ids, item.appended, conversation.tools)
        )
        ids += _granted(step).ids.tolist()
        ids += run.codec.encode_sample(run.sampled_text(history, item.reply, conversation))
        history.append(item.reply)
    return [*ids, *_granted(run.codec.extend(ids, conversation.last, conversation.tools)).ids.tolist()]


def _check_extend(run: _Run, conversation: Conversation) -> str | None:
    if run.spells_control(conversation):
        raise _NotApplicable
    got = _walk(run, conversation)
    wanted = run.codec.encode_sample(run.full(conversation.messages(), conversation))
    if got == wanted:
        return None
    tags = run.codec.profile.reasoning_tags
    if tags is not None:
        block = re.compile(rf"{re.escape(tags[0])}.*?{re.escape(tags[1])}\n*", re.DOTALL)
        texts = [block.sub("", run.codec.decode(ids)) for ids in (got, wanted)]
        if texts[0] == texts[1]:
            return "reasoning_in_history"
    raise _Failed(_differ(run, got, wanted))


def _check_prefix(run: _Run, conversation: Conversation) -> str | None:
    first = conversation.rounds[0]
    codec = run.codec
    prompt = _granted(codec.start(first.appended, conversation.tools)).ids.tolist()
    text = run.sampled_text(list(first.appended), first.reply, conversation)
    sampled = codec.encode_sample(text)
    stop = [token for token in sampled[-1:] if token in codec.stop_token_ids]
    pieces = [token for piece in run.fuzzer.split(text) for token in codec.encode_plain(piece)]
    appended = conversation.rounds[1].appended if len(conversation.rounds) > 1 else conversation.last
    canonical = _granted(codec.extend([*prompt, *sampled], appended, conversation.tools))
    odd = _granted(codec.extend([*prompt, *pieces, *stop], appended, conversation.tools))
    if not np.array_equal(canonical.ids, odd.ids):
        raise _Failed("another segmentation of the reply changes what is appended")
    if not stop:
        return None
    cut = sampled[: run.fuzzer.cut(len(sampled))]
    closed = _granted(codec.extend([*prompt, *cut], appended, conversation.tools))
    if closed.ids.tolist() != [*stop, *canonical.ids.tolist()]:
        raise _Failed(f"a turn cut after {codec.decode(cut)!r} is not closed by {codec.decode(stop)!r}")
    if not closed.frame[0]:
        raise _Failed("the closing of a cut turn is not marked as frame")
    return None


def _check_parse(run: _Run, conversation: Conversation) -> str | None:
    codec = run.codec
    first = conversation.rounds[0]
    prompt = _granted(codec.start(first.appended, conversation.tools))
    text = run.sampled_text(list(first.appended), first.reply, conversation)
    ids = codec.encode_sample(text)
    if codec.decode(ids) != text:
        return "text_normalised_by_tokenizer"
    turn = codec.parse(
        ids, reasoning_open=prompt.reasoning_open, finish_reason="stop", tools=conversation.tools
    )
    got = (turn.content, turn.reasoning, [(call.name, dict(call.arguments)) for call in turn.tool_calls])
    reply = first.reply
    calls = [(call.name, dict(call.arguments)) for call in reply.tool_calls]
    if got != (reply.content, reply.reasoning, calls):
        raise _Failed(f"{text!r} parses to {got!r}")
    return None


def _check_control(run: _Run, conversation: Conversation) -> str | None:
    codec = run.codec
    messages = conversation.messages()
    encoded = _granted(codec.start(messages, conversation.tools))
    control = np.isin(encoded.ids, list(codec.control_ids))
    if bool(np.any(control & ~encoded.frame)):
        raise _Failed("content produced a control id")
    frame = codec.encode_sample(run.full(run.harmless(messages), conversation))
    expected = sum(token in codec.control_ids for token in frame)
    if int(control.sum()) != expected:
        raise _Failed(f"{int(control.sum())} control ids, the frame has {expected}")
    return None


CHECKS: dict[str, Callable[[_Run, Conversation], str | None]] = {
    "start": _check_start,
    "extend": _check_extend,
    "prefix": _check_prefix,
    "parse": _check_parse,
    "control": _check_control,
}
