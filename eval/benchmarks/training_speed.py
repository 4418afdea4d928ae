# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Time and memory of a training step of AO-GPT, compared with a plain implementation, on a GPU or else on the CPU.

The plain implementation, `PlainAOGPT`, has the design of the released code.

    python eval/benchmarks/training_speed.py [--batch_size 3] [--output_dir DIR]
    python eval/benchmarks/training_speed.py --size medium --batch_size 16 --steps 40 --mixed_precision bf16 --compile

Each implementation is measured in a new process. The implementations take turns for several rounds, so that other load
on the machine affects all of them, and the fastest round of each one counts. The results are written after each
process, so an interrupted run keeps its results. The time of a step is the mean over the second half of the steps. The
memory is the peak memory of the process on a CPU, and of all tensors on a GPU.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from accelerate.utils import send_to_device
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from common.commands import Options, Parser, command_line, one_line_errors, option, progress_bar
from common.files import make_folder, write_json, write_text
from common.hardware import check_precision, default_device, device_name, peak_flops, peak_memory, versions
from common.reports import markdown_table
from eval.benchmarks.resources import run_in_new_process
from eval.benchmarks.speed import SIZES
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from modeling_aogpt.validation import check_choice
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
# Key: name of an implementation in the table. Value: activation checkpointing, or None for the plain implementation.
KINDS: dict[str, ActivationCheckpointing | None] = {
    "plain": None,
    "ours": "none",
    "ours, selective": "selective",
    "ours, full": "full",
}


