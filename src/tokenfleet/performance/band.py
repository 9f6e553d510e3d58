"""How wrong a predicted step time may be."""

from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.replica import Deployment, ErrorBand
from tokenfleet.performance.coefficients import constant, engine_family
from tokenfleet.performance.support import link_reach

_FITTED_GPUS = ("a100", "h100", "h200", "gh200", "b200", "gb200", "b300", "gb300", "l40s", "rtxpro6000")
"""Parts among the rows of the fit, by the start of their name without separators."""
_FITTED_KINDS = frozenset({"full", "sliding", "latent", "chunked"})
_FITTED_PRECISIONS = frozenset({"bf16", "fp8", "fp4", "mxfp4", "checkpoint"})


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
    tail = "time to first token is less sure than that: an order of magnitude until calibrated"
    if gpu.vendor.lower() != "nvidia":
        factor = constant("band_factor", "new_vendor")
        text = f"no fitted rows of {gpu.vendor} parts, left-out vendors miss by 55-77 %: a bracket, not an interval"
        return ErrorBand(step_time_factor=factor, evidence=f"{text}; calibrate before you promise; {tail}")
    news = []
    family = engine_family(deployment.engine.name)
    short = "".join(letter for letter in gpu.name.lower() if letter.isalnum())
    if not short.startswith(_FITTED_GPUS):
        news.append(f"{gpu.title} is not among the fitted parts (GPUs left out: x1.75 covers 94 %)")
    if family == "other":
        news.append(f"engine {deployment.engine.name} is not among the fitted ones")
    ranks = deployment.layout.tensor_parallel * deployment.layout.attention_data_parallel
    if ranks > max(link_reach(gpu), 1):
        news.append(f"{ranks} ranks over PCIe: hosts differ up to fivefold in what it carries")
    if news:
        factor = constant("band_factor", "new_gpu")
        return ErrorBand(step_time_factor=factor, evidence=f"{'; '.join(news)}; {tail}")
    kinds = {entry.kind for entry in model.attention}
    if not kinds <= _FITTED_KINDS or deployment.precision not in _FITTED_PRECISIONS:
        factor = constant("band_factor", "new_model")
        text = "the fit saw no such attention or precision (models left out: x1.5 covers 94 %)"
        return ErrorBand(step_time_factor=factor, evidence=f"{text}; {tail}")
    factor = constant("band_factor", "known")
    text = f"part, engine and kind of model are among the fitted rows (models left out: x{factor:g} covers 90 %)"
    return ErrorBand(step_time_factor=factor, evidence=f"{text}; {tail}")
