"""The only composition root: from a scenario to a question a planner can answer, and on to the answer.

Here names become facts: the catalog gives gpus, models, engines and prices; workload gives the demand; performance
says which candidates fit. Everything below works on resolved data.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from itertools import product
from typing import TYPE_CHECKING, Protocol

from tokenfleet import catalog, performance, workload
from tokenfleet.app.alternatives import alternatives, users_are_known
from tokenfleet.app.compare_types import CompareSpec
from tokenfleet.app.demand_words import about_demand
from tokenfleet.app.digests import file_digests
from tokenfleet.app.engine_settings import with_overrides
from tokenfleet.app.layouts import engines_to_try, layouts_beyond, layouts_to_try
from tokenfleet.app.memory_spec import with_memory
from tokenfleet.app.obtaining import obtainable
from tokenfleet.app.plan_question import question_of
from tokenfleet.app.provenance import resolved_scenario
from tokenfleet.app.scaling_types import AutoscalingSpec
from tokenfleet.app.scenario_types import Scenario, WorkloadSource
from tokenfleet.app.spot import refuse_spot_for_online
from tokenfleet.app.taking import in_classes
from tokenfleet.domain.apart import ApartQuestion
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.gpu import Gpu, GpuPrice, Link
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.plan import Plan, PlannedPool, PlanQuestion, Reason, Rejected
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import Deployment, Layout, MemoryBudget, Precision, ReplicaPhysics
from tokenfleet.domain.trace import Quality, Trace, Workload
from tokenfleet.planner import Recall, anew
from tokenfleet.planner.progress import PlanProgress

if TYPE_CHECKING:
    from tokenfleet.app.replay_cache import ReplayCache
    from tokenfleet.planner import Replay

_TENSOR_PARALLEL = (1, 2, 4, 8)
_KEYS = {
    "duration_s": "workload.duration",
    "mean_rate_per_s": "workload.mean_rate",
    "mean_rate": "workload.mean_rate",
    "peak_rate": "workload.peak_rate",
    "peak_to_mean": "workload.peak_to_mean",
    "interarrival_cv": "workload.interarrival_cv",
    "growth": "workload.growth",
    "files": "workload.trace",
    "format": "workload.format",
    "zone": "workload.zone",
}
"""Keys of the scenario by the names that workload gives to the same things."""


class Teller(Protocol):
    """Whoever shows a person what is going on."""

    def say(self, text: str) -> None:
        """What is being done now."""

    def step(self, step: PlanProgress, /) -> None:
        """What the search is trying now."""

    def announce(self, text: str) -> None:
        """Something rare that takes long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """A scenario with every name looked up: what the planner is asked, and about which demand."""

    question: PlanQuestion
    trace: Trace
    workload: Workload
    resolved: dict[str, object]
    """The scenario with its defaults, versions and digests, for every result."""
    valid_days: int
    assumptions: tuple[str, ...]
    """What resolving the scenario took for granted."""
    compare: CompareSpec = field(default_factory=CompareSpec)
    """What the plan is held against."""
    scaling: AutoscalingSpec | None = None
    """How the fleet may grow."""


