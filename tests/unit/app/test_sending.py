"""When the last request is sent, and what that means for samples and long traces."""

import numpy as np
import pytest

from reference.fleets import trace
from tokenfleet import simulator, workload
from tokenfleet.app.intervals import unit_price
from tokenfleet.app.sending import sending_s
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.stages import Hold

HOUR_S = 3_600.0
DEMAND = trace([(0, 4, 2), (60_000, 4, 2), (120_000, 4, 2)])
"""Two minutes."""


@pytest.mark.parametrize(
    ("opens_s", "open_for_s", "last_s"),
    [(5 * HOUR_S, HOUR_S, 5 * HOUR_S), (30.0, HOUR_S, 120.0), (100.0, 10.0, 86_500.0)],
)
def test_a_window_puts_the_last_request_off(opens_s, open_for_s, last_s):
    clock_s = 9 * HOUR_S
    hold = Hold(
        takes=np.array([False, True, True]),
        opens_s=(opens_s + clock_s) % 86_400.0,
        closes_s=(opens_s + clock_s + open_for_s) % 86_400.0,
        start_s=clock_s,
    )
    assert sending_s(DEMAND, [hold]) == last_s
    assert sending_s(DEMAND) == 120.0


def test_a_trace_of_years_is_refused_before_its_minutes_are_walked():
    years = trace([(0, 4, 2), (99_999_999_000, 4, 2)])
    with pytest.raises(BadInput, match="can be replayed"):
        simulator.check_span(years)
    assert workload.peak_window(years) == (0.0, pytest.approx(99_999_999.0, abs=60.0))


def test_the_price_of_a_span_is_all_that_was_paid_over_all_that_left():
    usd, tokens = np.array([1.0, 1.0, 1.0]), np.array([0, 100, 300])
    assert unit_price(usd, tokens)[1:].tolist() == [1e4, 1e6 / 300]
    assert np.isnan(unit_price(usd, tokens)[0])
    assert unit_price(np.array([usd.mean()]), np.array([tokens.mean()]))[0] == pytest.approx(3e6 / 400)
