"""Runs in an interpreter that has vLLM: its own scheduler and engine loop play workloads without a model.

Reads one JSON object per line from standard input, one workload each, and answers each with one line::

    {"engine": {"max_batched_tokens", "max_sequence_count", "block_tokens", "block_count", "prefix_caching",
                "chunked_prefill", "full_prompt_gate", "async_scheduling", "watermark_fraction",
                "long_prefill_tokens", "scheduling"},
     "windows": [groups of layers that keep everything, groups with a window, its tokens],
     "step_ps": duration of every step,
     "requests": [{"ready_ps", "priority", "prompt": [token ids], "answer": [token ids], "abort_ps": time or null}]}

    {"steps": [{"start_ps", "end_ps", "batch": [[request, computed tokens before, tokens]], "preempted": [request]}],
     "tokens_ps": [[time of each output token] of each request], "aborted": [request]}

Time is virtual: a batch starts when it is handed over and the one before has ended, and waiting for its result
moves the clock to its end. Requests reach the scheduler between two passes of the engine loop, as they do there.
Aborts are looked at when a result is there, as there, and before a pass.
"""

import contextlib
import json
import logging
import queue
import sys
import tempfile
from collections import deque
from concurrent.futures import Future
from pathlib import Path

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

LONGEST_TOKENS = 1 << 16
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 128,
    "max_position_embeddings": LONGEST_TOKENS,
    "torch_dtype": "float32",
}


class Clock:
    """Virtual time, and when the last batch handed over will have ended."""

    def __init__(self) -> None:
        self.now_ps = self.horizon_ps = 0


class Result(Future):
    """A batch in flight: asking for its result waits for its end."""

    def __init__(self, clock: Clock, end_ps: int, output: ModelRunnerOutput | None) -> None:
        super().__init__()
        self.clock, self.end_ps = clock, end_ps
        self.set_result(output)

    def result(self, timeout=None):
        """The sampled tokens, or nothing where they are asked for apart."""
        output = super().result(timeout)
        if output is not None:
            self.clock.now_ps = max(self.clock.now_ps, self.end_ps)
        return output


class Executor:
    """Stands for the workers: takes batches, writes them down, and samples what the workload says."""

    def __init__(self, scheduler: Scheduler, workload: dict, clock: Clock) -> None:
        self.scheduler, self.workload, self.clock = scheduler, workload, clock
        self.known = [one["prompt"] + one["answer"] for one in workload["requests"]]
        self.steps, self.preempted, self.last = [], [], None

    def execute_model(self, batch, **_how):
        """Start a batch; one without tokens costs nothing and ends at once."""
        counts = batch.num_scheduled_tokens
        start_ps = max(self.clock.now_ps, self.clock.horizon_ps)
        end_ps = start_ps + self.workload["step_ps"] if counts else self.clock.now_ps
        rows, sampled = [], []
        for name, count in counts.items():
            request = self.scheduler.requests[name]
            number, computed = int(name), request.num_computed_tokens
            rows.append([number, computed - count, count])
            sampled.append([] if request.is_prefill_chunk else [self.known[number][computed]])
        if counts:
            self.clock.horizon_ps = end_ps
            self.steps.append({"start_ps": start_ps, "end_ps": end_ps, "batch": rows, "preempted": self.preempted})
            self.preempted = []
        output = ModelRunnerOutput(
            req_ids=list(counts),
            req_id_to_index={name: index for index, name in enumerate(counts)},
            sampled_token_ids=sampled,
        )
        self.last = Result(self.clock, end_ps, output)
        # Where tokens are sampled apart from the forward pass, the pass itself answers nothing.
        apart = counts and isinstance(self.scheduler, AsyncScheduler)
        return Result(self.clock, end_ps, None) if apart else self.last

    def sample_tokens(self, *_grammar, **_how):
        """Tokens of the last batch."""
        return self.last


class Core(EngineCore):
    """The engine loop around the scheduler, without what starts a model."""

    def __init__(self, scheduler: Scheduler, executor: Executor, in_flight: int) -> None:
        self.scheduler, self.model_executor = scheduler, executor
        requests = executor.workload["requests"]
        due = [(one["abort_ps"], number) for number, one in enumerate(requests) if one["abort_ps"] is not None]
        self.due, self.known, self.aborted = sorted(due), set(), []
        self.aborts_queue = queue.Queue()
        self.batch_queue_size = in_flight
        self.batch_queue = deque(maxlen=in_flight) if in_flight > 1 else None
        self.is_pooling_model = self.is_mm_encoder_only = self.check_for_draft_tokens = False

    def _process_aborts_queue(self):
        """Abort who has come and given up by now, one by one: vLLM's own order among several is that of a set."""
        now_ps = self.model_executor.clock.now_ps
        coming = [number for abort_ps, number in self.due if abort_ps <= now_ps and number in self.known]
        self.due = [entry for entry in self.due if entry[1] not in coming]
        for number in coming:
            if str(number) in self.scheduler.requests:
                self.aborted.append(number)
                self.abort_requests([str(number)])

    @contextlib.contextmanager
    def capture_iteration_details(self, _batch):
        """Nothing is logged."""
        yield None

    def _attach_iteration_details(self, *_details):
        pass

    def _attach_weight_version(self, _outputs):
        pass

    @contextlib.contextmanager
    def log_error_detail(self, _batch):
        """Errors travel as they are."""
        yield

    def shutdown(self):
        """Nothing was started."""


