"""What goes into and comes out of a codec: messages, token deltas, refusals and parsed turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # loaded when first needed, so that importing the package stays fast
    import numpy as np
    from numpy.typing import NDArray

Tool = Mapping[str, Any]
"""One OpenAI function tool: ``{"type": "function", "function": {"name", "description", "parameters"}}``."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that an assistant turn made. ``arguments`` is the parsed object; ``arguments_text`` the original
    JSON text as it was sampled or sent (never re-serialised)."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    arguments_text: str


@dataclass(frozen=True, slots=True)
class Message:
    """A chat message in canonical form: content is text (absent content is "")."""

    role: str
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids to append to what the engine has.

    ``ids`` int32 [T]; ``frame`` bool [T], true where the token comes from the template's frame (role
    headers, turn closing, generation prompt) and false where it is message content. Control ids occur only
    where ``frame`` is true.
    """

    ids: NDArray[np.int32]
    frame: NDArray[np.bool_]
    reasoning_open: bool
    """The generation prompt left a reasoning block open: what is sampled next starts as reasoning."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The codec could not prove that the result equals the template's own ids, and says why.

    ``reason`` is a short code (``unsupported_role``, ``prefix_not_closed``, ``template_error``, …) that
    becomes a segment's ``cut_reason``; ``detail`` is for people and names the fix where there is one.
    """

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """A sampled turn as text. Nothing is lost: what does not parse stays in ``content`` with a warning."""

    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """Complete calls only; ids are "" (the proxy mints wire ids) unless the model's grammar carries ids."""
    warnings: tuple[str, ...] = field(default=())


def concat_encoded(parts: Sequence[Encoded]) -> Encoded:
    """Join deltas; ``reasoning_open`` is the last one's. Raises ValueError on an empty sequence."""
    if not parts:
        raise ValueError("parts is empty: give at least one Encoded")
    import numpy as np

    return Encoded(
        ids=np.concatenate([p.ids for p in parts]),
        frame=np.concatenate([p.frame for p in parts]),
        reasoning_open=parts[-1].reasoning_open,
    )
