"""Ladders in front of pools: which pools each watches, and who climbs it."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from tokenfleet.app.pools_smaller import with_models
from tokenfleet.app.scaling_question import check_before_pools, ladder_of, without_effect
from tokenfleet.app.scaling_types import LadderSpec
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.world_question import clients_of
from tokenfleet.control import Ladder
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.stages import Gate, Pools
from tokenfleet.domain.trace import Bools, Trace
from tokenfleet.simulator.controlling import Controller

ALL_POOLS: Final = "all pools"
"""The door in front of everything; no pool can be called so."""
_TICK_S: Final = 15.0


@dataclass(slots=True)
class Climber:
    """Makes somebody new to climb a ladder in each replay."""

    ladder: Ladder
    last: Controller = field(init=False)
    """Who climbed it in the last one, with the log of the steps."""

    def __call__(self) -> Controller:
        """Somebody new."""
        self.last = Controller(None, self.ladder)
        return self.last


def gate_of(
    asked: Scenario,
    spec: LadderSpec,
    name: str,
    trace: Trace,
    takes: Bools,
    watched: tuple[str, ...],
    batch: Bools | None,
) -> tuple[Gate, tuple[str, ...]]:
    """The door of a ladder, and what it cannot do to this traffic.

    Args:
        asked: The scenario.
        spec: The ladder.
        name: The pool that it stands before, or :data:`ALL_POOLS`.
        trace: The traffic.
        takes: Requests that come to it.
        watched: Pools whose pressure moves it.
        batch: Which requests are batch; ``None``: none is.

    Raises:
        BadInput: a ladder that cannot be climbed, or pools that are looked at at different times.
    """
    where = "ladder" if name == ALL_POOLS else f"pools.{name}.ladder"
    ladder = ladder_of(with_models(asked, spec), where)
    check_before_pools(ladder, where)
    gate = Gate(
        name=name,
        takes=takes,
        watched=watched,
        controllers=Climber(ladder),
        tick_s=_tick_s(asked, where),
        batch=batch,
        clients=clients_of(asked),
        session_idle_s=spec.session_idle,
    )
    return gate, without_effect(ladder, trace, batch)


def _tick_s(asked: Scenario, where: str) -> float:
    """When ladders look: as autoscalers do."""
    specs = (asked.pools or {}).values()
    phases = [phase for spec in specs for phase in (spec, spec.prefill, spec.decode) if phase is not None]
    ticks_s = {phase.autoscaling.tick for phase in phases if phase.autoscaling is not None}
    if len(ticks_s) > 1:
        what = f"pools are looked at every {' and '.join(f'{each:g} s' for each in sorted(ticks_s))}"
        raise BadInput.at(where, what, "give all autoscaling the same tick")
    return next(iter(ticks_s), _TICK_S)


def queue_limit_of(asked: Scenario, pool: str) -> int | None:
    """The bound of the queue that a ladder sets for a pool: its own, or that of all; ``None`` without one."""
    own = (asked.pools or {}).get(pool)
    ladder = asked.ladder if own is None or own.ladder is None else own.ladder
    return None if ladder is None else ladder.queue_limit


def gates_of(pools: Pools) -> Iterator[Gate]:
    """The gates among the stages."""
    return (stage for stage in pools.stages if isinstance(stage, Gate))


def climbers_of(pools: Pools) -> dict[str, Controller]:
    """Who climbed each ladder in the last replay, by the name of its gate."""
    return {gate.name: gate.controllers.last for gate in gates_of(pools) if isinstance(gate.controllers, Climber)}


def without_gates(pools: Pools) -> Pools:
    """The same pools, with nobody at the door."""
    return replace(pools, stages=tuple(stage for stage in pools.stages if not isinstance(stage, Gate)))
