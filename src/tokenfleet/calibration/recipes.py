"""What a source's public launch scripts set for all its runs, where the rows do not repeat it.

The InferenceX dashboard publishes a script per model, precision and gpu (github.com/SemiAnalysisAI/InferenceX,
``benchmarks/``, read 2026-11): cache precision, prefill chunk, batch limits, and how often SGLang's scheduler looks
at the door. They are facts of the measurement, like a row's own columns, which win over them.
"""

import math
import re
from dataclasses import replace

from tokenfleet.calibration.measured import Row

_NOMINAL = {(1024.0, 1024.0), (1024.0, 8192.0), (8192.0, 1024.0)}
"""Input and output lengths of the dashboard; its own scripts also ran under other names."""
_BLACKWELL = ("b200", "b300", "gb200", "gb300")
_MANY_IN_FLIGHT = 16
_POLL_FEW, _POLL_MANY = 10, 30
"""SGLang on Blackwell looks for new requests every 10 decode steps below 16 in flight, every 30 from there."""


def is_dashboard(row: Row) -> bool:
    """Whether a row ran under the dashboard's client: lengths uniform in 0.8 to 1.0 of the nominal value."""
    if "dashboard" in row.facts.get("origin", ""):
        return True
    repeated = row.facts.get("origin", "").startswith("NVIDIA") and "Qwen3.5" in row.model
    return repeated and (row.input_tokens, row.output_tokens) in _NOMINAL


def with_recipe(row: Row) -> Row:
    """The row with the settings that its source's scripts state; its own columns win."""
    if row.source == "dstack_bench":
        return _named_config(row)
    if not is_dashboard(row):
        return row
    blackwell = row.gpu.startswith(_BLACKWELL)
    tokens, cache = row.max_batched_tokens, row.kv_precision
    if row.engine == "sglang":
        tokens = tokens or _sglang_chunk(row, blackwell)
        cache = cache or ("fp8" if blackwell else None)
    elif row.engine == "vllm":
        tokens = tokens or 8192
        cache = cache or ("fp8" if blackwell else None)
    elif row.engine == "trtllm":
        longest = (row.input_tokens or 0) + (row.concurrency or 0) + 64
        tokens = tokens or (20_000 if "gpt-oss" in row.model else max(8192, round(longest)))
        cache = cache or "fp8"
    return replace(row, max_batched_tokens=tokens, kv_precision=cache)


def _sglang_chunk(row: Row, blackwell: bool) -> int:
    if row.precision == "fp4":
        return 16_384
    if blackwell and row.tensor_parallel == 4 and "deepseek" in row.model.lower():
        return 8192
    return 32_768


def poll_every(row: Row) -> int:
    """Decode steps between two looks at the door."""
    if not is_dashboard(row) or row.engine != "sglang" or not row.gpu.startswith(_BLACKWELL):
        return 1
    return _POLL_MANY if (row.concurrency or 0) >= _MANY_IN_FLIGHT else _POLL_FEW


def _named_config(row: Row) -> Row:
    """The layout in a configuration's name: ``config 8xMi300x 2FP8`` is 8 gpus as 2 replicas of 4 ranks."""
    found = re.search(r"config (\d+)x\w+ (\d+)FP8", row.notes)
    if found is None or row.tensor_parallel is not None:
        return row
    gpus, replicas = int(found[1]), int(found[2])
    return replace(row, gpu_count=gpus, tensor_parallel=max(gpus // replicas, 1))


def with_stated_load(row: Row) -> Row:
    """The row with the load that its source's script sends where no column says.

    Sweeps of the prompt count ran vLLM's benchmark script, whose rate, unless set, sends everything at once.
    """
    if row.source != "dstack_bench":
        return row
    swept = row.workload.endswith(("_short", "_long", "_single_prompt"))
    if not swept or row.concurrency or row.request_rate_per_s is not None or row.request_count is None:
        return row
    return replace(row, request_rate_per_s=math.inf)
