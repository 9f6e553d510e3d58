"""The moment of the worst loss as charts: replicas, queue and first tokens, second by second."""

from typing import Final

from tokenfleet.app.loss_words import LossLine, loss_lines
from tokenfleet.app.report.charts import BAD, FIRST, SECOND, Absent, Chart, Marks, axis, layout, line, plain
from tokenfleet.app.report.latency import HeldAgainst
from tokenfleet.domain.plan import Plan
from tokenfleet.domain.survival import CoursePoint, LossCase

_TITLE: Final = "The moment of the worst loss"


def moment_charts(plan: Plan) -> tuple[Chart | Absent, ...]:
    """What happens around the loss that takes most replicas; nothing where none was replayed."""
    seen = [
        (case, text)
        for case, text in zip(plan.losses, loss_lines(plan), strict=True)
        if case.moment is not None and case.moment.course and case.kind not in ("rollout", "maintenance")
    ]
    if not seen:
        return ()
    case, text = max(seen, key=lambda pair: pair[0].lost_replica_count)
    return _queue(case, text), _first_tokens(plan, case)


def _course(case: LossCase) -> tuple[CoursePoint, ...]:
    return case.moment.course if case.moment else ()


def _come_back(case: LossCase) -> str:
    waited = case.moment is not None and case.moment.longest_wait_s is not None
    return "Those lost are sent again, the first after a second." if waited else "Those lost do not come back."


def _times(case: LossCase) -> list[float | None]:
    return plain(point.since_s for point in _course(case))


def _queue(case: LossCase, text: LossLine) -> Chart:
    course = _course(case)
    marks = Marks()
    marks.upright(0.0, text.lost, colour=BAD)
    return Chart(
        key="moment-queue",
        title=f"{_TITLE}: {text.lost}",
        note=f"Requests on all replicas, and replicas that take requests. {_come_back(case)}",
        figure={
            "data": [
                line(
                    "running", _times(case), plain(point.running_count for point in course), FIRST, "%{y:,.0f} running"
                ),
                line(
                    "waiting", _times(case), plain(point.waiting_count for point in course), SECOND, "%{y:,.0f} waiting"
                ),
                line(
                    "replicas ready",
                    _times(case),
                    plain(point.ready_replica_count for point in course),
                    BAD,
                    "%{y:,.0f} replicas ready",
                    dash="dot",
                ),
            ],
            "layout": marks.onto(
                layout(axis("seconds since the loss"), axis("count", rangemode="tozero"), hovermode="x unified")
            ),
        },
        height_px=280,
        wide=True,
    )


def _first_tokens(plan: Plan, case: LossCase) -> Chart | Absent:
    title = "Time to first token around it"
    course = _course(case)
    known = [point.slowest_ttft_s for point in course if point.slowest_ttft_s]
    if not known:
        return Absent(title=title, why="No request reached its first token.")
    marks = Marks()
    marks.upright(0.0, "loss", colour=BAD)
    held = HeldAgainst.promises(plan.question.slo, "ttft", known, marks)
    slowest = [float("nan") if point.slowest_ttft_s is None else point.slowest_ttft_s * held.factor for point in course]
    return Chart(
        key="moment-ttft",
        title=title,
        note="The slowest of those who first asked within each two seconds, counted from their first attempt.",
        figure={
            "data": [line("slowest", _times(case), plain(slowest), SECOND, f"slowest: %{{y:.3~r}} {held.unit}")],
            "layout": marks.onto(layout(axis("seconds since the loss"), held.figure, hovermode="x unified")),
        },
        height_px=280,
        wide=True,
    )
