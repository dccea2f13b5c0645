"""The configuration of the local recipe: TOML in, frozen models out."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dressage_recipes.errors import UsageError
from dressage_recipes.local.tasks import Variant
from dressage_recipes.local.trainer import TrainerConfig

_FIX = "`dressage train --print-defaults` prints every field"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


class TinyModel(_Frozen):
    """The model that the demo makes itself (Qwen3 architecture), where ``path`` names no other."""

    path: str = ""
    """A Hugging Face folder (or a hub's name) to train instead; it gets no cold start."""
    uncertified: str = ""
    """The name of that folder, where its tokenizer and chat template are trained on although they fail
    certification (``dressage-tito certify``)."""
    vocabulary: int = Field(default=512, ge=300)
    hidden: int = Field(default=128, ge=16)
    feed_forward: int = Field(default=384, ge=16)
    layers: int = Field(default=2, ge=1)
    heads: int = Field(default=4, ge=1)
    init_std: float = Field(default=0.08, gt=0)
    dtype: Literal["float32", "bfloat16"] = "float32"

    @model_validator(mode="after")
    def _divides(self) -> TinyModel:
        if self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})")
        if self.hidden // self.heads % 2:
            raise ValueError(
                f"hidden ({self.hidden}) / heads ({self.heads}) must be even: rotary positions go in pairs"
            )
        return self


class ColdStart(_Frozen):
    """Supervised examples before RL. The demonstrator first shows how the tool works, then mostly guesses."""

    steps: int = Field(default=260, ge=1)
    batch: int = Field(default=16, ge=1)
    lr: float = Field(default=3e-3, gt=0)
    showing: float = Field(default=0.7, ge=0, le=1)
    """Share of the steps in which the demonstrator guesses with ``guess_showing``; after it ``guess``."""
    guess_showing: float = Field(default=0.1, ge=0, le=1)
    guess: float = Field(default=0.75, ge=0, le=1)
    halfway: float = Field(default=0.3, ge=0, le=1)
    """How often it stops at a file that only names another, and guesses there."""
    reward_least: float = Field(default=0.15, ge=0, le=1)
    reward_most: float = Field(default=0.27, ge=0, le=1)
    """RL starts only from a reward in this range: training goes on, towards it, until it is there."""
    adjust_steps: int = Field(default=5, ge=1)
    adjust_rounds: int = Field(default=20, ge=0)
    evaluate: int = Field(default=256, ge=1)
    """Problems of one evaluation, sampled at temperature 1."""


class TaskSet(_Frozen):
    """Which problems (built-in ones by ``weights``, or a ``family``'s), and how the agent works on them."""

    weights: dict[Annotated[Variant, Field(strict=False)], Annotated[float, Field(ge=0)]] = Field(
        default_factory=dict
    )
    """How often each built-in problem is drawn."""
    family: str = ""
    """``FILE.py``, ``FILE.py:NAME`` or ``package.module:NAME`` of a ``TaskFamily``; a file lies beside the
    recipe."""
    dataset: str = ""
    """The family's rows, one JSON object a line; beside the recipe."""
    shuffle: bool = True
    """Whether each epoch has an order of its own, which the seed decides."""
    max_turns: int = Field(default=4, ge=1)
    max_tokens: int = Field(default=48, ge=1)
    """Of one reply."""
    protocol: Literal["native", "text"] = "native"
    """Tool calls in the model's own grammar, or written as ``<call>COMMAND</call>`` for one that has none."""
    timeout_s: float = Field(default=60.0, gt=0)

    @model_validator(mode="after")
    def _one_kind(self) -> TaskSet:
        if bool(self.family) != bool(self.dataset):
            raise ValueError("family and dataset go together: give both, or weights")
        if bool(self.weights) == bool(self.family):
            raise ValueError("give either weights (of the built-in problems) or a family with its dataset")
        if self.weights and not sum(self.weights.values()):
            raise ValueError("weights are all 0: give one above 0")
        return self


class Rollouts(_Frozen):
    """A step's rollouts: ``prompts`` groups of ``group``."""

    prompts: int = Field(default=8, ge=1)
    group: int = Field(default=8, ge=2)
    temperature: float = Field(default=1.0, gt=0)
    attempts: int = Field(default=3, ge=1)
    """Tries of a rollout that the infrastructure failed."""
    concurrency: int = Field(default=64, ge=1)


class Engine(_Frozen):
    """The engine process."""

    slots: int = Field(default=64, ge=1)
    context_length: int = Field(default=512, ge=64)
    retain_mib: int = Field(default=256, ge=0)
    threads: int = Field(default=1, ge=1, le=1024)


