"""The adapters of programs that people install: Claude Code, Codex, opencode and OpenClaw.

Each is declared for the version that its ``npm`` names, as one run in a sandbox without internet: nothing is
looked up, reported or updated, and no call to the model is made beside the conversation.
"""

from __future__ import annotations

import json

from dressage_blackbox_server.adapter import (
    AgentAdapter,
    Dialect,
    FileTemplate,
    Launch,
    OutputKind,
    OutputRule,
)
from dressage_blackbox_server.command import NO_KEY

REQUEST_S = 3600
"""How long a program waits for one reply: its own default is shorter than a long reply takes. It is the
session's turn that ends in time, and the proxy that gives an engine up."""

_CLAUDE = ("claude", "-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions")
_CLAUDE_MODELS = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
)
_CLAUDE_SWITCHES = (
    "IS_SANDBOX",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
    "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS",
    "DISABLE_TELEMETRY",
    "DISABLE_ERROR_REPORTING",
    "DISABLE_AUTOUPDATER",
    "DISABLE_PROMPT_CACHING",
)

CLAUDE_CODE = AgentAdapter(
    name="claude_code",
    dialects=(Dialect.ANTHROPIC_MESSAGES,),
    # Under its own id: of one that is given nobody knows, once a turn was killed, whether it is taken.
    first=Launch(argv=(*_CLAUDE, "{args}"), stdin="{prompt}"),
    resume=Launch(argv=(*_CLAUDE, "--resume", "{thread_id}", "{args}"), stdin="{prompt}"),
    env={
        "HOME": "{home}",
        "CLAUDE_CONFIG_DIR": "{home}/claude",
        "ANTHROPIC_BASE_URL": "{anthropic_url}",
        "ANTHROPIC_AUTH_TOKEN": NO_KEY,
        # A model that it does not know is thought to take a million tokens.
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "{context_tokens}",
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": "{context_tokens}",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "{output_tokens}",
        **dict.fromkeys(_CLAUDE_MODELS, "{model}"),
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "API_TIMEOUT_MS": str(REQUEST_S * 1000),
        **dict.fromkeys(_CLAUDE_SWITCHES, "1"),
    },
    output=OutputRule(kind=OutputKind.JSON_LINES, answer_path="result", thread_path="session_id"),
    version_argv=("claude", "--version"),
    npm="@anthropic-ai/claude-code@2.1.332",
    install="npm install -g @anthropic-ai/claude-code@2.1.332",
)

_CODEX_FLAGS = ("--json", "--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check")
_CODEX_CONFIG = f"""\
model = "{{model}}"
model_provider = "proxy"
model_context_window = {{context_tokens}}
check_for_update_on_startup = false
web_search = "disabled"

[analytics]
enabled = false

[model_providers.proxy]
name = "proxy"
base_url = "{{openai_url}}"
env_key = "CODEX_PROXY_KEY"
wire_api = "responses"
stream_idle_timeout_ms = {REQUEST_S * 1000}
"""

CODEX = AgentAdapter(
    name="codex",
    dialects=(Dialect.OPENAI_RESPONSES,),
    first=Launch(argv=("codex", "exec", *_CODEX_FLAGS, "{args}", "-"), stdin="{prompt}"),
    resume=Launch(
        argv=("codex", "exec", "resume", *_CODEX_FLAGS, "{args}", "{thread_id}", "-"), stdin="{prompt}"
    ),
    env={"HOME": "{home}", "CODEX_HOME": "{home}/codex", "CODEX_PROXY_KEY": NO_KEY},
    files=(FileTemplate(path="{home}/codex/config.toml", content=_CODEX_CONFIG),),
    output=OutputRule(
        kind=OutputKind.JSON_LINES,
        answer_path="item.text",
        answer_where={"item.type": "agent_message"},
        thread_path="thread_id",
    ),
    version_argv=("codex", "--version"),
    npm="@openai/codex@0.171.0",
    install="npm install -g @openai/codex@0.171.0",
)
"""``model`` must be none of OpenAI's own names: those get other tools and prompts."""


def _limit(context: str, output: str) -> dict[str, str]:
    return {"context": context, "output": output}


def _unquoted(text: str, *names: str) -> str:
    """JSON whose placeholders of numbers are numbers."""
    for name in names:
        text = text.replace(f'"{{{name}}}"', f"{{{name}}}")
    return text


