# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Measured results beside the published ones (Tables 1, 4 and 5 of arXiv 2506.19935), as Markdown.

    python eval/tables.py RESULTS.json [...]    the tables of finished runs of eval/zero_shot.py
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.commands import one_line_errors
from common.files import read_json
from common.reports import markdown_table, with_error
from common.results import ORDER_NAMES
from eval.protocols import BLOCK_LENGTH, EVALUATION_SETS
from modeling_aogpt.configuration_aogpt import GPT2_VOCAB_SIZE

KEYS = (
    "model",
    "num_parameters",
    "protocol",
    "sequence_length",
    "tokenizer",
    "mixed_precision",
    "arguments",
    "datasets",
)
MEASURE_NAMES = ORDER_NAMES | {"ensemble": "ensemble"}
PRECISIONS = {"left_to_right": "bf16", "any_order": "no", "ensemble": "no"}  # mixed precision of the published figures

# Zero-shot perplexity on LAMBADA, WikiText2, PTB, WikiText103 and 1BW, as published.
DATASETS = ("lambada", "wikitext2", "ptb", "wikitext103", "lm1b")
PUBLISHED = {
    "medium": {  # Table 4, about 350 million parameters
        "left_to_right": {
            "SEDD": (39.19, 30.29, 88.18, 30.05, 53.54),
            "RADD": (38.60, 29.71, 76.00, 29.96, 52.36),
            "GPT-2": (35.66, 31.80, 123.14, 31.39, 55.72),
            "sigma-GPT": (61.05, 44.80, 121.48, 43.68, 76.74),
            "AO-GPT": (42.44, 31.52, 87.56, 30.86, 50.23),
        },
        "any_order": {
            "SEDD": (42.77, 31.04, 87.12, 29.98, 61.19),
            "RADD": (41.96, 29.96, 79.06, 28.51, 57.07),
            "sigma-GPT": (57.27, 43.28, 126.11, 41.80, 74.81),
            "AO-GPT": (49.79, 33.73, 101.01, 32.38, 65.90),
        },
        "ensemble": {
            "AO-GPT, 8": (45.08, 30.63, 87.74, 29.46, 59.11),
            "AO-GPT, 64": (44.31, 30.16, 85.75, 28.98, 58.18),
        },
    },
    "small": {  # Table 5, about 125 million parameters
        "left_to_right": {
            "SEDD": (49.41, 41.19, 118.74, 41.70, 72.60),
            "RADD": (49.09, 38.26, 107.78, 38.41, 63.33),
            "GPT-2": (45.04, 42.43, 138.43, 41.60, 75.20),
            "sigma-GPT": (68.61, 57.66, 146.87, 55.54, 90.98),
            "AO-GPT": (52.46, 42.10, 135.96, 40.97, 71.73),
        },
        "any_order": {
            "SEDD": (50.92, 41.84, 114.24, 40.62, 79.29),
            "RADD": (50.27, 38.26, 110.38, 35.90, 74.28),
            "sigma-GPT": (65.83, 53.08, 138.61, 50.75, 87.71),
            "AO-GPT": (59.93, 46.33, 141.92, 45.44, 84.36),
        },
        "ensemble": {
            "AO-GPT, 8": (55.62, 42.77, 126.08, 42.02, 77.62),
            "AO-GPT, 64": (54.92, 42.24, 123.49, 41.51, 76.73),
        },
    },
}
SMALL, MEDIUM = (100e6, 250e6), (250e6, 500e6)  # parameters; AO-GPT's sizes are 170.6 and 425.8 million

# Generative perplexity by GPT-2 large, as published (Table 1): medium models by steps, at each (top-p, temperature).
GENERATIVE_STEPS = (64, 128, 256, 512, 1024)
GENERATIVE = {
    (1.0, 1.0): {"AO-GPT": (194.5, 154.8, 148.0, 140.3, 136.4), "SEDD": (121.5, 100.0, 86.4, 87.6, 81.6)},
    (0.95, 0.9): {"AO-GPT": (33.5, 29.3, 27.3, 27.0, 26.9), "SEDD": (25.4, 22.0, 19.5, 19.0, 19.3)},
    (0.95, 0.7): {"AO-GPT": (6.1, 5.6, 5.5, 5.1, 4.6), "SEDD": (6.4, 6.0, 5.2, 5.0, 5.1)},
}


def size_of(num_parameters: int) -> str | None:
    """Return the published size that a model is compared with, if any."""
    for size, (least, most) in {"small": SMALL, "medium": MEDIUM}.items():
        if least <= num_parameters < most:
            return size
    return None


