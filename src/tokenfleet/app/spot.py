"""Spot machines are taken back within seconds: what somebody waits for is never planned on their price."""

from collections.abc import Iterable
from typing import Final

from tokenfleet.app.scenario_types import Scenario
from tokenfleet.domain.errors import BadInput

MEND: Final = "prices: {term: on_demand}, or promise only when work is done (done_within, done_by): that may be on spot"


def waited_for_on_spot(names: Iterable[str]) -> str:
    """What is wrong with spot for clauses of these names."""
    return f"spot machines are taken back within seconds, and somebody waits with a promise of {' and '.join(names)}"


def spot_for_online(asked: Scenario) -> str | None:
    """What is wrong with the term of the prices, in a sentence; ``None`` where nothing is."""
    waited_for = asked.slo.targets().latency
    if asked.prices.term != "spot" or not waited_for:
        return None
    return waited_for_on_spot(dict.fromkeys(target.name for target in waited_for))


def interruptible_for_online(asked: Scenario) -> str | None:
    """What is wrong with work that may be interrupted, in a sentence; ``None`` where nothing is."""
    everybody = [target.name for target in asked.slo.targets().latency if target.traffic_class is None]
    if not asked.buy.interruptible or not everybody or asked.batch is not None:
        return None
    names = " and ".join(dict.fromkeys(everybody))
    return f"{asked.buy.interruptible:.0%} of the work may go to spot, and every request has a promise of {names}"


def refuse_spot_for_online(asked: Scenario) -> None:
    """Lets only demand with deadlines alone onto spot.

    Raises:
        BadInput: prices are those of spot and a latency is promised.
    """
    wrong = spot_for_online(asked)
    if wrong is not None:
        raise BadInput.at("prices.term", wrong, MEND)
