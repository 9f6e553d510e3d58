"""What a plan starts from, as strict types: the scenario and the words it may use.

The types say what a scenario file may hold; names (gpus, models, engines, presets) are looked up while reading, so
that every problem of a file is found in one go. Reading the file itself, with its line numbers, is the business of
:mod:`tokenfleet.app.scenario`.
"""

import re
from difflib import get_close_matches
from typing import Annotated, Final, Literal

from pydantic import (
    BeforeValidator,
    Field,
    field_validator,
    model_validator,
)

from tokenfleet import catalog, workload
from tokenfleet.app.buy_types import BuySpec
from tokenfleet.app.compare_types import CompareSpec
from tokenfleet.app.memory_spec import MemorySpec, Size
from tokenfleet.app.pool_types import (
    AlsoTrySpec,
    ChainSpec,
    DisaggregatedSpec,
    GroupSpec,
    ImagesSpec,
    PoolName,
    PoolSpec,
)
from tokenfleet.app.redundancy_types import SPARE_REPLICAS, Redundancy, Zones
from tokenfleet.app.scaling_types import AutoscalingSpec, LadderSpec
from tokenfleet.app.scenario_words import (
    Cap,
    Count,
    Dollars,
    Duration,
    EngineName,
    Fraction,
    GpuName,
    InputFile,
    Lengths,
    ModelName,
    Positive,
    Rate,
    Span,
    Strict,
    Tokens,
    nothing_said,
    one_as_list,
    problem,
)
from tokenfleet.app.slo_types import SloSpec
from tokenfleet.app.world_types import AdmissionSpec, BatchSpec, ClientsSpec, EventSpec, UsersSpec
from tokenfleet.domain import survival
from tokenfleet.domain.fleet import Router
from tokenfleet.domain.replica import KvPrecision, Precision, Speculation

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


class DrawnLengths(Strict):
    """Token lengths when there is no log yet: ``MEAN``, ``MEDIAN:P95``."""

    input: Lengths
    """Prompt tokens per request: ``1000`` is a mean, ``700:1500`` is median and 95th percentile."""
    output: Lengths
    """Generated tokens per request, written the same way."""


class WorkloadSource(Strict):
    """Where the demand comes from: exactly one of ``trace``, ``preset``, ``profile``, ``lengths``."""

    trace: Annotated[list[InputFile], BeforeValidator(one_as_list)] | None = None
    """A request log, or a list of them: CSV, JSON lines or Parquet, compressed or not."""
    format: str | None = None
    """Format of the trace; found from the content when left out."""
    columns: dict[str, str] | None = None
    """Which column of the log holds what, such as ``{arrival: time, input_tokens: prompt}``."""
    zone: str | None = None
    """Time zone of a log whose stamps name none, such as ``Europe/Berlin``."""
    time_unit: Literal["s", "ms", "us", "ns"] | None = None
    """Unit of a log's time stamps where they are numbers; found from the content when left out."""
    cached: Literal["inside", "outside"] | None = None
    """Whether a log's input tokens contain the cached ones; found from the content when left out."""
    zero_output: Literal["drop", "keep"] = "drop"
    """Requests of a log without output tokens: failed ones to drop, or embedding and rerank requests to keep."""
    unfinished: Literal["drop", "impute"] = "drop"
    """Requests of a log that failed or lost their counts: left out, or kept with the lengths of others like them."""
    sessions: Literal["apart", "repeat"] = "apart"
    """Prompts of a session in a log without block hashes: nothing is known to be shared, or each repeats the prompt
    before it and its answer, as chat clients send them."""
    preset: str | None = None
    """Synthetic traffic with published statistics."""
    profile: InputFile | None = None
    """A profile file; traffic like it is drawn."""
    lengths: DrawnLengths | None = None
    """Lengths as a person knows them; log-normal, bursty arrivals."""
    peak_rate: Rate | None = None
    """Requests per second in the busiest minute; for ``preset``, ``profile`` and ``lengths``."""
    mean_rate: Rate | None = None
    """Requests per second over the whole time; instead of ``peak_rate``."""
    peak_to_mean: Positive = 2.0
    """Busiest minute against the mean; for ``lengths``."""
    interarrival_cv: Positive = 2.0
    """Burstiness of arrivals for ``lengths``: 1 is Poisson, real traffic is mostly above."""
    duration: Span = 1800.0
    """How much traffic to draw; for everything but ``trace``."""
    max_output: Tokens | None = None
    """Where engines cut an output, as clients ask for with ``max_tokens``; left out, every output is complete."""
    max_input: Tokens | None = None
    """Where your application cuts a prompt; left out, prompts are as long as they come."""
    max_request: Tokens | None = None
    """Most tokens of a prompt and its output together; the prompt is cut as far as that takes."""
    growth: Positive = 1.0
    """Demand to plan for, as a multiple of today's: ``1.3`` is 30 % more."""

    @field_validator("preset")
    @classmethod
    def _preset_is_known(cls, value: str | None) -> str | None:
        if value is not None and value not in workload.preset_names():
            raise problem(f'unknown preset "{value}"', f"presets: {', '.join(workload.preset_names())}")
        return value

    @model_validator(mode="after")
    def _one_source(self) -> "WorkloadSource":
        given = [key for key in ("trace", "preset", "profile", "lengths") if getattr(self, key) is not None]
        if len(given) != 1:
            what = f"has {' and '.join(given)}" if given else "does not say where the demand comes from"
            raise problem(what, "give exactly one of trace, preset, profile, lengths")
        rates = [key for key in ("peak_rate", "mean_rate") if getattr(self, key) is not None]
        if given == ["trace"] and rates:
            raise problem(
                f"a trace has its own rate, but {rates[0]} is given", "use growth to plan for more than the log shows"
            )
        if given in (["preset"], ["lengths"]) and len(rates) != 1:
            raise problem(
                f"{given[0]} needs one rate, has {len(rates)}", "give peak_rate or mean_rate, such as peak_rate: 20"
            )
        if len(rates) > 1:
            raise problem("has both peak_rate and mean_rate", "give one of them")
        if self.sessions == "repeat" and self.trace is None:
            raise problem(f"sessions: repeat is for a log, and {given[0]} draws its own", "leave it out")
        return self


