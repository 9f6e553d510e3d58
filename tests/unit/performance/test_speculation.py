"""What speculation does to a step: checking, drafting, and what the host pays."""

import csv
from dataclasses import replace

import pytest

from shared import SHARED, needs_shared
from tokenfleet import catalog
from tokenfleet.domain.errors import OutOfRange
from tokenfleet.domain.replica import Deployment, Layout, Speculation
from tokenfleet.performance import error_band, replica_physics, scaled, step_shares, step_time_model

GPU = catalog.gpu("h100_sxm")


def deployed(model, drafted=None, drafter="mtp", *, engine="vllm", precision="fp8", layout=None):
    asked = None
    if drafted is not None:
        asked = Speculation(draft_token_count=drafted, acceptance_fraction=0.7, drafter=drafter)
    return Deployment(
        model=model.name,
        gpu=GPU.name,
        layout=layout or Layout(),
        precision=precision,
        kv_precision="bf16",
        engine=replace(catalog.engine(engine, gpu=GPU), speculation=asked),
    )


def step_s(model, deployment, sequences, context=500):
    tokens = sequences * deployment.engine.step_token_count
    return step_shares(
        model, GPU, deployment, token_count=tokens, sequence_count=sequences, context_tokens=sequences * context
    ).step_s


def test_the_table_and_the_shares_say_the_same():
    model = catalog.model("Qwen/Qwen3-8B")
    for drafter in ("mtp", "Qwen/Qwen3-0.6B", None):
        deployment = deployed(model, 3, drafter)
        table = step_time_model(model, GPU, deployment)
        for sequences in (1, 7, 200):
            ps = table.token_ps[4 * sequences] + sequences * (table.sequence_ps + 500 * table.context_ps)
            ps += 0 if table.draft_ps is None else table.draft_ps[sequences]
            assert ps * 1e-12 == pytest.approx(step_s(model, deployment, sequences), rel=1e-5)


def test_a_drafter_costs_what_its_weights_and_launches_cost():
    model = catalog.model("Qwen/Qwen3-8B")
    looked_up, layer, small = (step_s(model, deployed(model, 3, who), 1) for who in (None, "mtp", "Qwen/Qwen3-0.6B"))
    assert looked_up < layer < small
    assert step_s(model, deployed(model, 6), 1) > layer
    # One pass of the small model reads 28 layers, one of the prediction layer a single one and the head.
    assert small - looked_up > 3 * (layer - looked_up) / 2


def test_a_prompt_passes_through_the_drafter_too():
    model = catalog.model("Qwen/Qwen3-8B")
    plain, drafted = (step_time_model(model, GPU, deployed(model, *asked)) for asked in ((), (3, "Qwen/Qwen3-0.6B")))
    assert 1.02 < drafted.token_ps[8192] / plain.token_ps[8192] < 1.3
    assert drafted.draft_ps[0] == 0


def test_slower_steps_draft_more_slowly():
    model = catalog.model("Qwen/Qwen3-8B")
    table = step_time_model(model, GPU, deployed(model, 3))
    assert scaled(table, 2.0).draft_ps[5] == pytest.approx(2 * table.draft_ps[5], abs=1)


def test_many_latents_checked_at_once_are_arithmetic():
    model = catalog.model("deepseek-ai/DeepSeek-V3")
    layout = Layout(attention_data_parallel=8, expert_parallel=8)
    plain, drafted = (
        step_time_model(model, GPU, deployed(model, *asked, precision="checkpoint", layout=layout))
        for asked in ((), (3, None))
    )
    assert drafted.context_ps > 1.5 * plain.context_ps


def test_what_is_not_known_is_refused_or_wider():
    model = catalog.model("Qwen/Qwen3-8B")
    staged = deployed(model, 2, layout=Layout(pipeline_parallel=2))
    with pytest.raises(OutOfRange, match="pipeline stages"):
        replica_physics(model, GPU, staged)
    wider = error_band(model, GPU, deployed(model, 2))
    assert wider.step_time_factor > error_band(model, GPU, deployed(model)).step_time_factor
    assert "speculat" in wider.evidence


@needs_shared
@pytest.mark.shared
def test_measured_steps_of_a_drafter_lie_within_the_band():
    """Gaps of SGLang with four drafting passes and a tree of sixteen checked tokens; nothing was fitted to them."""
    model = catalog.model("Qwen/Qwen3-8B")
    found = {}
    with (SHARED / "data" / "measured" / "gpustack_perflab.csv").open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row["model"] == "Qwen/Qwen3-8B-FP8" and "section=Other" in row["notes"] and "EAGLE3" in row["notes"]:
                found[int(row["concurrency"])] = float(row["itl_ms_p50"])
    assert sorted(found) == [1, 2, 4, 8]
    deployment = deployed(model, 4, engine="sglang")
    for users, measured_ms in found.items():
        error = step_s(model, deployment, users, context=340) * 1e3 / measured_ms - 1
        assert -0.2 < error < 0.1
