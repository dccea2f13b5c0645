"""The ``dressage-tito`` command."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dressage_tito.errors import TitoError
from dressage_tito.template import checked_kwargs


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 certified, 1 not certified or not loadable, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="dressage-tito", description="Token in, token out.")
    commands = parser.add_subparsers(dest="command", required=True)
    certify_parser = commands.add_parser(
        "certify", help="try a tokenizer and its chat template on made-up conversations"
    )
    certify_parser.add_argument("path", metavar="PATH", help="a Hugging Face tokenizer folder")
    certify_parser.add_argument("--json", action="store_true", help="print the report as JSON")
    certify_parser.add_argument("--conversations", type=_positive, default=150, metavar="N")
    certify_parser.add_argument("--seed", type=int, default=0, metavar="N")
    certify_parser.add_argument("--profile", metavar="TOML", help="what the template does not show")
    certify_parser.add_argument(
        "--template-kwargs", type=_object, default={}, metavar="JSON", help='e.g. {"enable_thinking": false}'
    )
    certify_parser.add_argument("--report", metavar="FILE", help="write the report there, as JSON")
    arguments = parser.parse_args(argv)
    try:
        return _certify(arguments)
    except TitoError as error:
        if arguments.json:
            print(json.dumps({"certified": False, "error": str(error)}, ensure_ascii=False))
        else:
            print(f"dressage-tito: {error}", file=sys.stderr)
        return 1


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of at least 1")
    return int(text)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text:.200} is no JSON object")
    try:
        return checked_kwargs(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _certify(arguments: argparse.Namespace) -> int:
    from dressage_tito.certify import CHECKS, certify

    report = certify(
        arguments.path,
        conversations=arguments.conversations,
        seed=arguments.seed,
        profile=arguments.profile,
        template_kwargs=arguments.template_kwargs,
    )
    if arguments.report:
        try:
            Path(arguments.report).write_text(report.to_json() + "\n", encoding="utf-8")
        except OSError as error:
            print(f"dressage-tito: {arguments.report} cannot be written ({error})", file=sys.stderr)
            return 1
    if arguments.json:
        print(report.to_json())
        return 0 if report.certified else 1
    print(f"tokenizer {report.tokenizer_hash}  template {report.template_hash}")
    print(f"tools: {'yes' if report.supports_tools else f'refused: {report.tools_note}'}")
    for check in CHECKS:
        print(f"  {check:8} {report.passed.get(check, 0)} passed")
    for name, count in report.declared.items():
        print(f"  declared difference {name}: {count}")
    for check, reasons in report.refused.items():
        print(f"  refused by {check}: {', '.join(f'{name} {count}' for name, count in reasons.items())}")
    for reason, text in report.explains.items():
        print(f"  {reason}: {text}")
    for failure in report.failures:
        print(f"FAILED {failure.check}: {failure.detail}")
        for message in failure.messages:
            print(f"    {json.dumps(message, ensure_ascii=False)}")
    print("certified" if report.certified else "NOT certified")
    return 0 if report.certified else 1


if __name__ == "__main__":
    sys.exit(main())
