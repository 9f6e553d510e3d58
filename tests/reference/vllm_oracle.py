"""vLLM's own scheduler as an oracle: workloads both sides play, and timelines to compare.

``TOKENFLEET_VLLM_PYTHON`` names a Python with vLLM 0.32 in it (its CPU build is enough, no GPU and no weights are
needed). What that interpreter runs is ``vllm_driver.py``.
"""

import json
import os
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import numpy as np

from reference import plain_engine, plain_fleet
from reference.fleets import MS, engine, fleet, physics, step_time
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.replica import EngineSettings
from tokenfleet.domain.trace import PrefixTree, Trace
from tokenfleet.domain.world import Leaving, World

VLLM_PYTHON = os.environ.get("TOKENFLEET_VLLM_PYTHON")
DRIVER = Path(__file__).with_name("vllm_driver.py")
STEP_PS = 10 * MS
SETTINGS = ("max_batched_tokens", "max_sequence_count", "block_tokens", "prefix_caching", "chunked_prefill")
SETTINGS += ("full_prompt_gate", "async_scheduling", "watermark_fraction")
LATER_SETTINGS = ("long_prefill_tokens", "scheduling")
"""Those that a row of the recorded file may leave out."""
OWN = 1_000
"""Names of token runs from here on belong to one request alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One batch: ``(request, tokens computed before, tokens)`` in the order of the scheduler."""

    start_ps: int
    end_ps: int
    batch: tuple[tuple[int, int, int], ...]
    preempted: tuple[int, ...]
    """Requests that lost their blocks since the step before, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All a scheduler decided, and when each request had its first and last token."""

    steps: tuple[Step, ...]
    first_ps: tuple[int, ...]
    finish_ps: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests for one replica whose every step takes 10 ms."""

    trace: Trace
    settings: EngineSettings
    block_count: int
    after_s: tuple[float, ...] | None = None
    """When the user of each request leaves; ``inf``: never."""
    windows: tuple[int, int, int] = (1, 0, 0)
    """Groups of layers that keep everything, groups with a window, and its tokens."""

    @property
    def world(self) -> World | None:
        """As a replay takes it."""
        return None if self.after_s is None else World(leaving=Leaving(after_s=np.array(self.after_s)))

    @property
    def fleet(self) -> Fleet:
        """As a replay takes it."""
        tokens = max(self.settings.max_batched_tokens, self.settings.max_sequence_count)
        time = step_time(tokens=tokens)
        return fleet(physics(settings=self.settings, time=time, blocks=self.block_count, windows=self.windows))

    def tokens(self, row: int) -> list[int]:
        """Token ids of prompt and answer: equal between requests exactly where the prefix tree says so."""
        length = int(self.trace.input_tokens[row] + self.trace.output_tokens[row])
        runs = [(length, OWN + row)]
        node = -1 if self.trace.prefix_node is None else int(self.trace.prefix_node[row])
        while node >= 0:
            runs.insert(0, (int(self.trace.prefixes.depth_tokens[node]), node))
            node = int(self.trace.prefixes.parent[node])
        known = []
        for depth, name in runs:
            known += [name * 10_000 + place for place in range(len(known), depth)]
        return known

    def as_question(self) -> str:
        """One line for the driver."""
        requests = []
        for row, arrival_s in enumerate(self.trace.arrival_s):
            known, prompt = self.tokens(row), int(self.trace.input_tokens[row])
            ready_ps = int(np.rint(arrival_s * 1e12))
            requests.append({"ready_ps": ready_ps, "prompt": known[:prompt], "answer": known[prompt:]})
            stays_s = np.inf if self.after_s is None else self.after_s[row]
            requests[-1]["abort_ps"] = None if np.isinf(stays_s) else ready_ps + round(stays_s * 1e12)
            requests[-1]["priority"] = 0 if self.trace.priority is None else int(self.trace.priority[row])
        settings = {name: getattr(self.settings, name) for name in SETTINGS + LATER_SETTINGS}
        settings |= {"block_count": self.block_count}
        return json.dumps({"engine": settings, "windows": self.windows, "step_ps": STEP_PS, "requests": requests})

    def as_row(self) -> dict:
        """As the file of recorded timelines keeps it."""
        shared = {}
        if self.trace.prefixes is not None:
            tree = self.trace.prefixes
            shared = {"parent": tree.parent.tolist(), "node_tokens": tree.token_count.tolist()}
            shared["prefix_node"] = self.trace.prefix_node.tolist()
        if self.trace.priority is not None:
            shared["priority"] = self.trace.priority.tolist()
        plain = engine()
        later = {name: getattr(self.settings, name) for name in LATER_SETTINGS}
        later = {name: value for name, value in later.items() if value != getattr(plain, name)}
        return {
            "engine": {name: getattr(self.settings, name) for name in SETTINGS} | later,
            "block_count": self.block_count,
            **({} if self.windows == (1, 0, 0) else {"windows": self.windows}),
            "arrival_s": self.trace.arrival_s.tolist(),
            "input_tokens": self.trace.input_tokens.tolist(),
            "output_tokens": self.trace.output_tokens.tolist(),
            **shared,
            **({} if self.after_s is None else {"after_s": [None if np.isinf(s) else s for s in self.after_s]}),
        }

    @classmethod
    def from_row(cls, row: dict) -> "Workload":
        """See :meth:`as_row`."""
        lengths = {name: np.array(row[name], dtype=np.int32) for name in ("input_tokens", "output_tokens")}
        shared = {}
        if "parent" in row:
            tree = {"parent": row["parent"], "token_count": row["node_tokens"]}
            shared["prefixes"] = PrefixTree(**{name: np.array(each, dtype=np.int32) for name, each in tree.items()})
            shared["prefix_node"] = np.array(row["prefix_node"], dtype=np.int32)
        if "priority" in row:
            shared["priority"] = np.array(row["priority"], dtype=np.int32)
        trace = Trace(arrival_s=np.array(row["arrival_s"]), **lengths, **shared)
        after_s = tuple(np.inf if s is None else s for s in row["after_s"]) if "after_s" in row else None
        return cls(
            trace=trace,
            settings=engine(**row["engine"]),
            block_count=row["block_count"],
            after_s=after_s,
            windows=tuple(row.get("windows", (1, 0, 0))),
        )


def random_workload(seed: int, *, request_limit: int = 40, shared: bool = False, **settings) -> Workload:
    """Small requests on a small pool; nothing in it is refused on arrival."""
    draw = np.random.default_rng(seed)
    count = int(draw.integers(1, request_limit + 1))
    arrival_ms = np.cumsum(draw.exponential(float(draw.choice([2.0, 10.0, 40.0])), count))
    if draw.random() < 0.3:
        arrival_ms = np.floor(arrival_ms / 10.0) * 10.0
    inputs = draw.integers(1, int(draw.choice([10, 40, 100])) + 1, count)
    outputs = np.minimum(draw.geometric(1.0 / draw.choice([2.0, 10.0, 30.0]), count), 150)
    columns = random_sharing(draw, inputs, outputs) if shared else {}
    if settings.get("scheduling") == "priority":
        columns["priority"] = draw.integers(-1, 3, count).astype(np.int32)
    block_tokens = int(draw.choice([1, 2, 3, 4, 16]))
    sequences = int(draw.integers(1, 9))
    chunked = bool(draw.random() < 0.85)
    longest = int((inputs + outputs).max())
    drawn = {
        "max_sequence_count": sequences,
        "max_batched_tokens": max(int(draw.integers(sequences, sequences + 40)), 0 if chunked else longest),
        "block_tokens": block_tokens,
        "chunked_prefill": chunked,
        "full_prompt_gate": bool(draw.random() < 0.6),
        "watermark_fraction": float(draw.choice([0.0, 0.0, 0.1, 0.3])),
    }
    blocks = int(longest * draw.uniform(1.0, 1.7)) // block_tokens + int(draw.integers(1, 4))
    while watermark_hangs_on_the_null_block(drawn["watermark_fraction"], blocks):
        blocks += 1
    trace = Trace(
        arrival_s=arrival_ms / 1000.0,
        input_tokens=inputs.astype(np.int32),
        output_tokens=outputs.astype(np.int32),
        **columns,
    )
    return Workload(trace=trace, settings=engine(**(drawn | settings)), block_count=blocks)


def with_windows(workload: Workload, seed: int) -> Workload:
    """The workload of a model with windows in all layers or some, on a pool that just holds the longest request."""
    draw = np.random.default_rng(seed)
    growth, windowed = ((0, 1), (1, 1), (2, 3), (1, 4))[int(draw.integers(4))]
    windowed_like = replace(workload, windows=(growth, windowed, int(draw.choice([1, 2, 3, 6, 13, 30, 60]))))
    replica = windowed_like.fleet.groups[0].replica
    longest = int((workload.trace.input_tokens + workload.trace.output_tokens).max())
    stretches = -(-longest // replica.kv_block_tokens)
    blocks = growth * stretches + windowed * min(stretches, replica.kv_window_stretch_count)
    blocks = int(blocks * draw.uniform(1.0, 1.5)) + int(draw.integers(1, 3))
    while watermark_hangs_on_the_null_block(workload.settings.watermark_fraction, blocks):
        blocks += 1
    return replace(windowed_like, block_count=blocks)


def with_leaving(workload: Workload, seed: int) -> Workload:
    """The workload with users some of whom leave, often when a step ends, no two at once."""
    draw = np.random.default_rng(seed)
    count = workload.trace.request_count
    after_s = np.ceil(draw.exponential(float(draw.choice([0.03, 0.2])), count) * 100.0) / 100.0
    after_s += np.arange(1, count + 1) * 1e-9 * (draw.random() < 0.5)
    after_s[draw.random(count) < 0.4] = np.inf
    return replace(workload, after_s=tuple(after_s.tolist()))


def watermark_hangs_on_the_null_block(fraction: float, block_count: int) -> bool:
    """vLLM takes the watermark of all blocks, the one it cannot use among them; here only usable ones are known."""
    return int(fraction * block_count) != int(fraction * (block_count + 1))


def random_sharing(draw: np.random.Generator, inputs, outputs) -> dict:
    """A random tree; prompts end near their node's end as a rule, so equal prompts and answers are common."""
    nodes = int(draw.integers(1, 7))
    parent = np.array([int(draw.integers(-1, node)) if node else -1 for node in range(nodes)], dtype=np.int32)
    tree = PrefixTree(parent=parent, token_count=draw.integers(1, 30, nodes).astype(np.int32))
    chosen = draw.integers(-1, nodes, len(inputs)).astype(np.int32)
    depth = tree.depth_tokens
    for row, node in enumerate(chosen):
        if node >= 0:
            inputs[row] = max(1, depth[node] + int(draw.choice([-9, -4, -1, 0, 0, 0, 1, 5])))
            outputs[row] = max(outputs[row], depth[node] - inputs[row])
    return {"prefix_node": chosen, "prefixes": tree}


