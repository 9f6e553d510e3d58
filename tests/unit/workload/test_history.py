"""Conversations of a log without block hashes."""

from dataclasses import replace

import numpy as np
import pytest

from tokenfleet import workload
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.trace import Trace


def made(rows):
    arrival, inputs, outputs, session = zip(*rows, strict=True)
    return Trace(
        arrival_s=np.array(arrival, dtype=np.float64),
        input_tokens=np.array(inputs, dtype=np.int32),
        output_tokens=np.array(outputs, dtype=np.int32),
        session=np.array(session, dtype=np.int32),
    )


TALK = made(
    [
        (0.0, 100, 20, 0),
        (1.0, 50, 5, 1),
        (2.0, 150, 10, 0),  # 120 said before, 30 new
        (3.0, 80, 5, -1),
        (4.0, 90, 5, 0),  # shorter than what was said: begun anew
        (5.0, 95, 5, 0),
        (6.0, 85, 5, -1),
    ]
)


def test_a_prompt_repeats_the_one_before_and_its_answer():
    told = workload.repeated_history(TALK)
    assert told.prefixes.parent.tolist() == [-1, -1]
    assert told.prefixes.token_count.tolist() == [120, 95]
    assert told.prefix_node.tolist() == [0, -1, 0, -1, 1, 1, -1]


def test_longer_talks_are_chains():
    talk = made([(float(turn), 100 * (turn + 1), 50, 7) for turn in range(4)])
    told = workload.repeated_history(talk)
    assert told.prefixes.parent.tolist() == [-1, 0, 1]
    assert told.prefixes.depth_tokens.tolist() == [150, 250, 350]
    assert told.prefix_node.tolist() == [0, 1, 2, 2]


def test_what_cannot_be_told_is_bad_input():
    with pytest.raises(BadInput, match="names no sessions"):
        workload.repeated_history(replace(TALK, session=None))
    with pytest.raises(BadInput, match="block hashes"):
        workload.repeated_history(workload.repeated_history(TALK))
