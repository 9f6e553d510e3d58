"""Small measured files, written by hand."""

from pathlib import Path

HEADER = (
    "source_id,model,gpu,n_gpus,tp,pp,ep,dp,engine,engine_version,precision,mode,workload,input_tokens,output_tokens,"
    "concurrency,request_rate,n_requests,ttft_ms_unspec,tpot_ms_unspec,e2e_ms_mean,output_tok_s,quality,notes"
)


def row(**cells: object) -> str:
    """One line; cells not given take those of an ordinary closed-loop run."""
    usual = {
        "source_id": "mine",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "gpu": "h100_sxm",
        "n_gpus": 1,
        "tp": 1,
        "pp": 1,
        "engine": "vllm",
        "engine_version": "0.12.0",
        "precision": "bf16",
        "mode": "agg",
        "workload": "random",
        "input_tokens": 1024,
        "output_tokens": 256,
        "concurrency": 16,
        "ttft_ms_unspec": 90,
        "tpot_ms_unspec": 9,
        "quality": "A",
    }
    merged = {**usual, **cells}
    return ",".join("" if merged.get(name) is None else str(merged[name]) for name in HEADER.split(","))


def write(path: Path, *lines: str) -> Path:
    """A file of such lines."""
    path.write_text("\n".join((HEADER, *lines)) + "\n", encoding="utf-8")
    return path
