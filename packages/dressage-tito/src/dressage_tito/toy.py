"""A toy tokenizer folder: the test double of a real one, made in a moment, for tests and examples.

A byte-level BPE with merges of a few words, the control tokens of the Qwen family (some of them not marked
special, as there), and a ChatML template with Hermes tool calls and ``<think>`` reasoning.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
NOT_SPECIAL = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- 'You can call these tools:' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '\\nCall one as <tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content %}
            {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {%- if message.content or not loop.first %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

_CORPUS = (
    "the user asks the assistant and the assistant answers the user",
    "system user assistant tool name arguments content think call response",
    '{"name": "shell", "arguments": {"command": "ls -la"}}',
    "abab abab ab a b  two  blanks\n\nand\n\nline ends\n",
    "café naïve über 你好 你好 世界",
) * 4


def write_tokenizer(
    file: str | Path, *, special: Sequence[str], not_special: Sequence[str] = (), merges: int = 160
) -> None:
    """Write a tokenizer.json: a byte-level BPE with these control tokens, the same one each time.

    ``merges`` is the number of BPE merges to learn from a built-in text; ``not_special`` are added tokens
    that the tokenizer does not call special. A stand-in where only a family's template is known.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + merges, initial_alphabet=sorted(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in not_special])
    tokenizer.save(str(file))


def write_toy_tokenizer(
    folder: str | Path, *, template: str = TEMPLATE, merges: int = 160, more_special: Sequence[str] = ()
) -> Path:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into ``folder`` (made if missing).

    ``merges`` as in ``write_tokenizer``; ``more_special`` are special tokens beside those of ChatML.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    write_tokenizer(
        path / "tokenizer.json", special=(*SPECIAL, *more_special), not_special=NOT_SPECIAL, merges=merges
    )
    config = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None}
    (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (path / "chat_template.jinja").write_text(template, encoding="utf-8")
    return path
