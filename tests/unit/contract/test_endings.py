"""Every way to end has one word, and the words share no request."""

import numpy as np

from tokenfleet import contract
from tokenfleet.domain.run import Status


def test_every_ending_is_counted_once():
    status = np.array([int(each) for each in Status], dtype=np.int8)
    ways = contract.unanswered(status)
    together = sum(which.astype(int) for which in ways.values())
    assert together.tolist() == [int(each != Status.FINISHED) for each in Status]
    counts = contract.unanswered_counts(np.repeat(status, np.arange(1, len(status) + 1)))
    assert (counts["lost_count"], counts["cancelled_count"], counts["timed_out_count"]) == (5, 11, 12)
    assert counts["rejected_count"] == 2 + 3 + 4 + 6 + 7 + 8 + 9 + 10 + 13