@dataclass
class Arguments(Options):
    """Options of eval/benchmarks/training_speed.py."""

    size: Literal["medium", "small", "tiny"] = option(
        "small", "Model size. medium, small: as in the paper. tiny: for tests."
    )
    batch_size: int = option(3, "Number of sequences in a step.", least=1)
    steps: int = option(2, "Number of training steps. Only the second half is counted.", least=1)
    repeats: int = option(2, "Number of rounds. In each round, every implementation runs all steps.", least=1)
    mixed_precision: Literal["no", "bf16"] = option(
        "no", "no: float32. bf16: autocast to bfloat16 (needs a GPU, or a CPU with bfloat16 instructions)."
    )
    compile: bool = option(
        False,
        "Compile the whole model, as gpu.yaml and ddp.yaml of training/accelerate/ do. (With FSDP2, each layer is "
        "compiled separately.)",
    )
    kinds: list[str] = option([*KINDS], f"Implementations to measure: some of {', '.join(map(repr, KINDS))}.")
    output_dir: Path = option(Path("runs/training_speed"), "Folder for results.json and README.md.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for kind in self.kinds:
            check_choice("kinds", kind, KINDS)


# ------------------------------------------------------------------------------------------ the plain implementation


class _PlainBlock(nn.Module):
    def __init__(self, config: AOGPTConfig) -> None:
        super().__init__()
        width, self.heads = config.hidden_size, config.num_attention_heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.q_norm, self.k_norm = (nn.RMSNorm(width // self.heads, eps=1e-5) for _ in range(2))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(config.target_embedding_size, 6 * width))

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
    A plain implementation of AO-GPT, with the same design as the released code. It uses only the sizes in `config`.

    It computes n + 1 rows and discards the output of the last row. In every layer, it computes the modulations (adaLN)
    of every row of every sequence. It stores all logits in one float32 tensor. Like this package, it uses PyTorch's
    fused attention.
    """

    def __init__(self, config: AOGPTConfig) -> None:
        super().__init__()
        width, length, condition_size = config.hidden_size, config.max_position_embeddings, config.target_embedding_size
        self.tokens, self.start = nn.Embedding(config.vocab_size, width), nn.Embedding(1, width)
        self.positions, self.targets = nn.Embedding(length + 1, width), nn.Embedding(length, condition_size)
        self.blocks = nn.ModuleList(_PlainBlock(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(condition_size, 2 * width))
        self.head = nn.Linear(width, config.vocab_size)

    def forward(self, input_ids: torch.LongTensor, orders: torch.LongTensor) -> torch.Tensor:
        """Return the loss (Eq. 7 of the paper) in nats per token of sequences (batch, n) in the orders (batch, n)."""
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


def make_step(kind: str, arguments: Arguments) -> Callable[[Batch], tuple[torch.Tensor, list[Mark]]]:
    """
    Return a function that runs a training step of an implementation.

    The function takes a batch of features of [`OrderDraws`]. It returns the loss, and the times at which the step began
    and each of its `PARTS` ended. It does not wait for the device.
    """
    recipe, config = TrainingArguments(), AOGPTConfig(**SIZES[arguments.size])
    with DEVICE:
        model = (PlainAOGPT(config) if kind == "plain" else AOGPTForAnyOrderLM(config)).train()
    optimizer = create_optimizer(model, recipe)
    if kind == "plain":
        for group in optimizer.param_groups:
            group.update(fused=DEVICE.type == "cuda", foreach=False)  # as in the released code
        objective, average = model, AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(recipe.ema_decay))
        update_average = average.update_parameters
    else:
        checkpoint_activations(model, KINDS[kind])
        objective, update_average = AnyOrderObjective(model), ExponentialMovingAverage(model, recipe.ema_decay).update
        if arguments.compile:
            compile_head_loss()
    compute_loss = torch.compile(objective) if arguments.compile else objective
    draw_orders = OrderDraws(recipe)

    def step(features: Batch) -> tuple[torch.Tensor, list[Mark]]:
        marks = [mark()]
        batch = draw_orders(features)
        if DEVICE.type == "cuda":  # as in training; without pinned memory, the copy would wait for the GPU
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
        update_average(model)
        return loss.detach(), [*marks, mark()]

    return step


def mark() -> Mark:
    """Return the current time: on a GPU, an event that records when the GPU has done all its work so far."""
    if DEVICE.type == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(first: Mark, last: Mark) -> float:
    """Return the seconds between two results of `mark`. The GPU must have reached both."""
    return last - first if isinstance(first, float) else first.elapsed_time(last) / 1000


def measure(kind: str, arguments: Arguments) -> dict[str, Any]:
    """
    Measure the time and the peak memory of training steps of the implementation `kind`, in this process.

    The time is that of the second half of the steps. The process waits for the GPU only after the last step.
    """
    torch.manual_seed(0)
    config = AOGPTConfig(**SIZES[arguments.size])
    batch_size, length = arguments.batch_size, config.max_position_embeddings
    step = make_step(kind, arguments)
    input_ids = torch.randint(config.num_valid_tokens, (batch_size, length))
    samples = range(arguments.steps * batch_size)
    features = [{"input_ids": input_ids[sample % batch_size], "order_seed": sample} for sample in samples]
    steps = [step(features[first : first + batch_size]) for first in samples[::batch_size]]
    losses = [loss.item() for loss, _ in steps]  # waits for the device
    counted = [marks for _, marks in steps[arguments.steps // 2 :]]
    seconds = seconds_between(counted[0][0], counted[-1][-1]) / len(counted)
    parts = [sum(seconds_between(marks[part], marks[part + 1]) for marks in counted) for part in range(len(PARTS))]
    return {
        "kind": kind,
        "precision": {"no": "float32"}.get(arguments.mixed_precision, arguments.mixed_precision),
        "batch_size": batch_size,
        "length": length,
        "losses": losses,
        "step_seconds": seconds,
        "tokens_per_second": batch_size * length / seconds,
        "shares": {name: part / sum(parts) for name, part in zip(PARTS, parts, strict=True)},
        "peak_bytes": peak_memory(DEVICE),
        "peak_flops": peak_flops(DEVICE, arguments.mixed_precision),
    }


def format_table(results: dict[str, Any]) -> str:
    """Return the Markdown table of the report."""
    plain = next((run for run in results["runs"] if run["kind"] == "plain"), None)
    header = (
        *("precision", "tokens", "implementation", "seconds per step", "speed-up", "peak memory", "relative to plain"),
        *("tokens/s", "utilization", "speed of products", " / ".join(PARTS)),
    )
    rows = [
        (
            *(run["precision"], f"{run['batch_size']} x {run['length']}", run["kind"], f"{run['step_seconds']:.2f}"),
            f"{plain['step_seconds'] / run['step_seconds']:.2f}" if plain else "",
            f"{run['peak_bytes'] / 1e9:.2f} GB",
            f"{run['peak_bytes'] / plain['peak_bytes']:.2f}" if plain else "",
            *(f"{run['tokens_per_second']:.0f}", "unknown" if run["mfu"] is None else f"{run['mfu']:.0%}"),
            _format_flops(run["peak_flops"]),
            " / ".join(f"{share:.0%}" for share in run["shares"].values()),
        )
        for run in results["runs"]
    ]
    rows += [("", "", kind, "out of memory", *[""] * 7) for kind in results["out_of_memory"]]
    return markdown_table(header, rows, "lrlrrrrrrrr")


def format_report(results: dict[str, Any]) -> str:
    """Return the report, which is written to README.md in the output folder."""
    return (
        f"# Training step of AO-GPT {results['size_name']}\n\n{format_table(results)}\n\n"
        f"Written by `{results['command']}` on this device: {results['device']} ({results['threads']} threads, torch "
        f"{results['versions']['torch']}). Utilization refers to {_format_flops(results['peak_flops'])}. The weights, "
        f"their averages, gradients and moments take {results['state_bytes'] / 1e9:.2f} GB. docs/evaluation.md "
        "explains the columns.\n"
    )


def _format_flops(speed: float | None) -> str:
    return f"{speed / 1e9:,.0f} GFLOP/s" if speed else "unknown"


def summarize(
    runs: list[dict[str, Any]], out_of_memory: list[str], arguments: Arguments, argv: list[str]
) -> dict[str, Any]:
    """
    Return the content of results.json.

    For each implementation, it contains the fastest of its `runs`, with the seconds of all of them (`all_seconds`) and
    the model FLOPs utilization (`mfu`), relative to the highest measured speed of matrix products. `out_of_memory`
    lists the implementations that could not be measured.
    """
    config = AOGPTConfig(**SIZES[arguments.size])
    with torch.device("meta"):
        num_parameters = sum(weight.numel() for weight in PlainAOGPT(config).parameters())
    speed = max((run["peak_flops"] for run in runs if run["peak_flops"]), default=None)
    fastest = []
    for kind in dict.fromkeys(run["kind"] for run in runs):
        rounds = [run for run in runs if run["kind"] == kind]
        run = min(rounds, key=lambda run: run["step_seconds"])
        flops = flops_per_token(config, run["length"]) * run["tokens_per_second"]
        seconds = [run["step_seconds"] for run in rounds]
        fastest.append(run | {"all_seconds": seconds, "mfu": speed and flops / speed})
    return {
        "command": command_line(__file__, argv),
        "size_name": arguments.size,
        "steps": arguments.steps,
        "counted_steps": arguments.steps - arguments.steps // 2,
        "threads": torch.get_num_threads(),
        "repeats": arguments.repeats,
        "runs": fastest,
        "out_of_memory": out_of_memory,
        "peak_flops": speed,
        "device": device_name(DEVICE),
        "state_bytes": 5 * 4 * num_parameters,
        "versions": versions(),
    }


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    (arguments,) = Parser(Arguments).parse(argv)
    check_precision(DEVICE, arguments.mixed_precision)
    runs: list[dict[str, Any]] = []
    out_of_memory: list[str] = []
    with make_folder(arguments.output_dir):  # first, so that a wrong folder is an error before the long measurements
        for kind in progress_bar(arguments.kinds * arguments.repeats, unit="process"):
            if kind in out_of_memory:
                continue
            try:
                runs.append(run_in_new_process(measure, kind, arguments))
            except torch.OutOfMemoryError:
                out_of_memory.append(kind)
            results = summarize(runs, out_of_memory, arguments, argv)
            write_json(arguments.output_dir / "results.json", results)
            write_text(arguments.output_dir / "README.md", format_report(results))
    print(format_table(results))


if __name__ == "__main__":
    main(sys.argv[1:])
