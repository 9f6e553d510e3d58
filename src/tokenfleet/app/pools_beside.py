"""Pools of a scenario that stand on the same GPUs: who stands where, and what share of the memory each has."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches

from tokenfleet import performance
from tokenfleet.app.pool_types import PoolSpec
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import Deployment

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Berth:
    """The place of a pool on GPUs that others stand on."""

    first: int
    """Number of the GPUs of its first replica."""
    share_fraction: float
    """Of the memory, that its engine may take."""
    others_fraction: float
    """Of the memory, that the engines beside it may take."""


def hosts_of(asked: Scenario) -> dict[str, list[str]]:
    """The pools on whose GPUs others stand, each with all that stand there, itself first.

    Raises:
        BadInput: everything that shared GPUs cannot have.
    """
    specs = asked.pools or {}
    hosts: dict[str, list[str]] = {}
    for name, spec in specs.items():
        if spec.beside is not None:
            hosts.setdefault(spec.beside, [spec.beside]).append(name)
    problems = [*_place_problems(specs)]
    standing = {*hosts, *(name for names in hosts.values() for name in names)}
    for name, spec in specs.items():
        if spec.memory_share is not None and name not in standing:
            what = "says what share of GPUs it takes, and nobody shares them"
            problems.append(Problem(f"pools.{name}.memory_share", what, "write engine.memory_utilization instead"))
    if hosts and not problems:
        problems += [*_share_problems(specs, hosts), *_system_problems(asked, specs)]
    if problems:
        raise BadInput(problems)
    return hosts


def standing_specs(asked: Scenario, hosts: Mapping[str, list[str]]) -> dict[str, PoolSpec]:
    """The pools, those beside others with the GPUs and the count of these where they say nothing."""
    specs = dict(asked.pools or {})
    for host, names in hosts.items():
        for name in names[1:]:
            keys = ("gpu", "replicas", "tensor_parallel")
            given = {key: getattr(specs[host], key) for key in keys if getattr(specs[name], key) is None}
            specs[name] = specs[name].model_copy(update=given)
    return specs


def berths_of(specs: Mapping[str, PoolSpec], hosts: Mapping[str, list[str]]) -> dict[str, Berth]:
    """The place of each pool that shares GPUs."""
    found, first = {}, 0
    for host, names in hosts.items():
        shares = {name: specs[name].memory_share or 0.0 for name in names}
        for name, share in shares.items():
            found[name] = Berth(first=first, share_fraction=share, others_fraction=sum(shares.values()) - share)
        first += specs[host].replicas or 1
    return found


def on_shared(deployment: Deployment, gpu: Gpu, berth: Berth) -> Deployment:
    """The deployment with its share of the memory, the rest taken by others.

    SGLang takes its fraction of what is free when it starts, which is here after all others; vLLM of the whole.
    """
    engine, facts = deployment.engine, deployment.memory
    share = berth.share_fraction
    if performance.memory_convention(engine.name) == "before_load":
        share = min(share / (1.0 - berth.others_fraction), 1.0)
    beside = round(berth.others_fraction * gpu.memory_bytes)
    return replace(
        deployment,
        engine=replace(engine, memory_utilization_fraction=share),
        memory=replace(facts, neighbour_bytes=facts.neighbour_bytes + beside),
    )


def at_berth(fleet: Fleet, berth: Berth | None) -> Fleet:
    """The fleet on its shared GPUs, if it has any."""
    if berth is None:
        return fleet
    return replace(fleet, groups=tuple(replace(group, berth=berth.first) for group in fleet.groups))


def check_layouts(fleets: Mapping[str, Fleet], hosts: Mapping[str, list[str]]) -> None:
    """Refuse replicas on more or fewer GPUs than those they stand beside.

    Raises:
        BadInput: all of them at once.
    """
    sizes = {name: fleet.groups[0].replica.deployment.layout.gpu_count for name, fleet in fleets.items()}
    problems = []
    for host, names in hosts.items():
        for name in names[1:]:
            if sizes[name] != sizes[host]:
                what = f"{sizes[name]} GPUs a replica, and {host} has {sizes[host]}: those that share stand on as many"
                mend = f"write tensor_parallel: {max(sizes[name], sizes[host])} in both"
                problems.append(Problem(f"pools.{name}.tensor_parallel", what, mend))
    if problems:
        raise BadInput(problems)


def sharing_notes(hosts: Mapping[str, list[str]]) -> list[str]:
    """What is taken for granted where pools share GPUs."""
    return [
        f"{', '.join(names)} share GPUs by time slices (no MPS, no MIG), replayed as one step at a time, "
        "first come first served; their engines start one after the other, each with its own share of the memory."
        for names in hosts.values()
    ]


def _place_problems(specs: Mapping[str, PoolSpec]) -> Iterator[Problem]:
    """Who stands beside whom."""
    for name, spec in specs.items():
        where = f"pools.{name}.beside"
        if spec.beside is None:
            continue
        if spec.beside not in specs or spec.beside == name:
            near = get_close_matches(spec.beside, [each for each in specs if each != name], n=1, cutoff=0.0)
            mend = f"nearest: {near[0]}" if near else "name another pool"
            yield Problem(where, f'no other pool is called "{spec.beside}"', mend)
        elif specs[spec.beside].beside is not None:
            what = f"{spec.beside} stands beside {specs[spec.beside].beside} itself"
            yield Problem(where, what, f"write beside: {specs[spec.beside].beside}")


def _share_problems(specs: Mapping[str, PoolSpec], hosts: Mapping[str, list[str]]) -> Iterator[Problem]:
    """What each may take of GPUs and memory."""
    for host, names in hosts.items():
        for name in names:
            if specs[name].memory_share is None:
                what = "is not written, and the pool shares its GPUs"
                yield Problem(f"pools.{name}.memory_share", what, "write what its engine may take, such as 40%")
        total = sum(specs[name].memory_share or 0.0 for name in names)
        if total > 1.0 + _ROUNDING:
            what = f"{', '.join(names)} may take {total:.0%} of the memory of the same GPUs"
            yield Problem(f"pools.{host}.memory_share", what, "shares that come to 100% at most")
        for name in names[1:]:
            guest, own = specs[name], specs[host]
            if guest.gpu is not None and guest.gpu != own.gpu:
                yield Problem(f"pools.{name}.gpu", f"{guest.gpu}, and it stands beside {host}", "leave it out")
            if (guest.replicas or 1) > (own.replicas or 1):
                what = f"{guest.replicas} replicas beside {own.replicas or 1} of {host}"
                yield Problem(f"pools.{name}.replicas", what, "at most as many: one on each GPU")


def _system_problems(asked: Scenario, specs: Mapping[str, PoolSpec]) -> Iterator[Problem]:
    """What is not replayed on one clock with the others yet."""
    mend = "leave it out, or give each pool GPUs of its own"
    for name, spec in specs.items():
        for key in ("autoscaling", "window", "ladder", "prefill"):
            if getattr(spec, key) is not None:
                yield Problem(f"pools.{name}.{key}", "beside pools that share GPUs", mend)
        engine = spec.engine or asked.engine.name
        if spec.memory_share is not None and performance.memory_convention(engine) not in ("total", "before_load"):
            what = f"{engine} takes its share of what is left after it has loaded"
            yield Problem(f"pools.{name}.engine", what, "take vllm or sglang on shared GPUs")
    if asked.ladder is not None:
        yield Problem("ladder", "beside pools that share GPUs", mend)
    if any(event.what == "rollout" for event in asked.events):
        yield Problem("events", "a rollout beside pools that share GPUs", mend)
    routers = {spec.router or asked.router for spec in specs.values()}
    if len(routers) > 1:
        yield Problem("pools", f"{len(routers)} routers, and some pools share GPUs", "write router for the scenario")
