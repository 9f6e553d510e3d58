"""What one replica can do, for every gpu, precision, layout and engine asked for; every figure with its evidence."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from itertools import product
from math import exp
from typing import Final, Literal

import numpy as np

from tokenfleet import catalog, performance, workload
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import Deployment, Layout, MemoryBudget, ReplicaPhysics
from tokenfleet.domain.trace import Trace

LOADS: Final = (0.3, 0.6, 0.9)
"""Shares of the saturated rate at which waiting times are replayed."""
_REQUESTS: Final = 1500
_SHORTEST_S: Final = 1.0
_SECONDS_PER_HOUR: Final = 3600.0
_MILLION: Final = 1e6

Kind = Literal["predicted", "calibrated", "measured", "published"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One figure: its value, the ends of its 90 % interval, and where it comes from. ``None`` is unknown, never 0."""

    value: float | None
    low: float | None = None
    high: float | None = None
    kind: Kind = "predicted"
    evidence: str = ""
    """For a person: what stands behind the figure, or why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """Waiting at one load."""

    load_fraction: float
    """Of the rate at which the replica saturates."""
    rate_per_s: float
    ttft_p50_s: Cell
    ttft_p99_s: Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One deployment. ``cells`` are empty where it cannot run, and ``reasons`` say why."""

    deployment: Deployment
    gpu: Gpu
    budget: MemoryBudget | None
    reasons: tuple[str, ...]
    cells: dict[str, Cell] = field(default_factory=dict)
    loads: tuple[LoadPoint, ...] = ()
    evidence: str = ""
    """What stands behind the predicted times of this row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of a request: means set throughput, medians the context of a typical sequence."""

    input_text: str
    output_text: str
    input_mean_tokens: float
    output_mean_tokens: float
    input_p50_tokens: int
    output_p50_tokens: int

    @property
    def context_tokens(self) -> int:
        """Context of a typical sequence, halfway through its answer."""
        return self.input_p50_tokens + self.output_p50_tokens // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One measured figure of one deployment."""

    deployment: Deployment
    name: str
    """The cell it fills."""
    value: float
    input_tokens: float
    output_tokens: float
    evidence: str


Calibrate = Callable[[ReplicaPhysics], ReplicaPhysics]


def parsed_lengths(input_text: str, output_text: str) -> Lengths:
    """Lengths as a person types them: ``MEAN`` or ``MEDIAN:P95``.

    Raises:
        BadInput: either cannot be read.
    """
    both = [
        workload.Lengths.parse(text, where=where)
        for text, where in ((input_text, "--input"), (output_text, "--output"))
    ]
    means = [exp(each.mu + each.sigma**2 / 2) + each.offset for each in both]
    medians = [max(round(exp(each.mu) + each.offset), 1) for each in both]
    return Lengths(
        input_text=input_text,
        output_text=output_text,
        input_mean_tokens=means[0],
        output_mean_tokens=means[1],
        input_p50_tokens=medians[0],
        output_p50_tokens=medians[1],
    )


def parts(names: Iterable[str]) -> tuple[Gpu, ...]:
    """Gpus by name; ``h200_sxm:1g.18gb`` is a slice of one.

    Raises:
        BadInput: every name nobody knows.
    """
    found: list[Gpu] = []
    problems: list[Problem] = []
    for name in dict.fromkeys(names):
        whole, _, profile = name.partition(":")
        try:
            part = catalog.gpu(whole, where="--gpu")
            found.append(performance.gpu_slice(part, profile, where="--gpu") if profile else part)
        except BadInput as error:
            problems.extend(error.problems)
    if problems:
        raise BadInput(problems)
    return tuple(found)