class Training(_Frozen):
    """The trainer's settings; see ``TrainerConfig``."""

    lr: float = Field(default=1e-3, gt=0)
    beta2: float = Field(default=0.95, gt=0, lt=1)
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    clip_high: float = Field(default=0.2, gt=0)
    epochs: int = Field(default=1, ge=1)
    minibatches: int = Field(default=1, ge=1)
    micro_tokens: int = Field(default=512, ge=1)
    warmup_steps: int = Field(default=10, ge=0)
    decay: float = Field(default=0.9, ge=0, le=1)
    normalise_std: bool = True
    trainable_layers: int | None = Field(default=None, ge=1)
    threads: int = Field(default=1, ge=1, le=1024)


class LocalConfig(_Frozen):
    """One run of the local recipe."""

    seed: int = Field(default=1, ge=0)
    steps: int = Field(default=40, ge=1)
    out: Path = Field(default=Path("runs/local"), strict=False)
    tracker: Literal["auto", "none", "trackio", "wandb"] = "auto"
    """``auto``: whichever of trackio and W&B is installed."""
    model: TinyModel = Field(default_factory=TinyModel)
    cold_start: ColdStart = Field(default_factory=ColdStart)
    tasks: TaskSet
    rollouts: Rollouts = Field(default_factory=Rollouts)
    engine: Engine = Field(default_factory=Engine)
    training: Training = Field(default_factory=Training)

    @model_validator(mode="after")
    def _model_for_family(self) -> LocalConfig:
        if self.tasks.family and not self.model.path:
            raise ValueError(
                "tasks.family needs model.path: the tiny model knows the built-in problems alone"
            )
        return self

    def trainer(self) -> TrainerConfig:
        """The trainer's own configuration."""
        training = self.training
        return TrainerConfig(
            lr=training.lr,
            betas=(0.9, training.beta2),
            clip_low=training.clip_low,
            clip_high=training.clip_high,
            epochs=training.epochs,
            minibatches=training.minibatches,
            micro_tokens=training.micro_tokens,
            warmup_steps=training.warmup_steps,
            decay=training.decay,
            total_steps=self.steps,
            temperature=self.rollouts.temperature,
            trainable_layers=training.trainable_layers,
            seed=self.seed,
        )


def load_config(source: Path | str) -> LocalConfig:
    """Read a TOML file, or by name (``demo``, ``smollm2``) one that ships here. Raises UsageError."""
    if isinstance(source, str):
        text = (resources.files(__package__) / f"{source}.toml").read_text(encoding="utf-8")
    else:
        try:
            text = source.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{source}: cannot be read: {error}", fix="name a TOML file") from error
    try:
        config = LocalConfig.model_validate(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{source}: is no TOML: {error}", fix="mend that place") from error
    except ValidationError as error:
        raise UsageError(f"{source}: {_named(error)}", fix=_FIX) from error
    return config if isinstance(source, str) else _placed(config, source.absolute().parent)


def _named(error: ValidationError) -> str:
    """The first field that is wrong, and why."""
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"] if part != "[key]")
    if first["type"] == "extra_forbidden":
        return f"{name}: there is no such field"
    # What a validator of ours says names the field itself.
    said = first["msg"].removeprefix("Value error, ")
    return f"{name}: {said}" if name else said


def _placed(config: LocalConfig, beside: Path) -> LocalConfig:
    """With whole paths: ``~`` is the home folder, and the family's files lie beside the recipe.

    Raises UsageError where there is no home folder.
    """
    tasks = config.tasks
    try:
        model = config.model.model_copy(update={"path": _home(config.model.path)})
        out = Path(_home(str(config.out)))
        dataset = str(beside / _home(tasks.dataset)) if tasks.dataset else ""
        family = _home(tasks.family)
    except RuntimeError as error:
        raise UsageError(f"a path begins with ~, and {error}", fix="write the whole path") from error
    if family.partition(":")[0].endswith(".py"):
        family = str(beside / family)
    tasks = tasks.model_copy(update={"dataset": dataset, "family": family})
    return config.model_copy(update={"model": model, "out": out, "tasks": tasks})


def _home(path: str) -> str:
    return str(Path(path).expanduser()) if path.startswith("~") else path


def to_toml(config: LocalConfig) -> str:
    """The whole configuration, defaults included, as TOML that :func:`load_config` reads back."""
    return "\n".join(_lines(config.model_dump(mode="json", exclude_none=True), ())) + "\n"


def _lines(table: Mapping[str, object], path: tuple[str, ...]) -> list[str]:
    lines = [f"[{'.'.join(path)}]"] if path else []
    for name, value in table.items():
        if not isinstance(value, Mapping):
            # JSON's numbers, texts and booleans are TOML's too.
            lines.append(f"{name} = {json.dumps(value)}")
    for name, value in table.items():
        if isinstance(value, Mapping):
            lines += ["", *_lines(value, (*path, name))]
    return lines