_OPENCODE_CONFIG = _unquoted(
    json.dumps(
        {
            "provider": {
                "proxy": {
                    "npm": "@ai-sdk/openai-compatible",
                    "name": "proxy",
                    "options": {"baseURL": "{openai_url}", "apiKey": NO_KEY},
                    "models": {
                        "{model}": {
                            "name": "{model}",
                            "reasoning": True,
                            "tool_call": True,
                            "limit": _limit("{context_tokens}", "{output_tokens}"),
                        }
                    },
                }
            },
            "model": "proxy/{model}",
            "small_model": "proxy/{model}",
            "autoupdate": False,
            "share": "disabled",
            "permission": {"*": "allow"},
        }
    ),
    "context_tokens",
    "output_tokens",
)
_OPENCODE = ("opencode", "run", "--format", "json", "--auto")

OPENCODE = AgentAdapter(
    name="opencode",
    dialects=(Dialect.OPENAI_CHAT,),
    # A title that is given is not asked of the model.
    first=Launch(argv=(*_OPENCODE, "--title", "task", "{args}"), stdin="{prompt}"),
    resume=Launch(argv=(*_OPENCODE, "-s", "{thread_id}", "{args}"), stdin="{prompt}"),
    env={
        "HOME": "{home}",
        "XDG_CONFIG_HOME": "{home}/config",
        "XDG_DATA_HOME": "{home}/data",
        "XDG_STATE_HOME": "{home}/state",
        "XDG_CACHE_HOME": "{home}/cache",
        "OPENCODE_CONFIG_CONTENT": _OPENCODE_CONFIG,
        **{
            f"OPENCODE_DISABLE_{name}": "1"
            for name in ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE")
        },
    },
    output=OutputRule(
        kind=OutputKind.JSON_LINES,
        answer_path="part.text",
        answer_where={"type": "text"},
        thread_path="sessionID",
    ),
    version_argv=("opencode", "--version"),
    npm="opencode-ai@1.18.33",
    install="npm install -g opencode-ai@1.18.33",
)

_OPENCLAW_DENIED = (
    "process",
    "sessions_spawn",
    "sessions_yield",
    "sessions_send",
    "subagents",
    "agents_wait",
)
"""With any of these, each request ends in a message that the next one lacks: no history would grow."""

_OPENCLAW_CONFIG = _unquoted(
    json.dumps(
        {
            "models": {
                "providers": {
                    "proxy": {
                        "baseUrl": "{openai_url}",
                        "apiKey": NO_KEY,
                        "api": "openai-completions",
                        "timeoutSeconds": REQUEST_S,
                        "models": [
                            {
                                "id": "{model}",
                                "name": "{model}",
                                "contextWindow": "{context_tokens}",
                                "maxTokens": "{output_tokens}",
                            }
                        ],
                    }
                }
            },
            "agents": {
                "defaults": {
                    "workspace": "{workdir}",
                    "skipBootstrap": True,
                    "timeoutSeconds": 24 * REQUEST_S,
                    "compaction": {"timeoutSeconds": REQUEST_S},
                    "model": {"primary": "proxy/{model}"},
                }
            },
            "tools": {"deny": _OPENCLAW_DENIED},
        },
        indent=1,
    ),
    "context_tokens",
    "output_tokens",
)

OPENCLAW = AgentAdapter(
    name="openclaw",
    dialects=(Dialect.OPENAI_CHAT,),
    first=Launch(
        argv=(
            *("openclaw", "agent", "--local", "--json", "--agent", "main"),
            *("--session-id", "{session_uuid}", "{args}", "--message-file", "{prompt_file}"),
        )
    ),
    env={
        "HOME": "{home}",
        "OPENCLAW_STATE_DIR": "{home}/openclaw",
        "OPENCLAW_CONFIG_PATH": "{home}/openclaw.json",
    },
    files=(FileTemplate(path="{home}/openclaw.json", content=_OPENCLAW_CONFIG),),
    output=OutputRule(kind=OutputKind.JSON, answer_path="meta.finalAssistantVisibleText"),
    version_argv=("openclaw", "--version"),
    npm="openclaw@2026.9.6",
    install="npm install -g openclaw@2026.9.6, with node 24 or 26",
)

PROGRAMS = (CLAUDE_CODE, CODEX, OPENCODE, OPENCLAW)
