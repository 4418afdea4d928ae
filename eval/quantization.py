# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Bits per byte on a run's held-out text, with the weights in float32, bfloat16 and 8 bits.

    python eval/quantization.py RUN [--output_dir DIR]

Models with 8-bit weights need the package torchao. The command writes results.json and report.md, and prints report.md.
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
from eval.scoring import compute_metrics, score_rows


@dataclass
class Arguments:
    """Options of eval/quantization.py."""

    output_dir: Path = option(Path("runs/quantization"), "Folder for results.json and report.md.")


def variants() -> dict[str, dict[str, Any]]:
    """Return arguments of `from_pretrained` for each data type. Raise a `ValueError` if torchao is not installed."""
    if find_spec("torchao") is None:
        raise ValueError("Weights in 8 bits need torchao, but it is not installed. Run `pip install torchao`.")
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    return {
        "float32": {"dtype": torch.float32},
        "bfloat16": {"dtype": torch.bfloat16},
        "int8 weights": {"quantization_config": TorchAoConfig(Int8WeightOnlyConfig())},
        "int8 weights and activations": {"quantization_config": TorchAoConfig(Int8DynamicActivationInt8WeightConfig())},
    }


def num_bytes(model: PreTrainedModel) -> int:
    """Return the number of bytes of all weights, including the scales of quantized tensors."""

    def size(tensor: torch.Tensor) -> int:
        if not hasattr(tensor, "__tensor_flatten__"):
            return tensor.numel() * tensor.element_size()
        names, _ = tensor.__tensor_flatten__()
        return sum(size(getattr(tensor, name)) for name in names)

    return sum(size(parameter) for parameter in model.parameters())


def measure(run: Path) -> dict[str, Any]:
    """Return, for each data type of the weights, the size of the weights, and bits per byte on the held-out text."""
    _, arguments = read_finished_run(run)
    load_options = variants()
    rows = load_data(arguments).validation.to_list()
    sizes = torch.tensor([row["num_bytes"] for row in rows]).numpy()
    measured: dict[str, Any] = {}
    for name, options in load_options.items():
        model = load_model(run / "model", **options)
        nats = score_rows(model, rows, num_orders=1, seed=ORDER_SEED, batch_size=256)
        measured[name] = {"bytes": num_bytes(model)}
        for order in ORDER_NAMES:
            measured[name][order] = compute_metrics(nats[order], sizes, sizes)["bits_per_byte"]
    return {
        "run": run.name,
        "sequences": len(rows),
        "versions": versions() | {"torchao": metadata.version("torchao")},
        "variants": measured,
    }


def format_report(results: dict[str, Any]) -> str:
    """Return the text of report.md."""
    packages = ", ".join(f"{name} {results['versions'][name]}" for name in ("torch", "transformers", "torchao"))
    baseline = results["variants"]["float32"]
    rows = [
        (
            *(name, f"{row['bytes'] / 1e6:.2f}"),
            *(f"{row[order]:.4f} ({row[order] - baseline[order]:+.4f})" for order in ORDER_NAMES),
        )
        for name, row in results["variants"].items()
    ]
    return (
        f"The table shows bits per byte on the held-out text of {results['run']} ({results['sequences']} sequences) "
        "for each data type of the weights. The difference from float32 is in parentheses. The model ran on a CPU "
        f"with {packages}.\n\n{markdown_table(['weights', 'megabytes', *ORDER_NAMES.values()], rows, 'lrrr')}\n"
    )


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(Arguments, description="Measure the bits per byte of a run with quantized weights.")
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run of training/pretrain.py")
    arguments, others = parser.parse(argv)
    results = measure(others.run)
    write_json(arguments.output_dir / "results.json", results)
    write_text(arguments.output_dir / "report.md", format_report(results))
    print(format_report(results))


if __name__ == "__main__":
    main(sys.argv[1:])