class RecordingReplica(plain_engine.Replica):
    """The plain engine, writing down what it decides."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.steps, self.lost = [], []

    def preempt(self, request, served: int = 0) -> None:
        """Note it for the next step."""
        self.lost.append(request)
        super().preempt(request, served)

    def launch(self, planned) -> None:
        """Note the batch."""
        start_ps = self.horizon
        super().launch(planned)
        self.steps.append((start_ps, self.horizon, planned, self.lost))
        self.lost = []


def plain_timeline(workload: Workload) -> Timeline:
    """What the plain engine decides."""
    with mock.patch.object(plain_fleet, "Replica", RecordingReplica):
        run = plain_fleet.PlainRun(workload.trace, workload.fleet, world=workload.world)
    number = {request: row for row, request in enumerate(run.requests)}
    steps = tuple(
        Step(
            start_ps=start_ps,
            end_ps=end_ps,
            batch=tuple((number[request], computed, tokens) for request, computed, tokens in planned),
            preempted=tuple(number[request] for request in lost),
        )
        for start_ps, end_ps, planned, lost in run.replicas[0].steps
    )
    first_ps = tuple(request.first for request in run.requests)
    return Timeline(steps=steps, first_ps=first_ps, finish_ps=tuple(request.finish for request in run.requests))


def timeline_of(answer: dict) -> Timeline:
    """The driver's answer."""
    steps = tuple(
        Step(
            start_ps=step["start_ps"],
            end_ps=step["end_ps"],
            batch=tuple(map(tuple, step["batch"])),
            preempted=tuple(step["preempted"]),
        )
        for step in answer["steps"]
    )
    tokens_ps, aborted = answer["tokens_ps"], set(answer["aborted"])
    first_ps = tuple(times[0] if times else -1 for times in tokens_ps)
    finish_ps = tuple(-1 if number in aborted else times[-1] for number, times in enumerate(tokens_ps))
    return Timeline(steps=steps, first_ps=first_ps, finish_ps=finish_ps)


def recorded(timeline: Timeline) -> dict:
    """A timeline as the file of recorded ones keeps it: steps as start, batch, and who was preempted before."""
    steps = [[step.start_ps, step.batch, step.preempted] for step in timeline.steps]
    return {"steps": steps, "first_ps": timeline.first_ps, "finish_ps": timeline.finish_ps}


def from_record(row: dict) -> Timeline:
    """See :func:`recorded`."""
    steps = tuple(
        Step(start_ps=start_ps, end_ps=start_ps + STEP_PS, batch=tuple(map(tuple, batch)), preempted=tuple(preempted))
        for start_ps, batch, preempted in row["steps"]
    )
    return Timeline(steps=steps, first_ps=tuple(row["first_ps"]), finish_ps=tuple(row["finish_ps"]))


class Vllm:
    """A running driver."""

    def __init__(self, python: str) -> None:
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        self.process = subprocess.Popen(
            [python, str(DRIVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def ask(self, workload: Workload) -> Timeline:
        """Play a workload there."""
        self.process.stdin.write(workload.as_question() + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the driver died; its error output says why"
        return timeline_of(json.loads(line))

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()
