"""The smallest cache-hit rate with which a promise can be kept, on the real replay."""

import re
from dataclasses import replace

import numpy as np
import pytest

from tokenfleet.domain.slo import LatencyTarget, Slo, TrafficClass
from tokenfleet.planner import plan
from tokenfleet.planner.traffic import Traffic, with_hits
from tokenfleet.simulator import replay
from tokenfleet.workload import shared_input_tokens
from unit.planner import toy
from unit.planner.test_utilization import fleet


def demand(count=150):
    return toy.trace(count=count, rate=2.0, inputs=4000, outputs=20)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_prompts_share_what_they_are_made_to_share_and_the_cache_serves_it(share):
    trace = with_hits(Traffic(demand(), (0.0, 60.0)), share).trace
    wanted = (trace.input_tokens * share // 64 * 64)[1:]
    assert np.all(shared_input_tokens(trace)[1:] <= wanted)
    served = replay(trace, fleet(1, caching=True)).cached_tokens[1:]
    assert served.sum() == pytest.approx(wanted.sum(), rel=0.02, abs=1.0)


def test_the_smallest_hit_rate_that_keeps_the_promise_is_offered_and_keeps_it():
    # A lone prefill of 4,000 tokens takes 0.1 s and more, so half of that needs most of it from the cache.
    targets = (LatencyTarget(metric="ttft", quantile=0.9, limit_s=0.06, traffic_class="all"),)
    slo = Slo(latency=targets, error_rate_fraction=0.001, classes=(TrafficClass(name="all", takes="all"),))
    marked = replace(demand(), class_bits=np.ones(150, dtype=np.int32), classes=("all",))
    question = toy.question([toy.replica(caching=False)], [toy.price("h100_sxm", 2.0)], promise=slo)
    made = plan(question, marked)
    assert made.chosen is None
    relax = made.reasons[0].relax
    assert relax.startswith("ttft_p90 of all >= ")
    (percent,) = re.findall(r"serve (\d+)% of prompt tokens from the prefix cache \(\d+ replica", relax)
    share = int(percent) / 100

    def kept(fraction):
        cached = toy.question([toy.replica(caching=True)], [toy.price("h100_sxm", 2.0)], promise=slo)
        return plan(cached, with_hits(Traffic(marked, (0.0, 60.0)), fraction).trace).chosen is not None

    assert kept(share)
    assert not kept(share - 0.1)
