"""Any sequence of uses, with restarts and kills in between, gives what the memory backend gives."""

import dataclasses
import shutil
import tempfile
from pathlib import Path

from dressage_segments import record_to_bytes, trajectory_to_bytes
from dressage_store import FilesStore, MemoryStore, State, StoreError
from dressage_store.contract import session_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

NAMES = st.sampled_from(["a", "b", "a.1"])
SESSIONS = {name: session_of(name, 3) for name in ("a", "b", "a.1")}


def outcome(use):
    """What a use gives, or the error that it ends in."""
    try:
        return use()
    except StoreError as error:
        return type(error)


class Uses(RuleBasedStateMachine):
    """The files store beside the memory store."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.memory = MemoryStore()
        self.options = {}
        self.files = None

    @initialize(retain=st.booleans(), most=st.sampled_from([1, 128]))
    def start(self, retain, most):
        self.options = {"retain": retain, "max_open_files": most}
        self.files = FilesStore(self.folder / "s", **self.options)

    def both(self, use):
        assert outcome(lambda: use(self.files)) == outcome(lambda: use(self.memory))

    @rule(name=NAMES, at=st.integers(0, 3))
    def append(self, name, at):
        log, _ = SESSIONS[name]
        self.both(lambda store: store.append(name, log[at % len(log)]))

    @rule(name=NAMES, generation=st.integers(1, 3))
    def put(self, name, generation):
        trajectory = dataclasses.replace(SESSIONS[name][1], generation=generation)
        self.both(lambda store: store.put(trajectory))

    @rule(name=NAMES, generation=st.integers(1, 3))
    def ack(self, name, generation):
        self.both(lambda store: store.ack(name, generation))

    @rule(name=NAMES)
    def forget(self, name):
        self.both(lambda store: store.forget(name))

    @rule()
    def close_and_reopen(self):
        self.files.close()
        self.files = FilesStore(self.folder / "s", **self.options)

    @rule(torn=st.binary(max_size=30))
    def kill_and_reopen(self, torn):
        """The folder as a killed process leaves it: the index not closed, half a record, half a file."""
        copy = Path(tempfile.mkdtemp(dir=self.folder))
        shutil.copytree(self.folder / "s", copy / "s")
        self.files.close()
        self.folder = copy
        for path in (copy / "s/log").iterdir():
            with path.open("ab") as log:
                log.write(b"\xff\xff\x00\x00" + torn)
        (copy / "s/trajectories/a.9.safetensors.tmp").write_bytes(torn)
        self.files = FilesStore(copy / "s", **self.options)

    @invariant()
    def same(self):
        if self.files is None:
            return
        self.both(lambda store: store.pending())
        self.both(lambda store: store.sessions())
        for name in SESSIONS:
            self.both(lambda store, name=name: trajectory_to_bytes(store.read(name)))
            if name in self.memory.sessions():
                self.both(lambda store, name=name: [record_to_bytes(r) for r in store.records(name)])
        usage, kept = self.files.usage(), self.files.root
        held = len(list((kept / "trajectories").iterdir()))
        acked = sum(entry.state is State.ACKED for entry in self.files.entries())
        assert held == usage.pending + acked * self.options["retain"]
        for found, where in (
            (usage.log_bytes, ("log", "retained")),
            (usage.trajectory_bytes, ("trajectories",)),
        ):
            assert found == sum(p.stat().st_size for folder in where for p in (kept / folder).iterdir())

    def teardown(self):
        if self.files is not None:
            self.files.close()
        root = next(p for p in [self.folder, *self.folder.parents] if p.parent == Path(tempfile.gettempdir()))
        shutil.rmtree(root)


TestAnyUses = Uses.TestCase
TestAnyUses.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
