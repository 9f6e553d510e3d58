"""``spike`` of a scenario that names its pools: an event and bursts on all of them together."""

from collections.abc import Iterator

from tokenfleet import planner
from tokenfleet.app.compose import Teller, demand_of
from tokenfleet.app.named_bought import NamedBought, buy_named, refuse_unplannable
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.spike import Spike, SpikeOptions, event_asked
from tokenfleet.app.spike_pools import PoolsSpiked, pools_spiked


def spike_named(
    asked: Scenario, options: SpikeOptions, teller: Teller, replay: planner.Replay | None = None
) -> Spike | PoolsSpiked:
    """Sizes the pools that a scenario names for usual times, then asks them for the event and for bursts.

    Args:
        asked: A scenario with ``pools``.
        options: The event, where one is known.
        teller: Told what is being done.
        replay: Runs the replay of one pool while the usual counts are sought.

    Raises:
        BadInput: as for a plan; an event outside of the demand, or said in two ways.
    """
    refuse_unplannable(asked)
    teller.say("reading the demand" if asked.workload.trace else "drawing the demand")
    demand = demand_of(asked)
    event = event_asked(demand[0], options)
    bought = buy_named(asked, teller, replay, demand)
    if bought.system is None:
        reasons = tuple(reason.text for reason in bought.reasons)
        return Spike(usual=None, why_not=reasons, ready=None, known=None, bursts=())
    return pools_spiked(
        bought.question,
        bought.traffic.trace,
        bought.system,
        {part.name: part.who for part in bought.parts},
        event,
        teller,
        bursting=bought.traffic.trace,
        cold_start_s=asked.cold_start,
        ladder=None,
        notes=(*_notes(asked), *(() if event is None else _caps_left(bought))),
    )


def _caps_left(bought: NamedBought) -> Iterator[str]:
    """Caps of single pools, which an event is not sized by: it is all pools at once that are asked for it."""
    capped = [part.name for part in bought.parts if part.question.utilization_cap_fraction is not None]
    if capped and bought.question.utilization_cap_fraction is None:
        yield f"The utilization_cap of {' and '.join(capped)} holds in usual times; an event may fill it more."


def _notes(asked: Scenario) -> Iterator[str]:
    specs = (asked.pools or {}).values()
    if asked.ladder is not None or asked.admission is not None or any(spec.ladder is not None for spec in specs):
        yield (
            "Nothing is given up and nobody is turned away here: what ladders and bounds of queues of named pools do, "
            "tokenfleet simulate shows."
        )
