"""A model family as data: what the codec knows of a tokenizer and its chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from dressage_tito.errors import ProfileError
from dressage_tito.grammars import GRAMMARS, ToolGrammarName

if TYPE_CHECKING:
    from dressage_tito.tokens import Tokens

Retention = Literal["keeps", "strips", "none"]
ArgumentsAs = Literal["object", "text"]
_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Profile:
    """What the codec knows of a family. Override a field with ``dataclasses.replace``, or in TOML."""

    turn_close_text: str
    """What the template prints after an earlier assistant turn's own text, e.g. ``<|im_end|>\\n``; "" where
    the next block's opener ends a turn."""
    turn_close_ids: tuple[int, ...]
    stop_ids: tuple[int, ...]
    """Ids that end a sampled turn: the closing id and the model's end-of-sequence ids."""
    generation_prompt: str
    reasoning_tags: tuple[str, str] | None
    reasoning_field: str
    """The message key that the template reads reasoning from; "" where it reads none."""
    thinking_in_history: Retention
    """What the template does with an earlier turn's reasoning once a user speaks again. Under the policy
    ``keep`` the codec keeps what was sampled; ``strips`` then is a declared difference to a full render."""
    tool_grammar: ToolGrammarName
    bos: Literal["template", "none"]
    """Whether the template prints the begin-of-sequence token, once, where a conversation begins."""
    developer_role: bool
    """The template prints the role ``developer``; otherwise it is rendered as ``system``."""
    tools_in_tail: bool
    """The tool list changes what is printed after an earlier turn."""
    calls_before_tool: bool
    """A tool message is printed rightly only after an assistant turn with calls."""
    sampled_close_text: str = ""
    """What a model itself closes a turn with. It differs from ``turn_close_text`` where ``closing_stops``
    says so, and where the template alone prints a line end after it."""
    closing_stops: tuple[tuple[int, int], ...] = ()
    """Pairs of a stop that a model samples and the id that the template writes in its place in history
    (gpt-oss: ``<|return|>`` and ``<|end|>``). The sampled id stays in the context."""
    calls_close_text: str = ""
    """As ``turn_close_text``, after a turn of tool calls."""
    calls_close_ids: tuple[int, ...] = ()
    call_suffix: str = ""
    """What the grammar prints between a call's last text argument and the turn's closing."""
    arguments_as: ArgumentsAs = "object"
    """What the template takes a call's arguments as."""
    reasoning_block: tuple[str, str] | None = None
    """What stands around reasoning in a render (the tags, or what takes their place)."""
    inner_ids: frozenset[int] = frozenset()
    """Special ids that occur inside a turn: a turn cut after one of them is not over."""
    not_appendable: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """Roles (``user``; ``user+tools`` for a conversation with tools) that cannot be appended without changing
    what stands before, each with the refusal's reason."""
    tool_result_needs: tuple[str, ...] = ()
    """Fields of a tool message that the template prints beside its content: ``name``, ``tool_call_id``."""
    parallel_calls: bool = True
    """The template prints every call of a turn that makes several."""
    content_beside_calls: bool = True
    """The template prints a turn's content and then its calls; otherwise it drops or moves the content."""
    lossy: tuple[str, ...] = ()
    """What the template prints so that it cannot be read back: ``arguments``."""
    trailing_prompt: bool = False
    """The template prints its generation prompt whether it is asked to or not."""
    prints_tools: bool = True
    """The template prints the tools that it is given."""
    prints_calls: bool = True
    """The template prints the calls of earlier turns; otherwise a conversation that holds some is refused."""
    tools_described: bool = False
    """Declared alone: tools are described in a message (the agent's own prompt, or the model card's), so that
    they may be offered although the template does not print them."""
    tools_note: str = ""
    """Why tools cannot be offered; "" where they can."""
    family: str = ""
    """The family's name where it is declared (``families.toml``)."""

    @property
    def generation_header(self) -> str:
        """The generation prompt less what it says of reasoning."""
        header = self.generation_prompt
        for tag in self.reasoning_block or ():
            header = header.partition(tag.strip())[0]
        return header

    def stated(self) -> list[tuple[str, object]]:
        """Names and values of the fields that are not at their defaults, less the explanation, in order: the
        same, whatever fields a later version adds."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "tools_note"}
        values["inner_ids"] = sorted(self.inner_ids)
        defaults = {item.name: item.default for item in fields(self)}
        return [
            (name, value) for name, value in sorted(values.items()) if value not in (defaults[name], [], {})
        ]

    @property
    def supports_tools(self) -> bool:
        """Tools can be offered: the model is shown them, and calls come in a grammar that is parsed."""
        return self.tool_grammar in GRAMMARS and (self.prints_tools or self.tools_described)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("give text")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TypeError("give a list of texts")
    return tuple(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("give true or false")
    return value


def _table(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise TypeError("give a table of texts")
    return dict(value)


def _choice(*allowed: str) -> Any:
    def check(value: Any) -> str:
        if value not in allowed:
            raise TypeError(f"give one of {', '.join(allowed)}")
        return str(value)

    return check


def _tags(value: Any) -> tuple[str, str] | None:
    texts = _texts(value)
    if len(texts) not in (0, 2):
        raise TypeError("give an opening and a closing tag, or [] for none")
    return (texts[0], texts[1]) if texts else None


_KEYS: dict[str, Any] = {
    "family": _text,
    "turn_close": _text,
    "sampled_close": _text,
    "calls_close": _text,
    "call_suffix": _text,
    "stops": _texts,
    "closing_stops": _table,
    "generation_prompt": _text,
    "trailing_prompt": _flag,
    "reasoning_tags": _tags,
    "reasoning_field": _text,
    "thinking_in_history": _choice("keeps", "strips", "none"),
    "tool_grammar": _choice("none", "unknown", *GRAMMARS),
    "tools_described": _flag,
    "arguments_as": _choice("object", "text"),
    "bos": _choice("template", "none"),
    "developer_role": _flag,
    "tools_in_tail": _flag,
    "calls_before_tool": _flag,
    "tool_result_needs": _texts,
    "not_appendable": _table,
    "parallel_calls": _flag,
    "content_beside_calls": _flag,
    "lossy": _texts,
}


def profile_fields(table: Mapping[str, Any], tokens: Tokens, where: str) -> dict[str, Any]:
    """Fields of ``Profile`` from a TOML table, in which ids are written as their text.

    Raises ProfileError, which names the key: one that is not known, or a value that is not right for it.
    """
    fields: dict[str, Any] = {}
    for key, value in table.items():
        if key not in _KEYS:
            raise ProfileError(f"{where}: the key {key!r} is not known; known are {', '.join(_KEYS)}")
        try:
            checked = _KEYS[key](value)
        except TypeError as error:
            raise ProfileError(f"{where}: {key} is {value!r}: {error}") from error
        fields.update(_field(key, checked, tokens, where))
    return fields


def _field(key: str, value: Any, tokens: Tokens, where: str) -> dict[str, Any]:
    if key in ("turn_close", "calls_close"):
        return {f"{key}_text": value, f"{key}_ids": tuple(tokens.encode(value, (), "\0")[0].tolist())}
    if key == "sampled_close":
        return {"sampled_close_text": value}
    if key == "stops":
        return {"stop_ids": tuple(_id(text, tokens, f"{where}: {key}") for text in value)}
    if key == "closing_stops":
        named = f"{where}: {key}"
        pairs = tuple((_id(a, tokens, named), _id(b, tokens, named)) for a, b in value.items())
        return {"closing_stops": pairs}
    if key == "not_appendable":
        return {"not_appendable": MappingProxyType(value)}
    return {key: value}


def _id(text: str, tokens: Tokens, where: str) -> int:
    found = tokens.id_of(text)
    if found is None:
        raise ProfileError(f"{where} names {text!r}, which is no token of this tokenizer")
    return found
