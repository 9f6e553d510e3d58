"""Names of accelerators, their memory as engines see it, and what stays unknown."""

import csv
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import SHARED, needs_shared
from tokenfleet.catalog import gpu, gpus
from tokenfleet.domain.errors import BadInput

GIB = 2**30
NAMES = [part.name for part in gpus()]

WRITTEN = {
    "h100_sxm": "h100_sxm h100-sxm H100-80GB H100 h100_sxm5 nvidia-h100-80gb h100_80gb H100-SXM5-80GB",
    "h100_nvl": "H100-NVL NVIDIA-H100-NVL",
    "h200_sxm": "H200 h200-sxm NVIDIA-H200 H200-141GB",
    "a100_sxm_80gb": "NVIDIA-A100-SXM4-80GB a100-80gb nvidia-a100-80gb A100_80GB_SXM a100_sxm_80gb a100-80-sxm",
    "a100_sxm_40gb": "NVIDIA-A100-SXM4-40GB a100-40gb",
    "l40s": "L40S NVIDIA-L40S",
    "l4": "nvidia-l4 L4",
    "t4": "nvidia-tesla-t4 T4",
    "rtx4090": "rtx4090 RTX-4090 4090",
    "rtx_pro_6000_server": "rtx_pro_6000 NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
    "b200_sxm": "B200 NVIDIA-B200",
    "mi300x": "MI300X amd-mi300x AMD_Instinct_MI300X_OAM",
    "tpu_v5e": "TPU-v5e v5e tpu-v5-lite-podslice",
    "arc_pro_b60": "intel_arc_pro_b60",
    "dgx_spark": "GB10 dgx_spark",
    "gh200_96gb": "gh200_96gb NVIDIA-GH200-480GB",
}
WITH_SPACES = {
    "NVIDIA H100 80GB HBM3": "h100_sxm",
    "NVIDIA H100 PCIe": "h100_pcie",
    "NVIDIA A100 80GB PCIe": "a100_pcie_80gb",
    "NVIDIA GeForce RTX 4090": "rtx4090",
    "NVIDIA GeForce RTX 5070 Ti": "rtx5070ti",
    "NVIDIA RTX 6000 Ada Generation": "rtx6000_ada",
    "Tesla V100-SXM2-32GB": "v100_sxm2_32gb",
    "AMD Instinct MI300X": "mi300x",
    "Tesla T4": "t4",
    " H100 SXM ": "h100_sxm",
}


@pytest.mark.parametrize(
    ("written", "name"),
    [(written, name) for name, many in WRITTEN.items() for written in many.split()] + list(WITH_SPACES.items()),
)
def test_names_that_people_drivers_and_clouds_write(written, name):
    assert gpu(written).name == name


@given(name=st.sampled_from(NAMES), data=st.data())
def test_a_canonical_name_survives_case_and_separators(name, data):
    pieces = name.split("_")
    separators = data.draw(st.lists(st.sampled_from(["-", "_", " ", " - "]), min_size=9, max_size=9))
    written = "".join(
        (piece.upper() if data.draw(st.booleans()) else piece) + separator
        for piece, separator in zip(pieces, separators, strict=False)
    )
    assert gpu(written).name == name
    assert gpu(f"NVIDIA {written}").name == name


def test_canonical_names_are_unique_words():
    assert len(set(NAMES)) == len(NAMES) >= 55
    assert all(re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", name) for name in NAMES)


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("a100", ["a100_sxm_40gb", "a100_sxm_80gb", "a100_pcie_80gb"]),
        ("NVIDIA A100", ["a100_sxm_40gb", "a100_sxm_80gb", "a100_pcie_80gb"]),
        ("gh200", ["gh200_144gb", "gh200_96gb"]),
        ("H20", ["h20_96gb", "h20_141gb"]),
    ],
)
def test_a_name_with_several_memories_asks_which(name, choices):
    with pytest.raises(BadInput) as error:
        gpu(name, where="plan.yaml:7: gpus")
    (problem,) = error.value.problems
    assert problem.where == "plan.yaml:7: gpus"
    assert all(choice in problem.what for choice in choices)


