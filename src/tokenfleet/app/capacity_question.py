"""What ``capacity`` is asked, as a strict type, and the table it means."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated, Final

from pydantic import BeforeValidator, Field

from tokenfleet import catalog
from tokenfleet.app.capacity_table import (
    Calibrate,
    Lengths,
    Measured,
    Row,
    capacity_rows,
    layouts,
    parsed_lengths,
    parts,
)
from tokenfleet.app.memory_spec import MemorySpec, with_memory
from tokenfleet.app.ranks import sized
from tokenfleet.app.scenario_types import SpeculationSpec, speculation_of
from tokenfleet.app.scenario_words import EngineName, InputFile, ModelName, Strict, Tokens, problem
from tokenfleet.app.scenario_words import Lengths as LengthsText
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import Deployment, KvPrecision, Precision

USUAL_GPUS: Final = ["h100_sxm", "h200_sxm", "a100_sxm_80gb", "l40s"]
_FILLED_BY: Final = {"tpot": "stream_tokens_per_s", "ttft": "idle_ttft_s", "output_rate": "output_tokens_per_s"}
"""The cell that a measured figure can fill: two of an idle server, one of a full one."""


def _part_name(name: object) -> str:
    try:
        return parts([str(name)])[0].name
    except BadInput as error:
        first = error.problems[0]
        raise problem(first.what, first.mend) from None


PartName = Annotated[str, BeforeValidator(_part_name, json_schema_input_type=str)]
"""A gpu, or a slice of one: ``h200_sxm:1g.18gb``."""


class CapacityQuestion(Strict):
    """Deployments of one model to compare."""

    model: ModelName
    gpus: Annotated[list[PartName], Field(min_length=1)] = Field(default=USUAL_GPUS)
    precision: list[Precision] = Field(default_factory=list)
    kv_dtype: list[KvPrecision] = Field(default=["bf16"])
    tensor_parallel: list[Tokens] = Field(default=[1, 2, 4, 8])
    pipeline_parallel: list[Tokens] = Field(default=[1])
    data_parallel: list[Tokens] = Field(default=[1])
    engine: list[EngineName] = Field(default=["vllm"], validate_default=True)
    input: LengthsText = "1000"
    output: LengthsText = "300"
    memory: MemorySpec = Field(default_factory=MemorySpec)
    speculation: SpeculationSpec | None = None
    calibration: InputFile | None = None
    measured: list[InputFile] = Field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The table and what it was made for."""

    model: ModelArchitecture
    lengths: Lengths
    rows: tuple[Row, ...]


def answered(question: CapacityQuestion) -> Capacity:
    """Look every name up and fill the table.

    Raises:
        BadInput: a gpu nobody knows, an encoder, a file that cannot be read.
    """
    model = catalog.model(question.model)
    lengths = parsed_lengths(question.input, question.output)
    rows = capacity_rows(
        model,
        tuple(_deployments(question, model)),
        lengths,
        calibrate=_calibration(question.calibration),
        measured=_measured(question.measured),
    )
    return Capacity(model=model, lengths=lengths, rows=rows)


def _deployments(question: CapacityQuestion, model: ModelArchitecture) -> Iterator[tuple[Gpu, Deployment]]:
    own: tuple[Precision, ...] = ("checkpoint",) if model.quantization is not None else ("bf16", "fp8")
    precisions = tuple(dict.fromkeys(question.precision)) or own
    for gpu in parts(question.gpus):
        choices = product(
            dict.fromkeys(question.engine),
            precisions,
            dict.fromkeys(question.kv_dtype),
            layouts(model, gpu, question.tensor_parallel, question.pipeline_parallel, question.data_parallel),
        )
        for engine, precision, kv_precision, layout in choices:
            settings = replace(catalog.engine(engine, gpu=gpu), speculation=speculation_of(question.speculation))
            deployment = Deployment(
                model=model.name,
                gpu=gpu.name,
                layout=layout,
                precision=precision,
                kv_precision=kv_precision,
                engine=sized(settings, layout),
            )
            yield gpu, with_memory(deployment, model, gpu, question.memory, place=question.model)


def _calibration(path: str | None) -> Calibrate | None:
    if path is None:
        return None
    from tokenfleet.calibration import read_calibration

    return read_calibration(Path(path)).applied


def _measured(paths: Sequence[str]) -> tuple[Measured, ...]:
    """Figures of measured runs at one request in flight, or with everything queued at once."""
    if not paths:
        return ()
    from tokenfleet.calibration import Refusal, lint, read_rows, resolve

    found = []
    linted = lint(read_rows(paths))
    for row in linted.rows:
        if row.row_id in linted.flagged:
            continue
        full = row.request_rate_per_s == float("inf")
        if not full and row.concurrency != 1:
            continue
        subject = resolve(row)
        if isinstance(subject, Refusal) or row.input_tokens is None or row.output_tokens is None:
            continue
        for figure in row.measurements:
            name = _FILLED_BY.get(figure.metric)
            if name is None or full != (figure.metric == "output_rate"):
                continue
            value = 1 / figure.value if figure.metric == "tpot" else figure.value
            if figure.metric == "output_rate":
                value /= subject.replica_count
            found.append(
                Measured(
                    deployment=subject.deployment,
                    name=name,
                    value=value,
                    input_tokens=row.input_tokens,
                    output_tokens=row.output_tokens,
                    evidence=f"measured: {row.row_id}, {row.source}",
                )
            )
    return tuple(found)
