# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""What fewer bits cost: the held-out text of a run, scored with weights in float32, bfloat16 and 8 bits.

    python eval/quantization.py RUN OUT_DIR

8 bits need torchao. Writes results.json and report.md to OUT_DIR, and prints the latter.
"""

import argparse
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, PreTrainedModel

from eval.scoring import figures, score
from training.data import load_data
from training.errors import errors_in_a_line
from training.evaluation import ORDER_SEED, ORDERS
from training.files import write_json, write_text
from training.hardware import versions
from training.initialization import load_whole
from training.results import read_finished_run


def variants() -> dict[str, dict[str, Any]]:
    """Ways to load a model, as arguments of `from_pretrained`. Raises a `ValueError` without torchao."""
    if find_spec("torchao") is None:
        raise ValueError("8 bits need torchao, which is not installed: `pip install torchao`.")
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    return {
        "float32": {"dtype": torch.float32},
        "bfloat16": {"dtype": torch.bfloat16},
        "int8 weights": {"quantization_config": TorchAoConfig(Int8WeightOnlyConfig())},
        "int8 weights and activations": {"quantization_config": TorchAoConfig(Int8DynamicActivationInt8WeightConfig())},
    }


def num_bytes_of(model: PreTrainedModel) -> int:
    """Bytes of all weights, those of quantised tensors with their scales."""

    def size(tensor: torch.Tensor) -> int:
        if not hasattr(tensor, "__tensor_flatten__"):
            return tensor.numel() * tensor.element_size()
        names, _ = tensor.__tensor_flatten__()
        return sum(size(getattr(tensor, name)) for name in names)

    return sum(size(parameter) for parameter in model.parameters())


def measure(run: Path) -> dict[str, Any]:
    """Bits per byte of the run's held-out text and bytes of the weights, of every variant.

    Raises:
        ValueError: if the run is not finished, or torchao is not installed.
    """
    _, arguments = read_finished_run(run)
    ways = variants()
    rows = load_data(arguments).validation.to_list()
    num_bytes = torch.tensor([row["num_bytes"] for row in rows]).numpy()
    measured: dict[str, Any] = {}
    for name, options in ways.items():
        model = load_whole(AutoModel, run / "model", **options).eval()
        nats = score(model, rows, num_orders=1, seed=ORDER_SEED, batch_size=256)
        measured[name] = {"bytes": num_bytes_of(model)}
        for order in ORDERS:
            measured[name][order] = figures(nats[order], num_bytes, num_bytes)["bits_per_byte"]
    return {
        "run": run.name,
        "sequences": len(rows),
        "versions": versions() | {"torchao": metadata.version("torchao")},
        "variants": measured,
    }


def report(results: dict[str, Any]) -> str:
    used = ", ".join(f"{name} {results['versions'][name]}" for name in ("torch", "transformers", "torchao"))
    lines = [
        f"Held-out bits per byte of {results['run']} ({results['sequences']} sequences), by how its weights are loaded "
        f"({used}, CPU):\n",
        f"| weights | megabytes | {' | '.join(ORDERS.values())} |",
        "|:--|--:|--:|--:|",
    ]
    exact = results["variants"]["float32"]
    for name, row in results["variants"].items():
        cells = [f"{row[order]:.4f} ({row[order] - exact[order]:+.4f})" for order in ORDERS]
        lines.append(f"| {name} | {row['bytes'] / 1e6:.2f} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


@errors_in_a_line()
def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description="What fewer bits cost a model.")
    parser.add_argument("run", type=Path, metavar="RUN", help="a finished run of training/pretrain.py")
    parser.add_argument("out", type=Path, metavar="OUT_DIR", help="folder for results.json and report.md")
    arguments = parser.parse_args(argv)
    results = measure(arguments.run)
    text = report(results)
    write_json(arguments.out / "results.json", results)
    write_text(arguments.out / "report.md", text)
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