def capacity_rows(
    model: ModelArchitecture,
    deployments: Sequence[tuple[Gpu, Deployment]],
    lengths: Lengths,
    *,
    calibrate: Calibrate | None = None,
    measured: Sequence[Measured] = (),
) -> tuple[Row, ...]:
    """The table, one row for each deployment, in the order given.

    Args:
        model: What is served; it generates tokens.
        deployments: Gpu and deployment of each row.
        lengths: Of the requests.
        calibrate: Scales the physics of deployments that somebody measured.
        measured: Figures that replace predicted ones where deployment and lengths are the same.

    Raises:
        BadInput: an encoder, which has no decode.
    """
    if model.encoder_only:
        raise BadInput([Problem("--model", f"{model.name} is an encoder: it has no decode", "see: tokenfleet memory")])
    return tuple(_row(model, gpu, deployment, lengths, calibrate, measured) for gpu, deployment in deployments)


def _row(
    model: ModelArchitecture,
    gpu: Gpu,
    deployment: Deployment,
    lengths: Lengths,
    calibrate: Calibrate | None,
    measured: Sequence[Measured],
) -> Row:
    reasons = performance.unsupported(model, gpu, deployment)
    if reasons:
        return Row(deployment=deployment, gpu=gpu, budget=None, reasons=reasons)
    plain = performance.replica_physics(model, gpu, deployment)
    if not plain.memory.fits:
        return Row(deployment=deployment, gpu=gpu, budget=plain.memory, reasons=plain.memory.reasons)
    physics = plain if calibrate is None else calibrate(plain)
    longest = round(lengths.input_mean_tokens + lengths.output_mean_tokens)
    if performance.sequences_at(physics.memory, deployment, longest) == 0:
        short = f"No sequence of {longest:,} tokens fits into the KV cache"
        return Row(deployment=deployment, gpu=gpu, budget=physics.memory, reasons=(short,))
    kind: Kind = "predicted" if physics is plain else "calibrated"
    times = _Times(physics, lengths, kind)
    cells = times.cells()
    for figure in measured:
        if figure.name in cells and _is_same(figure, deployment, lengths):
            cells[figure.name] = Cell(value=figure.value, kind="measured", evidence=figure.evidence)
    return Row(
        deployment=deployment,
        gpu=gpu,
        budget=physics.memory,
        reasons=physics.memory.reasons,
        cells=cells | _money(gpu, deployment, cells, lengths),
        loads=times.loads(),
        evidence=physics.band.evidence,
    )


def _is_same(figure: Measured, deployment: Deployment, lengths: Lengths) -> bool:
    """Same deployment by name, engine version included, and lengths within a tenth."""
    other = figure.deployment
    facts = ("model", "gpu", "layout", "precision", "kv_precision")
    if any(getattr(other, fact) != getattr(deployment, fact) for fact in facts):
        return False
    mine, theirs = deployment.engine.name, other.engine.name
    if theirs != mine and not theirs.startswith(f"{mine}."):
        return False
    near_input = abs(figure.input_tokens / lengths.input_mean_tokens - 1) < 0.1
    return near_input and abs(figure.output_tokens / lengths.output_mean_tokens - 1) < 0.1


