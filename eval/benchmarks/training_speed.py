# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Time and memory of a training step of AO-GPT small on the CPU, compared with a plain implementation.

    python eval/benchmarks/training_speed.py [--batch_size 3] [--mixed_precision bf16] [--output_dir DIR]

Each implementation is measured in a new process. A step computes the loss and the gradients, clips the gradients, and
updates the weights and their moving averages. The first step is not counted. The memory is the peak memory of the
process. It includes the weights, their moving averages and AdamW's moments.
"""

import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

from common.commands import Options, Parser, one_line_errors, option
from common.files import make_folder, write_json, write_text
from common.hardware import check_precision, num_cores, peak_memory, product_speed, versions
from common.reports import markdown_table
from eval.benchmarks.resources import run_in_new_process
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from training.activation_checkpointing import ActivationCheckpointing, checkpoint_activations
from training.arguments import TrainingArguments
from training.objectives import AnyOrderObjective
from training.optimization import ExponentialMovingAverage, create_optimizer
from training.tracking import flops_per_token

CPU = torch.device("cpu")
# Key: name of an implementation in the table. Value: activation checkpointing, or None for the plain implementation.
KINDS: dict[str, ActivationCheckpointing | None] = {
    "plain": None,
    "ours": "none",
    "ours, selective": "selective",
    "ours, full": "full",
}
SIZES = {
    "small": {"layers": 12, "width": 768, "heads": 12, "length": 1024, "vocab_size": 50304},
    "tiny": {"layers": 1, "width": 32, "heads": 2, "length": 16, "vocab_size": 64},
}
CONDITION_SIZE = 128


@dataclass
class Arguments(Options):
    """Options of eval/benchmarks/training_speed.py."""

    size: Literal["small", "tiny"] = option("small", "Model size. small: as in the paper. tiny: for tests.")
    batch_size: int = option(3, "Number of sequences in a step.", least=1)
    length: int | None = option(None, "Number of tokens in a sequence. Defaults to the model's maximum.", least=1)
    steps: int = option(2, "Number of training steps. If there are several, the first is not counted.", least=1)
    mixed_precision: Literal["no", "bf16"] = option(
        "no", "no: float32. bf16: autocast to bfloat16 (needs a CPU with bfloat16 instructions)."
    )
    output_dir: Path = option(Path("docs/results/training_speed"), "Folder for results.json and README.md.")

    def __post_init__(self) -> None:
        super().__post_init__()
        longest = SIZES[self.size]["length"]
        self.length = longest if self.length is None else self.length
        if self.length > longest:
            raise ValueError(f"`length` must be at most {longest} for `size={self.size}`, but is {self.length}.")
        check_precision(CPU, self.mixed_precision)


# ------------------------------------------------------------------------------------------ the plain implementation


class _PlainBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.q_norm, self.k_norm = (nn.RMSNorm(width // heads, eps=1e-5) for _ in range(2))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(CONDITION_SIZE, 6 * width))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        attended = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, is_causal=True)
        return self.out(attended.transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = self.modulation(condition).chunk(6, dim=-1)
        x = x + gate_1 * self.attend(self.norm_1(x) * (1 + scale_1) + shift_1)
        return x + gate_2 * self.down(F.gelu(self.up(self.norm_2(x) * (1 + scale_2) + shift_2)))


class PlainAOGPT(nn.Module):
    """
    A plain implementation of AO-GPT, with the same design as the released code.

    It computes n + 1 rows and discards the output of the last row. In every layer, it computes the modulations (adaLN)
    of every row of every sequence. It stores all logits in one float32 tensor. Like this package, it uses PyTorch's
    fused attention.
    """

    def __init__(self, layers: int, width: int, heads: int, length: int, vocab_size: int) -> None:
        super().__init__()
        self.tokens, self.start = nn.Embedding(vocab_size, width), nn.Embedding(1, width)
        self.positions, self.targets = nn.Embedding(length + 1, width), nn.Embedding(length, CONDITION_SIZE)
        self.blocks = nn.ModuleList(_PlainBlock(width, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(CONDITION_SIZE, 2 * width))
        self.head = nn.Linear(width, vocab_size)

    def forward(self, input_ids: torch.LongTensor, orders: torch.LongTensor) -> torch.Tensor:
        """Return the loss (Eq. 7) of whole sequences (batch, n) in the given orders (batch, n)."""
        shuffled = input_ids.gather(1, orders)
        start = torch.zeros_like(orders[:, :1])
        tokens = torch.cat((self.start(start), self.tokens(shuffled)), dim=1)
        x = tokens + self.positions(torch.cat((start, orders + 1), dim=1))
        condition = self.targets(orders)
        condition = torch.cat((condition, torch.zeros_like(condition[:, :1])), dim=1)
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.modulation(condition).chunk(2, dim=-1)
        logits = self.head(self.norm(x) * (1 + scale) + shift)
        predicted = logits[:, :-1].contiguous().float()
        return F.cross_entropy(predicted.flatten(0, 1), shuffled.flatten())


# -------------------------------------------------------------------------------------------------------------- steps


def make_step(kind: str, size: dict[str, int], mixed_precision: str) -> Callable[..., float]:
    """Return a function that takes ids and orders, runs a training step of an implementation, and returns the loss."""
    recipe = TrainingArguments()
    if kind == "plain":
        compute_loss = model = PlainAOGPT(**size)
        groups = [
            {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": recipe.weight_decay},
            {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.95), foreach=False)
        average = _PlainAverage(model, recipe.ema_decay)
    else:
        model = AOGPTForAnyOrderLM(_make_config(size)).train()
        checkpoint_activations(model, KINDS[kind])
        compute_loss, optimizer = AnyOrderObjective(model), create_optimizer(model, recipe)
        average = ExponentialMovingAverage(model, recipe.ema_decay)

    def step(input_ids: torch.LongTensor, orders: torch.LongTensor) -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed_precision == "bf16"):
            loss = compute_loss(input_ids, orders)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        average.update(model)
        return loss.item()

    return step


class _PlainAverage:
    def __init__(self, model: nn.Module, decay: float) -> None:
        self.weights, self.decay = [weight.detach().clone() for weight in model.parameters()], decay

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for average, weight in zip(self.weights, model.parameters(), strict=True):
            average.sub_((1 - self.decay) * (average - weight))


def _make_config(size: dict[str, int]) -> AOGPTConfig:
    return AOGPTConfig(
        num_hidden_layers=size["layers"],
        hidden_size=size["width"],
        num_attention_heads=size["heads"],
        max_position_embeddings=size["length"],
        vocab_size=size["vocab_size"],
    )


def measure(kind: str, arguments: Arguments) -> dict[str, Any]:
    """Return the time of training steps of an implementation in this process, and the peak memory of the process."""
    torch.manual_seed(0)
    size, batch_size, length = SIZES[arguments.size], arguments.batch_size, arguments.length
    step = make_step(kind, size, arguments.mixed_precision)
    input_ids = torch.randint(min(size["vocab_size"], 50257), (batch_size, length))
    orders = torch.stack([torch.randperm(length) for _ in range(batch_size)])
    seconds, losses = [], []
    for _ in range(arguments.steps):
        started = time.perf_counter()
        losses.append(step(input_ids, orders))
        seconds.append(time.perf_counter() - started)
    later = seconds[1:] or seconds
    return {
        "kind": kind,
        "precision": {"no": "float32"}.get(arguments.mixed_precision, arguments.mixed_precision),
        "batch_size": batch_size,
        "length": length,
        "losses": losses,
        "seconds": seconds,
        "step_seconds": sum(later) / len(later),
        "tokens_per_second": batch_size * length * len(later) / sum(later),
        "peak_bytes": peak_memory(CPU),
        "threads": torch.get_num_threads(),
        "product_speed": product_speed(),
    }


def format_table(results: dict[str, Any]) -> str:
    """Return the Markdown table of the report."""
    plain = next(run for run in results["runs"] if run["kind"] == "plain")
    header = (
        *("precision", "tokens", "implementation", "seconds per step", "speed-up", "peak memory", "relative to plain"),
        *("tokens/s", "float32 utilization"),
    )
    rows = [
        (
            *(run["precision"], f"{run['batch_size']} x {run['length']}", run["kind"], f"{run['step_seconds']:.2f}"),
            *(f"{plain['step_seconds'] / run['step_seconds']:.2f}", f"{run['peak_bytes'] / 1e9:.2f} GB"),
            f"{run['peak_bytes'] / plain['peak_bytes']:.2f}",
            *(f"{run['tokens_per_second']:.0f}", f"{run['mfu']:.0%}"),
        )
        for run in results["runs"]
    ]
    return markdown_table(header, rows, "lrlrrrrrr")


def format_report(results: dict[str, Any]) -> str:
    """Return the text of README.md."""
    size, speed = results["size"], f"{results['product_speed'] / 1e9:.0f} GFLOP/s"
    return f"""# Training step of AO-GPT {results["size_name"]}

