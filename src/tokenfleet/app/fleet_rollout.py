"""A new version in one fleet: its replicas beside the old ones."""

from dataclasses import replace

from tokenfleet import catalog, performance
from tokenfleet.app.compose import why_not
from tokenfleet.app.engine_settings import refuse_short_steps, with_overrides
from tokenfleet.app.memory_spec import with_memory
from tokenfleet.app.phase_types import PhaseSpec
from tokenfleet.app.pools_rollout import NUMBERED, check_some_stay, ready_after, rollout_in, steps_of
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.world import Happening


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """A fleet whose replicas are replaced while it serves."""

    fleet: Fleet
    """Old groups, and the new ones behind them."""
    happenings: tuple[Happening, ...] = ()
    absent: tuple[int, ...] = ()
    """The new replicas, which are not there at first."""
    notes: tuple[str, ...] = ()


def versions_of(asked: Scenario, fleet: Fleet) -> Versions:
    """The fleet with the new version that the scenario rolls out; as it is without one.

    Raises:
        BadInput: several rollouts, one that leaves nobody serving, or a version that cannot run.
    """
    found = rollout_in(asked, None)
    if found is None:
        return Versions(fleet=fleet)
    where, event = found
    count = sum(group.replica_count for group in fleet.groups)
    check_some_stay(asked, count, "the fleet")
    new = tuple(
        group if event.to is None else _changed(asked, group, event.to, f"{where}.to") for group in fleet.groups
    )
    ready_s, note = max(ready_after(asked, replace(fleet, groups=(group,))) for group in new)
    both = replace(fleet, groups=(*fleet.groups, *new))
    return Versions(
        fleet=both,
        happenings=steps_of(asked, both, None, event.at, ready_s),
        absent=tuple(range(count, 2 * count)),
        notes=(f"{note} {NUMBERED}",),
    )


def _changed(asked: Scenario, group: ReplicaGroup, to: PhaseSpec, where: str) -> ReplicaGroup:
    """As many replicas as before, different in what ``to`` names."""
    old = group.replica.deployment
    model, gpu = catalog.model(asked.model), catalog.gpu(to.gpu or old.gpu)
    engine = old.engine
    if to.engine or to.gpu:
        engine = with_overrides(catalog.engine(to.engine or engine.name, gpu=gpu), asked.engine, model)
    engine = replace(
        engine,
        max_batched_tokens=to.max_batched_tokens or engine.max_batched_tokens,
        max_sequence_count=to.max_sequence_count or engine.max_sequence_count,
    )
    refuse_short_steps(engine, model, f"{where}.max_batched_tokens" if to.max_batched_tokens else "")
    new = replace(
        old,
        gpu=gpu.name,
        layout=replace(old.layout, tensor_parallel=to.tensor_parallel or old.layout.tensor_parallel),
        precision=to.precision or old.precision,
        kv_precision=to.kv_dtype or old.kv_precision,
        engine=engine,
    )
    new = with_memory(new, model, gpu, asked.memory)
    reasons = why_not(model, gpu, new)
    if reasons:
        raise BadInput(Problem(where, reason.text, reason.relax or "take another gpu") for reason in reasons)
    return replace(group, replica=performance.replica_physics(model, gpu, new))
