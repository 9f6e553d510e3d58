"""From a scenario with several pools to fleets and stages: who takes which requests, in which order."""

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from statistics import NormalDist
from typing import Final

import numpy as np

from tokenfleet import catalog, performance, simulator, workload
from tokenfleet.app.around import SAME_TOKENS
from tokenfleet.app.layouts import with_one_choice
from tokenfleet.app.phase_types import PhaseSpec
from tokenfleet.app.pool_types import ImagesSpec, PoolSpec, ScaledPhaseSpec, StepSpec
from tokenfleet.app.pools_beside import berths_of, check_layouts, hosts_of, sharing_notes, standing_specs
from tokenfleet.app.pools_doors import ALL_POOLS, gate_of
from tokenfleet.app.pools_fleet import NamedPool, merged, phase_fleet
from tokenfleet.app.pools_lanes import check_lanes, in_lanes
from tokenfleet.app.pools_rollout import with_new_version
from tokenfleet.app.pools_smaller import check_smaller, smaller_pool, stand_ins
from tokenfleet.app.quantities import parse_duration_s
from tokenfleet.app.scaling_question import batch_of
from tokenfleet.app.scaling_types import LadderSpec
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.takes_types import WindowSpec
from tokenfleet.app.taking import nobody_in, taken, time_of_day_s
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.plan import Does
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.stages import Call, Gate, Handover, Hold, Pools, Stage, Wait
from tokenfleet.domain.trace import Bools, Floats, Trace

