"""What a whole fleet took, added up."""

import numpy as np

from tokenfleet.simulator.replaying import total_s


def test_busy_time_of_a_large_fleet_over_a_week_is_added_up_beyond_64_bits():
    a_week_ps = 604_800 * 10**12
    assert total_s(np.full(1_000, a_week_ps)) == 604_800_000.0
    assert total_s(np.zeros(0, dtype=np.int64)) == 0.0
