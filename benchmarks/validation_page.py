"""Writes docs/validation.md and the interval factors from what ``benchmarks/validation.py --dump`` found.

python benchmarks/validation_page.py DUMP FOLDER
"""

import argparse
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np

from tokenfleet.calibration import RULES, validate
from tokenfleet.calibration.memory_cases import MEMORY_RULES
from tokenfleet.calibration.validate import Scoreboard

ROOT = Path(__file__).resolve().parents[1]
GOALS = {
    "tpot": ("TPOT, aggregated serving", "10 / 25", "19 / 66"),
    "tpot_decode_pool": ("TPOT, decode pools of known size", "12 / -", "-"),
    "ttft vllm": ("TTFT below saturation, vLLM", "15 / -", "54 / 89"),
    "ttft sglang": ("TTFT below saturation, SGLang", "30 / -", "54 / 89"),
    "ttft trtllm": ("TTFT below saturation, TensorRT-LLM", "30 / -", "54 / 89"),
    "output_rate_saturated": ("output rate at saturation", "12 / 35", "-"),
    "batch_time": ("time of a fixed batch", "8 / 30", "-"),
}
"""Name, goal and best published peer, median / 90th percentile of the relative error in percent."""
INTERVALS = ("tpot", "ttft", "output_rate", "e2e")
ENGINES = ["vllm", "sglang", "trtllm"]


def pair(row):
    """``12.4 / 29.9`` of a row of errors."""
    return "-" if row is None else f"{row['median']:.1f} / {row['p90']:.1f}"


