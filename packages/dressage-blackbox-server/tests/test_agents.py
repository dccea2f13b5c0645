"""Known adapters, and those that other packages bring."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from dressage_blackbox_server import (
    COMMAND,
    AdapterError,
    AgentAdapter,
    Launch,
    UnknownAgentError,
    agent_status,
    find_agent,
    known_agents,
)
from dressage_blackbox_server import agents as agents_module

PYTHON = AgentAdapter(
    name="py", dialects=(), first=Launch(argv=("python3", "{prompt}")), version_argv=("python3", "--version")
)


def entry(loaded: object) -> SimpleNamespace:
    return SimpleNamespace(value="pkg:thing", load=lambda: loaded)


def test_an_adapter_by_entry_point_is_known(monkeypatch):
    monkeypatch.setattr(agents_module, "entry_points", lambda group: [entry(PYTHON)])
    assert set(known_agents()) == {"command", "py", "claude_code", "codex", "openclaw", "opencode"}


@pytest.mark.parametrize(("loaded", "told"), [(42, "not an AgentAdapter"), (COMMAND, "two adapters")])
def test_an_entry_point_that_is_none_or_takes_a_name_is_refused(monkeypatch, loaded, told):
    monkeypatch.setattr(agents_module, "entry_points", lambda group: [entry(loaded)])
    with pytest.raises(AdapterError, match=told):
        known_agents()


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(UnknownAgentError, match="known: claude_code, codex, command"):
        find_agent("nope", known_agents())


async def test_the_version_of_an_installed_program_is_found_and_of_a_missing_one_not():
    found = await agent_status(PYTHON)
    assert found.version.startswith("3.")
    missing = PYTHON.model_copy(update={"version_argv": ("no-such-agent-program",)})
    assert (await agent_status(missing)).version == ""
