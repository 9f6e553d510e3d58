"""Spot machines are taken back within seconds: what somebody waits for is never planned on their price."""

from typing import Final

from tokenfleet.app.scenario_types import Scenario
from tokenfleet.domain.errors import BadInput

MEND: Final = "prices: {term: on_demand}, or promise only when work is done (done_within, done_by): that may be on spot"


def spot_for_online(asked: Scenario) -> str | None:
    """What is wrong with the term of the prices, in a sentence; ``None`` where nothing is."""
    waited_for = asked.slo.targets().latency
    if asked.prices.term != "spot" or not waited_for:
        return None
    names = " and ".join(dict.fromkeys(target.name for target in waited_for))
    return f"spot machines are taken back within seconds, and {names} is promised to somebody who waits"


def refuse_spot_for_online(asked: Scenario) -> None:
    """Lets only demand with deadlines alone onto spot.

    Raises:
        BadInput: prices are those of spot and a latency is promised.
    """
    wrong = spot_for_online(asked)
    if wrong is not None:
        raise BadInput.at("prices.term", wrong, MEND)