def goal_table(result):
    """The rows of the goal table."""
    lines = [
        "| figure | goal | whole models left out | over cells | whole gpus left out | as shipped | rows | best peer |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, (title, goal, peer) in GOALS.items():
        models, gpus, shipped = (result[part].get(name) for part in ("models_out", "gpus_out", "in_sample"))
        cells = "-" if models is None else f"{models['cell_median']:.1f} ({models['cells']})"
        rows = 0 if models is None else models["rows"]
        row = (
            f"| {title} | {goal} | **{pair(models)}** | {cells} | {pair(gpus)} | {pair(shipped)} | {rows:,} | {peer} |"
        )
        lines.append(row)
    return lines


def everything_table(result):
    """The same with no row set apart."""
    lines = [
        "| figure | models left out, clean rows | bias | the same, no row set apart | rows |",
        "|---|---|---|---|---|",
    ]
    for name, (title, _, _) in GOALS.items():
        clean, every = result["models_out"].get(name), result["models_out_nothing_excluded"].get(name)
        if clean is not None and every is not None:
            lines.append(f"| {title} | {pair(clean)} | {clean['bias']:+.0f} % | {pair(every)} | {every['rows']:,} |")
    return lines


def interval_table(result):
    """Interval factors and what they cover."""
    lines = [
        "| figure | models | model left out: factor | covers | worst family | gpu left out: factor | covers "
        "| worst family |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in INTERVALS:
        for kind, both in result["bands"][name].items():
            if both["new_model"] is None or both["new_gpu"] is None:
                continue
            cells = []
            for novelty in ("new_model", "new_gpu"):
                factor, covered, worst, family = both[novelty]
                cells.append(f"x{factor:.2f} | {covered:.0%} | {worst:.0%}, {family.rsplit('/', 1)[-1]}")
            lines.append(f"| {name} | {kind} | {' | '.join(cells)} |")
    return lines


def floor_table(result):
    """How far apart two measurements of one thing are."""
    lines = [
        "| figure | pairs of one version | median / 90th percentile | of two versions | median / 90th percentile |",
        "|---|---|---|---|---|",
    ]
    for name, (title, _, _) in GOALS.items():
        cells = []
        for versions in ("same", "other"):
            pairs, *errors = result["noise_floor"].get(name, {}).get(versions, (0,))
            cells.append(f"{pairs} | {errors[0]:.1f} / {errors[1]:.1f}" if pairs else "0 | -")
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


def left_table(result):
    """What is left in the residuals, models left out."""
    lines = [
        "| figure | deployments | offset of a deployment, median | inside a deployment, median |",
        "|---|---|---|---|",
    ]
    for name, (title, _, _) in GOALS.items():
        if name in result["residual_parts"]:
            count, offset, inside = result["residual_parts"][name]
            lines.append(f"| {title} | {count} | {offset:.1f} | {inside:.1f} |")
    return lines


def calibration_table(result):
    """Before and after three measured points."""
    lines = ["| figure | deployments | none | three random points |", "|---|---|---|---|"]
    for name, (title, _, _) in GOALS.items():
        if name in result["three_points_models_out"]:
            count, middle, high = result["three_points_models_out"][name]
            before = pair(result["models_out"].get(name))
            lines.append(f"| {title} | {count:.0f} | {before} | {middle:.1f} / {high:.1f} |")
    return lines


def memory_lines(board):
    """Errors of KV pools from start-up logs."""
    scores = [score for score in board.scores if score.metric == "kv_pool" and score.predicted is not None]
    clean = [score for score in scores if not score.flag]
    lines = ["| logs | cases | median / 90th percentile |", "|---|---|---|"]
    for title, chosen in (
        ("dense models", [score for score in clean if score.model_kind == "dense"]),
        ("all", clean),
        ("no log set apart", scores),
    ):
        errors = [100 * abs(float(np.expm1(score.log_ratio))) for score in chosen]
        lines.append(f"| {title} | {len(errors)} | {np.median(errors):.1f} / {np.quantile(errors, 0.9):.1f} |")
    refused = sum(score.metric == "kv_pool" and score.predicted is None for score in board.scores)
    apart = Counter(score.flag for score in scores if score.flag)
    return [
        *lines,
        "",
        f"{refused} logs are refused: no gpu named, a model or part nobody published, no comparable figure.",
        "Set apart by what they say of themselves:",
        "",
        *(f"* `{name}`, {apart[name]}: {text}." for name, text in MEMORY_RULES.items() if apart[name]),
    ]


def other_table(board: Scoreboard):
    """Loads outside the goal table, as shipped."""
    lines = ["| figure | rows | predicted | median / 90th percentile | bias |", "|---|---|---|---|---|"]
    names = ("tpot_pool_of_unknown_size", "tpot_all_at_once", "ttft_queueing", "output_rate")
    for group in board.groups:
        pooled = group.source is group.gpu is group.engine is group.model_kind is None
        if pooled and (group.metric in names or group.metric.endswith("open_loop")) and group.predicted_count:
            errors = f"{100 * group.median_abs_error_fraction:.0f} / {100 * group.p90_abs_error_fraction:.0f}"
            bias = f"{100 * group.bias_fraction:+.0f} %"
            lines.append(f"| {group.metric} | {group.row_count:,} | {group.predicted_count:,} | {errors} | {bias} |")
    return lines


def coverage_lines(board: Scoreboard):
    """How many rows are predicted, why others are not, and what the lint did."""
    share = board.predicted_row_count / board.row_count
    return [
        f"{board.predicted_row_count:,} of {board.row_count:,} rows of grades A and B are predicted ({share:.1%}).",
        "The best peer answers 62 % of a sample of the serving rows alone.",
        "",
        "| refused because | rows |",
        "|---|---|",
        *(f"| {reason} | {count} |" for reason, count in board.refused.items() if count > 2),
        "",
        "Rules of the data lint, applied before anything is predicted; none looks at a residual:",
        "",
        "| rule | does | rows | text |",
        "|---|---|---|---|",
        *(f"| `{rule.rule_id}` | {rule.action} | {board.lint[rule.rule_id]} | {rule.text} |" for rule in RULES),
    ]


def page(result, board):
    """The whole page."""
    template = (ROOT / "benchmarks" / "validation_page.md").read_text(encoding="utf-8")
    parts = {
        "as_of": [result["as_of"]],
        "numbers": [str(result["numbers"])],
        "figures": [f"{result['figures']:,}"],
        "goals": goal_table(result),
        "everything": everything_table(result),
        "intervals": interval_table(result),
        "calibration": calibration_table(result),
        "floor": floor_table(result),
        "left": left_table(result),
        "memory": memory_lines(board),
        "other": other_table(board),
        "coverage": coverage_lines(board),
    }
    for name, lines in parts.items():
        template = template.replace(f"<<{name}>>", "\n".join(lines))
    return template


def bands(result, seen):
    """The interval factors as a table for the package."""
    head = (ROOT / "src/tokenfleet/calibration/bands.toml").read_text(encoding="utf-8").split("as_of")[0]
    lines = [f'{head}as_of = "{result["as_of"]}"']
    for name in INTERVALS:
        for kind in ("dense", "experts"):
            found = result["bands"][name][kind]
            if found["new_model"] is None or found["new_gpu"] is None:
                found = result["bands"][name]["all"]
            model, gpu = found["new_model"][0], found["new_gpu"][0]
            lines += ["", f"[{name}.{kind}]", f"known = {model:.3g}", f"new_model = {model:.3g}"]
            lines.append(f"new_gpu = {max(model, gpu):.3g}")
    lines += ["", "[seen]", *(f"{name} = {json.dumps(values)}" for name, values in seen.items())]
    return "\n".join(lines) + "\n"


def write_factors(result):
    """The factors of step time and first token that plans use, with what they cover."""
    path = ROOT / "src/tokenfleet/performance/coefficients.toml"
    text = path.read_text(encoding="utf-8")
    for name, figure in (("known", "tpot"), ("first_token", "ttft")):
        factor, covered, worst, _ = result["bands"][figure]["all"]["new_model"]
        source = f"residuals with whole model families left out: covers {covered:.0%}, the worst family {worst:.0%}"
        pattern = re.compile(rf'(name = "band_factor.{name}"\nvalue = )[^\n]+((?:\n[^\n]+)*?\nsource = )[^\n]+')
        text, count = pattern.subn(rf'\g<1>{factor:.3g}\g<2>"replayed {source}"', text)
        assert count == 1, name
    path.write_text(text, encoding="utf-8")


def main():
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dump", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    result = json.loads(options.dump.read_text(encoding="utf-8"))
    files = sorted(path for path in options.folder.glob("*.csv") if path.stem != "cold_start")
    text = bands(result, {**result["seen"], "engines": ENGINES, "vendors": ["nvidia"]})
    (ROOT / "src/tokenfleet/calibration/bands.toml").write_text(text, encoding="utf-8")
    write_factors(result)
    board = validate(files)
    (ROOT / "docs" / "validation.md").write_text(page(result, board), encoding="utf-8")


if __name__ == "__main__":
    main()
