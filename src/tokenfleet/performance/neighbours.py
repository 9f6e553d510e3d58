"""Engines that share one gpu: in which order they start, and how much KV cache each gets."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import Deployment, MemoryBudget
from tokenfleet.performance.memory import memory_budget

_MOST_TENANTS = 5
"""All orders are tried, 120 at most."""
_NOT_THE_ENGINES = frozenset({"reserve", "neighbours"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One engine that wants a part of the gpu."""

    name: str
    model: ModelArchitecture
    deployment: Deployment


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGpu:
    """How engines share a gpu when each starts after the one before it serves."""

    order: tuple[str, ...]
    """Names in the order to start them."""
    budgets: tuple[MemoryBudget, ...]
    """In that order."""
    kv_bytes: tuple[int, ...]
    """KV cache to pin for each, in that order, so that no later start can change it."""
    together_kv_bytes: tuple[int, ...]
    """What each would be left with, at worst, if all started at once; negative means that it does not start."""

    @property
    def fits(self) -> bool:
        """Whether every engine starts in this order."""
        return all(budget.fits for budget in self.budgets)


def share_gpu(gpu: Gpu, tenants: Sequence[Tenant]) -> SharedGpu:
    """The order of starting that leaves the poorest engine the most KV cache.

    Fractions that add up to less than one are no evidence of fit. Engines measure the whole device while they profile,
    so one that starts beside another is charged for what the other loads meanwhile: ``together_kv_bytes`` takes from
    each the weights and workspaces of all others.

    Args:
        gpu: The shared part.
        tenants: One to five engines, each on one rank.

    Returns:
        The best order, with absolute bytes.

    Raises:
        BadInput: No tenant, too many, or names that repeat.
    """
    names = [tenant.name for tenant in tenants]
    if not 1 <= len(names) <= _MOST_TENANTS or len(set(names)) != len(names):
        raise BadInput.at("tenants", f"{len(names)} engines cannot be ordered", f"give 1 to {_MOST_TENANTS} by name")
    orders = [_started(gpu, order) for order in permutations(tenants)]
    return max(orders, key=lambda shared: (shared.fits, min(shared.kv_bytes), sum(shared.kv_bytes)))


def _started(gpu: Gpu, order: Sequence[Tenant]) -> SharedGpu:
    budgets: list[MemoryBudget] = []
    held = 0
    for tenant in order:
        facts = replace(tenant.deployment.memory, neighbour_bytes=tenant.deployment.memory.neighbour_bytes + held)
        budget = memory_budget(tenant.model, gpu, replace(tenant.deployment, memory=facts))
        budgets.append(budget)
        held += sum(size for name, size in budget.terms_bytes.items() if name not in _NOT_THE_ENGINES)
    pools = tuple(budget.kv_capacity_bytes for budget in budgets)
    loaded = tuple(
        sum(size for name, size in budget.terms_bytes.items() if name not in {*_NOT_THE_ENGINES, "kv_cache"})
        for budget in budgets
    )
    return SharedGpu(
        order=tuple(tenant.name for tenant in order),
        budgets=tuple(budgets),
        kv_bytes=pools,
        together_kv_bytes=together_bytes(pools, loaded),
    )


def together_bytes(pool_bytes: Sequence[int], loaded_bytes: Sequence[int]) -> tuple[int, ...]:
    """What is left of each pool when every engine is charged for what all others load while it profiles.

    Args:
        pool_bytes: KV cache of each engine started alone.
        loaded_bytes: Weights and workspaces of each.

    Returns:
        Bytes, negative where an engine would not start: the worst case of a start at the same time.
    """
    everything = sum(loaded_bytes)
    return tuple(pool - (everything - own) for pool, own in zip(pool_bytes, loaded_bytes, strict=True))


def pools_of_free(total_bytes: float, weights_bytes: Sequence[float], fractions: Sequence[float]) -> tuple[float, ...]:
    """KV caches of engines that take a fraction of what is free after their weights, in their order of starting.

    Args:
        total_bytes: Memory they share.
        weights_bytes: Of each engine, in the order they start.
        fractions: Of each engine, 0 to 1.

    Returns:
        Bytes of each; the order matters, because the first takes its fraction of the most.
    """
    left, pools = float(total_bytes), []
    for weights, fraction in zip(weights_bytes, fractions, strict=True):
        pool = max(left - weights, 0.0) * fraction
        pools.append(pool)
        left -= weights + pool
    return tuple(pools)
