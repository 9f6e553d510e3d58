"""Who is of which class, and what a scenario may promise to it."""

from dataclasses import replace

import numpy as np
import pytest

from tokenfleet.app.compose import demand_of
from tokenfleet.app.demand_words import about_clock, about_demand
from tokenfleet.app.scenario import load_scenario
from tokenfleet.app.slo_words import shown_limit, spoken
from tokenfleet.app.takes_types import TakesSpec
from tokenfleet.app.taking import in_classes, taken
from tokenfleet.contract import clauses_of
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.trace import Trace, of_class
from tokenfleet.planner.traffic import Traffic, cut
from tokenfleet.workload import grow, surge
from unit.app.test_scenario import GOOD, said, write

CLASSES = """\
  classes:
    long: {takes: {input_over: 1000}, ttft_p95: 6s}
    nightly: {takes: {share: 20%}, done_by: 06:00, cut_off: 05:00, error_rate: 1%}
"""


def written(folder, classes=CLASSES, more=""):
    head = GOOD.replace("slo: {ttft_p99: 2s, itl_p99.9: 100ms, error_rate: 0.1%}\n", "slo:\n  ttft_p99: 2s\n" + classes)
    return load_scenario(write(folder, head + more))


def trace(count=60):
    return Trace(
        arrival_s=np.arange(count, dtype=float) * 60.0,
        input_tokens=np.arange(1, count + 1, dtype=np.int32) * 50,
        output_tokens=np.full(count, 10, dtype=np.int32),
        start_utc="2026-11-30T23:30:00Z",
    )


def test_clauses_of_classes_come_after_those_of_all(tmp_path):
    slo = written(tmp_path).slo.targets()
    assert [name for name, _, _ in clauses_of(slo)] == [
        "ttft_p99",
        "ttft_p95 of long",
        "error_rate",
        "error_rate of nightly",
        "done_by_06:00 of nightly",
    ]
    (deadline,) = slo.deadlines
    assert (deadline.at_s, deadline.cut_off_s, deadline.quantile) == (6 * 3600.0, 5 * 3600.0, 0.99)
    assert [(each.name, each.takes) for each in slo.classes] == [
        ("long", "prompts over 1,000 tokens"),
        ("nightly", "20 % at random"),
    ]


def test_a_request_may_be_of_several_classes_and_stays_in_them(tmp_path):
    asked = written(tmp_path)
    found, _ = demand_of(asked)
    long, nightly = (of_class(found, name) for name in ("long", "nightly"))
    assert np.array_equal(long, found.input_tokens > 1000)
    assert nightly.mean() == pytest.approx(0.2, abs=0.02)
    assert (long & nightly).any()
    assert np.array_equal(of_class(grow(found, 2.0), "long"), grow(found, 2.0).input_tokens > 1000)
    more = surge(found, start_s=60.0, length_s=60.0, factor=2.0)
    assert np.array_equal(of_class(more, "long"), more.input_tokens > 1000)
    shorter = cut(Traffic(found, (100.0, 160.0)), 10, 500).trace
    assert np.array_equal(of_class(shorter, "long"), shorter.input_tokens > 1000)


def test_a_time_of_day_may_span_midnight():
    late = replace(trace(), time_of_day_s=23.5 * 3600)
    chosen = taken(TakesSpec(arrives_from="23:45", arrives_until="00:10"), late, "x", np.ones(60, dtype=bool), 1)
    assert np.array_equal(np.flatnonzero(chosen), np.arange(15, 40))


def test_the_clock_comes_from_the_log_and_survives_a_cut(tmp_path):
    timed = in_classes(trace(), written(tmp_path, "  classes: {all: {takes: {}, tpot_p50: 50ms}}\n"))
    assert timed.time_of_day_s == 23.5 * 3600
    assert cut(Traffic(timed, (0.0, 60.0)), 40, 50).trace.time_of_day_s == 23.5 * 3600  # the window begins before
    assert cut(Traffic(timed, (2400.0, 2460.0)), 40, 50).trace.time_of_day_s == 600.0  # 00:10 on the next day


def test_whose_clock_times_of_day_go_by_is_said(tmp_path):
    pools = """\
pools:
  day: {gpu: l40s, takes: {arrives_from: "08:00"}}
  rest: {gpu: l40s, window: {opens: "22:00", closes: "06:00"}, autoscaling: {max: 3, schedule: {"08:00": 2}}}
"""
    asked, zoned = written(tmp_path, more=pools), trace()
    keys = "slo.classes.nightly.done_by, pools.day.takes, pools.rest.window, pools.rest.autoscaling.schedule"
    assert about_clock(asked, zoned) == (f"Times of day ({keys}) go by UTC: second 0 of the demand is 23:30 there.",)
    naive = replace(zoned, start_utc=None, time_of_day_s=8 * 3600.0 + 59.9)
    assert about_clock(asked, naive)[0].endswith(
        "go by the clock of the log, whose stamps name no zone: second 0 of the demand is 08:00 there."
    )
    assert about_clock(asked, replace(naive, time_of_day_s=0.0)) == ()
    assert about_clock(written(tmp_path, "  classes: {all: {takes: {}, tpot_p50: 50ms}}\n"), zoned) == ()