def compose(scenario: Scenario, teller: Teller, recall: Recall = anew) -> Composition:
    """Resolve a scenario.

    Args:
        scenario: Valid by type; its names are known.
        teller: Told in words what is being done.
        recall: What earlier commands worked out.

    Raises:
        BadInput: the demand cannot be read or drawn, the model cannot be read, or online traffic would be on spot.
    """
    _refuse_named_pools(scenario)
    refuse_spot_for_online(scenario)
    model = catalog.model(scenario.model)
    must_generate(model)
    teller.say("reading the demand" if scenario.workload.trace else "drawing the demand")
    trace, described = demand_of(scenario, recall)
    users_are_known(scenario.compare, trace)
    teller.say("working out what fits in memory")
    gpus = tuple(catalog.gpu(name) for name in dict.fromkeys(scenario.gpus))
    candidates, rejected = sort_out(model, gpus, scenario, recall)
    asked = tuple(gpu.name for gpu in gpus), dict(scenario.prices)
    prices = recall("prices", asked, lambda: tuple(price for gpu in gpus for price in gpu_prices(gpu, scenario)))
    asked_of_all = question_of(scenario, model, candidates=candidates, rejected=rejected, prices=prices)
    question = replace(
        asked_of_all,
        apart=apart_question(scenario, gpus),
        routers=tuple(dict.fromkeys(scenario.also_try.routers)),
        splits=tuple(dict.fromkeys(scenario.also_try.pools)),
        vary_step_tokens=steps_are_free(scenario),
    )
    resolved = resolved_scenario(scenario, model=model, gpus=gpus, prices=prices, trace=trace)
    return Composition(
        question=question,
        trace=trace,
        workload=described,
        resolved=resolved,
        valid_days=scenario.valid_days,
        assumptions=about_demand(scenario, trace),
        compare=scenario.compare,
        scaling=scenario.autoscaling,
    )


def _refuse_named_pools(scenario: Scenario) -> None:
    if scenario.pools is not None:
        mend = "tokenfleet plan plans them, simulate replays them; leave pools out for one fleet"
        raise BadInput.at("pools", "are named here, and this command is about a fleet that a plan chooses", mend)


def apart_question(scenario: Scenario, gpus: tuple[Gpu, ...]) -> ApartQuestion | None:
    """Prefill and decode apart, where the scenario wants it tried: each gpu with its own end of the link.

    Raises:
        BadInput: none of the gpus has the link.
    """
    asked = scenario.disaggregated
    if asked is None:
        return None
    links: dict[str, Link] = {}
    problems: list[Problem] = []
    for gpu in gpus:
        try:
            links[gpu.name] = catalog.link(asked.link, gpu=gpu, where="disaggregated.link")
        except BadInput as error:
            problems += error.problems
    if not links:
        raise BadInput(problems)
    return ApartQuestion(
        links=links,
        first_token=asked.first_token or ("decode" if scenario.engine.name.startswith("vllm") else "prefill"),
        overlap=asked.overlap,
    )


def answer(composition: Composition, teller: Teller, replay: "Replay | None" = None) -> Plan:
    """Plan what a composition asks; what the composition itself took for granted joins the plan's assumptions.

    ``replay`` runs replays instead of the simulator, such as those of
    :func:`tokenfleet.app.spreading.spread_replays`; its kernel is its own business.
    """
    from tokenfleet import planner, simulator

    if replay is None:
        simulator.warm_up(announce=teller.announce)
    plan = planner.plan(composition.question, composition.trace, progress=teller.step, replay=replay)
    return finished(plan, composition)


def finished(plan: Plan, composition: Composition) -> Plan:
    """A plan with what the composition took for granted, and with what else would do the work."""
    return replace(
        plan,
        # What pools take for granted when they are counted, a plan of them says too.
        assumptions=tuple(dict.fromkeys((*composition.assumptions, *plan.assumptions, *_about_weights(plan)))),
        alternatives=alternatives(plan, composition.trace, composition.compare),
        obtainable=obtainable(plan, composition.scaling),
        pools=tuple(_told(pool) for pool in plan.pools),
    )


def _told(pool: PlannedPool) -> PlannedPool:
    """A pool with what its plan alone does not know; whoever stands beside another needs no GPUs."""
    if any(sized.beside is not None for sized in pool.plan.fleets):
        return pool
    return replace(pool, plan=replace(pool.plan, obtainable=obtainable(pool.plan, None)))


def kept_replays(teller: Teller, *, cache: bool) -> "ReplayCache | None":
    """Replays that are kept on disk and read again; ``None`` where that is not wanted or the disk refuses."""
    if not cache:
        return None
    from tokenfleet.app.replay_cache import ReplayCache, cache_folder

    kept = ReplayCache(cache_folder(), announce=teller.announce)
    if kept.open():
        return kept
    teller.announce(f"{cache_folder()} cannot be written: replays are not kept for the next plan")
    return None


