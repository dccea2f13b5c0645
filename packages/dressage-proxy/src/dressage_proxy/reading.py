"""One message of a request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dressage_tito import Message, MessageError, message_from_json

from dressage_proxy.errors import RequestError
from dressage_proxy.surrogates import whole


def read_message(raw: Any, index: int) -> Message:
    """One message of a request. Raises RequestError naming it."""
    try:
        message = message_from_json(raw, f"messages[{index}]")
        if any("\\u" in call.arguments_text for call in message.tool_calls):  # it may spell half a pair
            whole_calls = (replace(call, arguments=whole(call.arguments)) for call in message.tool_calls)
            message = replace(message, tool_calls=tuple(whole_calls))
        return message
    except MessageError as error:
        raise RequestError(str(error), field=error.field) from error  # its text ends with the fix
