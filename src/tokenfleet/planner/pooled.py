"""The plan: one fleet for everybody, or several pools where they are asked for and cost less."""

from collections.abc import Callable
from dataclasses import replace

from tokenfleet import simulator
from tokenfleet.domain.plan import Plan, PlanQuestion
from tokenfleet.domain.trace import Trace
from tokenfleet.planner.answer import looked_for
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
    one = looked_for(question, trace, progress=progress, replay=replay)
    if not question.splits and question.apart is None:
        made = one.told()
    else:
        from tokenfleet.planner.pooling import Buyer
        from tokenfleet.planner.splits import split_trials

        trials = split_trials(question, trace, one.plan.chosen, progress=progress, replay=replay)
        tried = replace(one.plan, splits=trials)
        made = Buyer(tried, question, trace, progress, replay or simulator.replay).cheapest()
        if not made.fleets:
            # What would help one fleet is worth a search only where pools do not keep the promise either.
            told = one.told()
            more = told.replayed_count - one.plan.replayed_count
            made = replace(made, reasons=told.reasons, replayed_count=made.replayed_count + more)
    return made if clock is None or start_s is None else replace(made, wall_s=clock() - start_s)
