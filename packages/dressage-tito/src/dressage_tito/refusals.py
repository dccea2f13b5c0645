"""What the codec refuses before it renders: messages that a family's template cannot express."""

from __future__ import annotations

from collections.abc import Sequence

from dressage_tito.messages import Message, Refusal, Tool
from dressage_tito.profile import Profile

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


def refuse_messages(
    profile: Profile, messages: Sequence[Message], tools: Sequence[Tool] | None
) -> Refusal | None:
    """Why these messages cannot be written at all; None where they can, or where there are none."""
    for index, message in enumerate(messages):
        if message.role not in ROLES:
            return Refusal(
                "unsupported_role",
                f"messages[{index}].role is {message.role!r}: use one of {sorted(ROLES)}",
            )
    calls = any(message.tool_calls for message in messages)
    if (tools or calls) and not profile.supports_tools:
        return Refusal("tools_unsupported", _why_no_tools(profile))
    return _unprintable(profile, messages) if calls else None


def _why_no_tools(profile: Profile) -> str:
    note = profile.tools_note or "the calls' grammar is not known"
    if profile.prints_tools:
        return f"{note}: use a template that writes them, or declare tool_grammar in a profile"
    return (
        f"{note}: use a template that does, or describe them in a message and declare tools_described "
        "and tool_grammar in a profile"
    )


def _unprintable(profile: Profile, messages: Sequence[Message]) -> Refusal | None:
    for index, message in enumerate(messages):
        if message.tool_calls and not profile.prints_calls:
            return Refusal(
                "calls_dropped",
                f"messages[{index}] makes calls, which the chat template does not print: a conversation that "
                "begins with them cannot be written",
            )
        if len(message.tool_calls) > 1 and not profile.parallel_calls:
            return Refusal(
                "parallel_calls_dropped",
                f"messages[{index}] makes {len(message.tool_calls)} calls, of which the chat template "
                "prints one: make one call a turn",
            )
        if message.tool_calls and message.content.strip() and not profile.content_beside_calls:
            return Refusal(
                "content_beside_calls",
                f"messages[{index}] has content and calls: the chat template drops or moves the content",
            )
    return None


def refuse_appended(
    profile: Profile, appended: Sequence[Message], tools: Sequence[Tool] | None
) -> Refusal | None:
    """Why these messages cannot be appended to a sampled turn; None where they can."""
    for index, message in enumerate(appended):
        key = "system" if message.role == "developer" else message.role
        reason = profile.not_appendable.get(f"{key}+tools" if tools else key)
        if reason:
            return Refusal(
                reason,
                f"appended[{index}] (role {message.role}): the chat template would print earlier "
                "messages in another way",
            )
        missing = [name for name in profile.tool_result_needs if not getattr(message, name)]
        if message.role == "tool" and missing:
            return Refusal(
                f"{missing[0]}_missing",
                f"appended[{index}].{missing[0]} is empty, but the chat template prints it: give the "
                "tool message that of the call it answers",
            )
    return None
