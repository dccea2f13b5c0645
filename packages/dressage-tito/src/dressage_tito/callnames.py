"""The names of the functions that tool messages answer, read from the turn that was just sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

from dressage_tito.grammars import grammar_named
from dressage_tito.idsearch import places
from dressage_tito.messages import Message, Tool
from dressage_tito.profile import Profile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dressage_tito.tokens import Tokens

    Ids = Sequence[int] | NDArray[np.int32]


_ANY_TOOL: Sequence[Tool] = ({"type": "function", "function": {"name": "any"}},)
"""Calls are parsed only where tools are offered."""


def with_call_names(
    profile: Profile,
    tokens: Tokens,
    prefix_ids: Ids,
    appended: Sequence[Message],
    tools: Sequence[Tool] | None,
) -> Sequence[Message]:
    """The messages, with the name of the call that each leading tool message answers.

    For templates that print the name beside a result (gpt-oss, Gemma 4), where a client did not send it. The
    ids that were sampled say nothing of who answers what: where the last turn calls several functions, or
    makes fewer calls than there are results, the messages are left as they are.
    """
    results = list(takewhile(lambda message: message.role == "tool", appended))
    if "name" not in profile.tool_result_needs or not results or all(item.name for item in results):
        return appended
    names = _last_names(profile, tokens, prefix_ids, tools)
    if len(set(names)) != 1 or len(names) < len(results):
        return appended
    named = [replace(item, name=item.name or names[0]) for item in results]
    return [*named, *appended[len(results) :]]


def makes_calls(profile: Profile, tokens: Tokens, prefix_ids: Ids) -> bool:
    """Whether the last sampled turn makes calls, whatever tools were offered to it."""
    return bool(_last_names(profile, tokens, prefix_ids, _ANY_TOOL))


def _last_names(profile: Profile, tokens: Tokens, prefix_ids: Ids, tools: Sequence[Tool] | None) -> list[str]:
    """The names that the last sampled turn calls, in order."""
    import numpy as np

    ids = np.asarray(prefix_ids, dtype=np.int64)
    header = [int(token) for token in tokens.encode(profile.generation_header.strip(), (), "\0")[0]]
    begins = places(ids, header)
    if not len(begins):
        return []
    turn = grammar_named(profile.tool_grammar).parse(
        tokens.decode(ids[int(begins[-1]) + len(header) :].tolist()),
        reasoning_open=False,
        finish_reason="stop",
        tools=tools,
        reasoning_tags=profile.reasoning_tags,
    )
    return [call.name for call in turn.tool_calls]
