"""Does one replica fit, what eats its memory, how many sequences run at which context, and what would fit instead."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tokenfleet import catalog, performance
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import ModelArchitecture
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
    chosen_layout: bool
    """Nobody asked for a layout: it is the smallest that fits, or the largest tried when none does."""
    budget: MemoryBudget | None
    """``None`` when the gpu or the engine cannot run this at all."""
    reasons: tuple[str, ...]
    context_tokens: int | None
    """The context the caller asked about, else the longest of the model; ``None`` when nobody knows it."""
    sequence_counts: tuple["SequenceCount", ...]
    """How many sequences run together in the replica, by context."""
    smallest: tuple[Deployment, ...]
    """What would fit when this does not, fewest gpus first."""

    @property
    def fits(self) -> bool:
        """Whether the replica starts."""
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
    layout_is_open: bool,
    context_tokens: int | None,
    contexts: Mapping[str, int],
) -> Fit:
    """Hold a deployment against its gpu.

    Args:
        model: What is served.
        gpu: Where.
        deployment: How; its layout is replaced by the smallest that fits when ``layout_is_open``.
        layout_is_open: Nobody asked for a layout.
        context_tokens: Prompt plus output of one sequence; ``None`` for the longest the model takes.
        contexts: Further contexts to count sequences at, by name; those longer than the model takes are left out.
    """
    shown = smallest_layout(model, gpu, deployment) if layout_is_open else deployment
    reasons = performance.unsupported(model, gpu, shown)
    budget = None if reasons else performance.memory_budget(model, gpu, shown)
    counts = () if budget is None else _counts(model, shown, budget, context_tokens, contexts)
    fits_now = budget is not None and budget.fits
    return Fit(
        model=model,
        gpu=gpu,
        deployment=shown,
        chosen_layout=layout_is_open,
        budget=budget,
        reasons=reasons if budget is None else budget.reasons,
        context_tokens=context_tokens or model.max_context_tokens,
        sequence_counts=counts,
        smallest=() if fits_now else alternatives(model, gpu, shown),
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


def smallest_layout(model: ModelArchitecture, gpu: Gpu, deployment: Deployment) -> Deployment:
    """The deployment on the fewest gpus of one node that fits; the widest one tried when none does."""
    reach = gpu.gpus_per_node_count
    tried = [replace(deployment, layout=layout) for layout in _IN_ONE_NODE if layout.gpu_count <= reach]
    runs = [each for each in tried if not performance.unsupported(model, gpu, each)]
    fitting = (each for each in runs if performance.memory_budget(model, gpu, each).fits)
    return next(fitting, (runs or tried)[-1])


def alternatives(model: ModelArchitecture, gpu: Gpu, deployment: Deployment) -> tuple[Deployment, ...]:
    """What would fit instead: more of the same gpu first, then other gpus that somebody rents out."""
    same = _first_fitting(model, gpu, deployment, _LAYOUTS)
    others = [
        other_fit
        for other in catalog.gpus()
        if other.name != gpu.name and catalog.reference_price(other.name) is not None
        if (other_fit := _first_fitting(model, other, replace(deployment, gpu=other.name), _IN_ONE_NODE)) is not None
    ]
    others.sort(key=_price_usd_per_hour)
    fitting = [each for each in (same, *others) if each is not None]
    return tuple(fitting[:_MOST_ALTERNATIVES])


def _price_usd_per_hour(deployment: Deployment) -> float:
    price = catalog.reference_price(deployment.gpu)
    if price is None:
        return float("inf")
    return price.price.price_usd_per_gpu_hour * deployment.layout.gpu_count


def _first_fitting(
    model: ModelArchitecture, gpu: Gpu, deployment: Deployment, layouts: Sequence[Layout]
) -> Deployment | None:
    engine = catalog.engine(deployment.engine.name, gpu=gpu) if gpu.name != deployment.gpu else deployment.engine
    reach = gpu.gpus_per_node_count
    for layout in layouts:
        if layout.tensor_parallel > reach:
            continue
        tried = replace(deployment, layout=layout, engine=engine)
        # Memory is known for pipeline stages whose step time is not: what bars the stages does not bar the fit.
        within_node = replace(tried, layout=replace(layout, pipeline_parallel=1))
        if not performance.unsupported(model, gpu, within_node) and performance.memory_budget(model, gpu, tried).fits:
            return tried
    return None


def fit_document(found: Fit) -> dict[str, object]:
    """The answer for machines. Bytes are per gpu, tokens and sequences per replica; ``null`` is unknown."""
    budget, deployment = found.budget, found.deployment
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
        "kv_bytes_per_token": budget.kv_bytes_per_token if budget else None,
        "kv_fixed_bytes_per_sequence": budget.kv_fixed_bytes_per_sequence if budget else None,
        "kv_capacity_bytes": budget.kv_capacity_bytes if budget else None,
        "kv_capacity_tokens": budget.kv_capacity_tokens if budget else None,
        "max_sequence_count": found.max_sequence_count if found.fits else 0,
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
