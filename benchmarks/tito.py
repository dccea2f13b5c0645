"""What ``extend`` costs on the real Qwen3 tokenizer: late against early, and against rendering all.

A session of 200 rounds, each a reply with a call and a tool result, about 550 tokens: 110K in all.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from dressage_tito import ChatCodec, Encoded, Message, Refusal, ToolCall
from dressage_tito.certify import certify
from dressage_tito.fuzz import TOOLS

from benchmarks._report import report

ROUNDS = 200
WORDS = ("file", "error", "return", "value", "path", "naïve", "line", "42", "test", "{", "}", "import", "\n")


def tokenizer_folder() -> Path:
    fetch = Path(__file__).resolve().parent.parent / "scripts" / "fetch_test_models.py"
    done = subprocess.run([sys.executable, str(fetch), "qwen3"], capture_output=True, text=True, check=True)
    return Path(done.stdout.splitlines()[-1])


def granted(result: Encoded | Refusal) -> Encoded:
    if isinstance(result, Refusal):
        raise SystemExit(f"refused: {result.reason}: {result.detail}")
    return result


def seconds(run: Callable[[], object], repeat: int) -> float:
    """The median time of a call."""
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def session(codec: ChatCodec) -> tuple[np.ndarray[tuple[int], np.dtype[np.int32]], list[int], list[Message]]:
    """The ids of the whole session, how many there were when each turn ended, and its messages."""
    draw = random.Random(0)
    messages = [Message("system", "You are an agent."), Message("user", "Fix the tests.")]
    ids = granted(codec.start(messages, TOOLS)).ids.tolist()
    ends = []
    for index in range(ROUNDS):
        command = " ".join(draw.choices(WORDS, k=40))
        call = ToolCall(f"c{index}", "shell", {"command": command}, "")
        text = codec.reference_text([Message("user", "u"), Message("assistant", "Next.", tool_calls=(call,))])
        assert isinstance(text, str)
        ids += codec.encode_sample("Next.\n" + text[text.rindex("<tool_call>") :].removesuffix("\n"))
        ends.append(len(ids))
        result = Message("tool", " ".join(draw.choices(WORDS, k=390)), tool_call_id=call.id)
        ids += granted(codec.extend(ids, [result], TOOLS)).ids.tolist()
        messages += [Message("assistant", "Next.", tool_calls=(call,)), result]
    return np.array(ids, dtype=np.int32), ends, messages


def main() -> None:
    folder = tokenizer_folder()
    codec = ChatCodec.from_folder(folder)
    ids, ends, messages = session(codec)

    def extend(turn: int) -> Callable[[], object]:
        prefix = ids[: ends[turn - 1]]
        appended = [messages[2 * turn + 1]]
        return lambda: granted(codec.extend(prefix, appended, TOOLS))

    pairs = [(seconds(extend(2), 40), seconds(extend(200), 40)) for _ in range(5)]
    at_64k = next(index for index, end in enumerate(ends) if end >= 64_000)
    history = messages[: 2 * at_64k + 4]

    def render_anew() -> object:
        text = codec.reference_text(history, TOOLS)
        assert isinstance(text, str)
        return codec.encode_sample(text)

    anew, new = seconds(render_anew, 5), seconds(extend(at_64k + 1), 40)
    started = time.perf_counter()
    certified = certify(folder).certified
    certify_s = time.perf_counter() - started
    report(
        "tito",
        {
            "extend_turn200_over_turn2": round(statistics.median(late / early for early, late in pairs), 3),
            "extend_over_rerender_64k": round(anew / new, 1),
            "certify_s": round(certify_s, 2),
            "certified": certified,
            "extend_ms": round(1000 * new, 3),
            "rerender_64k_ms": round(1000 * anew, 1),
            "session_tokens": len(ids),
        },
    )


if __name__ == "__main__":
    main()
