"""The ``dressage`` command. Heavy modules load only in the command that needs them."""

from __future__ import annotations

import argparse
import atexit
import gc
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path
from types import FrameType

from dressage_recipes.errors import NotARunError, RecipeError, UsageError

OK, DOUBT, USAGE, INTERRUPTED = 0, 1, 2, 130
STEPS_MOST = 100_000


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What :func:`main` read from the environment."""

    cache: Path
    """Where fetched models are kept."""
    setup_seconds: float | None
    """How long ``make`` took to set up, where it said so."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. 0 fine, 1 a doubt or a failed check, 2 wrong usage, 130 interrupted."""
    _say_anything()
    # OpenMP reads this when torch is loaded: the trainer's idle threads must not spin on the engine's cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Whoever ends the command politely, or closes its terminal, gets the same clean-up as Ctrl-C; a shell
    # that starts it in the background has told it to ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # The interpreter would look through all of torch for garbage before it leaves: most of a second.
    atexit.register(gc.freeze)
    previous = {name: signal.signal(name, _as_interrupt) for name in (signal.SIGTERM, signal.SIGHUP)}
    try:
        arguments = build_parser().parse_args(argv)
        command: Callable[[argparse.Namespace, Surroundings], int] = arguments.command
        return command(arguments, _surroundings(os.environ))
    except KeyboardInterrupt:
        print("dressage: stopped", file=sys.stderr)
        return INTERRUPTED
    except RecipeError as error:
        print(f"dressage: {error}", file=sys.stderr)
        return USAGE
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nothing to say, and nowhere to say it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DOUBT
    finally:
        for name, handler in previous.items():
            signal.signal(name, handler)


def build_parser() -> argparse.ArgumentParser:
    """The command line, as ``--help`` shows it."""
    parser = argparse.ArgumentParser(
        prog="dressage", description="Reinforcement learning for agents that use real tools."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show program's version number and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    demo = commands.add_parser("demo", help="train a small agent on this machine's CPU, the whole loop")
    demo.add_argument("--seed", type=_whole(0, 2**31 - 1), default=1, metavar="N", help="default 1")
    demo.add_argument("--steps", type=_whole(1, STEPS_MOST), metavar="N", help="default: as the model needs")
    demo.add_argument(
        "--model",
        default="tiny",
        metavar="NAME|PATH",
        help="tiny (default, made here), smollm2 (real weights, fetched once), or a Hugging Face folder",
    )
    demo.add_argument("--out", type=Path, metavar="DIR", help="default runs/demo-<time>")
    demo.set_defaults(command=_demo)

    audit = commands.add_parser("audit", help="prove P1 to P5 for every trained token of a stored run")
    audit.add_argument("folder", type=Path, metavar="DIR", help="a run's folder")
    audit.add_argument("--json", action="store_true", help="one JSON object")
    audit.set_defaults(command=_audit)

    doctor = commands.add_parser("doctor", help="check this machine; each finding with its fix")
    doctor.add_argument("--json", action="store_true", help="one JSON object")
    doctor.set_defaults(command=_doctor)

    train = commands.add_parser("train", help="run the recipe that a TOML file describes")
    train.add_argument("config", type=Path, metavar="CONFIG.toml")
    train.add_argument("--out", type=Path, metavar="DIR", help="in place of the file's own out")
    train.add_argument(
        "--seed", type=_whole(0, 2**31 - 1), metavar="N", help="in place of the file's own seed"
    )
    train.add_argument(
        "--print-defaults", action=_PrintDefaults, nargs=0, help="print every field as TOML, and end"
    )
    train.set_defaults(command=_train)
    return parser


class _Version(argparse.Action):
    """argparse's own, but that the version is looked up only where it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_rest: object) -> None:
        """Print it and end."""
        print(f"{parser.prog} {metadata.version('dressage-recipes')}")
        parser.exit()


class _PrintDefaults(argparse.Action):
    """As ``--version``: says what it is asked for, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, *_rest: object) -> None:
        """Print the demo's configuration, defaults included."""
        from dressage_recipes.local.config import load_config, to_toml

        print(to_toml(load_config("demo")), end="")
        parser.exit()


def _demo(arguments: argparse.Namespace, surroundings: Surroundings) -> int:
    out = arguments.out or Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    from dressage_recipes.running import demo

    return demo(
        seed=arguments.seed,
        steps=arguments.steps,
        model=arguments.model,
        out=out,
        cache=surroundings.cache,
        setup_seconds=surroundings.setup_seconds,
    )


def _train(arguments: argparse.Namespace, surroundings: Surroundings) -> int:
    if not arguments.config.is_file():
        what = "not a file" if arguments.config.exists() else "no such file"
        raise UsageError(f"{arguments.config}: {what}", fix="name a recipe's TOML file")
    from dressage_recipes.running import train

    return train(arguments.config, cache=surroundings.cache, out=arguments.out, seed=arguments.seed)


def _audit(arguments: argparse.Namespace, _surroundings: Surroundings) -> int:
    from dressage_recipes.audit import audit_run, describe

    try:
        result = audit_run(arguments.folder)
    except NotARunError as error:
        if arguments.json:
            print(json.dumps({"ok": False, "error": {"message": error.message, "fix": error.fix}}))
        raise
    print(json.dumps(result.to_json(), indent=2) if arguments.json else "\n".join(describe(result)))
    return OK if result.ok else DOUBT


def _doctor(arguments: argparse.Namespace, _surroundings: Surroundings) -> int:
    from dressage_recipes.doctor import describe, examine, passes, to_json

    rows = examine(Path("runs"))
    print(json.dumps(to_json(rows), indent=2) if arguments.json else "\n".join(describe(rows)))
    return OK if passes(rows) else DOUBT


def _say_anything() -> None:
    """A terminal whose encoding lacks a character gets another in its place, and the run goes on."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _whole(least: int, most: int) -> Callable[[str], int]:
    """A parser of whole numbers in a range, for argparse."""

    def whole_number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not between {least} and {most}")
        return value

    return whole_number


def _surroundings(env: Mapping[str, str]) -> Surroundings:
    cache = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME") or "~").expanduser() / ".cache")
    said = env.get("DRESSAGE_SETUP_SECONDS", "")
    try:
        seconds = float(said) if said else None
    except ValueError:
        raise UsageError(f"DRESSAGE_SETUP_SECONDS={said!r} is not a number", fix="unset it") from None
    return Surroundings(cache=Path(cache) / "dressage" / "models", setup_seconds=seconds)


def _as_interrupt(_signal: int, _frame: FrameType | None) -> None:
    # SIGINT goes through whoever handles it now (asyncio does); a program in the background may ignore it.
    signal.raise_signal(signal.SIGINT)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
