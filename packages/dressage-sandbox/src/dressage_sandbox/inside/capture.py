"""Bounded memory of an unbounded stream."""

MARK = b"\n[... output cut here: only its head and its tail are kept ...]\n"
"""Stands where output was left out. It holds no count, since what a model reads must not vary by timing."""


class Capture:
    """Head and tail of a stream within ``limit`` bytes, and the count of all that was written."""

    def __init__(self, limit: int) -> None:
        self.limit, self.total = limit, 0
        self.small = limit < 8 * len(MARK)  # no room for a mark: the head alone
        self.head_room = limit if self.small else limit // 2
        self.tail_room = limit - self.head_room
        self.head, self.tail = bytearray(), b""

    def add(self, data: bytes) -> None:
        """Take in the next bytes of the stream."""
        self.total += len(data)
        room = self.head_room - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        if data and self.tail_room:
            tail = data if len(data) >= self.tail_room else self.tail + data
            self.tail = tail[-self.tail_room :]

    def kept(self) -> bytes:
        """The whole stream, or its head, the mark and its tail, cut at line ends that are near."""
        if self.small or self.total <= self.limit:
            return bytes(self.head) + self.tail
        head = bytes(self.head[: self.head_room - len(MARK)])
        line_end = head.rfind(b"\n", len(head) * 3 // 4)
        line_start = self.tail.find(b"\n", 0, len(self.tail) // 4) + 1
        return (head[:line_end] if line_end > 0 else head) + MARK + self.tail[line_start:]
