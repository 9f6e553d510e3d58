"""The pools of a scenario with the replicas that a plan gave them, for whoever replays that plan."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tokenfleet import catalog
from tokenfleet.app.phase_types import PhaseSpec
from tokenfleet.app.pool_types import PoolSpec
from tokenfleet.app.pools_question import IMAGES, PoolSystem, pool_system
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.simulate_question import plan_of
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.trace import Trace

_PHASES = ("prefill", "decode")
_SETTINGS = {
    "replica_count": "replicas",
    "max_batched_tokens": "max_batched_tokens",
    "max_sequence_count": "max_sequence_count",
}
"""Keys of a scenario by those of a plan."""


def as_planned(asked: Scenario, path: Path) -> Scenario:
    """The scenario with the counts and the engine settings of its plan.

    Args:
        asked: Names its pools.
        path: ``plan.json`` of the same pools, or its folder.

    Raises:
        BadInput: the file is no plan, is for another model, or is of other pools.
    """
    listed = plan_of(path, catalog.model(asked.model)).get("pools")
    found = {str(pool["name"]): _settings(pool) for pool in listed} if isinstance(listed, list) else {}
    names = set(_names(asked))
    if set(found) != names:
        has = ", ".join(sorted(found)) or "no pools"
        what = f"is of {has}, and the scenario names {', '.join(sorted(names))}"
        raise BadInput.at(str(path), what, "give the plan of this scenario, or plan it again")
    pools = {name: _planned(name, spec, found) for name, spec in (asked.pools or {}).items()}
    changed = asked.model_copy(update={"pools": pools})
    if IMAGES not in found or changed.images is None or changed.images.encoder is None:
        return changed
    encoder = changed.images.encoder.model_copy(update=found[IMAGES])
    return changed.model_copy(update={"images": changed.images.model_copy(update={"encoder": encoder})})


def system_as_planned(asked: Scenario, trace: Trace, path: Path) -> PoolSystem:
    """The pools of a scenario that stand where its plan lets them stand.

    Args:
        asked: As :func:`as_planned` gives it.
        trace: Its demand, text alone.
        path: The plan.

    Raises:
        BadInput: as for :func:`tokenfleet.app.pools_question.pool_system`.
    """
    system, left = pool_system(asked, trace), carrying_counts(asked, path)
    return replace(system, named=tuple(replace(each, left_count=left[each.name]) for each in system.named))


def carrying_counts(asked: Scenario, path: Path) -> dict[str, int]:
    """Replicas of each pool that its plan counts on whatever is lost, by what the pool is called in the plan.

    Args:
        asked: Names its pools.
        path: As for :func:`as_planned`, which has read it.
    """
    listed = plan_of(path, catalog.model(asked.model)).get("pools")
    groups = {str(pool["name"]): pool["fleet"][0] for pool in listed} if isinstance(listed, list) else {}
    return {name: group["carrying_replica_count"] for name, group in groups.items()}


def _settings(pool: Mapping[str, object]) -> dict[str, object]:
    fleet = pool["fleet"]
    group = fleet[0] if isinstance(fleet, list) else {}
    return {key: group[planned] for planned, key in _SETTINGS.items()}


def _names(asked: Scenario) -> list[str]:
    """What its pools are called in a plan."""
    specs = asked.pools or {}
    own = [[f"{name}-{phase}" for phase in _PHASES] if spec.is_apart else [name] for name, spec in specs.items()]
    tower = [IMAGES] if asked.images is not None and asked.images.encoder is not None else []
    return [*(name for names in own for name in names), *tower]


def _planned(name: str, spec: PoolSpec, found: Mapping[str, Mapping[str, object]]) -> PhaseSpec:
    if not spec.is_apart:
        return spec.model_copy(update=found[name])
    phases = {phase: getattr(spec, phase).model_copy(update=found[f"{name}-{phase}"]) for phase in _PHASES}
    return spec.model_copy(update=phases)
