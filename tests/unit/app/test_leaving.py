"""Users who cancelled their calls leave in the replay as the log says."""

import numpy as np

from reference.fleets import trace
from tokenfleet.app.leaving import leaving_of
from tokenfleet.domain.trace import Observed

STATUSES = ("ok", "error", "rejected", "cancelled")


def logged(**columns):
    seen = {"status": np.array([0, 3, 3], dtype=np.int32), "statuses": STATUSES} | columns
    return trace([(0, 10, 5), (1, 10, 7), (2, 10, 9)], observed=Observed(**seen))


def test_with_the_last_token_that_the_log_knows() -> None:
    leaving, further = leaving_of(logged())
    assert leaving.after_tokens.tolist() == [0, 7, 9]
    assert np.isinf(leaving.after_s).all()
    assert further.output_tokens.tolist() == [5, 9, 11], "what the engine computes before it knows"


def test_without_a_token_after_the_time_that_it_knows() -> None:
    leaving, further = leaving_of(logged(ttft_s=np.array([0.1, np.nan, 0.2]), e2e_s=np.array([1.0, 2.5, 3.0])))
    assert leaving.after_tokens.tolist() == [0, 0, 9]
    assert leaving.after_s.tolist() == [np.inf, 2.5, np.inf]
    assert further.output_tokens.tolist() == [5, 7, 11]


def test_where_nobody_left_nothing_changes() -> None:
    for rows in (trace([(0, 10, 5)]), logged(status=np.zeros(3, dtype=np.int32)), logged(status=None)):
        leaving, same = leaving_of(rows)
        assert leaving is None
        assert same is rows
