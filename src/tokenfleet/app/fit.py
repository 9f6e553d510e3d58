"""Does one replica fit, what eats its memory, how many sequences run at which context, and what would fit instead."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tokenfleet import catalog, performance
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import Deployment, Layout, MemoryBudget

_TENSOR_PARALLEL: Final = (1, 2, 4, 8)
_IN_ONE_NODE: Final = tuple(Layout(tensor_parallel=size) for size in _TENSOR_PARALLEL)
_LAYOUTS: Final = (
    *_IN_ONE_NODE,
    Layout(tensor_parallel=8, pipeline_parallel=2),
    Layout(tensor_parallel=8, pipeline_parallel=4),
)
_MOST_ALTERNATIVES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceCount:
    """Sequences of one context that run together in a replica."""

    name: str
    """What this context is, for a person."""
    context_tokens: int
    sequence_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One deployment held against one gpu."""

    model: ModelArchitecture
    gpu: Gpu
    deployment: Deployment
    budget: MemoryBudget | None
    """``None`` when the gpu or the engine cannot run this at all, or facts of the model are missing."""
    missing: tuple[str, ...]
    """Facts of the model that nobody knows: weights and verdict stay unknown with them."""
    reasons: tuple[str, ...]
    context_tokens: int | None
    """The context the caller asked about, else the longest of the model; ``None`` when nobody knows it."""
    sequence_counts: tuple["SequenceCount", ...]
    """How many sequences run together in the replica, by context."""
    smallest: tuple[Deployment, ...]
    """What would fit when this does not, fewest gpus first."""

    @property
    def fits(self) -> bool | None:
        """Whether the replica starts and holds a sequence of the asked context; ``None`` when facts are missing."""
        if self.missing:
            return None
        return self.budget is not None and self.budget.fits

    @property
    def max_sequence_count(self) -> int | None:
        """Sequences that run together at the asked context; ``None`` when it does not fit."""
        asked = (each.sequence_count for each in self.sequence_counts if each.context_tokens == self.context_tokens)
        return next(asked, None)


def fit(
    model: ModelArchitecture,
    gpu: Gpu,
    deployment: Deployment,
    *,
    context_tokens: int | None,
    contexts: Mapping[str, int],
    with_residents: Callable[[Gpu, Deployment], Deployment],
) -> Fit:
    """Hold a deployment against its gpu.

    Args:
        model: What is served.
        gpu: Where.
        deployment: How. It must hold one sequence of ``context_tokens``, when those are given.
        context_tokens: Prompt plus output of one sequence; ``None`` for the longest the model takes.
        contexts: Further contexts to count sequences at, by name; those longer than the model takes are left out.
        with_residents: Adds to a deployment what lies on that gpu beside the model.
    """
    limited = replace(deployment, engine=replace(deployment.engine, context_limit_tokens=context_tokens))
    asked = with_residents(gpu, limited)
    missing = performance.missing_facts(model, deployment.precision)
    reasons = missing or performance.unsupported(model, gpu, asked)
    budget = None if reasons else performance.memory_budget(model, gpu, asked)
    fits_now = budget is not None and budget.fits
    return Fit(
        model=model,
        gpu=gpu,
        deployment=asked,
        budget=budget,
        missing=missing,
        reasons=reasons if budget is None else budget.reasons,
        context_tokens=context_tokens or model.max_context_tokens,
        sequence_counts=() if budget is None else _counts(model, asked, budget, context_tokens, contexts),
        smallest=() if fits_now or missing else alternatives(model, gpu, limited, with_residents),
    )


def _counts(
    model: ModelArchitecture,
    deployment: Deployment,
    budget: MemoryBudget,
    context_tokens: int | None,
    contexts: Mapping[str, int],
) -> tuple[SequenceCount, ...]:
    if not budget.fits or model.encoder_only:
        return ()
    longest = model.max_context_tokens
    named = {size: name for name, size in contexts.items() if longest is None or size <= longest}
    if longest is not None:
        named[longest] = "longest of the model"
    if context_tokens is not None:
        named[context_tokens] = "asked"
    return tuple(
        SequenceCount(name=name, context_tokens=size, sequence_count=performance.sequences_at(budget, deployment, size))
        for size, name in sorted(named.items())
    )