IMAGES: Final = "images"
"""The pool of the image tower."""
_Z95: Final = NormalDist().inv_cdf(0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSystem:
    """A scenario with several pools, every name looked up."""

    trace: Trace
    """The demand, images in the prompts included."""
    pools: Pools
    named: tuple[NamedPool, ...]
    """In the order of the stages."""
    notes: tuple[str, ...]
    windows: dict[str, Hold]
    """Daily window of the pools that have one."""
    batch: Bools | None = None
    """Which requests are batch, with a lane at each pool; ``None``: there is no lane."""


def pool_system(asked: Scenario, trace: Trace, *, is_part: bool = False) -> PoolSystem:
    """Fleets and stages of a scenario with ``pools``.

    Args:
        asked: The scenario.
        trace: Its demand, text alone.
        is_part: It is a part of the demand, in which a pool may be left no request.

    Raises:
        BadInput: everything that names a pool, a model or a label that is not there, or a replica that cannot run.
    """
    builder = _Builder(asked, trace, is_part=is_part)
    return builder.system()


class _Builder:
    """Puts the stages together one by one; one random stream for every draw, named by what is drawn."""

    def __init__(self, asked: Scenario, trace: Trace, *, is_part: bool) -> None:
        self.is_part = is_part
        self.asked = with_one_choice(asked)
        self.trace, self.batch = in_lanes(asked, trace)
        self.hosts = hosts_of(asked)
        self.specs = standing_specs(asked, self.hosts)
        self.berths = berths_of(self.specs, self.hosts)
        self.stages: list[Stage] = []
        self.named: list[NamedPool] = []
        self.notes: list[str] = [*nobody_in("batch", self.batch)]
        self.windows: dict[str, Hold] = {}
        self.image_tokens = np.zeros(trace.request_count, dtype=np.int32)
        self.everybody = np.ones(trace.request_count, dtype=np.bool_)
        self.own: dict[str, Bools] = {}
        """Whom each pool answers that answers, where nothing is given up."""

    def system(self) -> PoolSystem:
        steps = self._steps()
        chained = {step.pool for step in steps if step.pool is not None}
        check_smaller(self.asked, chained)
        answering = [name for name in self.specs if name not in chained]
        first = [name for name in answering if name not in stand_ins(self.asked)]
        if not first:
            raise BadInput.at("pools", "every pool is a step of the chain: none answers", "add the pool that generates")
        self._chain(steps)
        if self.asked.images is not None:
            self._images(self.asked.images, first[-1])
        self._share_out(first)
        # Whoever is sent on to a smaller model comes to it from a pool before it.
        for name in sorted(answering, key=lambda name: self._smaller_of(self.specs[name].ladder) is None):
            self._answer(name, self.own.get(name, ~self.everybody))
        if self.asked.ladder is not None:
            beside = self._smaller_of(self.asked.ladder)
            answers = (each for each in self.named if each.does in ("answers", "prefills", "decodes"))
            watched = tuple(each.name for each in answers if each.behind != beside)
            self.stages.insert(0, self._gate(self.asked.ladder, ALL_POOLS, self.everybody, watched))
        check_lanes(self.asked, self.named)
        pools = Pools(fleets={each.name: each.fleet for each in self.named}, stages=tuple(self.stages))
        check_layouts(pools.fleets, self.hosts)
        self.notes += sharing_notes(self.hosts)
        return PoolSystem(
            trace=self.trace,
            pools=pools,
            named=tuple(self.named),
            notes=tuple(self.notes),
            windows=self.windows,
            batch=self.batch,
        )

    def _share_out(self, answering: Sequence[str]) -> None:
        """Find who is answered by which pool: by the first that takes it."""
        left = self.everybody
        for name in answering:
            if not left.any() and not self.is_part:
                what = "is left no request: the pools before it take them all"
                raise BadInput.at(f"pools.{name}", what, "put the pool without takes last")
            takes = left & taken(self.specs[name].takes, self.trace, f"pools.{name}.takes", left, self.asked.seed)
            if not takes.any():
                self.notes.append(f"The pool {name} takes no request of this demand.")
            left = left & ~takes
            self.own[name] = takes
        if left.any():
            what = f"{int(left.sum())} requests are taken by no pool"
            raise BadInput.at("pools", what, "leave takes out in the last pool: it answers whatever is left")

    # ---- the smaller model

    def _smaller_of(self, ladder: LadderSpec | None) -> str | None:
        return None if ladder is None else smaller_pool(ladder)

    def _may_go_to(self, smaller: str, door: str) -> Bools:
        """Whom a door may send to a smaller model: whoever comes to it and is answered elsewhere."""
        own = self.own.get(smaller, ~self.everybody)
        return ~own if door == ALL_POOLS else self.own.get(door, ~self.everybody) & ~own

    def _sent_to(self, name: str) -> Bools | None:
        """Whom doors may send to a pool; ``None`` where none does."""
        doors = {ALL_POOLS: self.asked.ladder, **{pool: spec.ladder for pool, spec in self.specs.items()}}
        sent = [self._may_go_to(name, door) for door, ladder in doors.items() if self._smaller_of(ladder) == name]
        return np.logical_or.reduce(sent) if sent else None

    # ---- the chain before the answer

    def _steps(self) -> Sequence[StepSpec]:
        chain = self.asked.chain
        if chain is None:
            return ()
        problems = []
        for index, step in enumerate(chain.steps):
            where = f"chain.steps.{index}.pool"
            if step.pool is None:
                continue
            if step.pool not in self.specs:
                near = get_close_matches(step.pool, self.specs, n=1, cutoff=0.0)
                problems.append(Problem(where, f'no pool is called "{step.pool}"', f"nearest: {near[0]}"))
            elif self.specs[step.pool].is_apart or self.specs[step.pool].takes:
                what = f'"{step.pool}" is a step of the chain, and takes or splits requests'
                problems.append(Problem(where, what, "takes belongs to the chain"))
            elif self.specs[step.pool].ladder is not None:
                what = f'"{step.pool}" is a step of the chain, and has a ladder'
                problems.append(Problem(where, what, "write ladder for the scenario, or for the pool that answers"))
        if problems:
            raise BadInput(problems)
        return chain.steps

    def _chain(self, steps: Sequence[StepSpec]) -> None:
        if self.asked.chain is None:
            return
        everybody = np.ones(self.trace.request_count, dtype=np.bool_)
        takes = taken(self.asked.chain.takes, self.trace, "chain.takes", everybody, self.asked.seed)
        self.notes += nobody_in("chain", takes)
        for index, step in enumerate(steps):
            random = np.random.default_rng([self.asked.seed, 1, index])
            if step.wait is not None:
                self.stages.append(Wait(takes=takes, duration_s=waits_s(step.wait, random, len(takes))))
            elif step.pool is not None:
                self._read(step.pool, step, takes, random)

    def _read(self, name: str, step: StepSpec, takes: Bools, random: np.random.Generator) -> None:
        spec = self.specs[name]
        model = catalog.model(spec.model or self.asked.model)
        fleet = phase_fleet(self.asked, spec, model, f"pools.{name}", berth=self.berths.get(name))
        self._name(name, model, fleet, spec, does="reads", behind=name)
        self._hold(name, spec.window, takes)
        if step.input == "prompt":
            inputs = self.trace.input_tokens
        else:
            inputs = workload.Lengths.parse(step.input).draw(random, len(takes))
        self.stages.append(
            Call(
                pool=name,
                takes=takes,
                input_tokens=inputs,
                output_tokens=np.zeros(len(takes), dtype=np.int32),
                call_count=step.calls,
                is_seen=False,
            )
        )

    # ---- images

    def _images(self, images: ImagesSpec, fallback: str) -> None:
        count = self.trace.request_count
        everybody = np.ones(count, dtype=np.bool_)
        takes = taken(images.takes, self.trace, "images.takes", everybody, self.asked.seed)
        self.notes += nobody_in("images", takes)
        random = np.random.default_rng([self.asked.seed, 2])
        whole = np.floor(images.count) + (random.random(count) < images.count % 1.0)
        self.image_tokens = np.where(takes, whole * images.tokens, 0).astype(np.int32)
        self.trace = replace(self.trace, input_tokens=(self.trace.input_tokens + self.image_tokens).astype(np.int32))
        if images.encoder is None:
            self.notes.append(
                "The image tower runs on the replicas that answer; its work is spread evenly over prompt tokens."
            )
            return
        model = catalog.model(self.specs[fallback].model or self.asked.model)
        fleet = phase_fleet(self.asked, images.encoder, model, "images.encoder", tower=True)
        self.named.append(
            NamedPool(
                name=IMAGES,
                model=model,
                fleet=fleet,
                does="sees",
                behind=IMAGES,
                cap_fraction=self._cap(images.encoder),
            )
        )
        self.stages.append(
            Call(
                pool=IMAGES,
                takes=self.image_tokens > 0,
                input_tokens=self.image_tokens,
                output_tokens=np.zeros(count, dtype=np.int32),
                is_seen=False,
            )
        )

    def _check_sees(self, name: str, model: ModelArchitecture, takes: Bools) -> None:
        """A model that reads no images answers no requests that have some."""
        count = int((takes & (self.image_tokens > 0)).sum())
        if count and not model.vision_parameter_count:
            what = f"{count:,} requests with images come to {model.name}, which has no image tower that can be read"
            raise BadInput.at(f"pools.{name}.takes", what, "take others, or a model that reads images")

    def _with_tower(self, fleet: Fleet, model_name: str, takes: Bools) -> Fleet:
        prompts = int(self.trace.input_tokens[takes].sum(dtype=np.int64))
        images = int(self.image_tokens[takes].sum(dtype=np.int64))
        if not images or self.asked.images is None or self.asked.images.encoder is not None:
            return fleet
        model = catalog.model(model_name)

        def seeing(group: ReplicaGroup) -> ReplicaGroup:
            gpu = catalog.gpu(group.replica.deployment.gpu)
            return replace(group, replica=performance.with_tower(group.replica, model, gpu, images / prompts))

        return replace(fleet, groups=tuple(seeing(group) for group in fleet.groups))

    # ---- the answer

    def _answer(self, name: str, takes: Bools) -> None:
        """The stages of one answer, for those who are this pool's and for those who are sent there."""
        before, sent = len(self.stages), self._sent_to(name)
        self._answer_of(name, takes if sent is None else takes | sent)
        if sent is not None:
            self.notes.append(f"{name} also answers those whom the rung smaller_model sends there. {SAME_TOKENS}")
        self.stages[before:] = [
            replace(part, answer=name, takes=part.takes & takes, instead=None if sent is None else part.takes & sent)
            for part in self.stages[before:]
        ]

    def _answer_of(self, name: str, takes: Bools) -> None:
        spec = self.specs[name]
        model = catalog.model(spec.model or self.asked.model)
        self._asks_no_answer_of(name, model, takes)
        self._check_sees(name, model, takes)
        self._hold(name, spec.window, takes)
        first, second = f"{name}-prefill", f"{name}-decode"
        if spec.ladder is not None:
            watched = (first, second) if spec.is_apart else (name,)
            self.stages.append(self._gate(spec.ladder, name, takes, watched))
        if spec.prefill is None or spec.decode is None:
            fleet = phase_fleet(self.asked, spec, model, f"pools.{name}", berth=self.berths.get(name))
            fleet = self._with_tower(fleet, model.name, takes)
            reads = model.encoder_only
            self._name(name, model, fleet, spec, does="reads" if reads else "answers", behind=name)
            self.stages.append(
                Call(
                    pool=name,
                    takes=takes,
                    input_tokens=self.trace.input_tokens,
                    output_tokens=self.trace.output_tokens,
                    shares_prefixes=not reads,
                )
            )
            return
        specs = merged(spec, spec.prefill), merged(spec, spec.decode)
        prefill = phase_fleet(self.asked, specs[0], model, f"pools.{name}.prefill")
        prefill = self._with_tower(prefill, model.name, takes)
        decode = phase_fleet(self.asked, specs[1], model, f"pools.{name}.decode")
        handover = handover_of(spec, prefill, decode, model.layer_count)
        stages = simulator.apart_stages(self.trace, takes, {first: prefill, second: decode}, handover)
        self._name(first, model, prefill, specs[0], does="prefills", behind=name)
        self._name(second, model, decode, specs[1], does="decodes", behind=name)
        self.stages += stages
        self.notes.append(about_handover(name, handover))

    def _asks_no_answer_of(self, name: str, model: ModelArchitecture, takes: Bools) -> None:
        """An encoder embeds or ranks; it never answers."""
        answers = int((takes & (self.trace.output_tokens > 0)).sum())
        if model.encoder_only and answers:
            what = f"{model.name} generates nothing, and {answers:,} requests of this pool have output tokens"
            mend = "send it requests without output (workload: {zero_output: keep}), or make it a step of the chain"
            raise BadInput.at(f"pools.{name}.model", what, mend)

    def _name(
        self, name: str, model: ModelArchitecture, fleet: Fleet, spec: ScaledPhaseSpec, *, does: Does, behind: str
    ) -> None:
        cap_fraction, scaling = self._cap(spec), spec.autoscaling
        alike_for = "KV is handed over" if does in ("prefills", "decodes") else ""
        if self.asked.images is not None:
            alike_for = "images are seen in a pool of their own"
        fleet = with_new_version(self.asked, fleet, name, spec, model, alike_for=alike_for)
        self.named.append(
            NamedPool(
                name=name,
                model=model,
                fleet=fleet,
                does=does,
                behind=behind,
                beside=self.specs[behind].beside,
                cap_fraction=cap_fraction,
                scaling=scaling,
            )
        )

    def _gate(self, spec: LadderSpec, name: str, takes: Bools, watched: tuple[str, ...]) -> Gate:
        batch = batch_of(spec, self.trace) if self.batch is None else self.batch
        gate, notes = gate_of(self.asked, spec, name, self.trace, takes, watched, batch)
        self.notes += notes
        smaller = self._smaller_of(spec)
        if smaller is None:
            return gate
        return replace(gate, smaller=self._may_go_to(smaller, name), smaller_answer=smaller)

    def _cap(self, spec: PhaseSpec) -> float | None:
        return spec.utilization_cap or self.asked.utilization_cap

    def _hold(self, name: str, window: WindowSpec | None, takes: Bools) -> None:
        if window is None:
            return
        if self.trace.start_utc is None and not self.trace.time_of_day_s:
            self.notes.append(f"Second 0 of the demand is taken for midnight by the window of {name}.")
        hold = Hold(takes=takes, opens_s=window.opens, closes_s=window.closes, start_s=time_of_day_s(self.trace))
        self.windows[name] = hold
        self.stages.append(hold)


def waits_s(written: str, random: np.random.Generator, count: int) -> Floats:
    """Times of a wait: always the same, or log-normal through its median and 95th percentile."""
    parts = [parse_duration_s(part) for part in written.split(":")]
    if len(parts) == 1 or parts[0] == parts[1] or parts[0] == 0.0:
        return np.full(count, parts[0])
    spread = np.log(parts[1] / parts[0]) / _Z95
    drawn: Floats = parts[0] * np.exp(spread * random.standard_normal(count))
    return drawn


def handover_of(spec: PoolSpec, prefill: Fleet, decode: Fleet, layer_count: int) -> Handover:
    """How KV gets from one pool to the other."""
    gpu = catalog.gpu(prefill.groups[0].replica.deployment.gpu)
    engine = decode.groups[0].replica.deployment.engine.name
    return Handover(
        link=catalog.link(spec.link or "", gpu=gpu),
        first_token=spec.first_token or ("decode" if engine.startswith("vllm") else "prefill"),
        overlapped_layer_count=layer_count if spec.overlap else None,
    )


def about_handover(name: str, handover: Handover) -> str:
    """How the KV of a pool's prompts is sent, in a sentence."""
    how = "layer by layer while prefill computes" if handover.overlapped_layer_count else "when the prompt is computed"
    whose = (
        "the decode pool yields every token, the first one too"
        if handover.first_token == "decode"
        else "the prefill pool yields the first token"
    )
    link = handover.link
    return (
        f"{name}: KV crosses {link.name} at {link.bytes_per_s / 1e9:.3g} GB/s per GPU and {link.latency_s * 1e3:g} ms, "
        f"{how}; {whose}."
    )