class _Times:
    """Figures of one replica that are times or rates."""

    def __init__(self, physics: ReplicaPhysics, lengths: Lengths, kind: Kind) -> None:
        self._physics, self._lengths, self._kind = physics, lengths, kind
        deployment = physics.deployment
        self._held = performance.sequences_at(
            physics.memory, deployment, round(lengths.input_mean_tokens + lengths.output_mean_tokens)
        )

    def _decode_s(self, sequences: int) -> float:
        """Seconds per token of each of so many sequences that decode together."""
        engine = self._physics.deployment.engine
        context = sequences * self._lengths.context_tokens
        step_s = self._table_s(sequences * engine.step_token_count, sequences, context, 0, prefill=False)
        return step_s / engine.mean_step_tokens

    def _table_s(self, tokens: int, sequences: int, context: int, pairs: int, *, prefill: bool) -> float:
        table = self._physics.step_time
        inside = min(context, sequences * table.window_tokens)
        base = float(table.token_ps[tokens]) + table.sequence_ps * sequences + table.context_ps * context
        base += table.window_ps * inside + table.pair_ps * pairs
        if table.window_pair_ps:
            prompt = tokens - sequences * self._physics.deployment.engine.step_token_count
            base += table.window_pair_ps * min(pairs, prompt * table.window_tokens)
        base += 0.0 if table.draft_ps is None else float(table.draft_ps[sequences])
        return float(((base**4 + table.eager_ps**4) ** 0.25 if prefill else base) / 1e12)

    def cells(self) -> dict[str, Cell]:
        """Rates and times, by name."""
        lengths, engine = self._lengths, self._physics.deployment.engine
        deployment, memory = self._physics.deployment, self._physics.memory
        stable = performance.sequences_at(memory, deployment, lengths.context_tokens)
        budget = engine.max_batched_tokens
        pairs = round(budget * lengths.input_mean_tokens / 2)
        first = min(lengths.input_p50_tokens, budget)
        idle = self._prompt_s(first) + self._physics.step_time.request_ps / 1e12
        limit = "the engine's slots" if stable >= engine.max_sequence_count else "KV cache"
        return {
            "max_stable_sequence_count": Cell(
                value=stable, kind="predicted", evidence=f"bound by {limit} at {lengths.context_tokens:,} tokens each"
            ),
            "prefill_tokens_per_s": self._banded(budget / self._table_s(budget, 0, 0, pairs, prefill=True)),
            "decode_tokens_per_s": self._banded(stable / self._decode_s(stable)),
            "stream_tokens_per_s": self._banded(1 / self._decode_s(1)),
            "idle_ttft_s": self._banded(idle),
            "output_tokens_per_s": self._banded(self.saturated_per_s() * lengths.output_mean_tokens),
        }

    def _prompt_s(self, chunk: int) -> float:
        """One prompt of median length alone, in chunks of the step budget."""
        total, start = 0.0, 0
        while start < self._lengths.input_p50_tokens:
            tokens = min(chunk, self._lengths.input_p50_tokens - start)
            pairs = tokens * start + tokens * (tokens + 1) // 2
            total += self._table_s(tokens, 0, 0, pairs, prefill=True)
            start += tokens
        return total

    def saturated_per_s(self) -> float:
        """Requests per second when all slots and the cache are full and prompts share the steps with answers."""
        lengths, engine = self._lengths, self._physics.deployment.engine
        # Each step begins as many prompts as it ends answers.
        ended = engine.mean_step_tokens / lengths.output_mean_tokens
        each = engine.step_token_count + ended * lengths.input_mean_tokens
        batch = max(min(self._held, engine.max_batched_tokens / each), 1.0)
        tokens = min(max(round(batch * each), 1), engine.max_batched_tokens)
        context = round(batch * (lengths.input_mean_tokens + lengths.output_mean_tokens / 2))
        pairs = round(batch * ended * lengths.input_mean_tokens**2 / 2)
        step_s = self._table_s(tokens, round(batch), context, pairs, prefill=True)
        return batch * ended / step_s

    def _banded(self, value: float) -> Cell:
        factor = self._physics.band.step_time_factor
        return Cell(
            value=value, low=value / factor, high=value * factor, kind=self._kind, evidence=self._physics.band.evidence
        )

    def loads(self) -> tuple[LoadPoint, ...]:
        """Time to first token at a few loads, replayed with Poisson arrivals; the interval is replayed too."""
        most = self.saturated_per_s()
        factor = self._physics.band.step_time_factor
        points = []
        for load in LOADS:
            trace = _trace(self._lengths, load * most)
            middle = _ttft_s(self._physics, trace)
            fast = _ttft_s(self._scaled(1 / factor), trace)
            slow = _ttft_s(self._scaled(factor), trace) if load * factor < 1 else (None, None)
            note = f"replay of {trace.request_count:,} requests"
            note += "" if load * factor < 1 else "; at the slow end of the interval the queue grows without end"
            cells = [self._first_token(middle[index], fast[index], slow[index], note) for index in (0, 1)]
            points.append(
                LoadPoint(load_fraction=load, rate_per_s=load * most, ttft_p50_s=cells[0], ttft_p99_s=cells[1])
            )
        return tuple(points)

    def _first_token(self, value: float | None, fast: float | None, slow: float | None, note: str) -> Cell:
        """The wider of the replayed ends and the interval of a measured first token; a queue without end has none."""
        wide = self._physics.band.first_token_factor
        low = fast if value is None or fast is None else min(fast, value / wide)
        high = slow if value is None or slow is None else max(slow, value * wide)
        return Cell(value=value, low=low, high=high, kind=self._kind, evidence=note)

    def _scaled(self, factor: float) -> ReplicaPhysics:
        return replace(self._physics, step_time=performance.scaled(self._physics.step_time, factor))


