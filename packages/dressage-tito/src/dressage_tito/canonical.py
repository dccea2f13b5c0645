"""What a model would write that answers exactly as the template renders its reply."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from dressage_tito.appending import without_reasoning
from dressage_tito.codec import ChatCodec
from dressage_tito.messages import Message, Refusal, Tool
from dressage_tito.profile import Profile


class NotAfterPromptError(Exception):
    """The template's reply does not begin where its generation prompt ends."""


def reply_text(
    codec: ChatCodec, before: Sequence[Message], reply: Message, tools: Sequence[Tool] | None = None
) -> tuple[str, str] | Refusal:
    """What a model writes that answers ``before`` as the template renders ``reply``, and the end of it that
    closes the turn.

    For examples and scripted engines: ``codec.parse`` reads the reply back, where the grammar can carry it.
    """
    prompt = codec.reference_text(before, tools)
    whole = codec.reference_text([*before, reply], tools, generation=False)
    if isinstance(prompt, Refusal):
        return prompt
    if isinstance(whole, Refusal):
        return whole
    try:
        return canonical_reply(codec, prompt, whole, reply)
    except NotAfterPromptError:
        return Refusal("reply_not_after_prompt", "the template's reply does not follow its own prompt")


class NotClosedError(Exception):
    """The template does not close this reply as it closes others."""


def canonical_reply(codec: ChatCodec, prompt: str, whole: str, reply: Message) -> tuple[str, str]:
    """The reply's text as a model samples it after ``prompt``, and what closes it (in the text too).

    ``whole`` is the template's render of the conversation that ends with the reply. Where the generation
    prompt opens (or skips) a reasoning block that the render does not have, the sample is what a model writes
    inside that block. Raises NotAfterPromptError or NotClosedError.
    """
    profile = codec.profile
    text = whole[len(prompt) :] if whole.startswith(prompt) else _inside(profile, prompt, whole, reply)
    block = profile.reasoning_block
    if block and not profile.reasoning_field and text.startswith(block[1]):
        text = reply.reasoning + text  # the template itself never prints it
    return _closed(codec, text, bool(reply.tool_calls))


def _inside(profile: Profile, prompt: str, whole: str, reply: Message) -> str:
    block = profile.reasoning_block
    if block is None:
        raise NotAfterPromptError
    opening, closing = (part.strip() for part in block)
    places = [profile.generation_prompt.find(tag) for tag in (opening, closing)]
    places = [place for place in places if place >= 0]
    if not places:
        raise NotAfterPromptError
    prefill = profile.generation_prompt[min(places) :]
    header = prompt.removesuffix(prefill)
    if header == prompt or not whole.startswith(header):
        raise NotAfterPromptError
    rest = whole[len(header) :]
    match = re.match(rf"(?:{re.escape(opening)}(.*?))?{re.escape(closing)}(.*)", rest, re.DOTALL)
    inner, after = (match.group(1) or "", match.group(2)) if match else (reply.reasoning, rest)
    if closing in prefill:
        return after.removeprefix(prefill.rpartition(closing)[2])
    inner = inner.strip("\n")
    return f"{inner}\n{closing}{after}" if inner else f"{closing}{after}"


def _closed(codec: ChatCodec, text: str, calls: bool) -> tuple[str, str]:
    profile = codec.profile
    end = (profile.calls_close_text if calls else profile.sampled_close_text).rstrip()
    for close in (end, profile.turn_close_text.rstrip()):
        head, found, tail = text.rpartition(close) if close else (text, "", "")
        if found and tail.strip() in ("", codec.eos_text):
            return head + end, end
    if end:
        raise NotClosedError
    return text, ""


def plain(text: str) -> str:
    """A text as a tokenizer with an NFC normaliser writes it, wherever it was cut."""
    return unicodedata.normalize("NFC", text)


def comparable(codec: ChatCodec, text: str) -> str:
    """A conversation's text less what a profile declares: reasoning, and how a sampled stop is written."""
    for sampled, printed in codec.profile.closing_stops:
        text = text.replace(codec.decode([sampled]), codec.decode([printed]))
    text = plain(text)
    if codec.profile.reasoning_block is None:
        return text
    return re.sub(r"\n+", "\n", without_reasoning(text, codec.profile.reasoning_block))
