# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Time and memory of one training step of AO-GPT small on the CPU, against a plain implementation of it
(`eval/plain_aogpt.py`):

    python eval/training_speed.py [--batch_size 3] [--bf16_length 512] [--out docs/results/training_speed]

Every measurement is a process of its own: model, AdamW and averages are made, then whole steps (loss, gradients,
clipping, update, averages) are timed, the first of them apart. Memory is the process's peak, of which the weights,
their averages and AdamW's moments are a part that nobody saves.
"""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from tqdm import tqdm

from eval.plain_aogpt import PlainAOGPT
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from training.activation_checkpointing import ActivationCheckpointing, checkpoint_activations
from training.arguments import TrainingArguments
from training.bfloat16 import bfloat16_products
from training.ema import ExponentialMovingAverage
from training.errors import errors_in_a_line
from training.files import write_json, write_text
from training.hardware import num_cores, versions
from training.objectives import AnyOrderObjective
from training.optimization import create_optimizer
from training.options import Parser, check_at_least, option
from training.throughput import flops_per_token, peak_memory, product_speed

# Name in the table, and what it says of activations.
KINDS: dict[str, ActivationCheckpointing | None] = {
    "plain": None,
    "ours": "none",
    "ours, selective": "selective",
    "ours, full": "full",
}
SIZES = {
    "small": {"layers": 12, "width": 768, "heads": 12, "length": 1024, "vocab_size": 50304},
    "tiny": {"layers": 1, "width": 32, "heads": 2, "length": 16, "vocab_size": 64},  # to try the script
}

WITH_BFLOAT16 = "bf16: this processor has bfloat16 instructions, and all steps use them."
WITHOUT_BFLOAT16 = """\
bf16: this processor has no bfloat16 instructions, so PyTorch multiplies bfloat16 far more slowly than float32, and the
plain step under autocast does so too. Ours rounds to bfloat16 and multiplies in float32
(`training/bfloat16.py`): about as fast as float32, and no faster."""


@dataclass
class Arguments:
    """Which steps are measured."""

    size: Literal["small", "tiny"] = option("small", "tiny: to try this out.")
    batch_size: int = option(3, "Sequences of a step in float32.")
    bf16_length: int | None = option(None, "Tokens of the one sequence of a step in bf16; unless given, all.")
    steps: int = option(2, "Steps in float32, the first of which is not counted.")
    bf16_steps: int = option(1, "Steps in bf16.")
    out: Path = field(
        default=Path("docs/results/training_speed"), metadata={"help": "Folder for results.json and README.md."}
    )
    wrapper: str = option("", "Command before each process, for instance `numactl -C 0,1`.")

    def __post_init__(self) -> None:
        check_at_least(1, self, "batch_size", "steps", "bf16_steps")
        length = SIZES[self.size]["length"]
        if self.bf16_length is not None and not 1 <= self.bf16_length <= length:
            raise ValueError(f"bf16_length is {self.bf16_length}; {self.size} takes 1 to {length}.")


def plain_step(size: dict[str, int], precision: str) -> Callable[..., float]:
    model = PlainAOGPT(**size)
    recipe = TrainingArguments()
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.95), foreach=False)
    averages = [weight.detach().clone() for weight in model.parameters()]

    def step(input_ids: torch.LongTensor, orders: torch.LongTensor) -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = model(input_ids, orders)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for average, weight in zip(averages, model.parameters(), strict=True):
                average.sub_((1 - recipe.ema_decay) * (average - weight))
        return loss.item()

    return step


def config_of(size: dict[str, int]) -> AOGPTConfig:
    return AOGPTConfig(
        num_hidden_layers=size["layers"],
        hidden_size=size["width"],
        num_attention_heads=size["heads"],
        max_position_embeddings=size["length"],
        vocab_size=size["vocab_size"],
    )


def our_step(size: dict[str, int], precision: str, checkpointing: ActivationCheckpointing) -> Callable[..., float]:
    """What `training/pretrain.py` does in a step."""
    model = AOGPTForAnyOrderLM(config_of(size)).train()
    products = bfloat16_products(torch.device("cpu"), precision)
    checkpoint_activations(model, checkpointing, products)
    objective, optimizer = AnyOrderObjective(model), create_optimizer(model, TrainingArguments())
    averages = ExponentialMovingAverage(model, TrainingArguments().ema_decay)

    def step(input_ids: torch.LongTensor, orders: torch.LongTensor) -> float:
        with products, torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = objective(input_ids, orders)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        averages.update(model)
        return loss.item()

    return step


def measure(kind: str, precision: str, size_name: str, batch_size: int, length: int, steps: int) -> dict[str, Any]:
    """In this process: seconds of each step, losses and the peak of memory."""
    torch.manual_seed(0)
    size = SIZES[size_name]
    checkpointing = KINDS[kind]
    step = plain_step(size, precision) if checkpointing is None else our_step(size, precision, checkpointing)
    text_ids = min(size["vocab_size"], 50257)
    input_ids = torch.randint(text_ids, (batch_size, length))
    orders = torch.stack([torch.randperm(length) for _ in range(batch_size)])
    seconds, losses = [], []
    for _ in range(steps):
        started = time.perf_counter()
        losses.append(step(input_ids, orders))
        seconds.append(time.perf_counter() - started)
    later = seconds[1:] or seconds
    return {
        "kind": kind,
        "precision": precision,
        "batch_size": batch_size,
        "length": length,
        "losses": losses,
        "seconds": seconds,
        "step_seconds": sum(later) / len(later),
        "tokens_per_second": batch_size * length * len(later) / sum(later),
        "peak_bytes": peak_memory(torch.device("cpu")),
        "threads": torch.get_num_threads(),
        "product_speed": product_speed(),
    }


def in_own_process(wrapper: str, *arguments: object) -> dict[str, Any]:
    """What `measure` gives of the arguments."""
    command = [*shlex.split(wrapper), sys.executable, __file__, "--measure", *map(str, arguments)]
    finished = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(finished.stdout.splitlines()[-1])


def table(results: dict[str, Any]) -> str:
    lines = [
        "| precision | tokens | implementation | seconds per step | speed-up | peak memory | of plain | tokens/s "
        "| of float32 peak |",
        "|:--|--:|:--|--:|--:|--:|--:|--:|--:|",
    ]
    for run in results["runs"]:
        same = ("precision", "batch_size")
        plain = next(o for o in results["runs"] if o["kind"] == "plain" and all(o[key] == run[key] for key in same))
        lines.append(
            f"| {run['precision']} | {run['batch_size']} x {run['length']} | {run['kind']} | {run['step_seconds']:.2f} "
            f"| {plain['step_seconds'] / run['step_seconds']:.2f} | {run['peak_bytes'] / 1e9:.2f} GB "
            f"| {run['peak_bytes'] / plain['peak_bytes']:.2f} | {run['tokens_per_second']:.0f} "
            f"| {run['mfu']:.0%} |"
        )
    return "\n".join(lines)


def report(results: dict[str, Any]) -> str:
    size, speed = results["size"], f"{results['product_speed'] / 1e9:.0f} GFLOP/s"
    of_bfloat16 = WITH_BFLOAT16 if results["has_bfloat16"] else WITHOUT_BFLOAT16
    return f"""# One training step of AO-GPT {results["size_name"]}