def kept_work(kept: "ReplayCache | None", teller: Teller) -> Recall:
    """What else was worked out before, beside kept replays; everything anew without them."""
    if kept is None:
        return anew
    from tokenfleet.app.kept_work import KeptWork

    return KeptWork(kept, teller.announce)


def _about_weights(plan: Plan) -> tuple[str, ...]:
    precisions = dict.fromkeys(sized.replica.deployment.precision for sized in plan.fleets)
    smaller = [precision for precision in precisions if precision not in ("bf16", "checkpoint")]
    said = (
        f"{each} weights answer as well as the checkpoint's own: measure that before you promise." for each in smaller
    )
    others = {pool.plan.question.model.name: pool.plan.question.model for pool in plan.pools}
    others.pop(plan.question.model.name, None)
    notes = (f"{name}: {note}" for name, model in others.items() for note in model.notes)
    return (*plan.question.model.notes, *notes, *said)


def demand_of(asked: Scenario, recall: Recall = anew) -> tuple[Trace, Workload]:
    """The demand of a scenario with each request in its classes, and its profile.

    Raises:
        BadInput: as :func:`demand`, or a class takes in nobody.
    """
    source = asked.workload
    files = file_digests([*(source.trace or ()), *([] if source.profile is None else [source.profile])])
    question = repr(source), asked.seed, files
    known = anew if files is None else recall
    trace, described = known("demand", question, lambda: demand(source, asked.seed))
    return in_classes(trace, asked), described


def demand(source: WorkloadSource, seed: int) -> tuple[Trace, Workload]:
    """The demand a scenario names, grown as it asks, with its profile.

    Raises:
        BadInput: the log cannot be read, holds no usable request, or the draw is impossible.
    """
    try:
        trace, quality = _today(source, seed)
        if source.growth != 1.0:
            trace = workload.grow(trace, source.growth)
        if source.max_output is not None:
            trace = replace(trace, output_tokens=trace.output_tokens.clip(max=source.max_output))
        if source.max_input is not None:
            trace = workload.cut_inputs(trace, source.max_input)
        if source.max_request is not None:
            if source.max_request < 2:
                what = f"{source.max_request} tokens hold no prompt and its answer"
                raise BadInput.at("workload.max_request", what, "give 2 or more")
            trace = workload.cut_requests(trace, source.max_request)
    except BadInput as error:
        raise BadInput(_as_keys(each) for each in error.problems) from None
    return trace, workload.profile(trace, quality)


def _as_keys(problem: Problem) -> Problem:
    """A problem of reading or drawing in the words of a scenario: ``workload: {time_unit: s}``."""
    where = f"workload.{problem.where}" if problem.where.startswith("columns.") else problem.where
    mend = re.sub(r"say (columns: \{.*?\}|(?:time_unit|zone|zero_output): \w+)", r"say workload: {\1}", problem.mend)
    return replace(problem, where=_KEYS.get(where, where), mend=mend)


def _today(source: WorkloadSource, seed: int) -> tuple[Trace, Quality | None]:
    if source.trace is not None:
        logged, quality = workload.read_trace(
            source.trace,
            format=source.format,
            columns=source.columns,
            zone=source.zone,
            time_unit=source.time_unit,
            cached=source.cached,
            zero_output=source.zero_output,
            unfinished=source.unfinished,
        )
        return (workload.repeated_history(logged) if source.sessions == "repeat" else logged), quality
    if source.preset is not None:
        drawn = workload.synthesize(
            source.preset,
            peak_rate_per_s=source.peak_rate,
            mean_rate_per_s=source.mean_rate,
            duration_s=source.duration,
            seed=seed,
        )
        return drawn, None
    if source.profile is not None:
        return _like(source, source.profile, seed), None
    return _drawn(source, seed), None


def _like(source: WorkloadSource, path: str, seed: int) -> Trace:
    known = workload.load_profile(path)
    factor = 1.0
    if source.mean_rate is not None:
        factor = source.mean_rate / known.mean_rate_per_s
    elif source.peak_rate is not None:
        factor = source.peak_rate / known.peak_minute_rate_per_s
    return workload.synthesize_like(known, rate_factor=factor, duration_s=source.duration, seed=seed)


