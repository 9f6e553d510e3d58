"""Rungs that send requests to a smaller model: which pool that is, and what it must not be."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from tokenfleet import catalog
from tokenfleet.app.pool_types import PoolSpec
from tokenfleet.app.scaling_types import LadderSpec, RungSpec
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.domain.errors import BadInput, Problem

EVERYBODY = "ladder"
"""The key of the ladder in front of all pools."""


def ladders_of(asked: Scenario) -> dict[str, LadderSpec]:
    """The ladders of a scenario with ``pools``, by their keys."""
    own = {f"pools.{name}.ladder": pool.ladder for name, pool in (asked.pools or {}).items()}
    return {where: ladder for where, ladder in {EVERYBODY: asked.ladder, **own}.items() if ladder is not None}


def smaller_pool(ladder: LadderSpec) -> str | None:
    """The pool to which a ladder sends requests; ``None`` where no rung does."""
    return next((rung.pool for _, rung in _rungs(ladder)), None)


def stand_ins(asked: Scenario) -> list[str]:
    """Pools that answer only those whom a rung sends there."""
    named = [smaller_pool(ladder) for ladder in ladders_of(asked).values()]
    return [name for name, pool in (asked.pools or {}).items() if name in named and pool.takes is None]


def with_models(asked: Scenario, ladder: LadderSpec) -> LadderSpec:
    """The ladder, its rung with the name of the model that the smaller pool serves."""
    rungs = [
        rung
        if rung.pool is None
        else rung.model_copy(update={"model": catalog.model(_pools(asked)[rung.pool].model or asked.model).name})
        for rung in ladder.rungs
    ]
    return ladder.model_copy(update={"rungs": rungs})


def check_smaller(asked: Scenario, chained: set[str]) -> None:
    """Refuse rungs that do not name a pool of a smaller model.

    Args:
        asked: The scenario.
        chained: Pools that are steps of the chain.

    Raises:
        BadInput: all of them at once.
    """
    problems = [
        problem
        for where, ladder in ladders_of(asked).items()
        for index, rung in _rungs(ladder)
        for problem in _problems(asked, f"{where}.rungs[{index}]", where, rung, chained)
    ]
    if problems:
        raise BadInput(problems)


def _problems(asked: Scenario, at: str, where: str, rung: RungSpec, chained: set[str]) -> Iterator[Problem]:
    pools = _pools(asked)
    if rung.model or rung.fleet is not None:
        key = "model" if rung.model else "fleet"
        yield Problem(f"{at}.{key}", "is of a scenario without pools", "write pool: the smaller model is one of them")
    if rung.pool is None:
        yield Problem(f"{at}.pool", "is missing: nobody says which pool answers", "name the pool of the smaller model")
        return
    target = pools.get(rung.pool)
    if target is None:
        near = get_close_matches(rung.pool, pools, n=1, cutoff=0.0)[0]
        yield Problem(f"{at}.pool", f'no pool is called "{rung.pool}"', f"nearest: {near}")
        return
    if rung.pool in chained:
        yield Problem(f"{at}.pool", f'"{rung.pool}" is a step of the chain', "name a pool that answers")
    if where == f"pools.{rung.pool}.ladder":
        yield Problem(f"{at}.pool", "is the pool itself", "name the pool of a smaller model")
    elif target.ladder is not None and smaller_pool(target.ladder) is not None:
        what = f'"{rung.pool}" sends requests on to a smaller model, too'
        yield Problem(f"{at}.pool", what, "one step down is enough: leave that rung out there")


def _rungs(ladder: LadderSpec) -> Iterator[tuple[int, RungSpec]]:
    return ((index, rung) for index, rung in enumerate(ladder.rungs) if rung.give_up == "smaller_model")


def _pools(asked: Scenario) -> Mapping[str, PoolSpec]:
    return asked.pools or {}