def _trace(lengths: Lengths, rate_per_s: float) -> Trace:
    return workload.draw_trace(
        workload.Lengths.parse(lengths.input_text),
        workload.Lengths.parse(lengths.output_text),
        mean_rate_per_s=rate_per_s,
        peak_to_mean=1.0,
        interarrival_cv=1.0,
        duration_s=max(_REQUESTS / rate_per_s, _SHORTEST_S),
        seed=1,
    )


def _ttft_s(physics: ReplicaPhysics, trace: Trace) -> tuple[float | None, float | None]:
    from tokenfleet import simulator

    record = simulator.replay(trace, Fleet(groups=(ReplicaGroup(replica=physics, replica_count=1),)))
    waited = record.ttft_s[np.isfinite(record.ttft_s)]
    if len(waited) == 0:
        return None, None
    return float(np.quantile(waited, 0.5)), float(np.quantile(waited, 0.99))


def _money(gpu: Gpu, deployment: Deployment, cells: dict[str, Cell], lengths: Lengths) -> dict[str, Cell]:
    price = None if ":" in gpu.name else catalog.reference_price(gpu.name)
    if price is None:
        unknown = Cell(value=None, kind="published", evidence=f"nobody publishes a price of a {gpu.title}")
        return {"usd_per_hour": unknown, "usd_per_million_output_tokens": unknown, "usd_per_million_tokens": unknown}
    per_hour = price.price.price_usd_per_gpu_hour * deployment.layout.gpu_count
    output = cells["output_tokens_per_s"]
    all_per_output = 1 + lengths.input_mean_tokens / lengths.output_mean_tokens

    def per_million(tokens_per_output: float) -> Cell:
        def cost(rate: float | None) -> float | None:
            return None if rate is None else per_hour / (rate * tokens_per_output * _SECONDS_PER_HOUR) * _MILLION

        return Cell(
            value=cost(output.value),
            low=cost(output.high),
            high=cost(output.low),
            kind=output.kind,
            evidence=f"at full load; {price.basis or price.price.source}",
        )

    return {
        "usd_per_hour": Cell(
            value=per_hour,
            low=price.low_usd_per_gpu_hour * deployment.layout.gpu_count,
            high=price.high_usd_per_gpu_hour * deployment.layout.gpu_count,
            kind="published",
            evidence=price.basis or price.price.source,
        ),
        "usd_per_million_output_tokens": per_million(1.0),
        "usd_per_million_tokens": per_million(all_per_output),
    }


def layouts(
    model: ModelArchitecture,
    gpu: Gpu,
    tensor_parallels: Sequence[int],
    pipeline_parallels: Sequence[int] = (1,),
    data_parallels: Sequence[int] = (1,),
) -> tuple[Layout, ...]:
    """Layouts of the sizes asked for that one node of a gpu holds.

    Data-parallel attention comes with whole experts on each rank, as engines run it; models without experts have none.
    """
    experts = any(block.expert_count for block in model.feed_forward)
    found = []
    for tensor, pipeline, data in product(tensor_parallels, pipeline_parallels, data_parallels):
        layout = Layout(
            tensor_parallel=tensor,
            pipeline_parallel=pipeline,
            attention_data_parallel=data,
            expert_parallel=tensor * data if experts and data > 1 else 1,
        )
        if layout.gpu_count <= gpu.gpus_per_node_count:
            found.append(layout)
    return tuple(dict.fromkeys(found))
