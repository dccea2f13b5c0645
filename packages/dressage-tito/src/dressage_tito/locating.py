"""Where contents stand in a render: proven by renders of marked contents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dressage_tito.marking import Marker, forms, unmark, unmark_inside, widen
from dressage_tito.messages import Message, Refusal
from dressage_tito.spans import Span
from dressage_tito.template import Json


def locate(
    marker: Marker,
    messages: Sequence[Message],
    contents: Sequence[str],
    bare: str,
    printed: Callable[[Sequence[Json]], str],
) -> tuple[Span, ...] | Refusal:
    """Where the contents stand in ``bare``, the render of messages without marks. ``printed`` renders those
    with marks. Raises RenderError where it does.

    A place counts where a render with marks is ``bare`` but for the marks: nothing is searched for, since a
    content may be a word of the frame, or a part of a control literal.
    """
    marks = marker.marks
    text, spans = unmark(printed(marker.messages(messages, marked=True)), marks)
    order, missing = _in_order([text[a:b] for a, b in spans], contents)
    if text != bare:
        text, spans, order = unmark_inside(printed(marker.messages_marked_inside(messages)), marks, contents)
        if text == bare:
            missing = _missing(contents, order)
        elif missing is None:
            return Refusal(
                "template_reads_content",
                "the chat template prints a message in another way for what its content says, so that the "
                "content's place is not known",
            )
    if missing is not None:
        return Refusal(
            "message_dropped",
            f"the chat template does not print messages[{missing}] (role {messages[missing].role}) as it is",
        )
    return tuple(widen(text, spans, [contents[index] for index in order]))


def _in_order(seen: Sequence[str], contents: Sequence[str]) -> tuple[list[int], int | None]:
    """Which contents were printed, as they come in the render (a template may move one), and the first that
    was not. ``seen`` are the marked texts."""
    waiting: dict[str, list[int]] = {}
    for index, content in enumerate(contents):
        for form in set(forms(content.strip())) - {""}:
            waiting.setdefault(form, []).append(index)
    order: list[int] = []
    done: set[int] = set()
    for text in seen:
        found = next((index for index in waiting.get(text, ()) if index not in done), None)
        if found is not None:
            done.add(found)
            order.append(found)
    return order, _missing(contents, done)


def _missing(contents: Sequence[str], printed: Iterable[int]) -> int | None:
    """The first content with something visible that was not printed."""
    done = set(printed)
    return next((index for index, text in enumerate(contents) if text.strip() and index not in done), None)
