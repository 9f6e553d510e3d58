"""How long one step-time prediction takes, in processor time.

    python benchmarks/step_time.py

``compiled`` is a step inside the kernel's own function, ``python`` the same step read from the table of a replica,
``explained`` a step taken apart into compute, bandwidth, communication and overhead (:func:`step_shares`), and
``built`` the whole table of a replica from shapes and catalog facts.
"""

import time
from collections.abc import Callable

import numba
import numpy as np

from tokenfleet import catalog
from tokenfleet.domain.replica import Deployment, Layout, StepTimeModel
from tokenfleet.performance import replica_physics, step_shares, step_time_model
from tokenfleet.planner.floors import decode_step_s
from tokenfleet.simulator import layout as at
from tokenfleet.simulator.memory import Memory
from tokenfleet.simulator.steptime import prefill_step_ps

MODEL, GPU = "meta-llama/Llama-3.3-70B-Instruct", "h200_sxm"
STEPS = 20_000_000
GOALS_S = {"compiled": 1e-6, "python": 100e-6}


@numba.njit
def steps_ps(memory: Memory, largest: int, steps: int) -> int:
    """Many steps of different sizes, added up so that none can be left out."""
    total = 0
    for step in range(steps):
        tokens = 1 + step % largest
        total += prefill_step_ps(memory, 0, tokens, tokens // 2, 700 * tokens, 0, 64 * tokens) & 1023
    return total


def group_memory(model: StepTimeModel) -> Memory:
    """The kernel's words of one group of replicas: its slopes, then its table."""
    slopes = {
        at.SEQUENCE_PS: model.sequence_ps,
        at.CONTEXT_PS: model.context_ps,
        at.WINDOW_PS: model.window_ps,
        at.PAIR_PS: model.pair_ps,
        at.EAGER_PS: model.eager_ps,
    }
    table_at = max(*slopes, at.TOKEN_TABLE_AT) + 1
    memory = np.zeros(table_at + len(model.token_ps), dtype=np.int64)
    for place, value in slopes.items():
        memory[place] = value
    memory[at.TOKEN_TABLE_AT] = table_at
    memory[table_at:] = model.token_ps
    return memory


def each_s(call: Callable[[], object], times: int) -> float:
    """Processor seconds of one call, the best of three."""
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        for _ in range(times):
            call()
        best = min(best, time.process_time() - began)
    return best / times


def main() -> None:
    """Measure and print."""
    gpu, model = catalog.gpu(GPU), catalog.model(MODEL)
    deployment = Deployment(
        model=model.name,
        gpu=gpu.name,
        layout=Layout(tensor_parallel=2),
        precision="bf16",
        kv_precision="bf16",
        engine=catalog.engine("vllm", gpu=gpu),
    )
    replica = replica_physics(model, gpu, deployment)
    memory = group_memory(replica.step_time)
    largest = len(replica.step_time.token_ps) - 1
    steps_ps(memory, largest, 10)
    load = {"token_count": 64, "sequence_count": 64, "context_tokens": 64_000}
    found = {
        "compiled": each_s(lambda: steps_ps(memory, largest, STEPS), 1) / STEPS,
        "python": each_s(lambda: decode_step_s(replica, 64, 1000.0), 10_000),
        "explained": each_s(lambda: step_shares(model, gpu, deployment, **load), 200),
        "built": each_s(lambda: step_time_model(model, gpu, deployment), 50),
    }
    for name, seconds in found.items():
        goal = f"   goal {GOALS_S[name] * 1e6:g} us" if name in GOALS_S else ""
        print(f"{name:10} {seconds * 1e6:10.3f} us{goal}")


if __name__ == "__main__":
    main()
