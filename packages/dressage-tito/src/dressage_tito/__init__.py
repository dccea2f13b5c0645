"""Token in, token out: chat messages to ids and back, without ever re-tokenising what a model sampled."""

from dressage_tito.buffer import TokenBuffer
from dressage_tito.canonical import reply_text
from dressage_tito.certificates import Certificate, require_certified
from dressage_tito.codec import ChatCodec, ThinkingPolicy
from dressage_tito.coerce import coerce_arguments
from dressage_tito.errors import FolderError, MessageError, NotCertifiedError, ProfileError, TitoError
from dressage_tito.messages import (
    Encoded,
    Message,
    ParsedTurn,
    Refusal,
    Tool,
    ToolCall,
    concat_encoded,
)
from dressage_tito.profile import Profile
from dressage_tito.wire import message_from_json, message_to_json, wire_arguments

__all__ = [
    "Certificate",
    "ChatCodec",
    "Encoded",
    "FolderError",
    "Message",
    "MessageError",
    "NotCertifiedError",
    "ParsedTurn",
    "Profile",
    "ProfileError",
    "Refusal",
    "ThinkingPolicy",
    "TitoError",
    "TokenBuffer",
    "Tool",
    "ToolCall",
    "coerce_arguments",
    "concat_encoded",
    "message_from_json",
    "message_to_json",
    "reply_text",
    "require_certified",
    "wire_arguments",
]