{format_table(results)}

Written by `{results["command"]}`.

* The measurement used torch {results["versions"]["torch"]} with {results["threads"]} threads.
* The model has {size["layers"]} layers of width {size["width"]}, {size["length"]} positions
  and {size["vocab_size"]} ids.
* Each line of the table was measured in a new process. If a process ran several steps, the first one was not counted.
* Peak memory is that of the whole process. It includes {results["state_bytes"] / 1e9:.2f} GB for the weights, their
  moving averages, the gradients and AdamW's moments in float32.
* *plain* (`PlainAOGPT`) has the design of the released code: it computes n + 1 rows, stores all logits in float32,
  computes the modulations of every row, and its optimizer updates one tensor at a time. *ours* is the training step of
  `training/pretrain.py`. *selective* and *full* are values of `--activation_checkpointing`.
* Utilization is relative to the highest measured speed of float32 matrix products, {speed}. It counts only the matrix
  products that every implementation needs, without recomputation and modulations.
"""


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    (arguments,) = Parser(Arguments).parse(argv)
    size = SIZES[arguments.size]
    with make_folder(arguments.output_dir):  # first, so that a wrong folder is an error before the long measurements
        runs = [run_in_new_process(measure, kind, arguments) for kind in tqdm(KINDS, unit="process")]
    speed = max(run["product_speed"] for run in runs)
    for run in runs:
        run["mfu"] = flops_per_token(_make_config(size), run["length"]) * run["tokens_per_second"] / speed
    results = {
        "command": shlex.join(["python", "eval/benchmarks/training_speed.py", *argv]),
        "size_name": arguments.size,
        "size": size,
        "runs": runs,
        "threads": runs[0]["threads"],
        "cores": num_cores(),
        "product_speed": speed,
        "state_bytes": 5 * 4 * sum(weight.numel() for weight in PlainAOGPT(**size).parameters()),
        "versions": versions(),
    }
    write_json(arguments.output_dir / "results.json", results)
    write_text(arguments.output_dir / "README.md", format_report(results))
    print(format_table(results))


if __name__ == "__main__":
    main(sys.argv[1:])
