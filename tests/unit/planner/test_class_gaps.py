"""A promise on the gaps of a class, on the real replay."""

from dataclasses import replace

import numpy as np
import pytest

from tokenfleet.contract.quantile import conservative_rank
from tokenfleet.domain.slo import LatencyTarget, Slo, TrafficClass
from tokenfleet.planner import plan
from unit.planner import toy


def evening(count=500):
    """Half of the time nobody sends long prompts; who decodes then is never held up."""
    trace = toy.trace(count=count, rate=4.0, inputs=100, outputs=40)
    calm = trace.arrival_s < trace.arrival_s[-1] / 2
    inputs = np.where(~calm & (np.arange(count) % 4 == 0), 8000, trace.input_tokens).astype(np.int32)
    return replace(trace, input_tokens=inputs, class_bits=calm.astype(np.int32), classes=("calm",))


def promise(*targets):
    made = tuple(
        LatencyTarget(metric=metric, quantile=quantile, limit_s=limit_s, traffic_class=name)
        for metric, quantile, limit_s, name in targets
    )
    return Slo(latency=made, error_rate_fraction=0.01, classes=(TrafficClass(name="calm", takes="the calm half"),))


def planned(slo):
    question = toy.question([toy.replica(slots=16)], [toy.price("h100_sxm", 2.0)], promise=slo, spare=0)
    return plan(question, evening())


def test_the_gaps_of_a_class_size_the_fleet_and_those_of_others_do_not():
    usual = planned(promise(("ttft", 0.5, 5.0, None)))
    of_class = planned(promise(("ttft", 0.5, 5.0, None), ("itl", 0.99, 0.02, "calm")))
    of_all = planned(promise(("ttft", 0.5, 5.0, None), ("itl", 0.99, 0.02, None)))
    assert of_class.chosen is not None
    assert of_class.chosen.carrying_count == usual.chosen.carrying_count
    assert of_all.chosen is None or of_all.chosen.carrying_count > of_class.chosen.carrying_count
    (found,) = [result for result in of_class.slo_degraded_overall if result.name == "itl_p99 of calm"]
    gaps = of_class.degraded.class_gaps["calm"].gaps
    trace = evening()
    assert found.sample_count == int((trace.output_tokens[trace.class_bits == 1] - 1).sum())
    below = np.cumsum(gaps.count) < conservative_rank(found.sample_count, 0.99)
    assert found.predicted == pytest.approx(gaps.lower_s[int(below.sum()) + 1])
