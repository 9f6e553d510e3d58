"""What of a model lies on one rank, as groups of weights that are stored, read and multiplied alike."""

from fractions import Fraction
from math import ceil

from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import Attention, FeedForward, ModelArchitecture
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import Layout, Precision
from tokenfleet.performance.precision import PLAIN, Storage, part_storage

_VOCABULARY_PAD = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightGroup:
    """Weights of one rank that behave alike."""

    name: str
    stored_count: float
    """Parameters that lie in the memory of the fullest rank."""
    storage: Storage
    streamed: bool = True
    """Read whole in every step; ``False`` for tables that are looked up."""
    used_count: float = 0.0
    """Parameters that one token of the rank multiplies with."""
    miss_fraction: float = 0.0
    """Chance that a token leaves one expert alone; 0 for weights that every token visits."""

    @property
    def stored_bytes(self) -> float:
        """Memory of the group."""
        return self.stored_count * self.storage.bits / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One pipeline stage, where stages are not alike: its layers, and whether it embeds or samples."""

    layer_count: int
    first: bool = True
    last: bool = True


def stage_fraction(model: ModelArchitecture, layout: Layout, stage_layer_count: int | None = None) -> Fraction:
    """Share of the layers on the fullest pipeline stage: an even split, rounded up, unless stated."""
    layers = stage_layer_count or ceil(model.layer_count / layout.pipeline_parallel)
    return Fraction(layers, model.layer_count)


def weight_groups(
    model: ModelArchitecture,
    gpu: Gpu,
    layout: Layout,
    precision: Precision,
    *,
    stage: Stage | None = None,
) -> tuple[WeightGroup, ...]:
    """Weights of the fullest rank of a replica.

    Attention, dense and shared matrices split over ``tensor_parallel`` (keys and values replicate where there are
    more ranks than KV heads; the shared latent projection lies whole on every rank). Experts split over all ranks,
    whole experts under expert parallelism, so an uneven count leaves one rank with more. The vocabulary splits over
    ``tensor_parallel`` and pads to 64; tied embeddings are stored once. Data-parallel attention keeps whole attention
    on each of its ranks.

    Args:
        model: A complete architecture.
        gpu: Decides the precision of the multiplication.
        layout: Ranks of one replica.
        precision: Of the linear layers.
        stage: One pipeline stage; ``None`` for the fullest of an even split.

    Returns:
        Groups whose ``stored_bytes`` add up to the weights of the rank, in bytes.
    """
    share = float(stage_fraction(model, layout, stage.layer_count if stage else None))
    groups = []
    for entry in model.attention:
        count = entry.layer_count * _attention_count(entry, model.hidden_size, layout) * share
        storage = part_storage(model, gpu, precision, "attention")
        groups.append(WeightGroup(name="attention", stored_count=count, used_count=count, storage=storage))
    for block in model.feed_forward:
        groups.extend(_feed_forward_groups(model, block, gpu, layout, precision, share))
    groups.extend(_vocabulary_groups(model, gpu, layout, precision, stage))
    norms = (2 * model.layer_count * share + 1) * model.hidden_size
    groups.append(WeightGroup(name="norms", stored_count=norms, storage=PLAIN))
    if model.vision_parameter_count and (stage is None or stage.first):
        vision = model.vision_parameter_count / layout.tensor_parallel
        groups.append(WeightGroup(name="vision", stored_count=vision, storage=PLAIN, streamed=False))
    return tuple(group for group in groups if group.stored_count > 0)


def _attention_count(entry: Attention, hidden_size: int, layout: Layout) -> float:
    """Attention parameters of one layer on one rank."""
    tp = layout.tensor_parallel
    whole = hidden_size * entry.latent_size if entry.kind == "latent" else 0
    replicated = 0.0
    if entry.kind in {"full", "sliding", "chunked"} and tp > entry.kv_head_count:
        each = (entry.head_size + (0 if entry.shared_key_value else entry.value_head_size)) * hidden_size
        replicated = each * (1 - entry.kv_head_count / tp)
    return (entry.weight_count - whole) / tp + whole + replicated


def _feed_forward_groups(
    model: ModelArchitecture, block: FeedForward, gpu: Gpu, layout: Layout, precision: Precision, share: float
) -> list[WeightGroup]:
    tp = layout.tensor_parallel
    layers = block.layer_count * share
    router = block.expert_count * model.hidden_size if block.every_token_weight_count else 0
    count = layers * (block.every_token_weight_count - router) / tp
    storage = part_storage(model, gpu, precision, "feed_forward")
    groups = [
        WeightGroup(name="feed_forward", stored_count=count, used_count=count, storage=storage),
        WeightGroup(name="router", stored_count=layers * router, used_count=layers * router, storage=PLAIN),
    ]
    if block.expert_count:
        ranks = tp * layout.attention_data_parallel
        held = block.expert_count / ranks
        if layout.expert_parallel > 1:
            held = ceil(block.expert_count / layout.expert_parallel) * layout.expert_parallel / ranks
        one = layers * block.expert_weight_count
        groups.append(
            WeightGroup(
                name="experts",
                stored_count=one * held,
                used_count=one * block.experts_per_token_count / ranks,
                miss_fraction=1 - block.experts_per_token_count / block.expert_count,
                storage=part_storage(model, gpu, precision, "experts"),
            )
        )
    return groups


def _vocabulary_groups(
    model: ModelArchitecture, gpu: Gpu, layout: Layout, precision: Precision, stage: Stage | None
) -> tuple[WeightGroup, ...]:
    """Embedding and output head of one rank. Pipeline stages hold one of the two; tied ones are stored once.

    A last stage that is not the first keeps a tied table of its own.

    A tied head is read like any other, so its group is listed with no memory of its own by :func:`head_bytes`.
    """
    rows = ceil((model.vocab_size or 0) / _VOCABULARY_PAD) * _VOCABULARY_PAD
    table = rows * model.hidden_size / layout.tensor_parallel
    positions = model.position_parameter_count
    storage = part_storage(model, gpu, precision, "head")
    embedding = WeightGroup(name="embedding", stored_count=table + positions, storage=PLAIN, streamed=False)
    head = WeightGroup(name="head", stored_count=table, storage=storage)
    if stage is not None:
        lone_head = head if not (model.encoder_only or (model.tied_embeddings and stage.first)) else None
        return (*((embedding,) if stage.first else ()), *((lone_head,) if stage.last and lone_head else ()))
    if model.encoder_only or layout.pipeline_parallel > 1 or model.tied_embeddings:
        return (embedding,)
    return (embedding, head)


def head_bytes(model: ModelArchitecture, gpu: Gpu, layout: Layout, precision: Precision) -> float:
    """Bytes of the output head that one rank reads in a step, tied or not."""
    if model.encoder_only:
        return 0.0
    storage = PLAIN if model.tied_embeddings else part_storage(model, gpu, precision, "head")
    return (model.vocab_size or 0) * model.hidden_size / layout.tensor_parallel * storage.bits / 8
