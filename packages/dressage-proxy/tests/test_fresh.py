"""Names that are given once, whoever seeds what and whoever forks."""

import os
import random

from dressage_proxy.fresh import fresh_id


def test_a_seed_of_the_shared_generator_brings_no_name_again():
    made = []
    for _ in range(3):
        random.seed(7)
        made += [fresh_id() for _ in range(100)]
    assert len(set(made)) == 300
    assert {len(name) for name in made} == {32}, "no name is the beginning of another"
    random.seed()


def test_a_forked_process_gives_names_of_its_own():
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(writer, fresh_id().encode())
        os._exit(0)
    mine = fresh_id()
    os.waitpid(pid, 0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read().decode() != mine
