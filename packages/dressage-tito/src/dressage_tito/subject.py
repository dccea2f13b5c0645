"""A codec under certification: conversations made up for it, and what its template gives for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from dressage_tito.canonical import NotAfterPromptError, NotClosedError, canonical_reply
from dressage_tito.codec import ChatCodec
from dressage_tito.fuzz import Conversation, Fuzzer
from dressage_tito.messages import Encoded, Message, Refusal


class Failed(Exception):  # noqa: N818 (a finding, not an error)
    """The check does not hold."""


class Refused(Exception):  # noqa: N818
    """The codec refused, with this reason."""


class NotApplicable(Exception):  # noqa: N818
    """The check says nothing about this conversation."""


class _Memory:
    """What was asked about one conversation already, by the messages themselves: they are kept, so that no
    other message takes a forgotten one's place."""

    def __init__(self, conversation: Conversation | None = None) -> None:
        self.conversation = conversation
        self.kept: list[tuple[Message, ...]] = []
        self.texts: dict[tuple[int, ...], str | Refusal] = {}
        self.starts: dict[tuple[int, ...], Encoded | Refusal] = {}
        self.ids: dict[str, list[int]] = {}

    def key(self, messages: Sequence[Message], *more: bool) -> tuple[int, ...]:
        self.kept.append(tuple(messages))
        return (*map(id, messages), *more)


class Subject:
    """A codec under test, and how conversations for it are made up.

    The checks of one conversation ask for the same renders again and again: what codec and template gave is
    kept as long as the conversation is the same.
    """

    def __init__(self, codec: ChatCodec, seed: int) -> None:
        self.codec = codec
        self._memory = _Memory()
        literals = sorted(codec.control_literals, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, literals)) or "(?!)")
        encode = codec.encode_sample
        self._swallows = any(
            encode(literal) in (encode(f" {literal}"), encode(f"{literal} ")) for literal in literals
        )
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

    def loses_blanks(self, conversation: Conversation) -> bool:
        """Whether control tokens swallow the blanks beside them, and a reply begins or ends with some, or has
        no text: blanks that a model samples or is given stay, and those of a render do not."""
        if not self._swallows:
            return False
        said = [text for item in conversation.rounds for text in (item.reply.content, item.reply.reasoning)]
        return any(text != text.strip() for text in said) or not all(said[::2])

    def harmless(self, messages: Sequence[Message]) -> list[Message]:
        """The same messages with other text (its own in each) in place of each control literal."""
        return [
            replace(message, content=self._pattern.sub(f"x{index}", message.content))
            if self._pattern.search(message.content)
            else message
            for index, message in enumerate(messages)
        ]

    def start(self, messages: Sequence[Message], conversation: Conversation) -> Encoded | Refusal:
        """``codec.start`` of these messages."""
        memory = self._of(conversation)
        key = memory.key(messages)
        if key not in memory.starts:
            memory.starts[key] = self.codec.start(messages, conversation.tools)
        return memory.starts[key]

    def full(
        self, messages: Sequence[Message], conversation: Conversation, *, generation: bool = True
    ) -> str:
        """The template's own render. Raises Refused."""
        memory = self._of(conversation)
        key = memory.key(messages, generation)
        if key not in memory.texts:
            memory.texts[key] = self.codec.reference_text(messages, conversation.tools, generation=generation)
        text = memory.texts[key]
        if isinstance(text, Refusal):
            raise Refused(text.reason)
        return text

    def ids(self, text: str) -> list[int]:
        """The text's canonical ids, control literals as control ids."""
        ids = self._memory.ids
        if text not in ids:
            ids[text] = self.codec.encode_sample(text)
        return ids[text].copy()

    def _of(self, conversation: Conversation) -> _Memory:
        if self._memory.conversation is not conversation:
            self._memory = _Memory(conversation)
        return self._memory

    def sampled(
        self, before: Sequence[Message], reply: Message, conversation: Conversation
    ) -> tuple[str, str]:
        """What a model writes that answers as the template renders the reply, and its closing."""
        prompt = self.full(before, conversation)
        whole = self.full([*before, reply], conversation, generation=False)
        try:
            return canonical_reply(self.codec, prompt, whole, reply)
        except NotAfterPromptError:
            if before[-1].role == "assistant":  # the turn before is written in another way once this one is
                raise NotApplicable from None
            raise Refused("reply_not_after_prompt") from None
        except NotClosedError:
            raise Refused("reply_not_closed") from None

    def differ(self, got: Sequence[int], wanted: Sequence[int]) -> str:
        """Where two rows of ids part, as text."""
        first = next((i for i, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), -1)
        if first < 0:
            first = min(len(got), len(wanted))
        show = slice(max(0, first - 3), first + 4)
        ours, theirs = (self.codec.decode(list(ids[show])) for ids in (got, wanted))
        return f"ids differ at {first}: {ours!r}, the full render has {theirs!r}"


def _appendable(codec: ChatCodec) -> list[str]:
    """Which of the rarer roles the template takes in mid-conversation; "" where it takes nothing at all."""
    user, reply = Message("user", "u"), Message("assistant", "a")
    nothing = [""] if isinstance(codec.extend([1], []), Encoded) else []
    later = {"system": [user, Message("system", "s")], "assistant": [Message("assistant", "b"), user]}
    return nothing + [
        role
        for role, appended in later.items()
        if not any(key.startswith(role) for key in codec.profile.not_appendable)
        and isinstance(codec.start([user, reply, *appended]), Encoded)
        and isinstance(codec.extend([1], appended), Encoded)
    ]
