"""Several pools in a scenario, as strict types: who serves what, and which way requests take."""

from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from tokenfleet import catalog, workload
from tokenfleet.app.phase_types import PhaseSpec
from tokenfleet.app.quantities import Unreadable, parse_duration_s, quoted
from tokenfleet.app.scaling_types import AutoscalingSpec, LadderSpec
from tokenfleet.app.scenario_words import (
    Count,
    Fraction,
    ModelName,
    Positive,
    Strict,
    Tokens,
    one_as_list,
    problem,
)
from tokenfleet.app.takes_types import TakesSpec, WindowSpec
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.ways import RouterOfEquals, SplitBy


def _wait(value: object) -> str:
    """``30ms``, or median and 95th percentile as ``20ms:80ms``."""
    parts = str(value).split(":")
    try:
        limits = [parse_duration_s(part) for part in parts]
    except Unreadable as error:
        raise problem(error.what, error.mend) from None
    if len(limits) > 2 or limits != sorted(limits):
        raise problem(f"{quoted(value)} is no wait", "write a time (30ms), or median and p95 (20ms:80ms)")
    return str(value)


def _prompt_or_lengths(value: object) -> str:
    text = str(value)
    if text == "prompt":
        return text
    try:
        workload.Lengths.parse(text)
    except BadInput as error:
        raise problem(error.problems[0].what, f"{error.problems[0].mend}, or prompt") from None
    return text


def _link(value: object) -> str:
    text = str(value)
    if not any(text.strip().lower() in (name, *words) for name, words in catalog.link_words().items()):
        raise problem(f"unknown link {quoted(value)}", f"known: {', '.join(catalog.link_names())}")
    return text


def _any_router(value: object) -> object:
    return list(get_args(RouterOfEquals)) if value == "any" else one_as_list(value)


PoolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$")]
WaitTime = Annotated[str, BeforeValidator(_wait, json_schema_input_type=str)]
PromptOrLengths = Annotated[str, BeforeValidator(_prompt_or_lengths, json_schema_input_type=str | int)]
LinkName = Annotated[str, BeforeValidator(_link, json_schema_input_type=str)]


class GroupSpec(PhaseSpec):
    """Equal replicas among others that serve the same model behind one router."""

    weight: Positive = 1.0
    """For the router ``least_loaded``: replicas of weight 2 get twice the requests of those of weight 1."""
    up_to: int | None = None
    """For the routers ``by_length`` and ``by_tier``: the longest prompt, or the largest priority, that they serve; left
    out, any."""

    @model_validator(mode="after")
    def _one_router(self) -> "GroupSpec":
        if self.router is not None:
            raise problem("has a router, and all groups stand behind one", "write router beside groups")
        return self


class ScaledPhaseSpec(PhaseSpec):
    """Equal replicas of a pool, always the same number or as many as the pool's own signals ask for."""

    autoscaling: AutoscalingSpec | None = None
    """How many replicas run while the traffic runs; left out, all of them always."""

    @model_validator(mode="after")
    def _counted_once(self) -> "ScaledPhaseSpec":
        if self.autoscaling is not None and self.replicas is not None:
            raise problem("has replicas and autoscaling", "set autoscaling.min, start and max")
        if self.autoscaling is not None and self.autoscaling.group is not None:
            raise problem("scales a group, and a pool has equal replicas", "leave group out")
        return self


