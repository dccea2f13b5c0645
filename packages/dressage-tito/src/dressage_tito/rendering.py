"""One proven render: the template's text with the places of its content."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dressage_tito.dummies import before_tail, head_messages, said_with
from dressage_tito.frames import Frames
from dressage_tito.grammars import REASONING_TAGS
from dressage_tito.locating import locate
from dressage_tito.marking import (
    Marker,
    Marks,
    choose_marks,
    conversation_texts,
    is_text,
)
from dressage_tito.messages import Message, Refusal, Tool
from dressage_tito.profile import Profile
from dressage_tito.spans import Span
from dressage_tito.tails import Tails
from dressage_tito.template import ChatTemplate, Clock, Json, RenderError

_MAX_OPENINGS = 32
_MAX_KWARGS_CHARS = 4096


@dataclass(frozen=True, slots=True)
class Rendered:
    """Text in which ``marks.escape`` still breaks content's control literals, and content's spans in it."""

    text: str
    spans: tuple[Span, ...]
    marks: Marks

    def after(self, position: int) -> Rendered:
        """What follows a position that lies in no content."""
        spans = tuple((a - position, b - position) for a, b in self.spans if a >= position)
        return Rendered(self.text[position:], spans, self.marks)


@dataclass(frozen=True, slots=True)
class Renderer:
    """A template with what content must not spell (``literals``) and what is known of its family."""

    template: ChatTemplate
    literals: re.Pattern[str]
    profile: Profile
    _openings: dict[tuple[str, str], str] = field(default_factory=dict, repr=False, compare=False)
    _frames: Frames = field(default_factory=Frames, repr=False, compare=False)
    _starts: Frames = field(default_factory=Frames, repr=False, compare=False)
    _tails: Tails = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_tails", Tails(self.template))

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
        kwargs: Json,
        *,
        before: Sequence[Message] = (),
    ) -> Rendered | Refusal:
        """Render with the generation prompt and prove where content lies.

        ``before`` are messages of a dummy conversation: not proven, and the last of them has its content
        closed by ``marks.cut`` (a message with calls: its last call's first argument).
        """
        try:
            return self._rendered(messages, tools, kwargs, before, spelled=False)
        except RecursionError:
            return Refusal(
                "nested_too_deeply", "the tools or a call's arguments are nested too deeply to print"
            )

    def _rendered(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
        kwargs: Json,
        before: Sequence[Message],
        *,
        spelled: bool,
    ) -> Rendered | Refusal:
        marks = choose_marks(conversation_texts(messages, tools), spelled=spelled)
        if marks is None:
            return Refusal("marks_exhausted", "the conversation uses every character that could mark content")
        marker = self._marker(marks, self.literals)
        head = head_messages(marker, before)
        clock = self.template.stopped_clock()
        escaped_tools = marker.tools(tools)
        contents = [marker.escape(message.content) for message in messages]

        def text(said: Sequence[Json]) -> str:
            printed = self.template.render(
                [*head, *said], escaped_tools, generation=True, kwargs=kwargs, clock=clock
            )
            return marks.unspelled(printed) if spelled else printed

        try:
            bare = text(marker.messages(messages, marked=False))
            if marker.escaped and not spelled and marks.unspelled(bare) != bare:
                return self._rendered(messages, tools, kwargs, before, spelled=True)
            if not is_text(bare):
                return Refusal(
                    "half_a_character",
                    "messages or tools hold half of a surrogate pair, which is no character: send it whole",
                )
            frames = self._frames if before else self._starts
            spans = frames.spans(messages, contents, bare)
            if spans is not None:
                return Rendered(bare, spans, marks)
            located = locate(marker, messages, contents, bare, text)
        except RenderError as error:
            return Refusal("template_error", f"the chat template refuses the conversation: {error}")
        if isinstance(located, Refusal):
            return located
        frames.keep(messages, contents, bare, located)
        return Rendered(bare, located, marks)

    def tail(
        self, appended: Sequence[Message], tools: Sequence[Tool] | None, kwargs: Json
    ) -> Rendered | Refusal:
        """What the template prints after an earlier assistant turn's own text, for these messages.

        The turn's closing comes first. The history before it is a dummy: two short messages.
        """
        told = tools if self.profile.tools_in_tail else None
        marks = None if told else choose_marks(conversation_texts(appended, None))
        if marks is None:
            rendered = self._tail(appended, told, kwargs)
            return rendered if isinstance(rendered, Refusal) else rendered[1]
        marker = self._marker(marks, self.literals)
        asked = self._tails.asked(marker, appended, kwargs)
        printed = None if asked is None else self._tails.printed(asked)
        if printed is not None:
            return Rendered(*printed, marks)
        rendered = self._tail(appended, None, kwargs)
        if isinstance(rendered, Refusal):
            return rendered
        whole, tail = rendered
        if asked is not None:
            dummy = before_tail(appended, with_calls=self.profile.calls_before_tool)
            said = functools.partial(said_with, marker, dummy, appended)
            closing = whole.text[: len(whole.text) - len(tail.text)]
            closing = closing[closing.rfind(marks.cut) :]
            self._tails.learn(asked, said, kwargs, whole.text, closing, (tail.text, tail.spans))
        return tail

    def _tail(
        self, appended: Sequence[Message], tools: Sequence[Tool] | None, kwargs: Json
    ) -> tuple[Rendered, Rendered] | Refusal:
        """The whole render and its tail."""
        profile = self.profile
        dummy = before_tail(appended, with_calls=profile.calls_before_tool)
        rendered = self.render(appended, tools, kwargs, before=dummy)
        if isinstance(rendered, Refusal):
            return rendered
        position = rendered.text.rfind(rendered.marks.cut)
        if position < 0:
            return Refusal(
                "template_shape", "the chat template does not print the turn before what is appended"
            )
        if any(start <= position for start, _ in rendered.spans):
            return Refusal(
                "template_rewrites_history",
                "the chat template prints an appended message before the turn that it follows",
            )
        tail = rendered.after(position + 1)
        if not dummy[-1].tool_calls:
            return rendered, tail
        if not tail.text.startswith(profile.call_suffix):
            return Refusal("template_shape", "the chat template does not close a turn of tool calls")
        return rendered, tail.after(len(profile.call_suffix))

    def thoughts_of_history(
        self,
        appended: Sequence[Message],
        tools: Sequence[Tool] | None,
        kwargs: Json,
        thoughts: Sequence[str],
        *,
        calls: bool,
    ) -> list[str | None]:
        """What the template prints of an earlier turn's reasoning before these messages, for each reasoning.

        It stands between the assistant's header and the content; None where the header is another one.
        """
        answers = any(message.role == "tool" for message in appended[:1])
        asked = appended if answers else [Message("tool")]
        reply = before_tail(asked, with_calls=answers or calls)[-1]
        user = Message("user", "hi")
        clock = self.template.stopped_clock()
        try:
            prompt = self.reference([user], tools, kwargs, generation=True, clock=clock)
        except RenderError:
            return [None for _ in thoughts]
        found: list[str | None] = []
        for reasoning in thoughts:
            said = [user, replace(reply, reasoning=reasoning), *appended]
            try:
                text = self.reference(said, tools, kwargs, generation=True, clock=clock)
            except RenderError:
                found.append(None)
            else:
                found.append(self._thought(prompt, text, reply, reasoning))
        return found

    def _thought(self, prompt: str, text: str, reply: Message, reasoning: str) -> str | None:
        # What a prompt says of reasoning depends on the call's own arguments: the profile knows its header.
        header = self.profile.generation_header
        place = prompt.rfind(header)
        end = place + len(header)
        if place < 0 or not text.startswith(prompt[:end]):
            return None
        turn = text[end:]
        if self.profile.reasoning_block not in REASONING_TAGS:
            return reasoning if reasoning in turn else ""
        closing = self.profile.reasoning_block[1].strip()
        before, found, _ = turn.partition("Xq7cut" if reply.tool_calls else "ok")[0].rpartition(closing)
        return (before + found).strip()

    def opening(self, role: str, kwargs: Json) -> str:
        """What is printed between an earlier turn's closing and the content of a message of this role.

        It depends on no conversation, and is kept.
        """
        key = (role, repr(sorted(kwargs.items())))
        found = self._openings.get(key)
        if found is None:
            found = self._opening(role, kwargs)
            if len(self._openings) >= _MAX_OPENINGS:
                self._openings.clear()
            if len(key[1]) <= _MAX_KWARGS_CHARS:
                self._openings[key] = found
        return found

    def _opening(self, role: str, kwargs: Json) -> str:
        word = "Xq7dressage"
        appended = [Message(role, word, tool_call_id="call00001" if role == "tool" else "", name="f")]
        tail = self.tail(appended, None, kwargs)
        if isinstance(tail, Refusal):
            return ""
        before = tail.text.partition(word)[0]
        return before.removeprefix(self.profile.turn_close_text)

    def reference(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
        kwargs: Json,
        *,
        generation: bool,
        clock: Clock | None = None,
    ) -> str:
        """The template's own render, nothing escaped or marked. Raises RenderError."""
        marker = self._marker(Marks("", "", "", ""), re.compile("(?!)"))
        said = marker.messages(messages, marked=False)
        text = self.template.render(
            said, marker.tools(tools), generation=generation, kwargs=kwargs, clock=clock
        )
        if self.profile.trailing_prompt and not generation:
            return text.removesuffix(self.profile.generation_prompt)
        return text

    def _marker(self, marks: Marks, literals: re.Pattern[str]) -> Marker:
        return Marker(marks, literals, self.profile.reasoning_field, self.profile.arguments_as)
