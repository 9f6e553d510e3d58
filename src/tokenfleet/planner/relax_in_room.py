"""When no fleet keeps the promise in the zones and the quota that there are: what helps without more GPUs."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tokenfleet.domain.plan import PlanQuestion
from tokenfleet.planner.candidates import Failure
from tokenfleet.planner.changes import Case, Change, Graded, obstacles, plain
from tokenfleet.planner.redundancy import largest
from tokenfleet.planner.relax import fewest, nearest_failure, promises
from tokenfleet.planner.relaxing import Trials, Working
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.traffic import Traffic, at_load

_DEMAND_STEP: Final = 1.05
_MOST_STEPS: Final = 47
"""Down to a tenth: of a smaller part too few requests are left to speak of a p99."""


def is_in_room_asked(question: PlanQuestion, offered: Sequence[Working]) -> bool:
    """Whether GPUs are limited and nothing that is offered does with those."""
    limits = (question.redundancy.gpu_quota_count, *(zone.gpu_limit_count for zone in question.redundancy.zones))
    wider = (any(change.widens for change in one.changes) for one in offered)
    return any(limit is not None for limit in limits) and all(wider)


def changes_in_room(replays: Replays, trials: Trials) -> tuple[Working, ...]:
    """Changes after which a plan finds a fleet among the GPUs that may be had, as small as they can be.

    A looser promise, shorter prompts, more cache hits, or less demand; what else stands in the way is cleared with it.

    Args:
        replays: The door to the simulator.
        trials: What no fleet answers.

    Returns:
        Each with its fleet. Empty where nothing that is known to help does.
    """
    hindrances = obstacles(trials.case, of_losses=False)
    cleared = tuple(steps[-1] for steps in hindrances)
    case, missed = trials.after(cleared), trials.sought(cleared)
    traffic, judged = trials.cut(case.traffic), Replays.of(case.question, replays.replay)
    part = case.question.stands_for_count
    nearest = nearest_failure(judged, traffic, missed.found.failures, missed.screened.floored, part, room=case.question)
    graded = () if nearest is None else (*promises(judged, trials, cleared, nearest), *_less(judged, traffic, nearest))
    replays.count += judged.count
    looser = (trials.smallest(one, cleared) for one in graded)
    found = (fewest(trials, hindrances, one) for one in looser if one is not None)
    return tuple(replace(one, text=f"with the GPUs that may be had, {one.text}") for one in found)


def _less(replays: Replays, traffic: Traffic, nearest: Failure) -> tuple[Graded, ...]:
    """``serve 35 % of this demand``: the largest part that the same fleet carries, in steps of 5 %."""

    def keeps(left_count: int) -> bool:
        thin = at_load(traffic, _DEMAND_STEP ** (left_count - _MOST_STEPS))
        return thin is not None and replays.quick(thin, nearest.replica, nearest.count).kept

    if not keeps(1):
        return ()
    carried = largest(lambda count: count == 0 or keeps(count), _MOST_STEPS - 1)

    def at(step: int) -> Change:
        fraction = math.floor(100.0 * _DEMAND_STEP ** (carried + step - _MOST_STEPS)) / 100.0

        def made(case: Case) -> Case:
            return replace(case, traffic=at_load(case.traffic, fraction) or case.traffic)

        return plain(f"serve {fraction:.0%} of this demand", made)

    return (Graded(at, _MOST_STEPS - carried - 1, carried - 1),)
