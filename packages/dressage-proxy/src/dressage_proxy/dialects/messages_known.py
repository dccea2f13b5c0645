"""Tools that Anthropic's API defines and its clients carry out: a shell, a text editor, a memory of files.

A request gives their versioned types alone (``bash_20250124``): Anthropic's models know them by heart. Any
other model is offered them with the parameters that Anthropic documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]
_EDITING = ("view", "create", "str_replace", "insert")


def _about(text: str) -> Schema:
    return {"type": "string", "description": text}


def _object(properties: Mapping[str, Schema], needed: Sequence[str] = ()) -> Schema:
    return {"type": "object", "properties": properties, **({"required": list(needed)} if needed else {})}


def _files(commands: Sequence[str], more: Mapping[str, Schema], needed: Sequence[str]) -> Schema:
    """The parameters of a tool that works on files."""
    shared: dict[str, Schema] = {
        "command": {"type": "string", "enum": list(commands), "description": "What to do."},
        "path": _about("The file or folder."),
        "view_range": {
            "type": "array",
            "items": {"type": "integer"},
            "description": "With view: first and last line of a file, counted from 1; -1 is its end.",
        },
        "file_text": _about("With create: the whole text of the file."),
        "old_str": _about("With str_replace: the text to replace, exactly as it is in the file, once."),
        "insert_line": {
            "type": "integer",
            "description": "With insert: the line behind which to insert; 0 is the beginning of the file.",
        },
    }
    return _object({**shared, **more}, needed)


_SHELL = "Runs commands in a shell that goes on from call to call."
_EDITOR = "Shows, creates and edits text files, and lists folders."
_OLDER = {"new_str": _about("With str_replace: the text in its place. With insert: the text to insert.")}
_INSERTED = {**_OLDER, "insert_text": _about("With insert: the same text as in new_str.")}
"""Clients of the later versions differ in which of the two they read."""
_BASH = _object(
    {
        "command": _about("The command to run; not needed with restart."),
        "restart": {"type": "boolean", "description": "True starts a new shell instead."},
    }
)
_MOVED = {"old_path": _about("With rename: the old path."), "new_path": _about("With rename: the new path.")}

DEFINED: Mapping[str, tuple[str, Schema]] = {
    "bash_20241022": (_SHELL, _BASH),
    "bash_20250124": (_SHELL, _BASH),
    "text_editor_20241022": (_EDITOR, _files((*_EDITING, "undo_edit"), _OLDER, ("command", "path"))),
    "text_editor_20250124": (_EDITOR, _files((*_EDITING, "undo_edit"), _OLDER, ("command", "path"))),
    "text_editor_20250429": (_EDITOR, _files(_EDITING, _OLDER, ("command", "path"))),
    "text_editor_20250728": (_EDITOR, _files(_EDITING, _INSERTED, ("command", "path"))),
    "memory_20250818": (
        "Keeps what is worth knowing later in files below /memories.",
        _files((*_EDITING, "delete", "rename"), {**_INSERTED, **_MOVED}, ("command",)),
    ),
}
"""Description and parameters (JSON schema) by type. A later version may have others: it is refused."""
