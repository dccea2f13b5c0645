"""Which shard a session lives in: its id says so."""

from __future__ import annotations

import hashlib
import secrets

_DIGEST_BYTES = 8


def shard_of(session_id: str, shards: int) -> int:
    """The shard of any id, also of one that was never given out: the same in every process."""
    if shards == 1:
        return 0
    digest = hashlib.blake2b(session_id.encode(), digest_size=_DIGEST_BYTES).digest()
    return int.from_bytes(digest, "big") % shards


def new_session_id(shard: int, shards: int) -> str:
    """An unguessable id (128 bits, less the choice of a shard) that lives in ``shard``."""
    while True:
        session_id = secrets.token_hex(16)
        if shard_of(session_id, shards) == shard:
            return session_id


def session_in(path: str) -> str | None:
    """The session that a URL path is about, on either plane; None: about none."""
    parts = path.split("/", 3)
    if len(parts) > 2 and parts[1] in ("s", "sessions") and parts[2]:
        return parts[2]
    return None