class RolloutSpec(Strict):
    """How a new version replaces the old one."""

    max_surge: Annotated[int, Field(ge=0)] = 1
    """Replicas of the new version beyond the planned number, paid for meanwhile."""
    max_unavailable: Annotated[int, Field(ge=0)] = 0
    """Replicas that may be missing from the planned number meanwhile."""

    @model_validator(mode="after")
    def _moves(self) -> "RolloutSpec":
        if self.max_surge + self.max_unavailable < 1:
            raise problem("replaces no replica at a time", "give max_surge or max_unavailable at least 1")
        return self


class SpeculationSpec(Strict):
    """Speculative decoding: what ``memory.draft`` names proposes tokens, which the model checks in one step.

    Without a draft in ``memory``, tokens are looked up in the text so far, which costs the GPU nothing.
    """

    tokens: Annotated[int, Field(ge=0, le=64)]
    """Drafted for each sequence in each step; 0: the engine stands ready to speculate and never does."""
    acceptance: Fraction
    """How often a drafted token is kept, where all before it were, such as ``70%``: measure it on your own text."""


def speculation_of(spec: SpeculationSpec | None) -> Speculation | None:
    """What the engine is told; who drafts is said by ``memory``."""
    if spec is None:
        return None
    return Speculation(draft_token_count=spec.tokens, acceptance_fraction=spec.acceptance)


class EngineChoice(Strict):
    """The serving engine; settings left out keep the defaults of that version on that gpu."""

    name: EngineName = Field(default="vllm", validate_default=True)
    """Engine, or engine and version."""
    max_batched_tokens: Tokens | None = None
    """Token budget of one step. Left out, the plan may choose a smaller one than the engine's default."""
    max_sequence_count: Count | None = None
    """Sequences that run together in one replica."""
    block_tokens: Tokens | None = None
    """Tokens of one KV block."""
    memory_utilization: Fraction | None = None
    """Share of GPU memory the engine may take, such as ``90%``."""
    context_limit: Tokens | None = None
    """Longest prompt plus output the engine accepts."""
    prefix_caching: bool | None = None
    """Reuse the KV cache of equal prompt beginnings."""
    chunked_prefill: bool | None = None
    """Cut long prompts into chunks that share steps with decoding."""
    long_prefill_tokens: Tokens | None = None
    """Tokens that one prompt gets of a step at most, so that shorter ones pass it (vLLM)."""
    scheduling: Literal["fcfs", "priority"] | None = None
    """Who is served first: who came first, or who has the smaller priority (vLLM)."""
    preemption: Literal["recompute", "swap"] | None = None
    """What becomes of a decode that loses its KV memory: it is computed again, or its KV waits in host memory (as
    vLLM did before its V1 scheduler)."""
    swap_space: Size | None = None
    """Host memory for each GPU, such as ``4GiB``, where ``preemption`` is ``swap``."""
    front_end: Literal["parallel", "serial"] | None = None
    """One thread that tokenizes all requests of a replica one after another, or as many as there are requests."""
    prefill_decode_interval: Annotated[int, Field(ge=0)] | None = None
    """Rounds of decode between two rounds of prefill, where anybody decodes (SGLang)."""
    receive_interval: Annotated[int, Field(ge=1)] | None = None
    """Rounds of decode between two looks for new requests (SGLang's ``scheduler_recv_interval``)."""
    speculation: SpeculationSpec | None = None
    """Speculative decoding."""

    @model_validator(mode="after")
    def _the_engine_knows_its_settings(self) -> "EngineChoice":
        if (self.preemption == "swap") != (self.swap_space is not None):
            raise problem("preemption: swap and swap_space go together", "give both or neither")
        for key in ("long_prefill_tokens", "scheduling", "preemption"):
            if getattr(self, key) is not None and not self.name.startswith("vllm"):
                raise problem(f"{key} is a setting of vllm, not of {self.name}", "leave it out, or take vllm")
        for key in ("prefill_decode_interval", "receive_interval"):
            if getattr(self, key) is not None and not self.name.startswith("sglang"):
                raise problem(f"{key} is a setting of sglang, not of {self.name}", "leave it out, or take sglang")
        if self.speculation is not None and self.preemption == "swap":
            what = "speculation is not replayed with swap: no engine of today has both"
            raise problem(what, "leave one of them out")
        return self


