"""Fits the constants of the physics to measured rows, leaves whole models and gpus out, and writes what follows.

    python benchmarks/validation.py FOLDER            prints the errors with groups left out
    python benchmarks/validation.py FOLDER --write    also rewrites constants, interval factors and docs/validation.md

FOLDER holds measured rows in the schema of tokenfleet.calibration.measured, start-up logs beside them. Takes about
ten minutes on one core.
"""

import argparse
import datetime
import json
import re
import subprocess
import sys
import time
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import numpy as np

from tokenfleet.calibration import lint, read_rows
from tokenfleet.calibration.bands import has_experts
from tokenfleet.calibration.calibrate import correction
from tokenfleet.calibration.design import build
from tokenfleet.calibration.fit import PRIORS, fit, leave_out, parameterize, predict_log

ROOT = Path(__file__).resolve().parents[1]
FILES = (
    *("inferencex_silicon", "trtllm_perf", "argonne_llm_bench", "published_misc", "lmdeploy_a100"),
    *("gpustack_perflab", "dstack_bench", "inferencex_tokpos", "vllm_recipes", "mlperf_inference"),
)
FITTED = {"inferencex_silicon", "trtllm_perf", "argonne_llm_bench", "nvidia_nim", "lmdeploy_a100"}
"""Sources with a complete configuration and a load below or at saturation, one client each."""
FULL_CELL = 4
"""Rows from which a cell has a 90th percentile worth the name."""
LEAST_COVERAGE = 0.91
LEAST_OF_A_FAMILY = 0.80
KINDS = {"dense": ("dense",), "experts": ("experts",), "all": ("dense", "experts")}
POOL_LIMIT = 128
"""Sequences per rank beyond which a decode pool is not known to be full."""


def rows_of(folder):
    """Linted rows and the design of all that can be predicted in step space."""
    paths = [folder / f"{name}.csv" for name in FILES if (folder / f"{name}.csv").is_file()]
    linted = lint(read_rows(paths))
    design, refused = build(linted.rows)
    return linted, design, refused


def in_fit(target, linted):
    """Whether a figure is fitted: grade A (decode pools: with worker counts), no rule against it, no queue."""
    if target.row.source not in FITTED or target.row.row_id in linted.flagged or target.row.engine == "llama.cpp":
        return False
    if target.load == "decode_pool":
        ranks = target.subject.deployment.layout.attention_data_parallel * target.subject.replica_count
        return (target.row.concurrency or 0) <= POOL_LIMIT * ranks
    if target.load == "pool_of_unknown_size" or target.row.quality != "A":
        return False
    return not (target.metric == "ttft" and target.queueing)


def figure(target):
    """The row of the goal table that a figure belongs to."""
    if target.metric == "tpot":
        return {"decode_pool": "tpot_decode_pool", "closed_loop": "tpot"}.get(target.load, f"tpot_{target.load}")
    if target.metric == "ttft":
        return f"ttft {target.row.engine}"
    if target.metric == "e2e":
        return "batch_time"
    return "output_rate_saturated" if target.load in {"burst", "saturated"} else "output_rate"


def errors(logs):
    """Median and 90th percentile of the relative error, bias, all in percent."""
    size = np.abs(np.expm1(logs))
    return 100 * np.median(size), 100 * np.quantile(size, 0.9), 100 * np.expm1(np.median(logs))


def by_figure(design, residual, keep):
    """Errors per row of the goal table, cells beside rows."""
    groups, cells = defaultdict(list), defaultdict(lambda: defaultdict(list))
    for place in np.flatnonzero(np.isfinite(residual) & keep):
        target = design.targets[place]
        groups[figure(target)].append(residual[place])
        cells[figure(target)][target.cell].append(abs(np.expm1(residual[place])))
    answer = {}
    for name, logs in sorted(groups.items()):
        middle, high, bias = errors(np.array(logs))
        medians = [np.median(values) for values in cells[name].values()]
        answer[name] = {
            "rows": len(logs),
            "median": middle,
            "p90": high,
            "bias": bias,
            "cells": len(medians),
            "cell_median": 100 * float(np.median(medians)),
        }
    return answer


