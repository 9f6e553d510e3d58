"""What a person sees, word for word, with every number masked: tone and order are pinned, physics is not.

The numbers have their laws in tests/unit/app. Set ``TOKENFLEET_UPDATE_GOLDEN=1`` to accept new words.
"""

import os
import re
from pathlib import Path

import pytest

from tokenfleet.app.cli import main

HERE = Path(__file__).parent
ESTIMATE = (
    "estimate --model meta-llama/Llama-3.3-70B-Instruct --gpu h100_sxm --precision fp8 --tp 2 --rate 4 "
    "--input 700:1500 --output 140:300 --ttft-p99 2s --itl-p99 50ms"
)
FACES = {
    "estimate": ESTIMATE,
    "estimate_infeasible": ESTIMATE.replace("2s", "20ms"),
    "memory": "memory --model meta-llama/Llama-3.3-70B-Instruct --gpu h100_sxm --tp 2 --precision fp8",
    "memory_too_big": "memory --model deepseek-ai/DeepSeek-V3 --gpu h100_sxm --tp 8",
    "bad_options": ESTIMATE.replace("2s", "'2 sec'").replace("h100_sxm", "h1000"),
}


CUT = ("Run", "Second", "Why", "Change", "Tried", "Note", "Instead")
"""Blocks whose words come from other rooms, or hang on the physics: only the label is pinned."""


def masked(text):
    """Numbers, and whatever hangs on them, gone."""
    lines, skipping = [], False
    for line in text.splitlines():
        words = " ".join(line.split())
        continues = line.startswith(" " * 10) or (line.startswith(" ") and lines[-1].endswith(" ..."))
        if skipping and continues:
            continue
        skipping = words.startswith(("unsure:", *CUT)) or bool(re.match(r"(Memory )?[a-z ]+ [\d.]+ \d+%", words))
        if skipping and words.startswith(CUT):
            lines.append(f"{words.split()[0]} ...")
        if not skipping:
            words = re.sub(r"\d[\d.,]*( (ms|s|min|h|k|M)\b)*", "#", words)
            words = re.sub(r"#+( #)*", "#", words)
            words = re.sub(r"(kept|broken)(, \w+)?$", "VERDICT", words)
            lines.append(
                re.sub(r"(decode bandwidth|prefill compute|KV memory|sequence slots|engine overhead)", "LIMIT", words)
            )
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", FACES)
def test_the_face_is_as_agreed(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    arguments = [part.strip("'") for part in re.findall(r"'[^']*'|\S+", FACES[name])]
    with pytest.raises(SystemExit):
        main([*arguments, "--quiet"])
    out, err = capsys.readouterr()
    seen = masked(out + err)
    golden = HERE / f"{name}.txt"
    if os.environ.get("TOKENFLEET_UPDATE_GOLDEN"):
        golden.write_text(seen)
    assert seen == golden.read_text()
