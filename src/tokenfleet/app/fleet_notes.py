"""What commands that look at one fleet leave out where a scenario asks to try pools, in a sentence."""

from tokenfleet.app.scenario_types import Scenario


def one_fleet_alone(asked: Scenario) -> str:
    """That pools which the scenario asks to try are not compared; empty where it asks for none."""
    if not asked.also_try.pools and asked.disaggregated is None:
        return ""
    return (
        "One fleet is compared, not the pools that also_try or disaggregated ask for: give a plan that buys pools "
        "(--plan) to compare ways to scale each of them."
    )