def departures(results: dict[str, Any], measure: str) -> list[str]:
    """Return the departures of a run from the published protocol, which make its figures of a measure incomparable."""
    found = []
    if results["protocol"] != "published":
        found.append("nothing dropped")
    if results["sequence_length"] != BLOCK_LENGTH:
        found.append(f"blocks of {results['sequence_length']}")
    if results["tokenizer"]["num_ids"] != GPT2_VOCAB_SIZE:
        found.append(f"a tokenizer of {results['tokenizer']['num_ids']} ids")
    if results["mixed_precision"][measure] != PRECISIONS[measure]:
        found.append(f"mixed precision {results['mixed_precision'][measure]!r}")
    if results["arguments"]["dtype"] != "float32":
        found.append(f"weights in {results['arguments']['dtype']}")
    for name, values in results["datasets"].items():
        if name not in EVALUATION_SETS:
            continue
        known = EVALUATION_SETS[name]
        if values["split"] != known.split:
            found.append(f"the {values['split']} split of {known.title}")
        elif values["documents"] != known.hub_rows[known.split]:
            found.append(f"{values['documents']} of the {known.hub_rows[known.split]} rows of {known.title}")
    return found


def zero_shot_table(runs: Sequence[dict[str, Any]]) -> str:
    """Return Tables 4 and 5 with measured rows in bold, beside the published rows of their sizes."""
    sizes = sorted({size for run in runs if (size := size_of(run["num_parameters"]))})
    titles = [EVALUATION_SETS[name].title for name in DATASETS]
    rows: list[tuple[str, ...]] = []
    marks: list[str] = []
    for measure, title in MEASURE_NAMES.items():
        of_measure = [
            (f"{model} {size} (published)", *(f"{value:.2f}" for value in values))
            for size in sizes
            for model, values in PUBLISHED[size][measure].items()
        ]
        for run in runs:
            cells = [cell(run["datasets"].get(name), measure) for name in DATASETS]
            if any(cells):
                name = run["model"] + (f", {run['arguments']['ensemble_size']}" if measure == "ensemble" else "")
                if unlike := departures(run, measure):
                    marks.append(f"[*] {name}, {title}: not comparable with published rows: {'; '.join(unlike)}.")
                    name += " [*]"
                of_measure.append((f"**{name}**", *cells))
        if of_measure:
            rows += [(f"*{title}*", *[""] * len(titles)), *of_measure]
    table = markdown_table(["zero-shot perplexity", *titles], rows, "l" + "r" * len(titles))
    return "\n".join([table, *(["", *marks] if marks else [])])


def cell(found: dict[str, Any] | None, measure: str) -> str:
    if found is None or measure not in found["measures"]:
        return ""
    values = found["measures"][measure]
    return with_error(values["perplexity"], values["perplexity_standard_error"], 2)


def generative_table(results: Sequence[dict[str, Any]], average: str = "mean") -> str:
    """
    Return Table 1 with measured rows in bold: generative perplexity and, behind a slash, the samples' mean unigram
    entropy in nats, at each setting by steps. Published rows stand beside those that GPT-2 large judged.

    Args:
        results: Of `judge_cell`.
        average: `"mean"` over samples, as published, or `"pooled"` over all tokens, on which a few bad samples weigh
            less.
    """
    judge = results[0]["judge"]
    by_place = {
        tuple(result["cell"][key] for key in ("model", "top_p", "temperature", "steps")): result for result in results
    }
    settings = list(dict.fromkeys((top_p, temperature) for _, top_p, temperature, _ in by_place))
    models = list(dict.fromkeys(model for model, *_ in by_place))
    steps = sorted({count for *_, count in by_place})
    rows = []
    for top_p, temperature in settings:
        if Path(judge).name == "gpt2-large" and average == "mean":
            for model, values in GENERATIVE.get((top_p, temperature), {}).items():
                published = dict(zip(GENERATIVE_STEPS, values, strict=True))
                cells = (str(published.get(count, "")) for count in steps)
                rows.append((f"{top_p}, {temperature}", f"{model} medium (published)", *cells))
        for model in models:
            found = (by_place.get((model, top_p, temperature, count)) for count in steps)
            cells = (
                "" if result is None else f"{result['perplexity'][average]:.1f} / {result['entropy']:.2f}"
                for result in found
            )
            rows.append((f"{top_p}, {temperature}", f"**{model}**", *cells))
    over = {"mean": "mean over samples", "pooled": "pooled over tokens"}[average]
    header = ["top-p, temperature", "model \\ steps", *map(str, steps)]
    table = markdown_table(header, rows, "ll" + "r" * len(steps))
    return f"Generative perplexity by {judge}, {over} / unigram entropy in nats\n\n{table}"


@one_line_errors()
def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Results of eval/zero_shot.py beside the published figures.")
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULTS.json")
    files = parser.parse_args(argv).results
    runs = [read_json(file, KEYS, "eval/zero_shot.py") for file in files]
    for file, run in zip(files, runs, strict=True):
        if not run["datasets"].keys() & set(DATASETS):
            raise ValueError(
                f"{file} has figures of {', '.join(run['datasets'])}, but the tables are of {', '.join(DATASETS)}: "
                "score these with eval/zero_shot.py --datasets."
            )
    print(zero_shot_table(runs))


if __name__ == "__main__":
    main(sys.argv[1:])
