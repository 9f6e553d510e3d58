"""What a plan buys, for commands that go on with it: one fleet, or pools where the scenario asks to try some."""

from tokenfleet import planner
from tokenfleet.app.compose import Composition, Teller
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.plan import Plan, Sized
from tokenfleet.domain.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bought:
    """One fleet, a plan of several pools, or neither."""

    sized: Sized | None = None
    fleet: Fleet | None = None
    """All of its replicas, behind its router."""
    pools: Plan | None = None
    why_not: tuple[str, ...] = ()
    """Why nothing keeps the promise."""


def bought(composition: Composition, teller: Teller, replay: planner.Replay | None = None) -> Bought:
    """The fleet that the cheapest plan has; or all of the plan, where it is one of pools."""
    question, trace = composition.question, composition.trace
    if question.splits or question.apart is not None:
        made = planner.plan(question, trace, progress=teller.step, replay=replay)
        if made.pools:
            return Bought(pools=made)
        return Bought(sized=made.chosen, fleet=made.fleet, why_not=tuple(reason.text for reason in made.reasons))
    found = planner.cheapest(question, trace, progress=teller.step, replay=replay)
    if found.sized is None:
        return Bought(why_not=tuple(reason.text for reason in found.reasons))
    group = ReplicaGroup(replica=found.sized.replica, replica_count=found.sized.replica_count)
    return Bought(sized=found.sized, fleet=Fleet(groups=(group,), router=found.router))
