"""The charts of the moment of a loss."""

from dataclasses import replace

from tokenfleet.app.report.charts import Absent, Chart
from tokenfleet.app.report.moment import moment_charts
from tokenfleet.domain.survival import CoursePoint, LossCase, Moment, Recovery


def loss(kind, lost, course):
    moment = Moment(
        time_s=10.0,
        replicas=tuple(range(lost)),
        lost_request_count=3,
        unfinished_count=0,
        longest_wait_s=2.0,
        kept=True,
        slo_after=(),
        slo_overall=(),
        recovery=Recovery(after_s=0.0, demand_left_s=300.0, window_s=60.0),
        course=course,
    )
    return LossCase(
        kind=kind,
        count=1,
        required=True,
        lost=f"the worst {kind}",
        lost_replica_count=lost,
        serving_replica_count=4,
        kept=True,
        why="",
        slo_peak=(),
        slo_overall=(),
        spare_replica_count=1,
        spare_usd_per_hour=2.0,
        moment=moment,
    )


def course(*waits):
    return tuple(
        CoursePoint(
            since_s=2.0 * step - 2.0,
            ready_replica_count=6 - 2 * (step > 0),
            waiting_count=step,
            running_count=10 - step,
            slowest_ttft_s=wait,
        )
        for step, wait in enumerate(waits)
    )


def test_the_loss_that_takes_most_is_shown(plan):
    cases = (loss("replica", 1, course(0.1, 0.2)), loss("node", 2, course(0.3, None, 0.9)))
    queue, first = moment_charts(replace(plan, losses=(*cases, replace(cases[1], kind="rollout"))))
    assert isinstance(queue, Chart)
    assert queue.title.endswith("the worst node gone")
    shown = {trace["name"]: trace["y"] for trace in queue.figure["data"]}
    assert shown == {"running": [10, 9, 8], "waiting": [0, 1, 2], "replicas ready": [6, 4, 4]}
    (slowest,) = first.figure["data"]
    assert slowest["y"][1] is None
    assert slowest["x"] == [-2, 0, 2]


def test_without_a_moment_there_is_no_chart(plan):
    assert moment_charts(replace(plan, losses=())) == ()
    assert moment_charts(replace(plan, losses=(loss("node", 2, ()),))) == ()
    _, first = moment_charts(replace(plan, losses=(loss("node", 2, course(None, None)),)))
    assert isinstance(first, Absent)
