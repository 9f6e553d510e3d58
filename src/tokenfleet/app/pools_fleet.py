"""The fleet of one pool, from what a scenario says about it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from tokenfleet import catalog, performance
from tokenfleet.app.compose import precisions, tensor_parallels, why_not
from tokenfleet.app.engine_settings import refuse_short_steps, with_overrides
from tokenfleet.app.layouts import layouts_to_try
from tokenfleet.app.memory_spec import with_memory
from tokenfleet.app.phase_types import PhaseSpec
from tokenfleet.app.pool_types import ScaledPhaseSpec
from tokenfleet.app.pools_beside import Berth, at_berth, on_shared
from tokenfleet.app.ranks import sized, with_fitting_slots
from tokenfleet.app.scaling_types import AutoscalingSpec
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.plan import Does, Reason
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import Deployment, EngineSettings, Layout, Precision, ReplicaPhysics

_LONGEST_TOKENS: Final = 2**17
"""One block holds any sequence of a model that keeps no KV."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPool:
    """A pool with what a person calls it and what it does."""

    name: str
    model: ModelArchitecture
    fleet: Fleet
    does: Does
    behind: str
    """The pool of the scenario that it is, or is a part of."""
    beside: str | None = None
    """The pool on whose GPUs it stands; ``None``: it has its own."""
    cap_fraction: float | None = None
    """Share of the rate they sustain that its carrying replicas may take at the peak; ``None``: all of it."""
    scaling: AutoscalingSpec | None = None
    """How its replicas are scaled; its fleet then has as many as there may ever be."""
    left_count: int | None = None
    """Replicas that its plan counts on whatever is lost; ``None``: it is of no plan."""
    stands: Mapping[str, int] | None = None
    """Its replicas in each zone, by the name of it, as its plan has them; ``None``: it does not say."""

    @property
    def keeps_kv(self) -> bool:
        """Whether its KV memory says anything: encoders and image towers keep none."""
        return not self.model.encoder_only and self.does != "sees"

    @property
    def replica(self) -> ReplicaPhysics:
        """Its one kind of replica."""
        return self.fleet.groups[0].replica


def phase_fleet(
    asked: Scenario,
    spec: PhaseSpec,
    model: ModelArchitecture,
    where: str,
    *,
    tower: bool = False,
    berth: Berth | None = None,
) -> Fleet:
    """Equal replicas as a pool asks for them.

    Args:
        asked: The scenario, whose gpu, engine and precision count where the pool names none.
        spec: What the pool says.
        model: What it serves.
        where: The key of the pool.
        tower: Run the image tower alone.
        berth: Its place on GPUs that others stand on; ``None``: it has its own.

    Raises:
        BadInput: the gpu is open, or the replica cannot run.
    """
    gpu = catalog.gpu(_gpu_name(asked, spec, where))
    one = Deployment(
        model=model.name,
        gpu=gpu.name,
        layout=Layout(),
        precision=_precision(asked, spec, model),
        kv_precision=spec.kv_dtype or asked.kv_dtype[0],
        engine=_engine(asked, spec, model, gpu, where),
    )
    deployments = [
        with_memory(_laid_out(one, layout, asked, spec), model, gpu, asked.memory)
        for layout in _layouts(asked, spec, model, gpu, tower=tower)
    ]
    deployments = deployments if berth is None else [on_shared(each, gpu, berth) for each in deployments]
    replica, reasons = _first_that_runs(model, gpu, tuple(deployments), tower=tower)
    if replica is None:
        raise BadInput(Problem(f"{where}.gpu", reason.text, reason.relax or "take another gpu") for reason in reasons)
    count = spec.replicas or 1
    if isinstance(spec, ScaledPhaseSpec) and spec.autoscaling is not None:
        count = spec.autoscaling.max
    group = ReplicaGroup(replica=replica, replica_count=count)
    return at_berth(Fleet(groups=(group,), router=spec.router or asked.router, scrape_s=asked.scrape), berth)


@lru_cache(maxsize=256)
def _first_that_runs(
    model: ModelArchitecture, gpu: Gpu, deployments: tuple[Deployment, ...], *, tower: bool
) -> tuple[ReplicaPhysics | None, tuple[Reason, ...]]:
    """The first deployment that fits; or why the last does not. Each part of a demand asks for the same ones again."""
    found = next((each for each in deployments if not why_not(model, gpu, each, tower=tower)), deployments[-1])
    reasons = why_not(model, gpu, found, tower=tower)
    if reasons:
        return None, reasons
    physics = performance.tower_physics if tower else performance.replica_physics
    replica = physics(model, gpu, found)
    return (replace(replica, kv_block_tokens=_LONGEST_TOKENS) if model.encoder_only else replica), ()


def merged(shared: PhaseSpec, own: ScaledPhaseSpec) -> ScaledPhaseSpec:
    """What a phase says, and for the rest what its pool says for both."""
    left_open = [key for key in PhaseSpec.model_fields if getattr(own, key) is None]
    return own.model_copy(update={key: getattr(shared, key) for key in left_open})


def _gpu_name(asked: Scenario, spec: PhaseSpec, where: str) -> str:
    if spec.gpu is not None:
        return spec.gpu
    if len(asked.gpus) == 1:
        return asked.gpus[0]
    raise BadInput.at(f"{where}.gpu", f"is open: the scenario names {', '.join(asked.gpus)}", "name one")


def _layouts(asked: Scenario, spec: PhaseSpec, model: ModelArchitecture, gpu: Gpu, *, tower: bool) -> Sequence[Layout]:
    if tower:
        return [Layout()]
    sizes = [spec.tensor_parallel] if spec.tensor_parallel else sorted(tensor_parallels(gpu, asked))
    if _is_own(asked, model):
        return layouts_to_try(model, gpu, asked, sizes)
    return [Layout(tensor_parallel=size) for size in sizes]


def _laid_out(one: Deployment, layout: Layout, asked: Scenario, spec: PhaseSpec) -> Deployment:
    fixed = spec.max_batched_tokens is not None or asked.engine.max_batched_tokens is not None
    # A person who writes a budget writes the replica's; the engine's own default is that of one rank.
    return replace(one, layout=layout, engine=one.engine if fixed else sized(one.engine, layout))


def _is_own(asked: Scenario, model: ModelArchitecture) -> bool:
    """Precisions and layouts of the scenario are for its own model; a reranker beside it may know none of them."""
    return model.name == catalog.model(asked.model).name


def _precision(asked: Scenario, spec: PhaseSpec, model: ModelArchitecture) -> Precision:
    if spec.precision is not None:
        return spec.precision
    return precisions(model, asked.precision if _is_own(asked, model) else None)[0]


def _engine(asked: Scenario, spec: PhaseSpec, model: ModelArchitecture, gpu: Gpu, where: str) -> EngineSettings:
    engine = with_overrides(catalog.engine(spec.engine or asked.engine.name, gpu=gpu), asked.engine, model)
    engine = replace(
        engine,
        max_batched_tokens=spec.max_batched_tokens or engine.max_batched_tokens,
        max_sequence_count=spec.max_sequence_count or engine.max_sequence_count,
        prefix_caching=engine.prefix_caching and not model.encoder_only,
        # Nothing is generated, so nothing is drafted.
        speculation=None if model.encoder_only else engine.speculation,
    )
    refuse_short_steps(engine, model, f"{where}.max_batched_tokens" if spec.max_batched_tokens else "")
    return with_fitting_slots(engine)
