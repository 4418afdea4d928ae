# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
The cost of fewer bits: the held-out text of a run, scored with weights in float32, bfloat16 and 8 bits.

    python eval/quantization.py RUN [--output_dir DIR]

8 bits need torchao. Writes results.json and report.md, and prints the latter.
"""

import sys
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from common.commands import Parser, one_line_errors, option
from common.data import load_data
from common.files import write_json, write_text
from common.hardware import versions
from common.models import load_model
from common.reports import markdown_table
from common.results import ORDER_NAMES, ORDER_SEED, read_finished_run
from eval.scoring import figures, score


@dataclass
class Arguments:
    output_dir: Path = option(Path("runs/quantization"), "Folder for results.json and report.md.")


def variants() -> dict[str, dict[str, Any]]:
    """Return ways to load a model, as arguments of `from_pretrained`. Raises a `ValueError` without torchao."""
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
    """Return the bytes of all weights, those of quantized tensors with their scales."""

    def size(tensor: torch.Tensor) -> int:
        if not hasattr(tensor, "__tensor_flatten__"):
            return tensor.numel() * tensor.element_size()
        names, _ = tensor.__tensor_flatten__()
        return sum(size(getattr(tensor, name)) for name in names)

    return sum(size(parameter) for parameter in model.parameters())


def measure(run: Path) -> dict[str, Any]:
    """
    Return the bits per byte of the run's held-out text and the bytes of the weights, of every variant.

    Raises:
        ValueError: If the run is not finished, or torchao is not installed.
    """
    _, arguments = read_finished_run(run)
    ways = variants()
    rows = load_data(arguments).validation.to_list()
    num_bytes = torch.tensor([row["num_bytes"] for row in rows]).numpy()
    measured: dict[str, Any] = {}
    for name, options in ways.items():
        model = load_model(run / "model", **options)
        nats = score(model, rows, num_orders=1, seed=ORDER_SEED, batch_size=256)
        measured[name] = {"bytes": num_bytes_of(model)}
        for order in ORDER_NAMES:
            measured[name][order] = figures(nats[order], num_bytes, num_bytes)["bits_per_byte"]
    return {
        "run": run.name,
        "sequences": len(rows),
        "versions": versions() | {"torchao": metadata.version("torchao")},
        "variants": measured,
    }


def report(results: dict[str, Any]) -> str:
    used = ", ".join(f"{name} {results['versions'][name]}" for name in ("torch", "transformers", "torchao"))
    exact = results["variants"]["float32"]
    rows = [
        (
            *(name, f"{row['bytes'] / 1e6:.2f}"),
            *(f"{row[order]:.4f} ({row[order] - exact[order]:+.4f})" for order in ORDER_NAMES),
        )
        for name, row in results["variants"].items()
    ]
    return (
        f"Held-out bits per byte of {results['run']} ({results['sequences']} sequences), by how its weights are loaded "
        f"({used}, CPU):\n\n{markdown_table(['weights', 'megabytes', *ORDER_NAMES.values()], rows, 'lrrr')}\n"
    )


@one_line_errors()
def main(argv: list[str]) -> None:
    parser = Parser(Arguments, description="The cost of fewer bits.")
    parser.add_argument("run", type=Path, metavar="RUN", help="a finished run of training/pretrain.py")
    arguments, others = parser.parse(argv)
    results = measure(others.run)
    write_json(arguments.output_dir / "results.json", results)
    write_text(arguments.output_dir / "report.md", report(results))
    print(report(results))


if __name__ == "__main__":
    main(sys.argv[1:])
