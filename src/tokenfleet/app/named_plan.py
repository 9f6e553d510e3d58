"""The plan of a scenario that names its pools: the counts that ``size`` finds, with all that a plan says of a fleet."""

from dataclasses import replace

from tokenfleet import planner
from tokenfleet.app.compose import Composition, Teller, finished
from tokenfleet.app.named_bought import buy_named
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.domain.plan import Plan


def plan_named(asked: Scenario, teller: Teller, replay: planner.Replay | None = None) -> tuple[Plan, Composition]:
    """Plan pools that the scenario names: their counts, and what a plan says of them.

    Args:
        asked: A scenario with ``pools``.
        teller: Told what is being done.
        replay: Runs the replay of one pool instead of the simulator.

    Raises:
        BadInput: as for :func:`tokenfleet.app.named_bought.buy_named`.
    """
    bought = buy_named(asked, teller, replay)
    found, question = bought.found, bought.question
    composition = Composition(
        question=question,
        trace=found.trials.text,
        workload=found.described,
        resolved=found.resolved,
        valid_days=asked.valid_days,
        assumptions=found.assumptions,
        compare=asked.compare,
    )
    if bought.system is None:
        # What has no price is not tried.
        unpriced = any(each.kind == "price_missing" for each in bought.reasons)
        made = planner.without_pools(
            replace(question, candidates=()) if unpriced else question, bought.traffic, bought.reasons
        )
    else:
        made = planner.plan_of_named(
            question, bought.traffic, bought.system, bought.parts, progress=teller.step, replay=replay
        )
    made = replace(made, stages=found.stages, replayed_count=made.replayed_count + found.trials.tally.replayed_count)
    return finished(made, composition), composition
