"""The plan: one fleet for everybody, or several pools where they are asked for and cost less."""

from collections.abc import Callable
from dataclasses import replace

from tokenfleet import simulator
from tokenfleet.domain.plan import Plan, PlanQuestion
from tokenfleet.domain.trace import Trace
from tokenfleet.planner.answer import one_fleet
from tokenfleet.planner.progress import Progress
from tokenfleet.planner.spread import Replay


def plan(
    question: PlanQuestion,
    trace: Trace,
    *,
    progress: Progress | None = None,
    clock: Callable[[], float] | None = None,
    replay: Replay | None = None,
) -> Plan:
    """Finds what keeps the promise for the least money, with its spare replicas gone.

    One fleet of equal replicas, see :func:`tokenfleet.planner.answer.one_fleet`; or, where the question asks for them,
    pools for some of the requests each, or one that prefills and one that decodes. The same question and trace give
    the same plan.

    Args:
        question: Candidates, prices, promise, spare count, and which pools to try.
        trace: The demand, planned for as it is.
        progress: Told what is being tried.
        clock: Seconds that only rise, such as ``time.perf_counter``, to say how long the plan took.
        replay: Runs replays instead of the simulator, such as a cache in front of it.

    Returns:
        The plan, of one fleet (``chosen``) or of several ``pools``; neither, with reasons, when nothing keeps the
        promise.

    Raises:
        BadInput: an empty trace, or a router nobody knows.
    """
    start_s = clock() if clock else None
    made = one_fleet(question, trace, progress=progress, replay=replay)
    if question.splits or question.apart is not None:
        from tokenfleet.planner.pooling import Buyer
        from tokenfleet.planner.splits import split_trials

        trials = split_trials(question, trace, made.chosen, progress=progress, replay=replay)
        made = Buyer(replace(made, splits=trials), question, trace, progress, replay or simulator.replay).cheapest()
    return made if clock is None or start_s is None else replace(made, wall_s=clock() - start_s)