class Vary(Strict):
    """Engine settings to try in every combination, on top of ``engine``."""

    max_batched_tokens: Annotated[list[Tokens], BeforeValidator(one_as_list), Field(min_length=1)] | None = None
    """Token budgets of one step, of the whole replica."""
    max_sequence_count: Annotated[list[Count], BeforeValidator(one_as_list), Field(min_length=1)] | None = None
    """Sequences that run together in one replica."""
    context_limit: Annotated[list[Tokens], BeforeValidator(one_as_list), Field(min_length=1)] | None = None
    """Longest prompt plus output the engine accepts; longer requests count as errors."""
    prefix_caching: Annotated[list[bool], BeforeValidator(one_as_list), Field(min_length=1)] | None = None
    """Reuse the KV cache of equal prompt beginnings, or not."""
    chunked_prefill: Annotated[list[bool], BeforeValidator(one_as_list), Field(min_length=1)] | None = None
    """Cut long prompts into chunks, or not."""


class Prices(Strict):
    """Which prices to plan with; without it, the catalog's on-demand reference prices."""

    term: Literal["on_demand", "spot", "reserved_1y", "reserved_3y", "capacity_block", "rental_3y", "own_tco"] = (
        "on_demand"
    )
    """How the GPUs are bought; ``spot`` only where no latency is promised, but deadlines."""
    provider: str | None = None
    """Only quotes of this provider."""
    usd_per_gpu_hour: dict[GpuName, Dollars] = Field(default_factory=dict)
    """Your own price per GPU and hour, in US dollars, where you have one."""

    @field_validator("provider")
    @classmethod
    def _provider_is_known(cls, value: str | None) -> str | None:
        known = catalog.providers()
        if value is None or value.lower() in known:
            return None if value is None else value.lower()
        near = ", ".join(get_close_matches(value.lower(), known, n=3, cutoff=0.0))
        raise problem(f'nobody called "{value}" publishes prices', f"nearest: {near}; or usd_per_gpu_hour of your own")


