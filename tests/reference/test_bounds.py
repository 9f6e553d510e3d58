"""What bounds the steps of an interval is told from their means; adding up every single step says the same."""

import numpy as np
import pytest

from reference.fleets import engine, fleet
from reference.plain_fleet import PlainRun
from tokenfleet import catalog, performance
from tokenfleet.app.intervals import BOUNDS, intervals_of
from tokenfleet.domain.replica import Deployment, Layout
from tokenfleet.domain.trace import Trace
from tokenfleet.simulator import replay

MODEL, GPU, INTERVAL_S = "meta-llama/Llama-3.1-8B-Instruct", "l40s", 5.0


class Steps(PlainRun):
    """A plain run that remembers its steps: start, duration, sequences, contexts, prompt tokens, pairs."""

    def count_step(self, replica, decodes, prefills, duration) -> None:
        contexts = sum(start + 1 for _, start, _ in decodes)
        tokens = sum(tokens for _, _, tokens in prefills)
        pairs = sum(tokens * start + tokens * (tokens + 1) // 2 for _, start, tokens in prefills)
        self.rows = [*getattr(self, "rows", []), (replica.horizon, duration, len(decodes), contexts, tokens, pairs)]
        super().count_step(replica, decodes, prefills, duration)


def deployment(name: str) -> Deployment:
    rules = engine(name=name, max_batched_tokens=512, max_sequence_count=64, block_tokens=16)
    return Deployment(model=MODEL, gpu=GPU, layout=Layout(), precision="bf16", kv_precision="bf16", engine=rules)


def exact_shares(steps: np.ndarray, on: Deployment, count: int) -> dict[str, np.ndarray]:
    """Share of each interval by what its steps wait for, one by one."""
    found = {name: np.zeros(count) for name in BOUNDS}
    for prefill in (False, True):
        chosen = steps[(steps[:, 4] > 0) == prefill]
        _, duration, sequences, context, tokens, pairs = chosen.T
        parts = performance.step_parts(
            catalog.model(MODEL),
            catalog.gpu(GPU),
            on,
            tokens=sequences + tokens,
            sequences=sequences,
            context_tokens=context,
            pairs=pairs if prefill else None,
            prefill=prefill,
        )
        place = np.minimum(chosen[:, 0] / 1e12 // INTERVAL_S, count - 1).astype(int)
        for name in BOUNDS:
            spent_s = parts[name] / sum(parts.values()) * duration / 1e12
            found[name] += np.bincount(place, weights=spent_s, minlength=count) / INTERVAL_S
    return found


@pytest.mark.parametrize("name", ["vllm-0.32", "sglang-0.5"])
def test_means_of_steps_tell_what_bounds_them(name: str) -> None:
    draw = np.random.default_rng(3)
    rows = Trace(
        arrival_s=np.sort(draw.uniform(0.0, 15.0, 30)),
        input_tokens=draw.integers(100, 3000, 30).astype(np.int32),
        output_tokens=draw.integers(10, 80, 30).astype(np.int32),
    )
    on = deployment(name)
    served = fleet(performance.replica_physics(catalog.model(MODEL), catalog.gpu(GPU), on))
    told = intervals_of(
        replay(rows, served, telemetry_interval_s=INTERVAL_S), INTERVAL_S, served, [catalog.model(MODEL)]
    )
    steps = np.array(Steps(rows, served, None, INTERVAL_S).rows, dtype=float)
    exact = exact_shares(steps, on, len(told.busy_fraction))
    for bound in BOUNDS:
        whole = exact[bound].sum()
        assert told.bound_fraction[bound].sum() == pytest.approx(whole, rel=0.01, abs=1e-9), bound
        # A step that began in the interval before counts there one by one, and in part here.
        np.testing.assert_allclose(told.bound_fraction[bound][:, 0], exact[bound], atol=0.03)
    most = np.stack([exact[bound] for bound in BOUNDS]).argmax(axis=0)
    busy = told.busy_fraction[:, 0] > 0.1
    np.testing.assert_array_equal(told.bound_by[busy, 0], most[busy])
