"""What was sampled becomes a turn: parsed, logged durably, and then in the session's tree."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dressage_segments import ROOT, Mark, SegmentSink, Turn, mark_to_record, turn_to_record
from dressage_tito import ChatCodec, Message, ParsedTurn

from dressage_proxy.canonical import message_key
from dressage_proxy.dialects.base import ModelRequest, as_sent_back
from dressage_proxy.metrics import Metrics
from dressage_proxy.planning import Plan
from dressage_proxy.replies import returned
from dressage_proxy.sampled import Reply
from dressage_proxy.sampling import Effective
from dressage_proxy.session import Session


@dataclass(slots=True)
class Committer:
    """Commits turns to the log and the trees. Used from one event loop."""

    codec: ChatCodec
    sink: SegmentSink
    metrics: Metrics

    def commit(
        self,
        session: Session,
        request: ModelRequest,
        planned: Plan,
        sampling: Effective,
        reply: Reply,
        mark: Mark | None = None,
    ) -> tuple[Turn, Message]:
        """Parse, then log the turn durably with its mark, then put it into the tree."""
        parsed = self.codec.parse(
            reply.ids,
            reasoning_open=planned.reasoning_open,
            finish_reason=reply.finish_reason,
            tools=[*request.tools, *request.deferred] or None,
        )
        message, wire_ids = _message(session, parsed, reply)
        turn = Turn(
            session_id=session.id,
            index=len(session.tree),
            parent=planned.place.parent,
            kind=planned.kind,
            cut_reason=planned.place.cut_reason,
            delta_ids=planned.delta_ids,
            delta_origin=planned.delta_origin,
            output_ids=reply.ids,
            logprobs=reply.logprobs,
            versions=reply.versions,
            calls=tuple(reply.calls),
            finish_reason=reply.finish_reason,
            tools_hash=planned.place.tools_hash,
            input_keys=planned.place.new_keys,
            reply_key=message_key(as_sent_back(message, request.wire_tools)),
            sampling=dict(sampling.recorded),
            extra=_extra(session, request, planned, sampling, parsed, wire_ids),
            experts=reply.experts,
            experts_start=reply.experts_start,
        )
        self.sink.append(session.id, turn_to_record(turn, mark))
        # The log alone keeps experts: they are many times what all else of a turn takes.
        session.tree.add(turn if turn.experts is None else replace(turn, experts=None))
        if mark is not None:
            self._marked(session, turn.index, mark)
        session.remember(turn)
        for broken in planned.broken:
            if not session.tree.children(broken) and session.tree.marked(broken) is None:
                self.undelivered(session, broken)
        self.metrics.sampled_tokens.inc(turn.sampled_tokens)
        return turn, message

    def undelivered(self, session: Session, turn: int) -> None:
        """Note that nobody has a turn's reply."""
        self.sink.append(session.id, mark_to_record(turn, Mark.UNDELIVERED))
        self._marked(session, turn, Mark.UNDELIVERED)

    def _marked(self, session: Session, turn: int, mark: Mark) -> None:
        session.tree.mark(turn, mark)
        if mark is Mark.UNDELIVERED:
            self.metrics.undelivered.inc()


def _extra(
    session: Session,
    request: ModelRequest,
    planned: Plan,
    sampling: Effective,
    parsed: ParsedTurn,
    wire_ids: dict[str, str],
) -> dict[str, object]:
    """What a turn's record says besides its evidence; what is empty is left out."""
    starts = planned.place.parent == ROOT
    optional = {
        "wire_ids": wire_ids,
        "system_key": planned.system_key,
        "overridden": dict(sampling.overridden),
        "flags": list(planned.place.flags),
        "accepted": sorted(request.accepted) if starts else [],
        "copied": planned.copied,
        "rendered": planned.rendered,
        "noted": planned.noted,
        "joined": planned.joined,
        "warnings": list(parsed.warnings),
        "pinned": dict(session.pinned) if starts else {},
    }
    kept = {name: value for name, value in optional.items() if value}
    return {"reasoning_open": planned.reasoning_open, **kept}


def _message(session: Session, parsed: ParsedTurn, reply: Reply) -> tuple[Message, dict[str, str]]:
    """The assistant message as clients see it, calls under wire ids; wire id -> the model's own."""
    wire_ids = {session.wire_id(): call.id for call in parsed.tool_calls}
    return returned(parsed, reply.finish_reason, reply.matched, list(wire_ids)), wire_ids
