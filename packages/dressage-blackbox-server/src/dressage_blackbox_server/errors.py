"""Errors of dressage-blackbox-server.

::

    BlackboxError(Exception)
    ├── AdapterError(ValueError)          an installed adapter that is none, or whose name is taken
    ├── RequestError(ValueError)          a session or turn that cannot be run as asked; names the field
    │   └── PromptTooLargeError           the prompt fits no way that the adapter can take it
    ├── UnknownAgentError(LookupError)    no adapter of that name
    ├── UnknownSessionError(LookupError)  no session of that id
    ├── UnknownTurnError(LookupError)     no turn of that id in this session
    ├── ConflictError(RuntimeError)       refused because of the state that is there
    │   ├── TurnActiveError               another turn of this session is active
    │   ├── TurnMismatchError             this turn id was given with another prompt
    │   ├── SessionExistsError            this session id was given with another configuration
    │   ├── SessionClosedError            the session has ended
    │   └── SessionLostError              a turn was cut by a restart: what it did is not known
    ├── ServerFullError(RuntimeError)     no room for another session
    ├── JournalError(OSError)             the journal cannot be written or read
    ├── ExecutorError(RuntimeError)       the program could not be run: infrastructure, not the agent
    │   └── LaunchError                   it could not be started at all
    └── ServerError(ConnectionError)      (client) unreachable, or an answer outside the contract
"""

from __future__ import annotations


class BlackboxError(Exception):
    """Root of every error that this package raises."""


class AdapterError(BlackboxError, ValueError):
    """An installed adapter that is none, or whose name is taken twice."""


class RequestError(BlackboxError, ValueError):
    """A session or turn that cannot be run as asked. The message names the field and the fix."""


class PromptTooLargeError(RequestError):
    """The prompt fits no way in which the adapter can take it."""


class UnknownAgentError(BlackboxError, LookupError):
    """No adapter of that name."""


class UnknownSessionError(BlackboxError, LookupError):
    """No session of that id."""


class UnknownTurnError(BlackboxError, LookupError):
    """No turn of that id in this session."""


class ConflictError(BlackboxError, RuntimeError):
    """Refused because of the state that is there."""


class TurnActiveError(ConflictError):
    """Another turn of this session is active."""


class TurnMismatchError(ConflictError):
    """This turn id was given before with another prompt."""


class SessionExistsError(ConflictError):
    """This session id was given before with another configuration."""


class SessionClosedError(ConflictError):
    """The session has ended."""


class SessionLostError(ConflictError):
    """A turn of this session was cut by a restart: nobody knows what it did. Abort the sample."""


class ServerFullError(BlackboxError, RuntimeError):
    """No room for another session."""


class JournalError(BlackboxError, OSError):
    """The journal cannot be written or read."""


class ExecutorError(BlackboxError, RuntimeError):
    """The program could not be run, or its end is not known. Infrastructure, never the agent's doing."""


class LaunchError(ExecutorError):
    """The program could not be started at all."""


class ServerError(BlackboxError, ConnectionError):
    """The server could not be reached, or answered something outside its contract."""
