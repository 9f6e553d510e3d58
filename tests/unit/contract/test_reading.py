"""Clients that read slowly, by hand."""

import numpy as np
import pytest

from reference.fleets import fleet, physics, trace
from tokenfleet.contract.reading import most_at_once, read_s
from tokenfleet.domain.world import Leaving, World
from tokenfleet.simulator import replay


def test_whoever_reads_slower_than_the_engine_writes_is_busy_for_longer() -> None:
    """Steps of 10 ms: first tokens at 10 ms, the last of five at 50 ms."""
    record = replay(trace([(0, 10, 5), (0, 10, 1), (0, 10, 0)]), fleet(physics()))
    assert read_s(record, 50.0) == pytest.approx([0.01 + 4 * 0.02, 0.01, 0.01])
    assert read_s(record, 1000.0) == pytest.approx(record.finish_s), "never ahead of the engine"


def test_without_an_answer_there_is_nothing_to_read_to_its_end() -> None:
    world = World(leaving=Leaving(after_s=np.array([0.025])))
    assert np.isnan(read_s(replay(trace([(0, 10, 5)]), fleet(physics()), world=world), 50.0)).all()


def test_spans_that_overlap() -> None:
    start_s, end_s = np.array([0.0, 1.0, 2.0, 3.0]), np.array([2.0, 5.0, np.nan, 4.0])
    assert most_at_once(start_s, end_s) == 2, "one ends as another begins"
    assert most_at_once(start_s[:0], end_s[:0]) == 0