def test_a_name_that_leaves_the_form_open_says_what_was_taken():
    assert gpu("H100").note.endswith("H100 taken as H100 SXM5")
    assert "taken as" not in gpu("h100_sxm").note
    assert "taken as" not in gpu("NVIDIA H100 80GB HBM3").note


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("h100x", "h100_sxm"),
        ("mi300", "mi300x"),
        ("rtx_4091", "rtx4090"),
        ("l41s", "l40s"),
        ("ironwod", "ironwood (tpu7x)"),
        ("h100-80bg", "h100 80gb (h100_sxm)"),
    ],
)
def test_an_unknown_name_fails_with_the_nearest(name, nearest):
    with pytest.raises(BadInput) as error:
        gpu(name)
    assert nearest in error.value.problems[0].mend


def test_a_name_like_nothing_lists_what_there_is():
    with pytest.raises(BadInput, match=r"known: t4, .*sn40l"):
        gpu("warp drive")


def test_memory_is_what_an_engine_sees():
    seen_gib = {
        "h100_sxm": 79.2, "a100_sxm_80gb": 79.2, "h200_sxm": 139.8, "a100_sxm_40gb": 39.4, "l40s": 44.42,
        "rtx4090": 23.52, "t4": 14.56, "rtx_pro_6000_server": 95.0,
    }  # fmt: skip
    for name, gib in seen_gib.items():
        assert gpu(name).memory_bytes == round(gib * GIB)
        assert gpu(name).memory_basis != "derived"


def test_rates_are_dense_peaks_in_si_units():
    h100 = gpu("h100_sxm")
    assert h100.memory_bandwidth_bytes_per_s == 3350e9
    assert h100.bf16_flop_per_s == 989e12
    assert h100.fp8_flop_per_s == 1978e12
    assert h100.fp4_flop_per_s is None
    assert h100.link_bytes_per_s == 450e9
    assert gpu("t4").bf16_flop_per_s == 65e12
    assert "no BF16" in gpu("t4").note


def test_a_slice_is_named_as_one_with_the_gpu_to_write():
    with pytest.raises(BadInput) as error:
        gpu("h100_sxm:3g.40gb")
    (problem,) = error.value.problems
    assert "is a slice of a gpu" in problem.what
    assert problem.mend.endswith("write h100_sxm")


def test_unknown_facts_stay_unknown_and_are_named():
    assert gpu("sn40l").fp8_flop_per_s is None
    assert gpu("dgx_spark").missing == ("bf16_flop_per_s",)
    assert gpu("h100_sxm").missing == ()
    for part in gpus():
        assert part.confidence in ("high", "medium", "low")
        assert part.source.startswith("http")
        rates = (part.memory_bandwidth_bytes_per_s, part.bf16_flop_per_s, part.fp8_flop_per_s, part.link_bytes_per_s)
        assert all(rate is None or rate > 0 for rate in rates)


NOT_A_NAME = {
    "cpu", "not stated", "not named", "a100", "a100_sxm", "gh200", "h20", "ascend_910", "80GB class", "48GB class",
    "48GB class, not named", "80GB class, not named", "16GB consumer card, not named", "rtx5070ti+rtx5090d",
    "h20/h200 (8x141GB)", "h200/h20-3e (8x141GB)",
}  # fmt: skip
"""Cells of the measured data that name no part, several parts, or a part without its memory."""


def measured_rows():
    for path in sorted((SHARED / "data/measured").rglob("*.csv")):
        with path.open(newline="") as lines:
            yield from csv.DictReader(lines)


@needs_shared
@pytest.mark.shared
def test_every_part_that_was_measured_is_in_the_catalog():
    names = {row["gpu"] for row in measured_rows() if row.get("gpu")} - NOT_A_NAME
    assert len(names) > 30
    assert all(gpu(re.sub(r" \(.*\)$", "", name)) for name in names)


@needs_shared
@pytest.mark.shared
def test_memory_agrees_with_every_total_an_engine_printed():
    seen = 0
    with (SHARED / "data/measured/kv_capacity.csv").open(newline="") as lines:
        for row in csv.DictReader(lines):
            # SGLang prints the driver's total, before the context; one row takes a GB200 for a B200.
            if (
                not row["gpu_total_gib"]
                or row["gpu"] in NOT_A_NAME
                or row["engine"] == "sglang"
                or "b200" in row["gpu"]
            ):
                continue
            assert gpu(row["gpu"]).memory_bytes / GIB == pytest.approx(float(row["gpu_total_gib"]), rel=0.007)
            seen += 1
    assert seen == 10
