"""What a person puts on a gpu beside the model: adapters, a draft, images, other processes, room left free."""

from dataclasses import replace
from typing import Annotated

from pydantic import model_validator

from tokenfleet import catalog, performance
from tokenfleet.app.checkpoint_files import measured_bytes
from tokenfleet.app.quantities import parse_bytes
from tokenfleet.app.scenario_words import Count, DraftName, Strict, Tokens, problem, read_by
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.replica import PREDICTION_LAYER, Deployment, MemoryFacts

Size = Annotated[int, read_by(parse_bytes)]


class MemorySpec(Strict):
    """What lies on each gpu beside the model; the defaults stand for nothing."""

    adapters: Count | None = None
    """LoRA adapters that stay in GPU memory together."""
    adapter_rank: Count | None = None
    """Their rank; the largest, where they differ."""
    draft: DraftName | None = None
    """Draft model of speculative decoding, or ``mtp`` for one prediction layer of the model's own kind."""
    image_tokens: Tokens | None = None
    """Tokens of images and video in the worst prompt the engine must take; left out, one step's budget."""
    neighbours: Size | None = None
    """Held by other processes on the same GPU, such as ``10GiB``."""
    safety: Size | None = None
    """Left free on purpose inside the engine's share, such as ``2GiB``."""

    @model_validator(mode="after")
    def _adapters_have_a_rank(self) -> "MemorySpec":
        if (self.adapters is None) != (self.adapter_rank is None):
            raise problem("adapters need a number and a rank", "give adapters and adapter_rank")
        return self


def with_memory(
    deployment: Deployment, model: ModelArchitecture, gpu: Gpu, spec: MemorySpec, *, place: str = ""
) -> Deployment:
    """The deployment with what lies beside the model in its memory.

    Args:
        deployment: Layout and precisions, which the draft follows.
        model: What it serves.
        gpu: Its part.
        spec: As a person wrote it.
        place: Path of the model, beside which its files may lie; a name has none.

    Returns:
        The same deployment with its memory facts.
    """
    facts = MemoryFacts(
        checkpoint_bytes=measured_bytes(place) if place else None,
        encoder_tokens=spec.image_tokens,
        adapter_count=spec.adapters or 0,
        adapter_rank_count=spec.adapter_rank or 0,
        neighbour_bytes=spec.neighbours or 0,
        safety_bytes=spec.safety or 0,
    )
    own = replace(deployment, memory=facts)
    if spec.draft is None:
        return own
    draft = performance.prediction_layer(model) if spec.draft == PREDICTION_LAYER else catalog.model(spec.draft)
    speculation = deployment.engine.speculation
    if speculation is not None:
        drafting = replace(deployment.engine, speculation=replace(speculation, drafter=spec.draft))
        own = replace(own, engine=drafting)
    return replace(own, memory=performance.draft_facts(draft, gpu, own))
