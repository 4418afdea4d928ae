# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""report.md: a finished run at a glance."""

import json
from pathlib import Path
from typing import Any

import yaml

from training.evaluation import KINDS
from training.files import write_text


def write_report(results: dict[str, Any], samples: list[str], folder: Path) -> None:
    """Writes what `results.json` says for people, with the picture `loss.png` and texts of the final model."""
    write_text(folder / "report.md", report(results, samples, folder.name))


def report(results: dict[str, Any], samples: list[str], name: str) -> str:
    hardware = results["hardware"]
    summary = {
        "parameters": f"{results['num_parameters']:,}",
        "steps": f"{results['steps']:,}",
        "tokens": f"{results['tokens']:,}",
        "training time": f"{results['train_seconds']:,} s",
        "speed": f"{results['tokens_per_second']:,} tokens/s",
        "machine": f"{hardware['num_processes']} x {hardware['device_name']} ({hardware['device']})",
        "precision": {"no": "float32"}.get(hardware["mixed_precision"], hardware["mixed_precision"]),
        "last training loss": f"{results['loss_curve']['loss'][-1]:.4f} nats per token",
    }
    parts = [
        f"# {name}",
        table(["", ""], list(summary.items())),
        "![Training loss and held-out bits per byte](loss.png)",
        "## Held-out text",
        "Bits per byte, with the moving average of the weights.",
        evaluation_table(results["evaluations"]),
        *(["## Samples", "Unconditional, by the moving average of the weights."] if samples else []),
        *(fenced(text) for text in samples),
        "## What was read",
        fenced(json.dumps(results["corpus"], indent=1, ensure_ascii=False), "json"),
        "## Arguments",
        fenced(yaml.safe_dump(results["arguments"], sort_keys=False, allow_unicode=True).rstrip(), "yaml"),
        "## Versions",
        ", ".join(f"{package} {version}" for package, version in results["versions"].items()),
    ]
    return "\n\n".join(parts) + "\n"


def evaluation_table(evaluations: list[dict[str, Any]]) -> str:
    kinds = [kind for kind in KINDS if kind in evaluations[-1]]
    rows = [
        (f"{scored['step']:,}", *(f"{scored[kind]:.4f}" for kind in kinds), f"{scored['sequences']:,}")
        for scored in evaluations
    ]
    return table(["step", *(KINDS[kind] for kind in kinds), "sequences"], rows)


def table(header: list[str], rows: list[tuple[str, ...]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def fenced(text: str, language: str = "text") -> str:
    """A code block; its fence is longer than any in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"
