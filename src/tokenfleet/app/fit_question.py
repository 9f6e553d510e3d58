"""What ``memory`` is asked, as a strict type, and the deployment it means."""

from pathlib import Path
from typing import Final

from tokenfleet import catalog, workload
from tokenfleet.app.fit import Fit, fit
from tokenfleet.app.memory_spec import MemorySpec, with_memory
from tokenfleet.app.scenario_words import EngineName, GpuName, InputFile, ModelName, Strict, Tokens
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.replica import Deployment, KvPrecision, Layout, Precision

_USUAL_CONTEXTS: Final = {"1k": 1024, "8k": 8192, "32k": 32768, "128k": 131072}


class FitQuestion(Strict):
    """One deployment to hold against one gpu."""

    model: ModelName
    gpu: GpuName
    tensor_parallel: Tokens = 1
    precision: Precision | None = None
    kv_dtype: KvPrecision = "bf16"
    context: Tokens | None = None
    engine: EngineName = "vllm"
    profile: InputFile | None = None
    memory: MemorySpec = MemorySpec()


def answered(question: FitQuestion) -> Fit:
    """Look every name up and hold the deployment against its gpu.

    Raises:
        BadInput: the model's config or the profile cannot be read.
    """
    model, gpu = catalog.model(question.model), catalog.gpu(question.gpu)
    own: Precision = "checkpoint" if model.quantization is not None else "bf16"
    deployment = Deployment(
        model=model.name,
        gpu=gpu.name,
        layout=Layout(tensor_parallel=question.tensor_parallel),
        precision=question.precision or own,
        kv_precision=question.kv_dtype,
        engine=catalog.engine(question.engine, gpu=gpu),
    )

    def with_residents(gpu: Gpu, deployment: Deployment) -> Deployment:
        return with_memory(deployment, model, gpu, question.memory, place=question.model)

    contexts = _USUAL_CONTEXTS if question.profile is None else _of_profile(Path(question.profile))
    return fit(
        model,
        gpu,
        deployment,
        context_tokens=question.context,
        contexts=contexts,
        with_residents=with_residents,
    )


def _of_profile(path: Path) -> dict[str, int]:
    """Prompt plus output of a measured workload. Adding quantiles of both overstates a little, never understates."""
    known = workload.load_profile(path)
    both = ((known.input_tokens.p50, known.output_tokens.p50), (known.input_tokens.p95, known.output_tokens.p95))
    named = dict(zip(("p50 of the profile", "p95 of the profile"), both, strict=True))
    named["longest of the profile"] = (known.input_tokens.max, known.output_tokens.max)
    return {name: round(prompt + output) for name, (prompt, output) in named.items()}