def alternatives(
    model: ModelArchitecture,
    gpu: Gpu,
    deployment: Deployment,
    with_residents: Callable[[Gpu, Deployment], Deployment],
) -> tuple[Deployment, ...]:
    """What would fit instead: more of the same gpu first, then other gpus that somebody rents out."""

    def first(part: Gpu, layouts: Sequence[Layout]) -> Deployment | None:
        tried = (with_residents(part, each) for each in _tried(part, replace(deployment, gpu=part.name), layouts))
        return next((each for each in tried if _is_fitting(model, part, each)), None)

    same = first(gpu, _LAYOUTS)
    others = [
        other_fit
        for other in catalog.gpus()
        if other.name != gpu.name and catalog.reference_price(other.name) is not None
        if (other_fit := first(other, _IN_ONE_NODE)) is not None
    ]
    others.sort(key=_price_usd_per_hour)
    fitting = [each for each in (same, *others) if each is not None]
    return tuple(fitting[:_MOST_ALTERNATIVES])


def _price_usd_per_hour(deployment: Deployment) -> float:
    price = catalog.reference_price(deployment.gpu)
    if price is None:
        return float("inf")
    return price.price.price_usd_per_gpu_hour * deployment.layout.gpu_count


def _tried(gpu: Gpu, deployment: Deployment, layouts: Sequence[Layout]) -> Iterator[Deployment]:
    defaults = catalog.engine(deployment.engine.name, gpu=gpu)
    engine = replace(defaults, context_limit_tokens=deployment.engine.context_limit_tokens)
    for layout in layouts:
        if layout.tensor_parallel <= gpu.gpus_per_node_count:
            yield replace(deployment, layout=layout, engine=engine)


def _is_fitting(model: ModelArchitecture, gpu: Gpu, deployment: Deployment) -> bool:
    # Memory is known for pipeline stages whose step time is not: what bars the stages does not bar the fit.
    within_node = replace(deployment, layout=replace(deployment.layout, pipeline_parallel=1))
    return (
        not performance.unsupported(model, gpu, within_node) and performance.memory_budget(model, gpu, deployment).fits
    )


def fit_document(found: Fit) -> dict[str, object]:
    """The answer for machines. Bytes are per gpu, tokens and sequences per replica; ``null`` is unknown."""
    budget, deployment = found.budget, found.deployment
    growth = performance.kv_bytes_per_token(found.model, deployment.layout, deployment.kv_precision)
    return {
        "fits": found.fits,
        "too_close_to_call": budget.too_close_to_call if budget else None,
        "model": found.model.name,
        "gpu": found.gpu.name,
        "gpu_count": deployment.layout.gpu_count,
        "tensor_parallel": deployment.layout.tensor_parallel,
        "precision": deployment.precision,
        "kv_dtype": deployment.kv_precision,
        "engine": deployment.engine.name,
        "context_tokens": found.context_tokens,
        "weights_bytes": budget.weights_bytes if budget else None,
        "kv_bytes_per_token": growth,
        "kv_fixed_bytes_per_sequence": budget.kv_fixed_bytes_per_sequence if budget else None,
        "kv_capacity_bytes": budget.kv_capacity_bytes if budget else None,
        "kv_capacity_tokens": budget.kv_capacity_tokens if budget else None,
        "max_sequence_count": None if found.fits is None else found.max_sequence_count if found.fits else 0,
        "total_bytes": found.gpu.memory_bytes,
        "terms_bytes": dict(budget.terms_bytes) if budget else {},
        "sequences": [
            {"name": each.name, "context_tokens": each.context_tokens, "sequence_count": each.sequence_count}
            for each in found.sequence_counts
        ],
        "smallest_that_fits": [_alternative(each) for each in found.smallest],
        "reasons": list(found.reasons),
        "notes": list(found.model.notes),
    }


def _alternative(deployment: Deployment) -> dict[str, object]:
    return {
        "gpu": deployment.gpu,
        "gpu_count": deployment.layout.gpu_count,
        "tensor_parallel": deployment.layout.tensor_parallel,
        "pipeline_parallel": deployment.layout.pipeline_parallel,
        "precision": deployment.precision,
    }
