# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Time and memory of generation: the decoder, the same without what makes it fast, an encoder, and others.

    python eval/benchmarks/speed.py [--steps 32 128 1023] [--batch_size 1 8] [--ablations all] [--causal_lm gpt2]
        [--output_dir DIR]

Contenders are timed in turn, `repeats` times, and the best time of each counts. Weights are random unless --model is
given: they change no time. With --output_dir, writes speed.json, speed.md and speed.png (Figure 5 of the paper) there,
anew after every point, so that an interrupted run keeps what it measured; and memory.png, of --memory_lengths.
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
from common.models import load_pretrained
from eval.benchmarks.contenders import ABLATIONS, Contender, causal_lm, compared, decoder, encoder
from eval.benchmarks.resources import decoder_work, measure_machine, measure_memory, synchronize
from eval.benchmarks.speed_report import to_markdown, write_report
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM

SIZES = {
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
    },
    "small": {},
    "medium": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
}

STEPS_IN_A_QUEUE = 16


@dataclass
class SpeedArguments(Options):
    """What is timed, and how often."""

    model: str | None = option(None, "Folder or Hub name of a decoder; unless given, random weights of --size.")
    size: Literal["tiny", "small", "medium"] = option("small", "tiny: to try this out. small, medium: the paper's.")
    length: int | None = option(None, "Tokens of a sequence; unless given, as many as the model takes.")
    steps: list[int] = option([16, 32, 64, 128], "Numbers of steps.", least=1)
    batch_size: list[int] = option([1], "Sequences made at once.", least=1)
    ablations: list[str] = option(
        ["no-cache"], f"The decoder without one thing that makes it fast: {', '.join(ABLATIONS)}; all, or none."
    )
    encoder: bool = option(True, "Time an encoder of the same blocks, by one pass.")
    causal_lm: str | None = option(None, "Model type of transformers (random weights), folder or Hub name.")
    compare: str | None = option(None, "module:function of yours, see `compared` in eval/benchmarks/contenders.py.")
    memory_lengths: list[int] = option(
        [], "Lengths of which to measure the memory, such as 1024 2048 4096 8192.", least=1
    )
    repeats: int = option(2, "Times each is run; the best counts.", least=1)
    limit_seconds: float = option(60.0, "What is expected to take longer, from fewer steps, is left out.")
    dtype: Literal["float32", "bfloat16"] = option("float32", "Of weights and cache.")
    device: str = option("cuda" if torch.cuda.is_available() else "cpu", "Where to run.")
    compile: str | None = option(None, "Mode of torch.compile for the decoder: default, reduce-overhead, ...")
    threads: int | None = option(None, "CPU threads; unless given, those torch chooses.", least=1)
    output_dir: Path | None = option(None, "Folder for speed.json, speed.md and the pictures.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is not None and self.size != SpeedArguments.size:
            raise ValueError(f"size={self.size} is of random weights, but model={self.model} is given; give one.")
        if self.ablations == ["all"]:
            of_cpus = () if self.device.startswith("cpu") else ("plain-products",)
            self.ablations = [name for name in ABLATIONS if name not in of_cpus]
        elif self.ablations == ["none"]:
            self.ablations = []
        if unknown := set(self.ablations) - ABLATIONS.keys():
            raise ValueError(f"No ablations {sorted(unknown)}: there are {', '.join(ABLATIONS)}, all and none.")


def measure(
    arguments: SpeedArguments, command: str, save: Callable[[dict[str, Any]], None] = lambda report: None
) -> dict[str, Any]:
    """
    Time everything and return the report, numbers and strings. `save` is called with it after every point.

    Raises:
        ValueError: If there is no such model, device or mode of torch.compile, a model does not take so many tokens,
            or there is nothing at `compare`.
    """
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    device, dtype = device_named(arguments.device), getattr(torch, arguments.dtype)
    torch.manual_seed(0)
    if arguments.model is None:
        model = AOGPTForAnyOrderLM(AOGPTConfig(**SIZES[arguments.size]))
    else:
        model = load_pretrained(AOGPTForAnyOrderLM, arguments.model)
    model = model.eval().to(device, dtype)
    longest = model.config.max_position_embeddings
    length = longest if arguments.length is None else arguments.length
    if not 1 <= length <= longest:
        raise ValueError(f"length is {length}; this model takes 1 to {longest} (its max_position_embeddings).")

    contenders = make_contenders(arguments, model, length, device, dtype)
    machine = measure_machine(model.config, device, dtype)
    report = {
        "command": command,
        "hardware": hardware(device),
        "versions": versions(),
        "dtype": arguments.dtype,
        "length": length,
        "num_parameters": model.num_parameters(),
        "machine": asdict(machine),
        "points": [],
    }
    for point in race(contenders, arguments, length, device):
        work = decoder_work(model.config, point["batch_size"], length, point["num_steps"], dtype)
        report["points"].append(point | {"floor_seconds": work.seconds(machine)})
        save(report)
    if arguments.memory_lengths:
        config = model.config
        del model, contenders
        torch.cuda.empty_cache()  # for the other processes
        report["memory"] = measure_memory(config, arguments.memory_lengths, arguments.device, dtype)
        save(report)
    return report


def device_named(name: str) -> torch.device:
    """Return a device of this machine. Raises a `ValueError` if it has none of this name."""
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # the latter where torch was built without it
        raise ValueError(f"device={name} is not there: {error}") from error


def make_contenders(
    arguments: SpeedArguments, model: AOGPTForAnyOrderLM, length: int, device: torch.device, dtype: torch.dtype
) -> dict[str, Contender]:
    contenders = {"decoder": Contender(decoder(model))}
    for name in arguments.ablations:
        contenders[name] = Contender(ABLATIONS[name](model))
    if arguments.encoder:
        contenders["encoder"] = encoder(model.config, device, dtype)
    if arguments.causal_lm is not None:
        contenders[f"causal-lm {arguments.causal_lm}"] = causal_lm(arguments.causal_lm, length, device, dtype)
    if arguments.compare is not None:
        contenders[f"compare {arguments.compare}"] = compared(arguments.compare, model.config, device, dtype)
    if arguments.compile is not None:
        try:
            model.model.compile(mode=arguments.compile)
        except RuntimeError as error:
            raise ValueError(f"compile={arguments.compile}: {error}") from error
    return contenders


def race(
    contenders: dict[str, Contender], arguments: SpeedArguments, length: int, device: torch.device
) -> Iterator[dict[str, Any]]:
    """Yield a measurement per contender, batch size and steps, in turn, so that background load affects all equally."""
    for batch_size in arguments.batch_size:
        seconds_per_step = dict.fromkeys(contenders, 0.0)
        for num_steps in sorted(set(arguments.steps)):
            racing = {}
            for name, contender in contenders.items():
                is_short = seconds_per_step[name] * num_steps <= arguments.limit_seconds or contender.one_step_only
                if name == "decoder" or (is_short and (num_steps >= length - 1 or not contender.one_by_one)):
                    racing[name] = contender
            # A few tokens warm a CPU up; an accelerator loads kernels, and torch.compile compiles, for every shape.
            is_lazy = arguments.compile is not None or device.type != "cpu"
            for contender in racing.values():
                warm_up = (length, num_steps) if is_lazy else (min(length, 8), 1)
                time_of(contender, batch_size, *warm_up, device)
            seconds: dict[str, list[float]] = {name: [] for name in racing}
            for _ in tqdm(range(arguments.repeats), desc=f"batch {batch_size}, {num_steps} steps", unit="round"):
                for name, contender in racing.items():
                    times = num_steps if contender.one_step_only else 1
                    seconds[name].append(times * time_of(contender, batch_size, length, num_steps, device))
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


def time_of(contender: Contender, batch_size: int, length: int, num_steps: int, device: torch.device) -> float:
    # The steps of a generation queue up on an accelerator: so should those that are timed in place of one.
    calls = STEPS_IN_A_QUEUE if contender.one_step_only and device.type != "cpu" else 1
    synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        contender.generate(batch_size, length, num_steps)
    synchronize(device)
    return (time.perf_counter() - start) / calls


def hardware(device: torch.device) -> dict[str, Any]:
    found = {"cpu": cpu_name(), "cores": num_cores(), "threads": torch.get_num_threads()}
    found["capability"] = torch.backends.cpu.get_cpu_capability()
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    return found


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


@one_line_errors()
def main(argv: list[str]) -> None:
    (arguments,) = Parser(SpeedArguments).parse(argv)

    def save(report: dict[str, Any]) -> None:
        if arguments.output_dir is not None:
            write_report(report, arguments.output_dir)

    report = measure(arguments, shlex.join(["python", "eval/benchmarks/speed.py", *argv]), save)
    Console().print(Markdown(to_markdown(report)))


if __name__ == "__main__":
    main(sys.argv[1:])
