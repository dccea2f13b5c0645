"""The ``command`` adapter: any program that is given a base URL and a prompt."""

from __future__ import annotations

from dressage_blackbox_server.adapter import SPLICE, AgentAdapter, Dialect, Launch

NO_KEY = "not-a-key"
"""Clients refuse to start without some key; the proxy's data plane takes none."""

COMMAND = AgentAdapter(
    name="command",
    dialects=(Dialect.OPENAI_CHAT, Dialect.OPENAI_RESPONSES, Dialect.ANTHROPIC_MESSAGES),
    first=Launch(argv=(SPLICE,), stdin="{prompt}"),
    env={
        "OPENAI_BASE_URL": "{openai_url}",
        "OPENAI_API_KEY": NO_KEY,
        "ANTHROPIC_BASE_URL": "{anthropic_url}",
        "ANTHROPIC_AUTH_TOKEN": NO_KEY,
        "DRESSAGE_MODEL": "{model}",
        "DRESSAGE_PROMPT_FILE": "{prompt_file}",
        "DRESSAGE_SESSION": "{session_uuid}",
        "DRESSAGE_TURN": "{turn_index}",
        "HOME": "{home}",
    },
    install="nothing to install: give the program's argv as the session's args",
)
"""The prompt comes on standard input and in the file that DRESSAGE_PROMPT_FILE names; the answer is what the
program prints. Each turn starts the program anew; what it must remember it keeps in its own files."""


def shell_args(line: str) -> tuple[str, ...]:
    """``args`` for a shell line whose exit code is that of the first part of a pipe that failed.

    Plain ``sh -c 'a | tee log'`` gives tee's code: a failure of ``a`` would look like success.
    """
    return ("bash", "-o", "pipefail", "-c", line)
