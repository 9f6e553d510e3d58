"""What commands that look at one fleet leave out where a scenario asks to try pools, in a sentence."""

from tokenfleet import planner
from tokenfleet.app.compose import Composition, Teller
from tokenfleet.app.quantities import shown_usd
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.domain.plan import Sized


def one_fleet_note(composition: Composition, sized: Sized, teller: Teller, replay: planner.Replay | None = None) -> str:
    """That one fleet was sized, and what the pools cost that the scenario asks to try; empty where none cost less."""
    found = planner.priced_pools(composition.question, composition.trace, sized, progress=teller.step, replay=replay)
    if found is None:
        return ""
    pools = " and ".join(
        f"{each.replica_count} for {name}" for name, each in zip(found.names, found.fleets, strict=True)
    )
    share = 1.0 - found.price_usd_per_hour / sized.price_usd_per_hour
    return (
        f"sized as one fleet: pools ({pools} replicas, {shown_usd(found.price_usd_per_hour)}/h) would cost "
        f"{share:.0%} less than its {shown_usd(sized.price_usd_per_hour)}/h; tokenfleet plan weighs them"
    )


def one_fleet_alone(asked: Scenario) -> str:
    """That pools which the scenario asks to try are not compared; empty where it asks for none."""
    if not asked.also_try.pools and asked.disaggregated is None:
        return ""
    return (
        "One fleet is compared, not the pools that also_try or disaggregated ask for: each of those is scaled on its "
        "own, which tokenfleet simulate replays where the scenario names them under pools."
    )
