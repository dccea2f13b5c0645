"""Side by side with the ``renderers`` package, on the families that both know.

    python scripts/compare_renderers.py [NAME …] [--conversations N]

For made-up conversations: the ids of the whole conversation (``start``) and those appended after a sampled
turn (``extend``, theirs is ``bridge_to_next_turn``). Where the two differ, the row says how often each of
them is what the chat template itself renders. The peer runs in an environment of its own under ``.cache``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fetch_test_models import FetchError, fetch
from model_sources import MODELS
from workspace import CACHE, SetupError, find_uv

PEER = ("renderers==0.1.12", "transformers>=5", "jinja2", "httpx")
RENDERERS = {
    "qwen3": "qwen3", "qwen3_5-think": "qwen3.5", "qwen3_6": "qwen3.6", "qwen3_8": "qwen3.8",
    "llama3_2": "llama-3", "glm4_5": "glm-4.5", "deepseek_v3": "deepseek-v3", "kimi_k2": "kimi-k2",
    "gpt-oss": "gpt-oss", "minimax_m2": "minimax-m2", "gemma4": "gemma4", "nemotron_3-nano": "nemotron-3",
    "nemotron_3-ultra": "nemotron-3-ultra", "nemotron_3_5": "nemotron-3.5",
}  # fmt: skip
"""Our model and the peer's renderer for it."""

KWARGS: dict[str, dict[str, object]] = {"llama3_2": {"date_string": "26 Jul 2024"}}
"""Arguments under which our template says what the peer's renderer has built in."""

CHILD = """
import json, sys
from renderers import config_from_name, create_renderer
from transformers import PreTrainedTokenizerFast
job = json.load(sys.stdin)
tokenizer = PreTrainedTokenizerFast(tokenizer_file=job["folder"] + "/tokenizer.json", **job["special"])
tokenizer.chat_template = open(job["folder"] + "/chat_template.jinja").read()
renderer = create_renderer(tokenizer, config_from_name(job["renderer"]))
def run(call):
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
def bridge(case):
    ids = renderer.bridge_to_next_turn(case["prompt"], case["sampled"], case["new"], tools=case["tools"])
    return None if ids is None else list(ids.token_ids)
def whole(c):
    return list(renderer.render_ids(c["messages"], tools=c["tools"], add_generation_prompt=True))
json.dump([[run(lambda: whole(c)), run(lambda: bridge(c))] for c in job["cases"]], sys.stdout)
"""


class PeerError(RuntimeError):
    """The peer fails on a family; the message is its own."""


def peer_python() -> Path:
    """The interpreter of the peer's environment, made on first use."""
    place = CACHE / "renderers-0.1.12"
    python = place / "bin" / "python"
    if not python.exists():
        uv = find_uv(Path(sys.executable))
        uv("venv", "--python", sys.executable, place)
        uv("pip", "install", "--python", python, *PEER)
    return python


def _message(message: Any) -> dict[str, Any]:
    from dressage_tito import message_to_json

    result = message_to_json(message)
    for call, item in zip(message.tool_calls, result.get("tool_calls", ()), strict=True):
        item["function"]["arguments"] = dict(call.arguments)
    return result