{table(results)}

Written by `{results["command"]}`:
{size["layers"]} layers of width {size["width"]}, {size["length"]} positions, {size["vocab_size"]} ids;
torch {torch.__version__} on {results["threads"]} threads, which multiplies float32 at {speed} at best. Each row is
a process of its own; the first step is not counted where there are more. Peak memory is all of the process,
{results["state_bytes"] / 1e9:.2f} GB of it weights, averages, gradients and AdamW's moments in float32.

*plain* is the released way written down directly (`eval/plain_aogpt.py`): n + 1 rows, all logits in float32, modulation
of every row, updates tensor by tensor, autocast. *ours* is the step of `training/pretrain.py`; *selective*
and *full* are its `--activation_checkpointing`. The last column is the share of the best float32 speed that the
products which nobody can leave out would need: what is recomputed, modulation and all else count as lost.

{of_bfloat16}
"""


@errors_in_a_line()
def main(argv: list[str]) -> None:
    parser = Parser(Arguments)
    parser.add_argument(
        "--measure",
        nargs=6,
        metavar=("KIND", "PRECISION", "SIZE", "BATCH", "LENGTH", "STEPS"),
        help="In this process, one of the measurements.",
    )
    arguments, others = parser.parse(argv)
    if others.measure:
        kind, precision, size_name, *numbers = others.measure
        print(json.dumps(measure(kind, precision, size_name, *map(int, numbers))))
        return

    size = SIZES[arguments.size]
    length = size["length"]
    arguments.out.mkdir(parents=True, exist_ok=True)  # before the minutes that it takes
    plan = [(kind, "float32", arguments.size, arguments.batch_size, length, arguments.steps) for kind in KINDS]
    length = arguments.bf16_length or length
    plan += [(kind, "bf16", arguments.size, 1, length, arguments.bf16_steps) for kind in KINDS]
    runs = [in_own_process(arguments.wrapper, *planned) for planned in tqdm(plan, unit="process")]
    speed = max(run["product_speed"] for run in runs)
    for run in runs:
        run["mfu"] = flops_per_token(config_of(size), run["length"]) * run["tokens_per_second"] / speed
    results = {
        "command": shlex.join(["python", "eval/training_speed.py", *argv]),
        "size_name": arguments.size,
        "size": size,
        "runs": runs,
        "threads": runs[0]["threads"],
        "cores": num_cores(),
        "product_speed": speed,
        "state_bytes": 5 * 4 * sum(weight.numel() for weight in PlainAOGPT(**size).parameters()),
        "has_bfloat16": torch.cpu._is_avx512_bf16_supported(),
        "versions": versions(),
    }
    write_json(arguments.out / "results.json", results)
    write_text(arguments.out / "README.md", report(results))
    print(table(results))


if __name__ == "__main__":
    main(sys.argv[1:])
