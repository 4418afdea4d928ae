# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Time and memory of a training step of `training/pretrain.py`, on a GPU or else on the CPU.

    python eval/benchmarks/training_speed.py [--batch_size 3] [--output_dir DIR]
    python eval/benchmarks/training_speed.py --size medium --batch_size 16 --steps 40 --mixed_precision bf16 --compile

The time of a step is the mean over the second half of the steps. The memory is the peak memory of the process on a CPU,
and of all tensors on a GPU.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate.utils import send_to_device

from common.commands import Options, Parser, command_line, one_line_errors, option
from common.files import make_folder, write_json, write_text
from common.hardware import check_precision, default_device, device_name, peak_flops, peak_memory, versions
from common.reports import markdown_table
from eval.benchmarks.speed import SIZES
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from training.activation_checkpointing import ActivationCheckpointing, checkpoint_activations
from training.arguments import TrainingArguments
from training.draws import OrderDraws
from training.objectives import AnyOrderObjective, compile_head_loss
from training.optimization import ExponentialMovingAverage, create_optimizer
from training.tracking import flops_per_token

DEVICE = default_device()
PARTS = ("data", "forward", "backward", "optimizer")  # parts of a step
Batch = list[dict[str, Any]]
Mark = float | torch.cuda.Event


@dataclass
class Arguments(Options):
    """Options of eval/benchmarks/training_speed.py."""

    size: Literal["medium", "small", "tiny"] = option(
        "small", "Model size. medium, small: as in the paper. tiny: for tests."
    )
    batch_size: int = option(3, "Number of sequences in a step.", least=1)
    steps: int = option(2, "Number of training steps. Only the second half is counted.", least=1)
    mixed_precision: Literal["no", "bf16"] = option(
        "no", "no: float32. bf16: autocast to bfloat16 (needs a GPU, or a CPU with bfloat16 instructions)."
    )
    activation_checkpointing: ActivationCheckpointing = option("none", "As in training/pretrain.py.")
    compile: bool = option(
        False,
        "Compile the whole model, as gpu.yaml and ddp.yaml of training/accelerate/ do. (With FSDP2, each layer is "
        "compiled separately.)",
    )
    output_dir: Path = option(Path("runs/training_speed"), "Folder for results.json and README.md.")


def make_step(arguments: Arguments, config: AOGPTConfig) -> Callable[[Batch], tuple[torch.Tensor, list[Mark]]]:
    """
    Return a function that runs a training step.

    The function takes a batch of features of [`OrderDraws`]. It returns the loss, and the times at which the step began
    and each of its `PARTS` ended. It does not wait for the device.
    """
    recipe = TrainingArguments()
    with DEVICE:
        model = AOGPTForAnyOrderLM(config).train()
    checkpoint_activations(model, arguments.activation_checkpointing)
    optimizer, average = create_optimizer(model, recipe), ExponentialMovingAverage(model, recipe.ema_decay)
    compute_loss = AnyOrderObjective(model)
    if arguments.compile:
        compile_head_loss()
        compute_loss = torch.compile(compute_loss)
    draw_orders = OrderDraws(recipe)

    def step(features: Batch) -> tuple[torch.Tensor, list[Mark]]:
        marks = [mark()]
        batch = draw_orders(features)
        if DEVICE.type == "cuda":  # as in training: without pinned memory, the copy would wait for the GPU
            batch = {name: values.pin_memory() for name, values in batch.items()}
        batch = send_to_device(batch, DEVICE, non_blocking=True)
        marks.append(mark())
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=arguments.mixed_precision == "bf16"):
            loss = compute_loss(batch["input_ids"], batch["orders"])
        marks.append(mark())
        loss.backward()
        marks.append(mark())
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        average.update(model)
        return loss.detach(), [*marks, mark()]

    return step


def mark() -> Mark:
    """Return the current time. On a GPU, return an event with the time at which the GPU finishes its queued work."""
    if DEVICE.type == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(first: Mark, last: Mark) -> float:
    """Return the seconds between two results of `mark`. The GPU must have reached both."""
    return last - first if isinstance(first, float) else first.elapsed_time(last) / 1000


def measure(arguments: Arguments) -> dict[str, Any]:
    """
    Measure the time and the peak memory of training steps in this process.

    Only the second half of the steps is timed. The process waits for the GPU only after the last step.
    """
    torch.manual_seed(0)
    config = AOGPTConfig(**SIZES[arguments.size])
    batch_size, length = arguments.batch_size, config.max_position_embeddings
    step = make_step(arguments, config)
    input_ids = torch.randint(config.num_valid_tokens, (batch_size, length))
    samples = range(arguments.steps * batch_size)
    features = [{"input_ids": input_ids[sample % batch_size], "order_seed": sample} for sample in samples]
    steps = [step(features[first : first + batch_size]) for first in samples[::batch_size]]
    losses = [loss.item() for loss, _ in steps]  # waits for the device
    counted = [marks for _, marks in steps[arguments.steps // 2 :]]
    seconds = seconds_between(counted[0][0], counted[-1][-1]) / len(counted)
    parts = [sum(seconds_between(marks[part], marks[part + 1]) for marks in counted) for part in range(len(PARTS))]
    tokens_per_second = batch_size * length / seconds
    peak = peak_flops(DEVICE, arguments.mixed_precision)
    return {
        "length": length,
        "losses": losses,
        "step_seconds": seconds,
        "tokens_per_second": tokens_per_second,
        "shares": {name: part / sum(parts) for name, part in zip(PARTS, parts, strict=True)},
        "peak_bytes": peak_memory(DEVICE),
        "peak_flops": peak,
        "mfu": peak and flops_per_token(config, length) * tokens_per_second / peak,
        "device": device_name(DEVICE),
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }


def format_report(results: dict[str, Any], arguments: Arguments) -> str:
    """Return the report in Markdown."""
    rows = {
        "tokens per step": f"{arguments.batch_size} x {results['length']}",
        "precision": {"no": "float32"}.get(arguments.mixed_precision, arguments.mixed_precision),
        "activation checkpointing": arguments.activation_checkpointing,
        "seconds per step": f"{results['step_seconds']:.3g}",
        "tokens per second": f"{results['tokens_per_second']:.0f}",
        "peak memory": f"{results['peak_bytes'] / 1e9:.2f} GB",
        "utilization": "unknown" if results["mfu"] is None else f"{results['mfu']:.0%}",
        " / ".join(PARTS): " / ".join(f"{share:.0%}" for share in results["shares"].values()),
        "device": f"{results['device']} ({results['threads']} threads, torch {results['versions']['torch']})",
    }
    return (
        f"# Training step of AO-GPT {arguments.size}\n\n{markdown_table(['', ''], rows.items(), 'lr')}\n\n"
        f"Written by `{results['command']}`. docs/evaluation.md explains the rows.\n"
    )


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    (arguments,) = Parser(Arguments).parse(argv)
    check_precision(DEVICE, arguments.mixed_precision)
    with make_folder(arguments.output_dir):  # first, so that a wrong folder is an error before the measurement
        results = {"command": command_line(__file__, argv), **measure(arguments)}
    report = format_report(results, arguments)
    write_json(arguments.output_dir / "results.json", results)
    write_text(arguments.output_dir / "README.md", report)
    print(report)


if __name__ == "__main__":
    main(sys.argv[1:])
