"""The blackbox agent over fakes: what is inside, and what each end of the program means."""

from __future__ import annotations

import asyncio

import pytest
from dressage_blackbox_server import AgentAdapter, Launch, TurnOutcome, shell_args
from dressage_paddock import (
    BlackboxConfig,
    BlackboxPaddock,
    ChatMessage,
    FailureClass,
    Task,
    TaskError,
    TaskLimits,
)
from dressage_paddock.fake import ScriptedGateway, say
from dressage_sandbox import SandboxError, SandboxGone, SandboxSpec
from dressage_sandbox.errors import file_error
from dressage_sandbox.fake import FakeProvider, completed

TASK = Task("t", prompt="do it", system="be good")
CONFIG = BlackboxConfig(args=("agent", "--go"))


def parts(script, *, reached: bool = True, config=CONFIG, **settings):
    """A paddock whose program behaves as ``script``; ``reached``: a model call was recorded."""
    gateway = ScriptedGateway([say("x")])

    def run(sandbox, invocation):
        if reached:
            next(iter(gateway.sessions.values())).requests.append({})
        return script(sandbox, invocation) if callable(script) else script

    provider = FakeProvider(run)
    return BlackboxPaddock(provider, gateway, blackbox=config, **settings), provider, gateway


async def test_the_program_gets_the_relays_url_with_the_sessions_path_and_no_other_address():
    paddock, provider, gateway = parts(completed("answer\n"))
    result = await paddock.run(TASK)
    assert (result.failure_class, result.agent_output, result.transcript) == (
        FailureClass.COMPLETED,
        "answer\n",
        (),
    )
    (box,) = provider.created
    (run,) = box.calls
    (sid,) = gateway.sessions
    assert box.spec.relay == "127.0.0.1:9"
    assert run.command == ("agent", "--go")
    assert run.env["OPENAI_BASE_URL"] == f"http://127.0.0.1:8800/s/{sid}/v1"
    assert run.env["ANTHROPIC_BASE_URL"] == f"http://127.0.0.1:8800/s/{sid}"
    assert run.stdin == b"be good\n\ndo it"
    assert "127.0.0.1:9" not in repr((run, box.files))
    assert (provider.live, gateway.open_sessions) == ([], [])


@pytest.mark.parametrize(
    ("script", "reached", "failure_class", "code"),
    [
        (completed(exit_code=9, stderr="boom"), True, FailureClass.POLICY_FAILURE, "agent_failed"),
        (completed(exit_code=9), False, FailureClass.INFRASTRUCTURE, "no_model_call"),
        (completed(exit_code=127), True, FailureClass.INFRASTRUCTURE, "launch_failed"),
        (completed(timed_out=True, exit_code=124), True, FailureClass.TIMEOUT, "timeout"),
    ],
)
async def test_p8_each_end_of_a_program_has_its_class(script, reached, failure_class, code):
    paddock, provider, gateway = parts(script, reached=reached)
    result = await paddock.run(TASK)
    assert (result.failure_class, result.ending.code, result.reward) == (failure_class, code, None)
    assert (provider.live, gateway.open_sessions) == ([], [])


async def test_c44_a_sandbox_that_died_under_the_program_is_infrastructure():
    def dying(sandbox, invocation):
        raise SandboxGone("gone")

    paddock, _, _ = parts(dying)
    result = await paddock.run(TASK)
    assert (result.failure_class, result.ending.code) == (FailureClass.INFRASTRUCTURE, "infrastructure")


async def test_c44_a_program_that_failed_while_the_gateway_was_down_is_infrastructure():
    paddock, _, gateway = parts(completed(exit_code=1))
    gateway.faults["get"] = ConnectionError("down")
    result = await paddock.run(TASK)
    assert (result.failure_class, result.ending.code) == (FailureClass.INFRASTRUCTURE, "gateway_error")


@pytest.mark.parametrize(
    "script", [completed(exit_code=1), completed("gave up"), completed(timed_out=True, exit_code=124)]
)
async def test_p8_a_program_that_ended_for_want_of_an_answer_is_infrastructure(script):
    """After steps that went well, too: the engine may go away in the middle of a rollout."""

    def left_alone(sandbox, invocation):
        next(iter(gateway.sessions.values())).faults = 3
        return script

    paddock, _, gateway = parts(left_alone)
    result = await paddock.run(TASK)
    assert (result.failure_class, result.ending.code, result.ending.retryable, result.reward) == (
        FailureClass.INFRASTRUCTURE,
        "no_model_answer",
        True,
        None,
    )


async def test_the_rollouts_wall_clock_ends_the_program():
    async def stuck(sandbox, invocation):
        await asyncio.sleep(60)
        return completed()

    paddock, provider, gateway = parts(stuck)
    result = await paddock.run(Task("t", prompt="p", limits=TaskLimits(timeout_s=0.05)))
    assert result.failure_class is FailureClass.TIMEOUT
    assert (provider.live, gateway.open_sessions, paddock.live_leases) == ([], [], 0)


