# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Report of a finished run: `results.json`, `report.md` and `loss.png`."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from common.files import write_json, write_text
from common.reports import BLUE, FINE_TICKS, GREY, ORANGE, label_log_axis, markdown_table, save_figure, style_axes
from common.results import ORDER_KINDS, model_evaluation
from training.arguments import LEFT_TO_RIGHT_ORDERS, TrainingArguments
from training.optimization import learning_rate_at


def loss_curve(losses: list[float], training: TrainingArguments) -> dict[str, list[float]]:
    """Return the last step, the learning rate at it, and the mean loss of each interval of `logging_steps` steps."""
    window = training.logging_steps
    ends = [*range(window, len(losses), window), len(losses)]
    return {
        "step": ends,
        "loss": [sum(losses[start:end]) / (end - start) for start, end in zip([0, *ends], ends, strict=False)],
        "learning_rate": [learning_rate_at(end - 1, training) for end in ends],
    }


def write_report(results: dict[str, Any], samples: list[str], folder: Path) -> None:
    """Write `loss.png` and `report.md`. Write `results.json` last, because this file marks the run as finished."""
    plot_run(results, folder / "loss.png")
    write_text(folder / "report.md", _format_report(results, samples, folder.name))
    write_json(folder / "results.json", results)


def _format_report(results: dict[str, Any], samples: list[str], name: str) -> str:
    hardware, settings, model_step = results["hardware"], results["arguments"], model_evaluation(results)["step"]
    summary = {
        "parameters": f"{results['num_parameters']:,}" + (" with the adapter" if settings.get("lora_rank") else ""),
        "steps": f"{results['steps']:,}",
        "tokens": f"{results['tokens']:,}",
        "training time": f"{results['train_seconds']:,} s",
        "speed": f"{results['tokens_per_second']:,} tokens/s",
        "machine at the end": f"{hardware['num_processes']} x {hardware['device_name']} ({hardware['device']})",
        "precision": {"no": "float32"}.get(hardware["mixed_precision"], hardware["mixed_precision"]),
        "last training loss": f"{results['loss_curve']['loss'][-1]:.4f} nats per token",
    }
    kinds = [kind for kind in ORDER_KINDS if kind in results["evaluations"][-1]]
    rows = [
        (f"{scores['step']:,}", *(f"{scores[kind]:.4f}" for kind in kinds), f"{scores['sequences']:,}")
        for scores in results["evaluations"]
    ]
    left_to_right = dict.fromkeys(LEFT_TO_RIGHT_ORDERS, "from left to right")
    orders = (left_to_right | {"shared": "in the order of the training"}).get(settings["orders"], "in random orders")
    orders += ", in blocks," if settings["block_length"] or settings["stride"] else ""
    projections = f" and projections in {kind}" if (kind := settings.get("quantization")) else ""
    parts = [
        f"# {name}",
        markdown_table(["", ""], summary.items()),
        "![Training loss and held-out bits per byte](loss.png)",
        "## Held-out text",
        f"The table shows bits per byte, computed with the moving averages of the weights{projections}. The model has "
        f"those of step {model_step:,}.",
        markdown_table(["step", *(ORDER_KINDS[kind] for kind in kinds), "sequences"], rows),
        *(["## Samples", f"Generated {orders} without a prompt, with the averaged weights."] if samples else []),
        *(_code_block(text) for text in samples),
        "The file results.json has the arguments, the sources of the corpus, and the versions of all libraries.",
    ]
    return "\n\n".join(parts) + "\n"


def _code_block(text: str) -> str:
    """Return a Markdown code block. Its fence is long enough not to occur in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}text\n{text}\n{fence}"


def plot_run(results: dict[str, Any], path: Path) -> None:
    """Plot the training loss, and held-out bits per byte left to right and in random orders."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    training, held_out = figure.subplots(1, 2)
    curve, evaluations = results["loss_curve"], results["evaluations"]
    training.plot(curve["step"], curve["loss"], color=GREY, linewidth=1.2)
    training.set(xlabel="step", ylabel="nats per token", xlim=(0, results["steps"]))
    style_axes(training, "Training loss")
    training.set_yscale("log")  # on a linear axis, the large loss of the first steps would hide later changes
    label_log_axis(training.yaxis, FINE_TICKS)

    for key, color in (("any_order", ORANGE), ("left_to_right", BLUE)):
        if key in evaluations[-1]:  # encoders are not evaluated left to right
            steps, values = zip(*((scores["step"], scores[key]) for scores in evaluations), strict=True)
            label = f"{ORDER_KINDS[key]}: {values[-1]:.3f}"
            held_out.plot(steps, values, color=color, marker="o", markersize=3.5, label=label)
    held_out.set(xlabel="step", ylabel="bits per byte", xlim=(0, results["steps"]))
    style_axes(held_out, "Held-out text, averaged weights")
    held_out.legend(frameon=False)
    save_figure(figure, path)