def band(design, residual, name, kinds):
    """Interval factor and what it covers: all rows, and the worst family of eight rows or more.

    The 90th percentile of |log| in each cell, then a percentile over cells: the lowest that covers 91 % of the
    left-out rows and 80 % of the worst family.
    """
    cells = defaultdict(list)
    for place in np.flatnonzero(np.isfinite(residual)):
        target = design.targets[place]
        experts = "experts" if has_experts(target.subject) else "dense"
        if target.metric == name and target.subject.gpu.vendor.lower() == "nvidia" and experts in kinds:
            cells[target.cell].append(abs(residual[place]))
    wide = [np.quantile(values, 0.9) for values in cells.values() if len(values) >= FULL_CELL]
    if not wide:
        return None
    for percent in range(50, 101):
        width = float(np.quantile(wide, percent / 100))
        families = defaultdict(list)
        for cell, values in cells.items():
            families[cell[1]].extend(value <= width for value in values)
        covered = float(np.mean([hit for hits in families.values() for hit in hits]))
        worst = min((float(np.mean(hits)), family) for family, hits in families.items() if len(hits) >= 2 * FULL_CELL)
        if covered >= LEAST_COVERAGE and worst[0] >= LEAST_OF_A_FAMILY:
            break
    return float(np.exp(width)), covered, *worst


def noise_floor(design, train):
    """Fitted runs of one setup under one load that a source has twice: how far apart they are.

    Per figure, for runs of the same engine version and of different ones: pairs, median and 90th percentile of the
    larger over the smaller, less one, in percent. Equal figures are dropped as duplicates before.
    """
    setups = defaultdict(list)
    for place in np.flatnonzero(train):
        target = design.targets[place]
        row, running = target.row, target.subject.deployment
        load = (row.input_tokens, row.output_tokens, row.concurrency, row.request_count, row.workload)
        if target.load in {"closed_loop", "burst"}:
            setups[figure(target), target.cell, running.layout, running.precision, load].append(target)
    found = defaultdict(list)
    for (name, *_), targets in setups.items():
        for one, other in combinations(targets, 2):
            versions = "same" if one.row.engine_version == other.row.engine_version else "other"
            found[name, versions].append(abs(np.log(one.measured_s / other.measured_s)))
    return {
        name: {
            versions: (len(logs), *(100 * float(np.expm1(np.quantile(logs, share))) for share in (0.5, 0.9)))
            for (figured, versions), logs in found.items()
            if figured == name
        }
        for name in sorted({name for name, _ in found})
    }


def residual_parts(design, residual):
    """What is left: the offset of whole deployments, and the spread inside them, medians in percent."""
    deployments = defaultdict(lambda: defaultdict(list))
    for place in np.flatnonzero(np.isfinite(residual)):
        target = design.targets[place]
        running = target.subject.deployment
        key = (target.cell, running.engine.name, running.layout, running.precision)
        deployments[figure(target)][key].append(residual[place])
    answer = {}
    for name, groups in sorted(deployments.items()):
        full = [np.array(logs) for logs in groups.values() if len(logs) >= FULL_CELL]
        if full:
            offsets = [abs(np.median(logs)) for logs in full]
            inside = np.concatenate([np.abs(logs - np.median(logs)) for logs in full])
            answer[name] = [len(full), *(100 * float(np.expm1(np.median(part))) for part in (offsets, inside))]
    return answer


def three_points(design, residual, draws=10):
    """Error on the other points of a deployment after three random ones, per figure."""
    generator = np.random.default_rng(7)
    deployments = defaultdict(list)
    for place in np.flatnonzero(np.isfinite(residual)):
        target = design.targets[place]
        layout = target.subject.deployment.layout
        key = (target.cell, target.subject.deployment.engine.name, layout, target.subject.deployment.precision)
        deployments[figure(target), key].append(place)
    found = defaultdict(list)
    counts = defaultdict(int)
    for (name, _), places in deployments.items():
        if len(places) < 6:
            continue
        counts[name] += 1
        load = np.array([max(design.targets[place].row.concurrency or 1, 1) for place in places])
        logs = -residual[places]
        for _ in range(draws):
            chosen = generator.choice(len(places), 3, replace=False)
            fitted = correction(name, [(int(load[one]), float(logs[one])) for one in chosen])
            for other in set(range(len(places))) - set(chosen):
                answer = np.log(fitted.factor) + fitted.slope * np.log(load[other] / fitted.reference_concurrency)
                found[name].append(answer - logs[other])
    return {name: (counts[name], *errors(np.array(logs))[:2]) for name, logs in sorted(found.items())}


