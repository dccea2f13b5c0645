"""Errors of dressage-tito.

.. code-block:: text

    TitoError
    ├── FolderError (ValueError)      a tokenizer folder that cannot be used: names the file and the fix
    ├── ProfileError (ValueError)     a chat template whose turns cannot be told apart by probing
    ├── NotCertifiedError             a model that was not certified and is to be trained on
    └── MessageError (ValueError)     a chat message that is not valid: names the field and the fix

What a conversation makes impossible is no error but a ``Refusal`` (see ``dressage_tito.messages``).
"""

from __future__ import annotations


class TitoError(Exception):
    """Root of the errors that dressage-tito raises on purpose."""


class FolderError(TitoError, ValueError):
    """A tokenizer folder lacks something or is broken. ``path`` is the file, ``fix`` the remedy."""

    def __init__(self, path: str, problem: str, fix: str) -> None:
        self.path = path
        self.problem = problem
        self.fix = fix
        super().__init__(path, problem, fix)

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}. {self.fix}"


class ProfileError(TitoError, ValueError):
    """Probing the chat template did not show where an assistant turn begins and ends."""


class NotCertifiedError(TitoError):
    """A model's tokenizer and template are not certified; the message names the command and the override."""


class MessageError(TitoError, ValueError):
    """A chat message is not valid. ``field`` is its path (``messages[3].content``), ``fix`` the remedy."""

    def __init__(self, field: str, fix: str) -> None:
        self.field = field
        self.fix = fix
        super().__init__(field, fix)

    def __str__(self) -> str:
        return f"{self.field}: {self.fix}"