class Scenario(Strict):
    """One question to plan: the demand, the model, the promise, and what may be bought."""

    name: Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
    """Names the plan and its folder: letters, digits, ``.``, ``_`` and ``-``."""
    workload: WorkloadSource
    """Where the demand comes from."""
    model: ModelName
    """A name of the catalog, or a path to a ``config.json`` or its folder."""
    slo: SloSpec
    """What is promised."""
    gpus: Annotated[list[GpuName], BeforeValidator(one_as_list), Field(min_length=1)] = Field(
        default=["h100_sxm", "h200_sxm", "a100_sxm_80gb", "l40s"]
    )
    """Accelerators to try."""
    precision: Annotated[list[Precision], BeforeValidator(one_as_list), Field(min_length=1)] | None = None
    """Weight precisions to try. Left out: as the checkpoint stores them where it is quantized, else bf16 and fp8."""
    kv_dtype: Annotated[list[KvPrecision], BeforeValidator(one_as_list), Field(min_length=1)] = Field(default=["bf16"])
    """Precisions of the KV cache to try."""
    tensor_parallel: Annotated[list[Count], BeforeValidator(one_as_list), Field(min_length=1)] | None = None
    """Ranks that split each layer, to try. Left out: 1, 2, 4, 8 as far as a node reaches."""
    pipeline_parallel: Annotated[list[Count], BeforeValidator(one_as_list), Field(min_length=1)] | None = None
    """Pipeline stages to try. Left out: 1; on a gpu where nothing fits, also 2 and 4 whole nodes."""
    attention_data_parallel: Annotated[list[Count], BeforeValidator(one_as_list), Field(min_length=1)] | None = None
    """Ranks with whole attention layers and their own KV cache, to try. Left out: 1; for models with experts and latent
    attention also as many as fill a node."""
    expert_parallel: Annotated[list[Count], BeforeValidator(one_as_list), Field(min_length=1)] | None = None
    """Ranks that share the experts out, to try. Left out: all of them with data-parallel attention, else 1."""
    vary: Vary = nothing_said()
    """Engine settings to try in every combination."""
    engine: Annotated[
        EngineChoice, BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value)
    ] = nothing_said()
    """Serving engine, as a name or with settings."""
    memory: MemorySpec = nothing_said()
    """What lies on each GPU beside the model: adapters, a draft model, images, other processes, room left free."""
    redundancy: Redundancy = nothing_said()
    """What may fail while the promise holds."""
    utilization_cap: Cap | None = None
    """Share of the rate that they sustain within the promise which the carrying replicas may take at the peak, such as
    ``70%``; left out, all of it. Pools may have caps of their own."""
    zones: Zones = Field(default=[])
    """Zones to place replicas in: names, or what each of them has."""
    data_region: str | None = None
    """Region that the data must not leave."""
    gpu_quota: Annotated[Count, Field(ge=1)] | None = None
    """GPUs that there are for all of it, all its pools together: nothing is planned that takes more. Where the fleet is
    scaled, write it under ``autoscaling``."""
    rollout: RolloutSpec = nothing_said()
    """How a new version replaces the old one."""
    cold_start: Duration | None = None
    """From the decision to start a replica until it takes requests; left out, unknown."""
    disaggregated: (
        Annotated[
            DisaggregatedSpec, BeforeValidator(lambda value: {"link": value} if isinstance(value, str) else value)
        ]
        | None
    ) = None
    """Try prefill and decode apart too, with KV over this link: a link's name, or with settings. The plan takes them
    where they cost less."""
    also_try: AlsoTrySpec = nothing_said()
    """Other routers, and pools for short and long prompts, tasks or tiers. The plan takes whatever costs least."""
    pools: dict[PoolName, PoolSpec] | None = None
    """Several pools by name, for ``simulate``: each request is answered by the first that takes it."""
    chain: ChainSpec | None = None
    """What happens before the answer: embedding, search, reranking. Needs ``pools``."""
    images: ImagesSpec | None = None
    """Images in prompts. Needs ``pools``."""
    groups: dict[PoolName, GroupSpec] | None = None
    """Replica groups of one fleet by name, for ``simulate``: different replicas of the same model behind one router."""
    autoscaling: AutoscalingSpec | None = None
    """How many replicas run while the traffic runs; left out, all of them always."""
    ladder: LadderSpec | None = None
    """What is given up under pressure, in which order."""
    events: list[EventSpec] = Field(default=[])
    """What becomes of replicas while the traffic runs, for ``simulate``: failures, drains, slow ones."""
    clients: ClientsSpec | None = None
    """What clients do about a refusal, a failure or a long wait. Left out, nobody tries again in ``simulate``, and
    three times where a plan or a drill loses replicas."""
    admission: AdmissionSpec | None = None
    """A bound of the queue, in ``simulate`` and where replicas are lost; left out, that of the ladder, else none, but
    1,000 in ``simulate`` with ``clients`` or ``autoscaling``."""
    batch: BatchSpec | None = None
    """Offline work in what interactive requests leave over, for ``simulate``, and for ``size`` and ``plan`` of named
    pools, in each of them; the promise is judged over the others."""
    users: UsersSpec | None = None
    """A closed loop, for ``simulate``: the traffic is sent by users who wait for their answers."""
    prices: Prices = nothing_said()
    """Which prices to plan with."""
    buy: BuySpec = nothing_said()
    """How to buy the fleet: when it is needed, and on which terms GPUs can be had."""
    compare: CompareSpec = nothing_said()
    """Other ways to serve the same demand, and what a unit of work is; each shown where its facts are given."""
    router: Router = "least_in_flight"
    """How requests find a replica."""
    scrape: Duration = 5.0
    """Time between two looks of the router into the replicas, for routers that look."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    """Start of every random draw: the same seed gives the same plan, byte for byte."""
    valid_days: Annotated[int, Field(ge=1, le=366)] = 28
    """How long the contract may stand before it must be planned again."""

    @model_validator(mode="after")
    def _pools_serve(self) -> "Scenario":
        if self.pools == {} or self.groups == {}:
            empty = "pools" if self.pools == {} else "groups"
            raise problem(f"{empty} is empty", "name at least one", at=empty)
        if self.pools is not None and self.groups is not None:
            raise problem("has pools and groups, and both name the fleet", "leave one out", at="groups")
        alone = [key for key in ("chain", "images") if getattr(self, key) is not None and self.pools is None]
        if alone:
            raise problem(f"{' and '.join(alone)} without pools", "name the pools that serve, under pools", at=alone[0])
        return self

    @property
    def spare_replica_count(self) -> int:
        """Replicas that may fail."""
        return SPARE_REPLICAS[self.redundancy.replicas]

    @property
    def losses(self) -> survival.Redundancy:
        """What may be lost, and the zones that may hold replicas."""
        return survival.Redundancy(
            replica_count=self.spare_replica_count,
            node_count=SPARE_REPLICAS[self.redundancy.nodes],
            zone_count=SPARE_REPLICAS[self.redundancy.zones],
            zones=tuple(
                survival.Zone(
                    name=zone.name, weights=zone.weights, ingress=zone.ingress, gpu_limit_count=zone.gpu_limit
                )
                for zone in self.zones
                if self.data_region in (None, zone.region)
            ),
            elsewhere=tuple(zone.name for zone in self.zones if self.data_region not in (None, zone.region)),
            data_region=self.data_region,
            replicas_per_node_count=self.redundancy.replicas_per_node,
            ride_through=self.redundancy.ride_through,
            gpu_quota_count=self.gpu_quota if self.autoscaling is None else self.autoscaling.gpu_quota,
        )

    @model_validator(mode="after")
    def _pools_are_not_scaled(self) -> "Scenario":
        if self.pools is not None and self.autoscaling is not None:
            what = "has pools and autoscaling, and each pool is scaled on its own"
            only = self.autoscaling.gpu_quota is not None
            beside = "; a gpu_quota of all of them stands beside pools" if only else ""
            raise problem(what, f"write it under the pools{beside}", at="autoscaling")
        scaled = ["autoscaling"] if self.autoscaling is not None else []
        scaled += [f"pools.{name}" for name, pool in (self.pools or {}).items() if pool.is_scaled]
        if self.gpu_quota is not None and scaled:
            what = f"is for counts that stay as they are, and {scaled[0]} is scaled"
            raise problem(what, "write gpu_quota under autoscaling, there", at="gpu_quota")
        nowhere = [event for event in self.events if (event.pool is None) != (self.pools is None)]
        if nowhere and self.pools is None:
            raise problem(
                f'an event in the pool "{nowhere[0].pool}", and there are no pools', "leave pool out", at="events"
            )
        if nowhere:
            raise problem("an event in no pool", f"write pool: {next(iter(self.pools or ()))}", at="events")
        if self.batch is not None and self.ladder is not None and self.ladder.batch:
            raise problem("batch and ladder.batch both say what is batch", "keep batch.takes", at="ladder.batch")
        if self._ladders and self.admission is not None:
            mend = "keep ladder.queue_limit, or drop the ladder"
            raise problem("ladder and admission both bound the queue", mend, at="admission")
        return self

    @property
    def _ladders(self) -> bool:
        """Whether anything is given up anywhere."""
        return self.ladder is not None or any(pool.ladder is not None for pool in (self.pools or {}).values())

    @model_validator(mode="after")
    def _somebody_turns_away(self) -> "Scenario":
        if self.admission is None and not self._ladders:
            promised = ["slo.rejection_rate"] if self.slo.rejection_rate is not None else []
            of_classes = {name: each.rejection_rate for name, each in self.slo.classes.items()}
            promised += [f"slo.classes.{name}.rejection_rate" for name, rate in of_classes.items() if rate is not None]
            if promised:
                what = f"{promised[0]} is promised, and nobody is turned away"
                raise problem(what, "bound the queue with admission: {queue_limit: 20}, or leave it out")
        return self

    @model_validator(mode="after")
    def _zones_are_there(self) -> "Scenario":
        if self.redundancy.zones != "none" and not self.zones:
            raise problem("redundancy.zones asks for zones, and none are named", "write zones: [a, b, c]")
        if self.data_region is not None and not any(zone.region == self.data_region for zone in self.zones):
            regions = sorted({zone.region for zone in self.zones if zone.region is not None})
            known = f"regions: {', '.join(regions)}" if regions else "give zones a region: {name: a, region: eu}"
            raise problem(f'no zone lies in data_region "{self.data_region}"', known)
        return self
