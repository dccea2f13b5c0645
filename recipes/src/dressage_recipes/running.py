"""``dressage demo`` and ``dressage train``: a run of the local loop, watched, drawn and audited."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import httpx
from dressage_proxy.client import ControlError
from dressage_sandbox import SandboxError
from safetensors import SafetensorError

from dressage_recipes.audit import audit_run
from dressage_recipes.errors import RecipeError, UsageError
from dressage_recipes.events import OnEvent, Phase, Progress
from dressage_recipes.folders import run_folder, sampled
from dressage_recipes.local.config import LocalConfig, load_config
from dressage_recipes.local.demo import run_demo
from dressage_recipes.local.report import PICTURE, Reporter, closing_lines, draw_rewards

_OUTSIDE = (
    SandboxError,
    ControlError,
    httpx.HTTPError,
    OSError,
    FloatingPointError,
    SafetensorError,  # a full disk, say
)
"""What can go wrong with the machine, the services or the numbers: told in a line, not by a traceback."""
TINY = "tiny"
SMOLLM2 = "smollm2"


def demo(
    *, seed: int, steps: int | None, model: str, out: Path, cache: Path, setup_seconds: float | None
) -> int:
    """Run the demo in ``out``. Exit code 0 if its audit holds, else 1."""
    with run_folder(out, "--out"), Reporter() as report:
        found = find_model(model, cache, report)
        config = load_config("demo" if found is None else "smollm2")
        changes: dict[str, object] = {"seed": seed, "out": out}
        if steps is not None:
            changes["steps"] = steps
        if found is not None:
            changes["model"] = config.model.model_copy(update={"path": str(found)})
        return _run(config.model_copy(update=changes), report, setup_seconds)


def train(file: Path, *, cache: Path, out: Path | None = None, seed: int | None = None) -> int:
    """Run the recipe that ``file`` describes; ``out`` and ``seed`` take the place of its own. Exit code as of
    :func:`demo`.
    """
    config = load_config(file)
    changes: dict[str, object] = {"out": out or config.out, "seed": config.seed if seed is None else seed}
    config = config.model_copy(update=changes)
    with run_folder(config.out, "out" if out is None else "--out"), Reporter() as report:
        if config.model.path:
            found = find_model(config.model.path, cache, report, called="model.path")
            path = "" if found is None else str(found)
            config = config.model_copy(update={"model": config.model.model_copy(update={"path": path})})
        return _run(config, report, None)


def _run(config: LocalConfig, report: Reporter, setup_seconds: float | None) -> int:
    try:
        summary = run_demo(config, on_event=report, setup_seconds=setup_seconds)
    except (ExceptionGroup, *_OUTSIDE) as error:
        raise _in_one_line(error, config.out) from error
    except KeyboardInterrupt:
        if sampled(config.out):
            report.close(closing_lines(config.out, (), {}, None, program=_program()))
        else:
            report.close([f"run      nothing was sampled yet: {config.out} is removed"])
        raise
    report(Phase("audit"))
    title = f"{summary.model.rsplit('/', 1)[-1]}, seed {summary.seed}"
    draw_rewards(
        summary.rewards, config.out / PICTURE, title=title, cold_start=summary.cold_start.get("reward")
    )
    audited = audit_run(config.out)
    outcome = asdict(summary)
    report.close(closing_lines(config.out, summary.rewards, outcome, audited, program=_program()))
    return 0 if audited.ok else 1


def _program() -> str:
    """How a person calls this command: by its name, or by its path where that is not on the PATH."""
    beside = Path(sys.executable).with_name("dressage")
    if shutil.which("dressage") or not beside.exists():
        return "dressage"
    return shlex.quote(str(beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside))


def _in_one_line(error: Exception, out: Path) -> Exception:
    """The first cause inside groups of errors; one that comes from outside as an error of this package."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, SandboxError):
        return RecipeError(str(error), fix="see docs/troubleshooting.md, and run `dressage doctor`")
    if isinstance(error, _OUTSIDE) and not isinstance(error, RecipeError):
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return RecipeError(f"the run ended early ({said})", fix=f"look into {out / 'logs'}")
    return error


def find_model(name: str, cache: Path, on_event: OnEvent, *, called: str = "--model") -> Path | str | None:
    """What ``called``, an option or a field, names: None for the model that the demo makes itself, a folder,
    or a hub's name.

    Raises UsageError for a folder that lacks something, naming what; ModelFetchError for smollm2.
    """
    if name == TINY:
        return None
    if name == SMOLLM2:
        from dressage_recipes.local.smollm2 import ensure_smollm2

        on_event(Phase("fetching SmolLM2-135M-Instruct (once)", 100))
        return ensure_smollm2(cache, lambda what, part: on_event(Progress(round(100 * part), what)))
    folder = Path(name)
    if folder.exists():
        return checked_folder(folder, called=called)
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return name  # transformers may know it; where there is no hub, its error names it
    fix = f"give {TINY}, {SMOLLM2} or a Hugging Face folder"
    raise UsageError(f"{called} {name}: no such folder", fix=fix)


def checked_folder(folder: Path, *, called: str = "--model") -> Path:
    """The folder, if it has what a causal LM with a chat template needs."""
    if not folder.is_dir():
        raise UsageError(f"{called} {folder}: not a folder", fix="give the folder, not a file in it")
    needs = {
        "config.json": ["config.json"],
        "weights (*.safetensors)": ["*.safetensors", "pytorch_model*.bin"],
        "tokenizer.json": ["tokenizer.json"],
    }
    for what, patterns in needs.items():
        if not any(any(folder.glob(pattern)) for pattern in patterns):
            raise UsageError(f"{called} {folder}: has no {what}", fix="give a folder with a causal LM")
    for pattern in (pattern for patterns in needs.values() for pattern in patterns):
        for path in folder.glob(pattern):
            if not os.access(path, os.R_OK):
                raise UsageError(f"{called} {folder}: {path.name} cannot be read", fix=f"chmod a+r {path}")
    config = folder / "tokenizer_config.json"
    in_config = config.is_file() and '"chat_template"' in config.read_text(encoding="utf-8")
    if not in_config and not (folder / "chat_template.jinja").is_file():
        fix = "give an instruct model, or add its chat_template.jinja"
        raise UsageError(f"{called} {folder}: its tokenizer has no chat template", fix=fix)
    return folder
