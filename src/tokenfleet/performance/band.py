"""How wrong a predicted step time may be."""

from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.replica import Deployment, ErrorBand
from tokenfleet.performance.coefficients import constant, engine_family
from tokenfleet.performance.precision import number_format
from tokenfleet.performance.support import crosses_nodes, link_reach

_CHECKED_GPUS = frozenset(
    {
        "h100_sxm",
        "h200_sxm",
        "b200_sxm",
        "b300_sxm",
        "gb200",
        "a100_sxm_40gb",
        "a100_sxm_80gb",
        "a100_pcie_80gb",
        "l40s",
    }
)
"""Parts among the rows of the fit, and those whose saturated or fixed-batch rows it meets within 16 % in the median."""
_CHECKED_KINDS = frozenset({"full", "sliding", "latent", "recurrent"})
_CHECKED_FORMATS = frozenset({"bf16", "fp8", "nvfp4", "mxfp4"})


def error_band(model: ModelArchitecture, gpu: Gpu, deployment: Deployment) -> ErrorBand:
    """The 90 % interval of step time, as a factor to multiply and divide by.

    Calibrated on residuals of left-out groups, so that the interval is for cases the fit did not see. Three measured
    points of the user's own deployment bring it to about 1.25.

    Args:
        model: Its attention kinds matter.
        gpu: Its vendor and name matter.
        deployment: Its engine and precision matter.

    Returns:
        Factor and evidence.
    """
    first = constant("band_factor", "first_token")
    tail = f"a first token may come {first:g} times later or sooner, because front ends differ: calibrate"
    if gpu.vendor.lower() != "nvidia":
        factor = constant("band_factor", "new_vendor")
        text = f"{gpu.vendor} parts are not calibrated, rows of 2024 miss by half and more: a bracket, not an interval"
        return ErrorBand(
            step_time_factor=factor,
            evidence=f"{text}; measure three points before you promise; {tail}",
            first_token_factor=max(first, factor),
        )
    news = []
    family = engine_family(deployment.engine.name)
    if gpu.name not in _CHECKED_GPUS:
        news.append(f"{gpu.title} is not among the checked parts (parts left out: x1.75 covers 94 %)")
    if family == "other":
        news.append(f"engine {deployment.engine.name} is not among the checked ones")
    if crosses_nodes(gpu, deployment.layout):
        factor = constant("band_factor", "network")
        text = "gpus of more than one node: the network is a port of 400 Gb/s for each gpu and was not measured"
        return ErrorBand(step_time_factor=factor, evidence=f"{text}; {tail}", first_token_factor=max(first, factor))
    ranks = deployment.layout.tensor_parallel * deployment.layout.attention_data_parallel
    if ranks > max(link_reach(gpu), 1):
        news.append(f"{ranks} ranks over PCIe: hosts differ up to fivefold in what it carries")
    if deployment.engine.speculation is not None:
        news.append("steps that speculate are checked on one drafter alone")
    if deployment.layout.pipeline_parallel > 1:
        news.append(
            "pipeline stages are checked on saturated rows alone; a lone prompt takes up to that many times longer"
        )
    if news:
        factor = constant("band_factor", "new_gpu")
        return ErrorBand(
            step_time_factor=factor, evidence=f"{'; '.join(news)}; {tail}", first_token_factor=max(first, factor)
        )
    kinds = {entry.kind for entry in model.attention}
    if not kinds <= _CHECKED_KINDS or number_format(model, deployment.precision) not in _CHECKED_FORMATS:
        factor = constant("band_factor", "new_model")
        text = "no checked rows of such attention or number format (models left out: x1.5 covers 94 %)"
        return ErrorBand(step_time_factor=factor, evidence=f"{text}; {tail}", first_token_factor=max(first, factor))
    factor = constant("band_factor", "known")
    text = (
        f"part, engine and kind of model are among the checked rows (models left out: x{factor:g} covers 9 rows of 10)"
    )
    return ErrorBand(step_time_factor=factor, evidence=f"{text}; {tail}", first_token_factor=max(first, factor))