def _drawn(source: WorkloadSource, seed: int) -> Trace:
    if source.lengths is None:
        raise BadInput.at("workload", "names no source of demand", "give trace, preset, profile or lengths")
    return workload.draw_trace(
        workload.Lengths.parse(source.lengths.input, where="workload.lengths.input"),
        workload.Lengths.parse(source.lengths.output, where="workload.lengths.output"),
        mean_rate_per_s=source.mean_rate or (source.peak_rate or 0.0) / source.peak_to_mean,
        peak_to_mean=source.peak_to_mean,
        interarrival_cv=source.interarrival_cv,
        duration_s=source.duration,
        seed=seed,
    )


def must_generate(model: ModelArchitecture) -> None:
    """Replay knows engines that generate; an encoder has no decode, no KV cache and other batching.

    Raises:
        BadInput: the model is an encoder.
    """
    if model.encoder_only:
        what = f"{model.name} is an encoder, and one fleet of a scenario is for models that generate tokens"
        mend = "name it under pools, such as pools: {embed: {gpu: l4}}: simulate and size serve it there"
        raise BadInput.at("model", what, mend)


def steps_are_free(scenario: Scenario) -> bool:
    """Whether the planner may try smaller steps: nobody has said how large a step or how many sequences."""
    asked = (scenario.engine, scenario.vary)
    return all(each.max_batched_tokens is None and each.max_sequence_count is None for each in asked)


def deployments(
    model: ModelArchitecture, gpu: Gpu, scenario: Scenario, layouts: Sequence[Layout] | None = None
) -> Iterator[Deployment]:
    """Every way to run one replica of the model on this gpu that the scenario lets us try, or in some layouts only."""
    engine = with_overrides(catalog.engine(scenario.engine.name, gpu=gpu), scenario.engine, model)
    if layouts is None:
        layouts = layouts_to_try(model, gpu, scenario, tensor_parallels(gpu, scenario))
    for precision, kv_precision, layout in product(
        precisions(model, scenario.precision), dict.fromkeys(scenario.kv_dtype), layouts
    ):
        for setting in engines_to_try(engine, layout, scenario, model):
            deployment = Deployment(
                model=model.name,
                gpu=gpu.name,
                layout=layout,
                precision=precision,
                kv_precision=kv_precision,
                engine=setting,
            )
            yield with_memory(deployment, model, gpu, scenario.memory, place=scenario.model)


def precisions(model: ModelArchitecture, asked: list[Precision] | None) -> tuple[Precision, ...]:
    """Weight precisions to try: those asked for, else the checkpoint's own, or bf16 and fp8 for a plain one."""
    if asked is not None:
        return tuple(dict.fromkeys(asked))
    return ("checkpoint",) if model.quantization is not None else ("bf16", "fp8")


def tensor_parallels(gpu: Gpu, scenario: Scenario) -> tuple[int, ...]:
    """GPUs per replica to try: those asked for, else powers of two inside one node."""
    if scenario.tensor_parallel is not None:
        return tuple(dict.fromkeys(scenario.tensor_parallel))
    return tuple(size for size in _TENSOR_PARALLEL if size <= gpu.gpus_per_node_count)


def sort_out(
    model: ModelArchitecture, gpus: tuple[Gpu, ...], scenario: Scenario, recall: Recall = anew
) -> tuple[tuple[ReplicaPhysics, ...], tuple[Rejected, ...]]:
    """Candidates that can run at all, and those that cannot with their reasons."""
    candidates: list[ReplicaPhysics] = []
    rejected: list[Rejected] = []

    def sorted_(gpu: Gpu, layouts: Sequence[Layout] | None = None) -> tuple[ReplicaPhysics, ...]:
        tried = tuple(deployments(model, gpu, scenario, layouts))
        running, out = recall("replicas", (model, gpu, tried), lambda: _sorted(model, gpu, tried))
        candidates.extend(running)
        rejected.extend(out)
        return running

    for gpu in gpus:
        if not sorted_(gpu):
            sorted_(gpu, layouts_beyond(scenario, tensor_parallels(gpu, scenario)))
    return tuple(candidates), tuple(rejected)