async def test_user_messages_are_turns_one_after_the_other():
    paddock, provider, _ = parts(completed("ok"))
    messages = (ChatMessage("user", "one"), ChatMessage("user", "two"))
    result = await paddock.run(Task("t", messages=messages))
    assert result.turns == 2
    assert [c.stdin for c in provider.created[0].calls] == [b"one", b"two"]


async def test_an_overflow_that_the_adapter_knows_is_told_as_one():
    adapter = AgentAdapter(
        name="x",
        dialects=(),
        first=Launch(argv=("x",), stdin="{prompt}"),
        exit_codes={3: TurnOutcome.OVERFLOW},
    )
    paddock, _, _ = parts(completed(exit_code=3), adapter=adapter)
    assert (await paddock.run(TASK)).failure_class is FailureClass.OVERFLOW


async def test_what_cannot_be_run_as_a_program_is_refused():
    with pytest.raises(TaskError, match="argv"):
        parts(completed(), config=BlackboxConfig())
    paddock, _, _ = parts(completed())
    result = await paddock.run(Task("t", messages=(ChatMessage("assistant", "x"),)))
    assert "TaskError" in result.ending.detail
    result = await paddock.run(Task("t", prompt="p", sandbox=SandboxSpec(relay="10.0.0.1:1")))
    assert "leave it None" in result.ending.detail


@pytest.mark.parametrize(
    ("line", "code"), [("sh -c 'exit 9' | tee log", "agent_failed"), ("true | tee log", "")]
)
async def test_c44_the_exit_code_of_a_real_program_is_not_lost_in_a_pipe(bubblewrap, line, code):
    gateway = ScriptedGateway([say("x")])
    paddock = BlackboxPaddock(bubblewrap, gateway, blackbox=BlackboxConfig(args=shell_args(line)))
    gateway.get = steps_of_one  # type: ignore[method-assign]
    result = await paddock.run(Task("t", prompt="p"))
    assert result.ending.code == code, result.ending


async def steps_of_one(session_id):
    return {"steps": 1}


async def test_a_prompt_beyond_what_argv_takes_reaches_a_real_program_whole(bubblewrap):
    gateway = ScriptedGateway([say("x")])
    line = 'wc -c < "$DRESSAGE_PROMPT_FILE"; wc -c'
    paddock = BlackboxPaddock(bubblewrap, gateway, blackbox=BlackboxConfig(args=shell_args(line)))
    result = await paddock.run(Task("t", prompt="x" * 300_000))
    assert result.agent_output.split() == ["300000", "300000"], result.ending


TWICE = (ChatMessage("user", "one"), ChatMessage("user", "two"))
SPOILS = [
    'rm -r "$(dirname "$DRESSAGE_PROMPT_FILE")"; touch "$(dirname "$DRESSAGE_PROMPT_FILE")"',
    'chmod 0 "$(dirname "$DRESSAGE_PROMPT_FILE")"',
]


@pytest.mark.parametrize("line", SPOILS, ids=["a file in a folder's place", "a closed folder"])
async def test_p8_a_program_that_spoils_its_next_turn_has_failed_and_is_not_tried_again(bubblewrap, line):
    async def grade(view):
        return 0.0

    gateway = ScriptedGateway([say("x")])
    gateway.get = steps_of_one  # type: ignore[method-assign]
    paddock = BlackboxPaddock(bubblewrap, gateway, blackbox=BlackboxConfig(args=shell_args(line)))
    result = await paddock.run(Task("t", messages=TWICE), grade)
    assert (result.failure_class, result.ending.code) == (FailureClass.POLICY_FAILURE, "launch_failed")
    assert (result.reward, result.ending.retryable) == (0.0, False)


async def test_p8_a_program_that_closes_its_work_folder_and_fails_is_no_failure_of_the_sandbox(bubblewrap):
    gateway = ScriptedGateway([say("x")])
    gateway.get = steps_of_one  # type: ignore[method-assign]
    config = BlackboxConfig(args=shell_args("chmod 0 .; exit 9"))
    result = await BlackboxPaddock(bubblewrap, gateway, blackbox=config).run(Task("t", prompt="p"))
    assert (result.failure_class, result.ending.code) == (FailureClass.POLICY_FAILURE, "agent_failed")
    assert not result.ending.retryable


@pytest.mark.parametrize(
    ("turn", "error"),
    [(0, file_error(28, "prompt")), (1, SandboxError("the provider is down"))],
    ids=["the first turn", "the provider"],
)
async def test_p8_what_no_program_has_spoiled_is_infrastructure(turn, error):
    class Spoiled(FakeProvider):
        async def create(self, spec):
            sandbox = await super().create(spec)
            write = sandbox.write

            async def spoiled(path, data, **more):
                if f"prompt-{turn}" in path:
                    raise error
                await write(path, data, **more)

            sandbox.write = spoiled
            return sandbox

    gateway = ScriptedGateway([say("x")])
    gateway.get = steps_of_one  # type: ignore[method-assign]
    paddock = BlackboxPaddock(Spoiled(), gateway, blackbox=CONFIG)
    result = await paddock.run(Task("t", messages=TWICE))
    assert (result.failure_class, result.ending.code) == (FailureClass.INFRASTRUCTURE, "launch_failed")
    assert result.ending.retryable
