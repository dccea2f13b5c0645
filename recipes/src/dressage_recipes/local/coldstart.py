"""The cold start: supervised examples of an agent that knows the format but mostly guesses."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedModel

from dressage_recipes.errors import StoppedError
from dressage_recipes.local.config import ColdStart, TaskSet
from dressage_recipes.local.rehearsal import Script, rehearse, simulate_shell
from dressage_recipes.local.tasks import NAMES, Problem, Variant, make_problem
from dressage_recipes.local.tokenizer import IM_END, IM_START

SYSTEM = f"{IM_START}system\nTools: shell(command){IM_END}\n"


@dataclass(frozen=True, slots=True)
class Line:
    """One message of an example: its role and its text, tool calls written out."""

    role: str
    text: str


def call_text(command: str) -> str:
    """An assistant's turn that calls the shell, as the chat template prints it."""
    return f'<tool_call>\n{{"name": "shell", "arguments": {{"command": "{command}"}}}}\n</tool_call>'


def demonstrate(problem: Problem, rng: random.Random, *, guess: float, halfway: float) -> list[Line]:
    """One example: the demonstrator guesses at once, stops halfway, or works with the tool to the end."""
    lines = [Line("user", problem.prompt)]
    guessed = "done" if problem.variant is Variant.EDIT else str(rng.randrange(10, 100))
    if rng.random() < guess:
        return [*lines, Line("assistant", guessed)]
    files = dict(problem.files)
    for number, command in enumerate(problem.path):
        if number and rng.random() < halfway:
            return [*lines, Line("assistant", guessed)]
        lines += [Line("assistant", call_text(command)), Line("tool", simulate_shell(files, command))]
    return [*lines, Line("assistant", problem.answer or "done")]


def corpus(weights: Mapping[Variant, float], size: int = 3000) -> list[str]:
    """Texts to train the tokenizer on: the same each time, whatever the run's seed."""
    rng = random.Random(0)
    texts = []
    for _ in range(size):
        lines = demonstrate(make_problem(rng, weights), rng, guess=0.3, halfway=0.2)
        texts.append("\n".join(["system\nTools: shell(command)", *(f"{x.role}\n{x.text}" for x in lines)]))
    names = [
        f"cat: {name}: No such file or directory\n[stderr]\n[exit code 1]\n[no output]" for name in NAMES
    ]
    return texts + names


class Encoder:
    """Examples as ids: the frame and the contents encoded apart, as the chat codec does."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, list[int]] = {}

    def ids(self, text: str) -> list[int]:
        """The ids of a piece of text; control tokens are read as such."""
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return known

    def example(self, lines: Sequence[Line]) -> tuple[list[int], list[int]]:
        """Ids and mask; mask 1 on what the assistant says, its closing token included."""
        ids = list(self.ids(SYSTEM))
        mask = [0] * len(ids)
        for line in lines:
            head, body, close = self.ids(f"{IM_START}{line.role}\n"), self.ids(line.text), self.ids(IM_END)
            end = self.ids("\n")
            ids += head + body + close + end
            said = int(line.role == "assistant")
            mask += [0] * len(head) + [said] * (len(body) + 1) + [0] * len(end)
        return ids, mask


class ColdStarter:
    """Trains a fresh model until its sampled reward lies in the configured range."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer_folder: Path,
        config: ColdStart,
        tasks: TaskSet,
        *,
        seed: int,
        stop: threading.Event,
    ) -> None:
        self._model = model
        self._tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
        self._encoder = Encoder(self._tokenizer)
        self._config = config
        self._tasks = tasks
        self._seed = seed
        self._stop = stop
        self._rng = random.Random(seed + 1000)
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=config.lr, betas=(0.9, 0.98), weight_decay=0.0
        )

    def run(self, on_step: Callable[[int, float], None]) -> float:
        """Train; gives the reward it ended with. ``on_step``: steps done, the last loss.

        Where the range is not reached in ``adjust_rounds``, the returned reward says so. Raises
        StoppedError when asked to stop.
        """
        config = self._config
        shown = round(config.steps * config.showing)
        for step in range(config.steps):
            lr = config.lr * min(1.0, (step + 1) / 30) * (1 - 0.7 * step / config.steps)
            on_step(step + 1, self._step(lr, config.guess_showing if step < shown else config.guess))
        reward = self.evaluate()
        done = config.steps
        for _ in range(config.adjust_rounds):
            if config.reward_least <= reward <= config.reward_most:
                break
            # Too good: examples that guess still more often; too bad: ones that show the tool again.
            guess = 0.95 if reward > config.reward_most else config.guess / 2
            for _ in range(config.adjust_steps):
                done += 1
                on_step(done, self._step(config.lr * 0.2, guess))
            reward = self.evaluate()
        return reward

    def evaluate(self) -> float:
        """Mean reward over freshly drawn problems, sampled at temperature 1 with a simulated shell."""
        rng = random.Random(self._seed + 2000)
        problems = [make_problem(rng, self._tasks.weights) for _ in range(self._config.evaluate)]
        script = Script(
            start=lambda p: self._encoder.example([Line("user", p.prompt)])[0],
            answer=lambda text: [*self._encoder.ids("\n"), *self._frame("tool", text)],
            open=self._encoder.ids(f"{IM_START}assistant\n"),
            stop=self._encoder.ids(IM_END)[0],
            decode=lambda ids: self._tokenizer.decode(ids, skip_special_tokens=False),
        )
        rewards = rehearse(self._model, problems, script, self._tasks, seed=self._seed, stop=self._stop)
        return sum(rewards) / len(rewards)

    def _frame(self, role: str, text: str) -> list[int]:
        encoder = self._encoder
        return [
            *encoder.ids(f"{IM_START}{role}\n"),
            *encoder.ids(text),
            *encoder.ids(IM_END),
            *encoder.ids("\n"),
        ]

    def _step(self, lr: float, guess: float) -> float:
        if self._stop.is_set():
            raise StoppedError("the cold start was asked to stop")
        rows = [
            self._encoder.example(
                demonstrate(
                    make_problem(self._rng, self._tasks.weights),
                    self._rng,
                    guess=guess,
                    halfway=self._config.halfway if guess > self._config.guess_showing else 0.0,
                )
            )
            for _ in range(self._config.batch)
        ]
        loss = _loss(self._model.train(), rows)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        return loss.item()


def _loss(model: PreTrainedModel, rows: Sequence[tuple[list[int], list[int]]]) -> Tensor:
    """Mean cross-entropy over what the assistant says."""
    width = max(len(ids) for ids, _ in rows)
    ids_bt = np.zeros((len(rows), width), np.int64)
    mask_bt = np.zeros((len(rows), width), np.float32)
    for i, (ids, said) in enumerate(rows):
        ids_bt[i, : len(ids)] = ids
        mask_bt[i, : len(said)] = said
    inputs = torch.from_numpy(ids_bt)
    mask = torch.from_numpy(mask_bt[:, 1:])
    logits = model(input_ids=inputs, use_cache=False).logits[:, :-1].float()
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), inputs[:, 1:].flatten(), reduction="none"
    )
    loss: Tensor = (losses * mask.flatten()).sum() / mask.sum()
    return loss