class PoolSpec(ScaledPhaseSpec):
    """One pool; with ``prefill`` and ``decode``, two of them, and what stands beside is meant for both."""

    model: ModelName | None = None
    """What it serves; the scenario's model when left out."""
    takes: TakesSpec | None = None
    """Which requests it answers; the first pool that takes a request has it. Left out: whatever is left."""
    window: WindowSpec | None = None
    """When requests are sent to it; left out, at any time."""
    beside: PoolName | None = None
    """The pool on whose GPUs it stands: one replica of each on the same ones, which run one step at a time."""
    memory_share: Annotated[Fraction, Field(gt=0.0)] | None = None
    """Share of GPU memory its engine may take, such as ``40%``, where it shares GPUs."""
    ladder: LadderSpec | None = None
    """What is given up under pressure on this pool alone, at a door in front of it."""
    prefill: ScaledPhaseSpec | None = None
    """The pool that computes prompts."""
    decode: ScaledPhaseSpec | None = None
    """The pool that generates."""
    link: LinkName | None = None
    """What KV crosses between the two."""
    first_token: Literal["prefill", "decode"] | None = None
    """Whose first token the user gets; left out, ``decode`` for vLLM and ``prefill`` for others."""
    overlap: bool = False
    """Send KV layer by layer while prefill computes."""

    @model_validator(mode="after")
    def _both_phases_or_none(self) -> "PoolSpec":
        if self.beside is not None and self.memory_share is None:
            raise problem("stands beside another pool without memory_share", "write its share, such as 20%")
        given = [key for key in ("prefill", "decode", "link") if getattr(self, key) is not None]
        if given and len(given) < 3:
            raise problem(f"has {' and '.join(given)} alone", "prefill, decode and link go together")
        if given and (self.replicas is not None or self.autoscaling is not None):
            key = "replicas" if self.replicas is not None else "autoscaling"
            raise problem(f"has {key} beside prefill and decode", "say it inside each of them")
        if not given and (self.first_token is not None or self.overlap):
            raise problem("says how KV is handed over, and has one pool", "give prefill, decode and link")
        return self

    @property
    def is_scaled(self) -> bool:
        """Whether any of its replicas come and go."""
        return any(each is not None and each.autoscaling is not None for each in (self, self.prefill, self.decode))

    @property
    def is_apart(self) -> bool:
        """Prefill and decode in pools of their own."""
        return self.prefill is not None


class AlsoTrySpec(Strict):
    """Other ways to lay out the fleet than one pool behind ``router``: the plan takes whatever costs least."""

    routers: Annotated[list[RouterOfEquals], BeforeValidator(_any_router)] = Field(default=[])
    """Routers, or ``any``: the plan takes the one behind which the fewest replicas keep the promise."""
    pools: Annotated[list[SplitBy], BeforeValidator(one_as_list)] = Field(default=[])
    """Pools for some of the requests each: by prompt ``length``, by ``task`` as the log names it, by ``tier``, which is
    the priority."""


class DisaggregatedSpec(Strict):
    """Prefill and decode in pools of their own: the plan takes them where they cost less."""

    link: LinkName
    """What KV crosses between the two."""
    first_token: Literal["prefill", "decode"] | None = None
    """Whose first token the user gets; left out, ``decode`` for vLLM and ``prefill`` for others."""
    overlap: bool = False
    """Send KV layer by layer while prefill computes."""


class StepSpec(Strict):
    """A step before the answer: exactly one of ``pool`` and ``wait``."""

    pool: str | None = None
    """A pool that embeds or ranks: it reads and generates nothing."""
    input: PromptOrLengths = "prompt"
    """Tokens of one call: ``prompt`` as the request has them, or lengths, drawn."""
    calls: Count = 1
    """Equal calls side by side, one for each document; the last to end counts."""
    wait: WaitTime | None = None
    """Something that is no model and has room for everybody, such as a search: ``30ms``, or median and 95th percentile
    ``20ms:80ms``."""

    @model_validator(mode="after")
    def _one_kind(self) -> "StepSpec":
        if (self.pool is None) == (self.wait is None):
            raise problem("is neither a pool nor a wait, or both", "give exactly one of pool and wait")
        return self


class ChainSpec(Strict):
    """What happens before the answer, step by step."""

    takes: TakesSpec | None = None
    """Which requests go through it; left out, all."""
    steps: Annotated[list[StepSpec], Field(min_length=1)]
    """In order."""


class ImagesSpec(Strict):
    """Images in prompts; the log's or drawn prompt lengths are text alone."""

    takes: TakesSpec | None = None
    """Which requests have images; left out, all."""
    tokens: Tokens
    """Tokens that one image becomes: about (height / 28) x (width / 28) for Qwen2.5-VL, / 32 for Qwen3-VL."""
    count: Positive = 1.0
    """Images per request, on average; whole numbers around it are drawn."""
    encoder: PhaseSpec | None = None
    """A pool that runs the image tower alone; left out, the replicas that answer run it."""