def write_constants(fitted, figures):
    """New values, ranges and evidence into the packaged table; what each constant means stays."""
    path = ROOT / "src/tokenfleet/performance/coefficients.toml"
    text = path.read_text(encoding="utf-8")
    for name, (best, spread) in fitted.items():
        pattern = re.compile(
            rf'(name = "{re.escape(name)}"\nvalue = )[^\n]+(\nunit = "[^"]*"\nlow = )[^\n]+(\nhigh = )[^\n]+'
            r'(\nwhat = "[^\n]*"\nsource = )[^\n]+'
        )
        share = "fraction" in name and "factor" not in name
        value = min(best, 1.0) if share else best
        high = min(best * np.exp(2 * spread), 1.0) if share else best * np.exp(2 * spread)
        low = min(best * np.exp(-2 * spread), value)
        stem = name if name in PRIORS else name.split(".")[0]
        prior = f", prior {PRIORS[stem][0]:g}" if stem in PRIORS else ", prior 1"
        source = f'"fitted to {figures:,} figures of public runs{prior}; relative sd {spread:.2f}"'
        if not pattern.search(text):
            print("not shipped:", name, f"{value:.4g}", f"sd {spread:.2f}")
            continue
        text = pattern.sub(rf"\g<1>{value:.4g}\g<2>{low:.3g}\g<3>{high:.3g}\g<4>{source}", text)
    path.write_text(text, encoding="utf-8")


def main():
    """Fit, leave out, print, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--dump", type=Path, default=Path("validation.json"), help="where the figures of the page go")
    parser.add_argument("--fast", action="store_true", help="fit and write constants, leave nothing out")
    options = parser.parse_args()
    began = time.time()
    linted, design, _ = rows_of(options.folder)
    model = parameterize(design.targets)
    train = np.array([in_fit(target, linted) for target in design.targets])
    counts = f"{len(design.targets)} figures, {train.sum()} in the fit, {len(model.names)} numbers"
    print(f"{counts}, {time.time() - began:.0f} s")
    whole = fit(design, model, train)
    everything = np.arange(len(design.targets))
    inside = predict_log(design, model, whole.value, everything) - np.log(design.measured_s)
    scored = np.array([target.row.source in FITTED for target in design.targets])
    if options.fast:
        print(json.dumps(by_figure(design, inside, train), indent=1))
        write_constants(whole.constants(), int(train.sum()))
        return
    models = leave_out(design, model, train, scored, lambda target: target.group, whole.value)
    print(f"models left out, {time.time() - began:.0f} s")
    gpus = leave_out(design, model, train, scored, lambda target: target.subject.gpu.name, whole.value)
    print(f"gpus left out, {time.time() - began:.0f} s")
    clean = train
    result = {
        "as_of": datetime.date.today().isoformat(),
        "numbers": len(model.names),
        "figures": int(train.sum()),
        "in_sample": by_figure(design, inside, clean),
        "models_out": by_figure(design, models, clean),
        "models_out_nothing_excluded": by_figure(design, models, scored),
        "gpus_out": by_figure(design, gpus, clean),
        "three_points_models_out": three_points(design, np.where(clean, models, np.nan)),
        "bands": {
            name: {
                kind: {
                    "new_model": band(design, np.where(clean, models, np.nan), name, kinds),
                    "new_gpu": band(design, np.where(clean, gpus, np.nan), name, kinds),
                }
                for kind, kinds in KINDS.items()
            }
            for name in ("tpot", "ttft", "output_rate", "e2e")
        },
        "noise_floor": noise_floor(design, train),
        "residual_parts": residual_parts(design, np.where(clean, models, np.nan)),
        "constants": {name: (float(value), float(sd)) for name, (value, sd) in whole.constants().items()},
        "seen": {
            "gpus": sorted({design.targets[place].subject.gpu.name for place in np.flatnonzero(train)}),
            "models": sorted({design.targets[place].subject.model.name for place in np.flatnonzero(train)}),
        },
    }
    for part in ("in_sample", "models_out", "models_out_nothing_excluded", "gpus_out"):
        print(part)
        for name, row in result[part].items():
            print(
                f"   {name:28} {row['rows']:5} rows {row['median']:5.1f} / {row['p90']:5.1f}  bias {row['bias']:+5.1f}"
                f"   {row['cells']:3} cells {row['cell_median']:5.1f}"
            )
    print(
        "three points",
        {name: [round(float(one), 1) for one in row] for name, row in result["three_points_models_out"].items()},
    )
    print("bands", result["bands"])
    options.dump.write_text(json.dumps(result, indent=1), encoding="utf-8")
    if options.write:
        write_constants(whole.constants(), int(train.sum()))
        # A process of its own: the page is predicted with the constants that were just written.
        page = [sys.executable, str(ROOT / "benchmarks/validation_page.py"), str(options.dump), str(options.folder)]
        subprocess.run(page, check=True)
    print(f"{time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