def _sorted(
    model: ModelArchitecture, gpu: Gpu, tried: Iterable[Deployment]
) -> tuple[tuple[ReplicaPhysics, ...], tuple[Rejected, ...]]:
    running: list[ReplicaPhysics] = []
    out: list[Rejected] = []
    for deployment in tried:
        missing = performance.unsupported(model, gpu, deployment)
        if missing:
            out.append(_rejected(deployment, _unsupported(model, gpu, deployment, missing)))
            continue
        physics = performance.replica_physics(model, gpu, deployment)
        if physics.memory.fits:
            running.append(physics)
        else:
            out.append(_rejected(deployment, _no_room(physics.memory)))
    return tuple(running), tuple(out)


def _rejected(deployment: Deployment, reasons: tuple[Reason, ...]) -> Rejected:
    return Rejected(
        gpu=deployment.gpu,
        precision=deployment.precision,
        tensor_parallel=deployment.layout.tensor_parallel,
        reasons=reasons,
    )


def why_not(model: ModelArchitecture, gpu: Gpu, deployment: Deployment, *, tower: bool = False) -> tuple[Reason, ...]:
    """Reasons, known before any replay, why a deployment, or its image tower alone, cannot run; none when it can."""
    missing = performance.unsupported(model, gpu, deployment)
    if missing:
        return _unsupported(model, gpu, deployment, missing)
    budget = (performance.tower_budget if tower else performance.memory_budget)(model, gpu, deployment)
    return () if budget.fits else _no_room(budget)


def _unsupported(
    model: ModelArchitecture, gpu: Gpu, deployment: Deployment, missing: Sequence[str]
) -> tuple[Reason, ...]:
    """Why it cannot run, each with what in the scenario would let it, where that is known."""
    mend = f"model: a config.json of your own that has {' and '.join(model.missing)}" if model.missing else ""
    if not mend and deployment.layout.gpu_count == deployment.layout.tensor_parallel:
        sizes = [size for size in (1, 2, 4, 8) if size <= gpu.gpus_per_node_count]
        layouts = [replace(deployment, layout=Layout(tensor_parallel=size)) for size in sizes]
        able = [size for size, one in zip(sizes, layouts, strict=True) if not performance.unsupported(model, gpu, one)]
        mend = f"tensor_parallel: [{', '.join(map(str, able))}]" if able else ""
    return tuple(Reason(kind="unsupported", text=text, relax=mend) for text in missing)


def _no_room(budget: MemoryBudget) -> tuple[Reason, ...]:
    return tuple(Reason(kind="memory", text=text) for text in budget.reasons)


def gpu_prices(gpu: Gpu, scenario: Scenario) -> tuple[GpuPrice, ...]:
    """Prices a scenario plans with for one gpu; none when unknown.

    The person's own, else the quotes of the provider named, else the catalog's reference, which compares gpus like for
    like, between the lowest and highest published. A market index or a range is nobody's offer.
    """
    wanted = scenario.prices
    own = wanted.usd_per_gpu_hour.get(gpu.name)
    if own is not None:
        return (
            GpuPrice(
                gpu=gpu.name,
                provider="own",
                provider_class="own",
                region="",
                term=wanted.term,
                price_usd_per_gpu_hour=own,
                as_of="",
                source="scenario",
                note="prices.usd_per_gpu_hour of the scenario",
            ),
        )
    found = catalog.reference_price(gpu.name, term=wanted.term, provider=wanted.provider)
    if found is not None and found.price.evidence == "reference":
        return (found.price,)
    return tuple(
        price
        for price in catalog.offers(catalog.gpu_prices(gpu.name))
        if price.term == wanted.term and wanted.provider in (None, price.provider)
    )