def config(engine: dict, folder: str) -> VllmConfig:
    """The configuration of one workload."""
    made = VllmConfig(
        model_config=ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32", seed=0),
        cache_config=CacheConfig(enable_prefix_caching=engine["prefix_caching"]),
        scheduler_config=SchedulerConfig(
            max_num_batched_tokens=engine["max_batched_tokens"],
            max_num_seqs=engine["max_sequence_count"],
            max_model_len=LONGEST_TOKENS,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            scheduler_reserve_full_isl=engine["full_prompt_gate"],
            watermark=engine["watermark_fraction"],
            long_prefill_token_threshold=engine["long_prefill_tokens"] or 0,
            policy=engine["scheduling"],
        ),
    )
    # The CPU platform changes these three; they are what the workload is about.
    made.cache_config.block_size = engine["block_tokens"]
    made.cache_config.num_gpu_blocks = engine["block_count"] + 1
    made.cache_config.enable_prefix_caching = engine["prefix_caching"]
    made.scheduler_config.enable_chunked_prefill = engine["chunked_prefill"]
    made.scheduler_config.async_scheduling = engine["async_scheduling"]
    return made


def scheduler_of(engine: dict, windows: list, folder: str) -> Scheduler:
    """The scheduler; one block more than usable, because it keeps one as its null block."""
    made = config(engine, folder)
    shape = {"block_size": engine["block_tokens"], "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    growth, windowed, window_tokens = windows
    specs = [FullAttentionSpec(**shape)] * growth
    specs += [SlidingWindowSpec(**shape, sliding_window=window_tokens)] * windowed
    kind = AsyncScheduler if engine["async_scheduling"] else Scheduler
    return kind(
        vllm_config=made,
        kv_cache_config=KVCacheConfig(
            num_blocks=engine["block_count"] + 1,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec([f"layer {number}"], spec) for number, spec in enumerate(specs)],
        ),
        structured_output_manager=StructuredOutputManager(made),
        block_size=engine["block_tokens"],
        log_stats=False,
    )


def play(workload: dict, folder: str) -> dict:
    """Run one workload to its end."""
    engine, clock = workload["engine"], Clock()
    scheduler = scheduler_of(engine, workload["windows"], folder)
    executor = Executor(scheduler, workload, clock)
    core = Core(scheduler, executor, in_flight=2 if engine["async_scheduling"] else 1)
    hasher = get_request_block_hasher(engine["block_tokens"], sha256) if engine["prefix_caching"] else None
    preempt = scheduler._preempt_request

    def noted_preempt(request, *others, **named):
        executor.preempted.append(int(request.request_id))
        preempt(request, *others, **named)

    scheduler._preempt_request = noted_preempt
    coming = deque(sorted(enumerate(workload["requests"]), key=lambda entry: (entry[1]["ready_ps"], entry[0])))
    tokens_ps = [[] for _ in workload["requests"]]
    step = core.step if core.batch_queue is None else core.step_with_batch_queue
    while coming or scheduler.has_requests() or core.batch_queue:
        if not scheduler.has_requests() and not core.batch_queue:
            clock.now_ps = max(clock.now_ps, coming[0][1]["ready_ps"])
        while coming and coming[0][1]["ready_ps"] <= clock.now_ps:
            number, one = coming.popleft()
            core.known.add(number)
            sampling = SamplingParams(max_tokens=len(one["answer"]), ignore_eos=True, temperature=0.0)
            scheduler.add_request(
                Request(
                    str(number),
                    one["prompt"],
                    sampling,
                    None,
                    arrival_time=number,
                    priority=one["priority"],
                    block_hasher=hasher,
                )
            )
        core._process_aborts_queue()
        outputs, _ = step()
        for output in (outputs or {}).values():
            for one in output.outputs:
                tokens_ps[int(one.request_id)] += [clock.now_ps] * len(one.new_token_ids)
    return {"steps": executor.steps, "tokens_ps": tokens_ps, "aborted": core.aborted}


def main() -> None:
    """Answer workloads until the input ends."""
    logging.disable(logging.WARNING)
    init_none_hash(sha256)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        for line in sys.stdin:
            print(json.dumps(play(json.loads(line), folder)), flush=True)


if __name__ == "__main__":
    main()
