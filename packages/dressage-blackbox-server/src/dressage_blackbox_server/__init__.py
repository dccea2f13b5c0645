"""Drive a closed agent program, one session at a time, with idempotent turns.

The HTTP server is in ``dressage_blackbox_server.server``, its typed client in ``.client``.
"""

from dressage_blackbox_server.adapter import (
    AgentAdapter,
    Dialect,
    FileTemplate,
    Launch,
    OutputKind,
    OutputRule,
)
from dressage_blackbox_server.agents import AgentStatus, agent_status, find_agent, known_agents
from dressage_blackbox_server.command import COMMAND, shell_args
from dressage_blackbox_server.errors import (
    AdapterError,
    BlackboxError,
    ConflictError,
    ExecutorError,
    JournalError,
    LaunchError,
    PromptTooLargeError,
    RequestError,
    ServerError,
    ServerFullError,
    SessionClosedError,
    SessionExistsError,
    SessionLostError,
    TurnActiveError,
    TurnMismatchError,
    UnknownAgentError,
    UnknownSessionError,
    UnknownTurnError,
)
from dressage_blackbox_server.executor import ExecResult, Executor
from dressage_blackbox_server.journal import FileJournal, Journal, JournalRecord, MemoryJournal
from dressage_blackbox_server.local import LocalExecutor
from dressage_blackbox_server.model import (
    SessionConfig,
    SessionState,
    TurnOutcome,
    TurnRecord,
    TurnState,
)
from dressage_blackbox_server.programs import CLAUDE_CODE, CODEX, OPENCLAW, OPENCODE
from dressage_blackbox_server.session import AgentSession, restored_turns

__all__ = [
    "CLAUDE_CODE",
    "CODEX",
    "COMMAND",
    "OPENCLAW",
    "OPENCODE",
    "AdapterError",
    "AgentAdapter",
    "AgentSession",
    "AgentStatus",
    "BlackboxError",
    "ConflictError",
    "Dialect",
    "ExecResult",
    "Executor",
    "ExecutorError",
    "FileJournal",
    "FileTemplate",
    "Journal",
    "JournalError",
    "JournalRecord",
    "Launch",
    "LaunchError",
    "LocalExecutor",
    "MemoryJournal",
    "OutputKind",
    "OutputRule",
    "PromptTooLargeError",
    "RequestError",
    "ServerError",
    "ServerFullError",
    "SessionClosedError",
    "SessionConfig",
    "SessionExistsError",
    "SessionLostError",
    "SessionState",
    "TurnActiveError",
    "TurnMismatchError",
    "TurnOutcome",
    "TurnRecord",
    "TurnState",
    "UnknownAgentError",
    "UnknownSessionError",
    "UnknownTurnError",
    "agent_status",
    "find_agent",
    "known_agents",
    "restored_turns",
    "shell_args",
]