def cases_of(name: str, folder: Path, count: int) -> list[dict[str, Any]]:
    """Conversations with our ids and the template's own."""
    from dressage_tito import ChatCodec, Encoded
    from dressage_tito.checks import Refused, Subject

    codec = ChatCodec.from_folder(folder, template_kwargs={**MODELS[name].kwargs, **KWARGS.get(name, {})})
    subject = Subject(codec, 11)
    cases = []
    for _ in range(count):
        conversation = subject.fuzzer.conversation(spelled=False)
        first, messages = conversation.rounds[0], conversation.messages()
        new = list(conversation.rounds[1].appended if len(conversation.rounds) > 1 else conversation.last)
        tools = list(conversation.tools) or None
        started = codec.start(messages, tools)
        prompt = codec.start(first.appended, tools)
        try:
            whole = subject.full(messages, conversation)
            sampled, _ = subject.sampled(first.appended, first.reply, conversation)
            after = subject.full([*first.appended, first.reply, *new], conversation)
        except Refused:
            continue
        if not isinstance(prompt, Encoded):
            continue
        prefix = [*prompt.ids.tolist(), *codec.encode_sample(sampled)]
        extended = codec.extend(prefix, new, tools)
        cases.append({
            "messages": [_message(message) for message in messages],
            "tools": tools,
            "new": [_message(message) for message in new],
            "prompt": prompt.ids.tolist(),
            "sampled": prefix[len(prompt.ids) :],
            "start": started.ids.tolist() if isinstance(started, Encoded) else started.reason,
            "extend": [*prefix, *extended.ids.tolist()] if isinstance(extended, Encoded) else extended.reason,
            "template_start": codec.encode_sample(whole),
            "template_extend": codec.encode_sample(after),
        })  # fmt: skip
    return cases


def verdict(ours: object, theirs: object, template: object) -> str:
    """How one case compares. A refusal is no list of ids."""
    if not isinstance(ours, list) or not isinstance(theirs, list):
        both = "both refuse" if not isinstance(ours, list) else "they refuse"
        return both if not isinstance(theirs, list) else f"we refuse ({ours})"
    if ours == theirs:
        return "same"
    right = [who for who, ids in (("ours", ours), ("theirs", theirs)) if ids == template]
    return f"differ, the template agrees with {' and '.join(right) or 'neither'}"


def compare(name: str, folder: Path, count: int) -> tuple[Counter[str], Counter[str], list[str]]:
    """Verdicts on ``start`` and ``extend``, and an example of each difference."""
    model = MODELS[name]
    cases = cases_of(name, folder, count)
    special = {"eos_token": model.eos, **({"bos_token": model.bos} if model.bos else {})}
    job = {"folder": str(folder), "renderer": RENDERERS[name], "special": special, "cases": cases}
    done = subprocess.run([str(peer_python()), "-c", CHILD], input=json.dumps(job), capture_output=True,
                          text=True, check=False)  # fmt: skip
    if done.returncode:
        raise PeerError(done.stderr.strip().splitlines()[-2])
    starts: Counter[str] = Counter()
    extends: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for case, (start, extend) in zip(cases, json.loads(done.stdout), strict=True):
        for what, counter, theirs in (("start", starts, start), ("extend", extends, extend)):
            said = verdict(case[what], theirs, case[f"template_{what}"])
            counter[said] += 1
            if said != "same" and f"{what} {said}" not in examples:
                shown = theirs if isinstance(theirs, str) else _difference(folder, case[what], theirs)
                examples[f"{what} {said}"] = f"{name} {what}: {said}: {shown}"
    return starts, extends, list(examples.values())


def _difference(folder: Path, ours: object, theirs: object) -> str:
    from tokenizers import Tokenizer

    if not isinstance(ours, list) or not isinstance(theirs, list):
        return ""
    unequal = (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    first = next(unequal, min(len(ours), len(theirs)))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    show = slice(max(0, first - 4), first + 8)
    texts = [tokenizer.decode(ids[show], skip_special_tokens=False) for ids in (ours, theirs)]
    return f"ours {texts[0]!r}, theirs {texts[1]!r}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="all that both know by default")
    parser.add_argument("--conversations", type=int, default=40, metavar="N")
    arguments = parser.parse_args()
    names = arguments.names or list(RENDERERS)
    unknown = [name for name in names if name not in RENDERERS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(RENDERERS)}")
    try:
        for name, folder in zip(names, fetch(names), strict=True):
            try:
                starts, extends, examples = compare(name, folder, arguments.conversations)
            except PeerError as error:
                print(f"{name} ({RENDERERS[name]}): the peer cannot be run here: {error}", flush=True)
                continue
            print(f"{name} ({RENDERERS[name]}): start {dict(starts)}; extend {dict(extends)}", flush=True)
            for example in examples:
                print(f"    {example}")
    except (FetchError, SetupError, OSError) as error:
        print(f"compare_renderers: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