def test_priorities_that_nobody_has_are_said(tmp_path):
    def said(classes, more="engine: {scheduling: priority}\n"):
        asked = written(tmp_path, classes, more)
        return [line for line in about_demand(asked, in_classes(trace(), asked)) if "same priority" in line]

    (line,) = said(CLASSES)
    assert line.endswith("give classes one: slo.classes.NAME.priority.")
    assert said(CLASSES, "") == []
    assert said(CLASSES.replace("ttft_p95: 6s", "ttft_p95: 6s, priority: 3")) == []


def test_priorities_reach_an_engine_that_looks_at_them(tmp_path):
    classes = """\
  classes:
    premium: {takes: {input_up_to: 500}, ttft_p99: 1s, priority: -1}
    slow: {takes: {input_over: 2000}, done_within: 4h, priority: 5}
"""
    asked = written(tmp_path, classes, "engine: {name: vllm, scheduling: priority}\n")
    marked = in_classes(trace(), asked)
    assert marked.priority.tolist() == [-1] * 10 + [0] * 30 + [5] * 20


@pytest.mark.parametrize(
    ("classes", "what"),
    [
        ("  classes: {a: {takes: {}, priority: 1, ttft_p99: 1s}}\n", "serves in order of arrival"),
        ("  classes: {a: {takes: {input_over: 1000000}, ttft_p99: 1s}}\n", "takes in no request"),
        ("  classes: {a: {takes: {tenants: [acme]}, ttft_p99: 1s}}\n", "names none"),
    ],
)
def test_what_the_demand_or_the_engine_cannot_do_is_said(tmp_path, classes, what):
    with pytest.raises(BadInput, match=what):
        in_classes(trace(), written(tmp_path, classes))


def test_gaps_of_too_many_kinds_of_request_are_not_promised(tmp_path):
    takes = [f"    c{bit}: {{takes: {{share: 50%}}, ttft_p99: 1s}}\n" for bit in range(5)]
    apart = written(tmp_path, "  classes:\n" + "".join(takes[:3]) + "    d: {takes: {share: 50%}, itl_p99: 90ms}\n")
    assert in_classes(trace(4000), apart).classes == ("c0", "c1", "c2", "d")
    mixed = written(tmp_path, "  classes:\n" + "".join(takes) + "    d: {takes: {share: 50%}, itl_p99: 90ms}\n")
    with pytest.raises(BadInput, match="more than 16 combinations"):
        in_classes(trace(4000), mixed)


@pytest.mark.parametrize(
    ("slo", "what"),
    [
        ("{ttft_p99: 2s, classes: {a: {takes: {}}}}", "promises nothing"),
        ("{ttft_p99: 2s, classes: {a: {ttft_p99: 1s}}}", "slo.classes.a.takes: is missing"),
        ("{ttft_p99: 2s, classes: {a: {takes: {}, ttf_p99: 1s}}}", 'unknown promise "ttf_p99"'),
        ("{ttft_p99: 2s, cut_off: 05:00}", "cut_off without done_by"),
        ("{ttft_p99: 2s, rejection_rate: 1%}", "nobody is turned away"),
        ("{error_rate: 1%}", "promises no latency"),
    ],
)
def test_promises_that_cannot_be_meant_are_refused(tmp_path, slo, what):
    told = said(tmp_path, GOOD.replace("{ttft_p99: 2s, itl_p99.9: 100ms, error_rate: 0.1%}", slo))
    assert any(what in each for each in told), told


def test_a_deadline_alone_is_a_promise(tmp_path):
    text = GOOD.replace("{ttft_p99: 2s, itl_p99.9: 100ms, error_rate: 0.1%}", "{done_within: 4h}")
    assert [each.name for each in load_scenario(write(tmp_path, text)).slo.targets().deadlines] == ["done_within_4h"]


def test_how_a_person_reads_them():
    assert spoken("ttft_p99 of premium") == "TTFT p99 of premium"
    assert spoken("error_rate of batch") == "errors of batch"
    assert shown_limit("done_by_06:00 of nightly", "fraction", 1.0) == "done by 06:00 of nightly"
    assert shown_limit("queue_limit", "count", 20.0) == "waiting at one replica <= 20"
