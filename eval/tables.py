# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Markdown tables that compare models with each other and with Tables 1, 4 and 5 of arXiv 2506.19935.

    python eval/tables.py RESULTS.json [...]

Each RESULTS.json is a file that eval/zero_shot.py wrote. Text files and benchmark datasets have separate tables.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from common.commands import Parser, one_line_errors
from common.files import read_json, read_yaml
from common.reports import markdown_table, with_error
from common.results import ORDER_KINDS
from eval.protocols import EVALUATION_SETS, PUBLISHED_LENGTH
from modeling_aogpt.configuration_aogpt import GPT2_VOCAB_SIZE

# Keys of the results of eval/zero_shot.py that this module needs.
ZERO_SHOT_KEYS = (
    *("model", "num_parameters", "protocol", "sequence_length", "tokenizer", "mixed_precision", "published_precision"),
    *("arguments", "datasets"),
)
MEASURE_NAMES = ORDER_KINDS | {"ensemble": "ensemble"}

# Results of the paper. The file explains its keys.
_FROM_PAPER = read_yaml(Path(__file__).with_name("published.yaml"))
PUBLISHED: dict[str, dict[str, dict[str, list[float]]]] = _FROM_PAPER["zero_shot"]
GENERATIVE_STEPS: list[int] = _FROM_PAPER["generative_steps"]
# Keys are (top-p, temperature). Values are in the order of `GENERATIVE_STEPS`, by model.
GENERATIVE: dict[tuple[float, float], dict[str, list[float]]] = {
    (row.pop("top_p"), row.pop("temperature")): row for row in _FROM_PAPER["generative"]
}
# Ranges [from, to) of numbers of parameters. AO-GPT small has 170.6 million parameters, and medium 425.8 million.
SIZES = {"small": (100e6, 250e6), "medium": (250e6, 500e6)}
CLEAN = "clean protocol, which drops no tokens"


def list_departures(results: dict[str, Any], measure: str, names: Iterable[str]) -> list[str]:
    """List how an evaluation differs from the published one. With any difference, perplexities cannot be compared.

    `names` are names of datasets. Only those in `EVALUATION_SETS` count.
    """
    departures = []
    if results["protocol"] != "published":
        departures.append(CLEAN)
    if results["sequence_length"] != PUBLISHED_LENGTH:
        departures.append(f"sequences of {results['sequence_length']}")
    if results["tokenizer"]["num_ids"] != GPT2_VOCAB_SIZE:
        departures.append(f"a tokenizer of {results['tokenizer']['num_ids']} ids")
    if results["mixed_precision"][measure] != results["published_precision"][measure]:
        departures.append(f"mixed precision {results['mixed_precision'][measure]!r}")
    if results["arguments"]["dtype"] != "float32":
        departures.append(f"weights in {results['arguments']['dtype']}")
    for name in names:
        if name not in EVALUATION_SETS:
            continue
        data_set, scored = EVALUATION_SETS[name], results["datasets"][name]
        num_rows = data_set.hub_rows[data_set.split]
        if scored["split"] != data_set.split:
            departures.append(f"the {scored['split']} split of {data_set.title} (published: {data_set.split})")
        elif scored["documents"] != num_rows:
            departures.append(f"{scored['documents']} of the {num_rows} documents of {data_set.title}")
    return departures


def paper_table(runs: Sequence[dict[str, Any]]) -> str:
    """Return the paper's Tables 4 and 5, with results of `runs` in bold below published results for the same size."""
    counts = [run["num_parameters"] for run in runs]
    sizes = sorted(size for size, (least, most) in SIZES.items() if any(least <= count < most for count in counts))
    titles = [data_set.title for data_set in EVALUATION_SETS.values()]
    rows: list[tuple[str, ...]] = []
    notes: list[str] = []
    show = show_metric("perplexity", 2)
    for measure, title in MEASURE_NAMES.items():
        group = [
            (f"{model} {size} (published)", *(f"{value:.2f}" for value in values))
            for size in sizes
            for model, values in PUBLISHED[size][measure].items()
        ]
        for run in runs:
            scored = (run["datasets"].get(name, {"measures": {}})["measures"] for name in EVALUATION_SETS)
            cells = [show(measures.get(measure, {})) for measures in scored]
            if any(cells):
                name = run["model"] + (f", {run['arguments']['ensemble_size']}" if measure == "ensemble" else "")
                if departures := list_departures(run, measure, run["datasets"]):
                    notes.append(
                        f"[*] {name}, {title}: not comparable with published results, because of: "
                        f"{'; '.join(departures)}."
                    )
                    name += " [*]"
                group.append((f"**{name}**", *cells))
        if group:
            rows += [(f"*{title}*", *[""] * len(titles)), *group]
    table = markdown_table(["zero-shot perplexity ± standard error", *titles], rows, "l" + "r" * len(titles))
    return "\n".join([table, *(["", *notes] if notes else [])])


def show_metric(metric: str, digits: int) -> Callable[[dict[str, Any]], str]:
    """Return a function that formats a metric of a result with its standard error, or as "" if it is missing."""
    return lambda result: (
        with_error(result[metric], result[f"{metric}_standard_error"], digits) if metric in result else ""
    )


def describe_orders(measure: str, arguments: dict[str, Any]) -> str:
    """Describe the orders in which a text was scored."""
    if measure == "left_to_right":
        return ORDER_KINDS[measure]
    contexts = f", {arguments['ensemble_size']} context orders" if measure == "ensemble" else ""
    number = f", {arguments['num_orders']} per sequence" if arguments["num_orders"] > 1 else ""
    return f"{ORDER_KINDS['any_order']}{contexts}{number}"


