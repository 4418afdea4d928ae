# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Time and memory of generation: the decoder, ablations of the decoder, an encoder, and other samplers.

    python eval/benchmarks/speed.py [--steps 32 128 1023] [--batch_size 1 8] [--ablations all] [--causal_lm gpt2]
        [--output_dir DIR]

Without --model, weights are random. This does not affect the time. Each result is the best time of `--repeats` runs.
With --output_dir, the command writes speed.json, speed.md, speed.png (like Figure 5 of the paper) and, with
--memory_lengths, memory.png. The files are updated after every measurement, so an interrupted run keeps its results.
"""

import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.markdown import Markdown
from tqdm import tqdm

from common.commands import Options, Parser, one_line_errors, option
from common.hardware import num_cores, versions
from common.models import find_model, load_pretrained
from eval.benchmarks.contenders import ABLATIONS, Contender, make_causal_lm, make_compared, make_decoder, make_encoder
from eval.benchmarks.resources import count_work, measure_machine, measure_memory, synchronize
from eval.benchmarks.speed_report import to_markdown, write_report
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM

SIZES = {
    "tiny": {"vocab_size": 512, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    "small": {},
    "medium": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
}
SIZES["tiny"]["max_position_embeddings"] = 64

# Number of calls that are timed together on an accelerator, if a contender runs only one step per call.
QUEUED_STEPS = 16


@dataclass
class SpeedArguments(Options):
    """Options of eval/benchmarks/speed.py."""

    model: str | None = option(None, "Folder or Hub name of a decoder. Defaults to random weights of --size.")
    size: Literal["tiny", "small", "medium"] = option(
        "small", "Model size: the paper's small and medium, or a tiny one."
    )
    length: int | None = option(None, "Number of tokens in a sequence. Defaults to the model's maximum.")
    steps: list[int] = option([16, 32, 64, 128], "Numbers of steps.", least=1)
    batch_size: list[int] = option([1], "Numbers of sequences that are generated at once.", least=1)
    ablations: list[str] = option(["no-cache"], f"Ablations of the decoder: {', '.join(ABLATIONS)}; or all, or none.")
    encoder: bool = option(True, "Also time an encoder of the same size, by one forward pass.")
    causal_lm: str | None = option(None, "Also time a causal LM: model type (random weights), folder or Hub name.")
    compare: str | None = option(None, "Also time the sampler module:function (see `make_compared`).")
    memory_lengths: list[int] = option([], "Lengths at which to measure memory, such as 1024 2048 4096 8192.", least=1)
    repeats: int = option(2, "Number of runs of each measurement. The best time is the result.", least=1)
    limit_seconds: float = option(60.0, "Leave out contenders that are expected to take longer than this.")
    dtype: Literal["float32", "bfloat16"] = option("float32", "Data type of weights and cache.")
    device: str = option("cuda" if torch.cuda.is_available() else "cpu", "Device to run on.")
    compile: str | None = option(None, "Mode of torch.compile for the decoder: default, reduce-overhead, ...")
    threads: int | None = option(None, "Number of CPU threads. Defaults to PyTorch's choice.", least=1)
    output_dir: Path | None = option(None, "Folder for speed.json, speed.md and the pictures.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is not None and self.size != SpeedArguments.size:
            raise ValueError(f"`size` ({self.size}) has no effect with `model` ({self.model}). Remove one of the two.")
        if self.ablations == ["all"]:
            cpu_only = () if self.device.startswith("cpu") else ("plain-products",)
            self.ablations = [name for name in ABLATIONS if name not in cpu_only]
        elif self.ablations == ["none"]:
            self.ablations = []
        if unknown := sorted(set(self.ablations) - ABLATIONS.keys()):
            raise ValueError(
                f"`ablations` must be among {', '.join(ABLATIONS)}, or be all or none, but contains "
                f"{', '.join(unknown)}. Remove the unknown names."
            )


def measure(
    arguments: SpeedArguments, command: str, save: Callable[[dict[str, Any]], None] = lambda report: None
) -> dict[str, Any]:
    """Make all measurements, and return the report. After each measurement, `save` is called with the report so far."""
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    device, dtype = _find_device(arguments.device), getattr(torch, arguments.dtype)
    torch.manual_seed(0)
    if arguments.model is None:
        model = AOGPTForAnyOrderLM(AOGPTConfig(**SIZES[arguments.size]))
    else:
        model = load_pretrained(AOGPTForAnyOrderLM, find_model(arguments.model))
    model = model.eval().to(device, dtype)
    longest = model.config.max_position_embeddings
    length = longest if arguments.length is None else arguments.length
    if not 1 <= length <= longest:
        raise ValueError(f"`length` must be between 1 and {longest} (`max_position_embeddings`), but is {length}.")

    contenders = _make_contenders(arguments, model, length, device, dtype)
    machine = measure_machine(model.config, device, dtype)
    report = {
        "command": command,
        "hardware": _describe_hardware(device),
        "versions": versions(),
        "dtype": arguments.dtype,
        "length": length,
        "num_parameters": model.num_parameters(),
        "machine": asdict(machine),
        "points": [],
    }
    for point in time_contenders(contenders, arguments, length, device):
        work = count_work(model.config, point["batch_size"], length, point["num_steps"], dtype)
        report["points"].append(point | {"floor_seconds": work.seconds(machine)})
        save(report)
    if arguments.memory_lengths:
        config = model.config
        del model, contenders
        torch.cuda.empty_cache()  # other processes, which measure the memory, need the space
        report["memory"] = measure_memory(config, arguments.memory_lengths, arguments.device, dtype)
        save(report)
    return report


def _find_device(name: str) -> torch.device:
    """Return a device of this machine. Raise a `ValueError` if there is no such device."""
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # torch without CUDA raises an AssertionError
        raise ValueError(
            f"`device` ({name}) does not exist. Set it to cpu or an accelerator. (Cause: {error})"
        ) from error


def _make_contenders(
    arguments: SpeedArguments, model: AOGPTForAnyOrderLM, length: int, device: torch.device, dtype: torch.dtype
) -> dict[str, Contender]:
    contenders = {"decoder": Contender(make_decoder(model))}
    for name in arguments.ablations:
        contenders[name] = Contender(ABLATIONS[name](model))
    if arguments.encoder:
        contenders["encoder"] = make_encoder(model.config, device, dtype)
    if arguments.causal_lm is not None:
        contenders[f"causal-lm {arguments.causal_lm}"] = make_causal_lm(arguments.causal_lm, length, device, dtype)
    if arguments.compare is not None:
        contenders[f"compare {arguments.compare}"] = make_compared(arguments.compare, model.config, device, dtype)
    if arguments.compile is not None:
        try:
            model.model.compile(mode=arguments.compile)
        except RuntimeError as error:
            raise ValueError(
                f"`compile` ({arguments.compile}) cannot be used. Set it to a mode of torch.compile. (Cause: {error})"
            ) from error
    return contenders


def time_contenders(
    contenders: dict[str, Contender], arguments: SpeedArguments, length: int, device: torch.device
) -> Iterator[dict[str, Any]]:
    """
    Yield one measurement for each batch size, number of steps and contender.

    The runs of the contenders are interleaved, so that other load on the machine affects all contenders equally.
    """
    for batch_size in arguments.batch_size:
        seconds_per_step = dict.fromkeys(contenders, 0.0)
        for num_steps in sorted(set(arguments.steps)):
            included = {}
            for name, contender in contenders.items():
                is_short = seconds_per_step[name] * num_steps <= arguments.limit_seconds or contender.one_step_only
                if name == "decoder" or (is_short and (num_steps >= length - 1 or not contender.one_by_one)):
                    included[name] = contender
            # A CPU needs only a few tokens to warm up. Accelerators and torch.compile load or compile kernels for every
            # shape, so they need a complete generation.
            needs_full_warm_up = arguments.compile is not None or device.type != "cpu"
            for contender in included.values():
                warm_up = (length, num_steps) if needs_full_warm_up else (min(length, 8), 1)
                _time_generation(contender, batch_size, *warm_up, device)
            seconds: dict[str, list[float]] = {name: [] for name in included}
            for _ in tqdm(range(arguments.repeats), desc=f"batch {batch_size}, {num_steps} steps", unit="round"):
                for name, contender in included.items():
                    factor = num_steps if contender.one_step_only else 1
                    seconds[name].append(factor * _time_generation(contender, batch_size, length, num_steps, device))
            for name, values in seconds.items():
                seconds_per_step[name] = min(values) / num_steps
                tqdm.write(f"{name}, batch {batch_size}, {num_steps} steps: {min(values):.3g} s", file=sys.stderr)
                yield {
                    "contender": name,
                    "batch_size": batch_size,
                    "num_steps": num_steps,
                    "seconds": min(values),
                    "all_seconds": values,
                    "is_extrapolated": contenders[name].one_step_only,
                }


def _time_generation(contender: Contender, batch_size: int, length: int, num_steps: int, device: torch.device) -> float:
    # An accelerator queues the steps of a generation. For a fair comparison, several single steps are queued, too.
    calls = QUEUED_STEPS if contender.one_step_only and device.type != "cpu" else 1
    synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        contender.generate(batch_size, length, num_steps)
    synchronize(device)
    return (time.perf_counter() - start) / calls


def _describe_hardware(device: torch.device) -> dict[str, Any]:
    facts = {"cpu": _cpu_name(), "cores": num_cores(), "threads": torch.get_num_threads()}
    facts["capability"] = torch.backends.cpu.get_cpu_capability()
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    (arguments,) = Parser(SpeedArguments).parse(argv)

    def save(report: dict[str, Any]) -> None:
        if arguments.output_dir is not None:
            write_report(report, arguments.output_dir)

    report = measure(arguments, shlex.join(["python", "eval/benchmarks/speed.py", *argv]), save)
    Console().print(Markdown(to_markdown(report)))


if __name__ == "__main__":
    main(sys.argv[1:])
