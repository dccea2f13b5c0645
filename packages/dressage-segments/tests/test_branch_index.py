from dressage_segments.branches import BranchIndex
from hypothesis import given, settings
from hypothesis import strategies as st

KEYS = st.lists(st.sampled_from("abc"), max_size=3)
STEPS = st.lists(
    st.tuples(st.just("add"), st.integers(-1, 30), KEYS)
    | st.tuples(st.just("look"), st.integers(-1, 30), KEYS),
    max_size=40,
)


class Plain:
    """Every walk in full, compared in full."""

    def __init__(self):
        self.walks = []

    def walk(self, turn):
        return self.walks[turn] if turn >= 0 else ()

    def add(self, parent, keys):
        self.walks.append((*self.walk(parent), *keys))

    def ends(self, keys):
        found = {}
        for turn, walk in enumerate(self.walks):
            if walk and tuple(keys[: len(walk)]) == walk:
                found.setdefault(len(walk), []).append(turn)
        return sorted(found.items(), reverse=True)

    def depth(self, keys):
        return max(
            (
                size
                for walk in self.walks
                for size in range(len(walk) + 1)
                if tuple(keys[:size]) == walk[:size]
            ),
            default=0,
        )


@settings(max_examples=300)
@given(STEPS)
def test_lookups_in_any_order_find_what_comparing_every_walk_finds(steps):
    index, plain = BranchIndex(), Plain()
    for what, turn, keys in steps:
        parent = min(turn, len(plain.walks) - 1)
        if what == "add":
            index.add(parent, keys)
            plain.add(parent, keys)
        else:
            asked = [*plain.walk(parent), *keys]
            assert list(index.ends(asked)) == plain.ends(asked)
            assert list(index.ends(tuple(asked))) == plain.ends(asked)
            assert index.depth(asked) == plain.depth(asked)


def test_the_longest_walk_is_found_first_and_again():
    index = BranchIndex()
    index.add(-1, ["a", "r0"])
    index.add(0, ["b", "r1"])
    for _ in range(2):
        assert list(index.ends(["a", "r0", "b", "r1", "c"])) == [(4, [1]), (2, [0])]
    assert list(index.ends(["a", "r0", "x"])) == [(2, [0])]


class Counted(str):
    """A key that counts how often it is hashed, as each probe of a dictionary does."""

    hashed = 0
    __slots__ = ()

    def __hash__(self):
        Counted.hashed += 1
        return super().__hash__()

    def __eq__(self, other):
        return super().__eq__(other)


def test_a_lookup_probes_what_is_new_alone():
    index, keys = BranchIndex(), []
    for turn in range(100):
        keys = [*keys, Counted(f"m{turn}")]
        before = Counted.hashed
        assert next(index.ends(keys), (0, []))[0] == 2 * turn
        assert Counted.hashed - before <= 3
        keys.append(Counted(f"r{turn}"))
        index.add(turn - 1, keys[-2:])