def describe_text(name: str, results: dict[str, Any], measure: str) -> str:
    """Describe how text files were cut into sequences, and the precision of the scores."""
    precision, dtype = results["mixed_precision"][measure], results["arguments"]["dtype"]
    unit = results["datasets"][name].get("sample_by", "line")  # earlier versions did not record it
    parts = [results["datasets"][name]["packing"], f"sequences of {results['sequence_length']} tokens"]
    parts += [f"one document per {unit.replace('document', 'file')}"] * (unit != "line")
    parts += [f"mixed precision {precision!r}"] * (precision != "no")
    parts += [f"weights in {dtype}"] * (dtype != "float32")
    return ", ".join(parts)


# Columns of the table of eval/zero_shot.py. To add a column, add a line: the header, `l` or `r` for the alignment, and
# a function that returns the text of a cell. The function gets the results of one measure on one text, with the keys
# `text` and `measure`. `_score_text` in eval/zero_shot.py computes these results.
COLUMNS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "text": ("l", lambda result: ", ".join(result.get("files", [result["text"]]))),
    "documents": ("r", lambda result: f"{result['documents']:,}"),
    "tokens": ("r", lambda result: f"{result['tokens']:,}"),
    "dropped": ("r", lambda result: f"{result['dropped_tokens']:,}"),
    "log-likelihood": ("l", lambda result: describe_orders(result["measure"], result["arguments"])),
    "sequences": ("r", lambda result: f"{result['sequences']:,}"),
    "perplexity": ("r", show_metric("perplexity", 2)),
    "bits per byte": ("r", show_metric("bits_per_byte", 4)),
}


def zero_shot_table(runs: Sequence[dict[str, Any]]) -> str:
    """Return a table of all measures. If there are several `runs`, the first columns are model and settings."""
    first = {
        "model": ("l", lambda result: result["model"]),
        "settings": ("l", lambda result: describe_text(result["text"], result, result["measure"])),
    }
    columns = (first if len(runs) > 1 else {}) | COLUMNS
    results = [
        {"text": name, "measure": measure} | run | text | values
        for run in runs
        for name, text in run["datasets"].items()
        for measure, values in text["measures"].items()
    ]
    rows = [[show(result) for _, show in columns.values()] for result in results]
    table = markdown_table([*columns], rows, "".join(align for align, _ in columns.values()))
    return f"{table}\n\nValues after ± are standard errors over sequences."


def generative_table(results: Sequence[dict[str, Any]], average: str = "mean") -> str:
    """Return a table of generative perplexities like the paper's Table 1, with the models of `results` in bold.

    If GPT-2 large is the judge and `average` is `"mean"`, published results are shown first. A cell has the form
    "generative perplexity ± standard error / mean unigram entropy of the samples in nats". `average` is `"mean"` for
    the mean perplexity of the samples, as published. It is `"pooled"` for the perplexity over all tokens, on which a
    few bad samples have less effect.
    """
    judge = results[0]["judge"]
    keys = ("model", "top_p", "temperature", "steps")
    results_by_key = {tuple(result["cell"][key] for key in keys): result for result in results}
    settings = list(dict.fromkeys((top_p, temperature) for _, top_p, temperature, _ in results_by_key))
    models = list(dict.fromkeys(model for model, *_ in results_by_key))
    steps = sorted({count for *_, count in results_by_key})
    rows = []
    for top_p, temperature in settings:
        if Path(judge).name == "gpt2-large" and average == "mean":
            for model, values in GENERATIVE.get((top_p, temperature), {}).items():
                published = dict(zip(GENERATIVE_STEPS, values, strict=True))
                cells = (str(published.get(count, "")) for count in steps)
                rows.append((f"{top_p}, {temperature}", f"{model} medium (published)", *cells))
        for model in models:
            measured = (results_by_key.get((model, top_p, temperature, count)) for count in steps)
            cells = (_generative_cell(result, average) for result in measured)
            rows.append((f"{top_p}, {temperature}", f"**{model}**", *cells))
    over = {"mean": "mean over samples", "pooled": "pooled over tokens"}[average]
    header = ["top-p, temperature", "model \\ steps", *map(str, steps)]
    table = markdown_table(header, rows, "ll" + "r" * len(steps))
    return (
        f"Each cell shows two numbers: the generative perplexity under {judge} ({over}) / the mean unigram entropy of "
        "the samples in nats. The judge does not score the first token of a sample, so shorter samples are not judged. "
        f"After ± is the standard error over the samples.\n\n{table}"
    )


def _generative_cell(result: dict[str, Any] | None, average: str) -> str:
    if result is None:
        return ""
    perplexity = result["perplexity"]
    shown = with_error(perplexity[average], perplexity[f"{average}_standard_error"], 1)
    counts = {"not judged": perplexity["unjudged"], "truncated by the judge": perplexity["truncated"]}
    remarks = ", ".join(f"{count} sample{'s' * (count > 1)} {what}" for what, count in counts.items() if count)
    return f"{shown}{f' ({remarks})' if remarks else ''} / {result['entropy']:.2f}"


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser((), description="Print results of eval/zero_shot.py, with the published ones.")
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULTS.json", help="results of a finished run")
    (arguments,) = parser.parse(argv)
    runs = [read_json(file, ZERO_SHOT_KEYS, "eval/zero_shot.py") for file in arguments.results]
    in_paper, others = [], []
    for run in runs:
        (in_paper if run["datasets"].keys() & EVALUATION_SETS.keys() else others).append(run)
    tables = ((paper_table, in_paper), (zero_shot_table, others))
    print("\n\n".join(make_table(part) for make_table, part in tables if part))


if __name__ == "__main__":
    main(sys.argv[1:])
