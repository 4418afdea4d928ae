# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Time and memory of generation: the decoder, its ablations, encoders, causal language models, and your own sampler.

    python eval/benchmarks/speed.py [--steps 16 128 1024] [--batch_size 1 8 32] [--contenders decoder encoder ...]
        [--output_dir DIR]

All contenders are measured in one run. They take turns, so that other load on the machine affects all of them. Without
--model, weights are random. With --output_dir, the command writes speed.json, speed.md, speed.png (like Figure 5 of the
paper) and, with --memory_lengths, memory.png. The files are updated after every round, so an interrupted run keeps its
results.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from common.commands import Options, Parser, command_line, one_line_errors, option, progress_bar
from common.files import make_folder
from common.hardware import default_device, device_name, num_cores, versions
from common.models import find_model, load_pretrained
from eval.benchmarks.contenders import CONTENDERS, DEVICE_TYPES, Contender, make_compared, make_contenders
from eval.benchmarks.resources import count_work, measure_machine, measure_memory, synchronize
from eval.benchmarks.speed_report import to_markdown, write_report
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from modeling_aogpt.validation import check_choice

SIZES = {
    "tiny": {"vocab_size": 512, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    "small": {},
    "medium": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
}
SIZES["tiny"]["max_position_embeddings"] = 64

# If the time of a contender is linear in the number of steps, and many steps would take too long, these numbers of
# steps are timed instead, and the time of many steps is extrapolated. The time of no-lemma is not exactly linear: for n
# tokens and T steps, it computes n T / 2 - n / T rows, plus a number of rows that is linear in T. Extrapolation from 8
# and 32 steps overestimates the number of rows by at most 1 % (from 1 and 4 steps, it would be up to 50 %). On a CPU,
# these contenders pack the weights in their first pass (see `packed_and_patched`). If they packed them later, the time
# would not be linear. On a GPU, only generations of at least 32 passes are recorded, so both numbers are larger there.
FEW_STEPS = (8, 32)
FEW_STEPS_ON_GPU = (64, 128)

Seconds = dict[tuple[str, int], list[float]]  # key: contender and number of steps; value: seconds by round


@dataclass
class SpeedArguments(Options):
    """Options of eval/benchmarks/speed.py."""

    model: str | None = option(None, "Folder or Hub name of a decoder. Defaults to --size with random weights.")
    size: Literal["tiny", "small", "medium"] = option(
        "small", "Model size: the paper's small and medium, or a tiny one."
    )
    length: int | None = option(None, "Number of tokens in a sequence. Defaults to the model's maximum.")
    steps: list[int] = option([16, 32, 64, 128], "Numbers of steps, limited to the number of tokens.", least=1)
    batch_size: list[int] = option([1], "Numbers of sequences that are generated at once.", least=1)
    contenders: list[str] = option(
        ["no-lemma", "no-cache", "encoder"],
        f"Contenders to time, in addition to decoder and one-by-one: all, none, or some of {', '.join(CONTENDERS)}.",
    )
    causal_lm: str | None = option(None, "Also time a causal LM: folder or Hub name, or model type (random weights).")
    compare: str | None = option(None, "Also time your own sampler, module:function (see `make_compared`).")
    memory_lengths: list[int] = option([], "Lengths at which to measure memory, such as 1024 2048 4096 8192.", least=1)
    repeats: int = option(2, "Number of rounds. In each round, every contender generates once.", least=1)
    limit_seconds: float = option(
        30.0,
        "Limit for contenders whose time is linear in the number of steps (such as no-cache). With more than "
        f"{FEW_STEPS[-1]} steps (on a GPU: {FEW_STEPS_ON_GPU[-1]}), their generations are not run if they would take "
        "longer. Their time is extrapolated from fewer steps.",
    )
    dtype: Literal["float32", "bfloat16"] = option("float32", "Data type of weights and cache.")
    device: str = option(default_device().type, "Device to run on.")
    compile: bool = option(False, "Compile the decoder, encoders, and causal LMs with a static cache.")
    threads: int | None = option(None, "Number of CPU threads. Defaults to PyTorch's choice.", least=1)
    output_dir: Path | None = option(
        None, "Folder for speed.json, speed.md and the pictures. By default, results are only printed."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is not None and self.size != SpeedArguments.size:
            raise ValueError(f"`size` ({self.size}) has no effect with `model` ({self.model}). Remove one of the two.")
        usable = [name for name in CONTENDERS if self.device.startswith(DEVICE_TYPES.get(name, ""))]
        chosen = {("all",): usable, ("none",): []}.get(tuple(self.contenders), self.contenders)
        for name in chosen:
            check_choice("contenders", name, CONTENDERS, " (or only all or none)")
        # All other contenders are compared with one of these two, so both are always included.
        self.contenders = list(dict.fromkeys(("decoder", "one-by-one", *chosen)))


def measure(
    arguments: SpeedArguments, command: str, save: Callable[[dict[str, Any]], None] = lambda report: None
) -> dict[str, Any]:
    """Make all measurements, and return the report. After each round, `save` is called with the report so far."""
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    device, dtype = find_device(arguments.device), getattr(torch, arguments.dtype)
    torch.manual_seed(0)
    if arguments.model is None:
        with device:  # a GPU draws random weights much faster than a CPU
            model = AOGPTForAnyOrderLM(AOGPTConfig(**SIZES[arguments.size]))
    else:
        model = load_pretrained(AOGPTForAnyOrderLM, find_model(arguments.model))
    model = model.eval().to(device, dtype)
    longest = model.config.max_position_embeddings
    length = longest if arguments.length is None else arguments.length
    if not 1 <= length <= longest:
        raise ValueError(f"`length` must be between 1 and {longest} (`max_position_embeddings`), but is {length}.")

    contenders = _make_contenders(arguments, model, length)
    machine = measure_machine(model.config, device, dtype)
    report = {
        "command": command,
        "hardware": describe_hardware(device),
        "versions": versions(),
        "dtype": arguments.dtype,
        "length": length,
        "model": arguments.model,
        "machine": asdict(machine),
        "contenders": {
            name: {"num_parameters": contender.num_parameters, "remark": contender.remark}
            for name, contender in contenders.items()
        },
        "points": [],
    }
    for batch_size in arguments.batch_size:
        finished = report["points"]
        for points in time_contenders(contenders, arguments, batch_size, length, device):
            for point in points:
                num_steps = point["num_steps"] or length
                work = count_work(model.config, batch_size, length, num_steps, dtype)
                point["floor_seconds"] = work.seconds(machine)
            report["points"] = finished + points
            save(report)
    if arguments.memory_lengths:
        config = model.config
        del model, contenders
        torch.cuda.empty_cache()  # the processes that measure memory need the space
        report["memory"] = measure_memory(config, arguments.memory_lengths, arguments.device, dtype)
        save(report)
    return report


def find_device(name: str) -> torch.device:
    """Return a device of this machine. Raise a `ValueError` if there is no such device."""
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # torch without CUDA raises an AssertionError
        raise ValueError(
            f"`device` ({name}) does not exist. Set it to cpu, or to an accelerator such as cuda. (Cause: {error})"
        ) from error


def _make_contenders(arguments: SpeedArguments, model: AOGPTForAnyOrderLM, length: int) -> dict[str, Contender]:
    if arguments.compile:
        model.model.compile()
    names = arguments.contenders + ([arguments.causal_lm] if arguments.causal_lm else [])
    contenders = make_contenders(names, model, length, arguments.compile)
    if arguments.compare is not None:
        contenders[arguments.compare] = make_compared(arguments.compare, model.config, model.device, model.dtype)
    return contenders


def time_contenders(
    contenders: dict[str, Contender], arguments: SpeedArguments, batch_size: int, length: int, device: torch.device
) -> Iterator[list[dict[str, Any]]]:
    """
    Time all contenders at one batch size. After each round, yield the measurements of all rounds so far.

    A contender that runs out of GPU memory is not called again.
    """
    failed: set[str] = set()

    def attempt(name: str, function: Callable[..., Any], *values: Any) -> Any:
        """Return `function(*values)`, or None if the contender runs out of GPU memory, now or in an earlier call."""
        if name in failed:
            return None
        try:
            return function(*values)
        except torch.OutOfMemoryError:
            failed.add(name)
        torch.cuda.empty_cache()  # after `except`, because the error holds tensors
        return None

    steps = sorted({min(count, length) for count in arguments.steps})
    included = {
        name: contender
        for name, contender in contenders.items()
        if contender.max_batch_size is None or batch_size <= contender.max_batch_size
    }
    # A CPU needs only a few tokens to warm up. Accelerators and torch.compile load or compile kernels for every shape,
    # so they need a complete generation.
    needs_full_warm_up = arguments.compile or device.type != "cpu"
    if needs_full_warm_up:
        # The first generation compiles kernels, and the second records CUDA graphs. Both take longer than later ones.
        for name in [name for name, contender in included.items() if contender.is_linear] * 2:
            attempt(name, included[name].sample, batch_size, length, 1)
    seconds: Seconds = {}
    for name, contender in included.items():
        choice = contender, steps, arguments.limit_seconds, batch_size, length, device
        seconds |= {(name, count): [] for count in attempt(name, _choose_steps, *choice) or ()}
    # Times for the same number of steps are compared, so they are measured one after another.
    jobs = sorted(seconds, key=lambda job: job[1])
    for name, count in jobs * (2 if arguments.compile else 1):
        warm_up = (length, count) if needs_full_warm_up else (min(length, 8), 1)
        attempt(name, included[name].sample, batch_size, *warm_up)
    for _ in range(arguments.repeats):
        for name, count in progress_bar(jobs, desc=f"batch {batch_size}", unit="generation"):
            timed = attempt(name, time_generation, included[name], batch_size, length, count, device)
            seconds[name, count] += [] if timed is None else [timed]
        yield _make_points(included, seconds, steps, batch_size, failed, device)


def few_steps(device: torch.device) -> tuple[int, int]:
    """Return the numbers of steps from which the times of longer generations are extrapolated."""
    return FEW_STEPS if device.type == "cpu" else FEW_STEPS_ON_GPU


def _choose_steps(
    contender: Contender, steps: list[int], limit: float, batch_size: int, length: int, device: torch.device
) -> list[int]:
    """Return the numbers of steps to time. For a linear contender, [`few_steps`] replace numbers that take too long."""
    if not contender.takes_steps:
        return [length]
    if not contender.is_linear:
        return steps
    estimate = time_generation(contender, batch_size, length, 1, device)
    short = [count for count in steps if count * estimate <= limit or count <= few_steps(device)[-1]]
    return short if short == steps else sorted({*short, *(min(count, length) for count in few_steps(device))})


def time_generation(contender: Contender, batch_size: int, length: int, num_steps: int, device: torch.device) -> float:
    """Return the seconds that a generation and the check of its ids take."""
    synchronize(device)
    start = time.perf_counter()
    contender.sample(batch_size, length, num_steps)
    synchronize(device)
    return time.perf_counter() - start


def _make_points(
    contenders: dict[str, Contender],
    seconds: Seconds,
    steps: list[int],
    batch_size: int,
    failed: set[str],
    device: torch.device,
) -> list[dict[str, Any]]:
    """
    Return the times of all contenders at one batch size, and their ratios to those of decoder or one-by-one.

    The times of contenders in `failed` are None, and so are ratios to them.
    """

    def times(name: str) -> tuple[list[float], float | None, bool]:
        return ([], None, False) if name in failed else _times(seconds, name, num_steps, few_steps(device))

    points = []
    for num_steps in (*steps, None):
        references = times("one-by-one" if num_steps is None else "decoder")[0]
        for name, contender in contenders.items():
            if contender.takes_steps == (num_steps is None):
                continue
            all_seconds, fastest, is_computed = times(name)
            ratios = [one / other for one, other in zip(all_seconds, references, strict=False)]
            points.append(
                {
                    "contender": name,
                    "batch_size": batch_size,
                    "num_steps": num_steps,
                    "seconds": fastest,
                    "all_seconds": list(all_seconds),
                    "ratio": statistics.median(ratios) if ratios else None,
                    "is_computed": is_computed,
                }
            )
    return points


def _times(
    seconds: Seconds, name: str, num_steps: int | None, counts: tuple[int, int]
) -> tuple[list[float], float, bool]:
    """
    Return the seconds of a contender in each round, the seconds to report, and whether both are extrapolated.

    If `num_steps` was not measured, seconds are extrapolated from those of two other numbers of steps, `counts`. A
    round that was slow only with the lower number would give a time that is too short. The seconds to report are
    therefore extrapolated from the fastest time of each number, even if these are from different rounds.
    """
    measured = {count: times for (other, count), times in seconds.items() if other == name}
    if num_steps is None or num_steps in measured:
        times = measured[num_steps] if num_steps in measured else next(iter(measured.values()))
        return times, min(times), False
    few, more = counts
    factor = (num_steps - few) / (more - few)
    pairs = [*zip(measured[few], measured[more], strict=True), (min(measured[few]), min(measured[more]))]
    *times, fastest = (short + (long - short) * factor for short, long in pairs)
    return times, fastest, True


def describe_hardware(device: torch.device) -> dict[str, Any]:
    """Return the names of the CPU and the GPU, and the cores, threads and vector instructions of the CPU."""
    facts = {"cpu": device_name(torch.device("cpu")), "cores": num_cores(), "threads": torch.get_num_threads()}
    facts["capability"] = torch.backends.cpu.get_cpu_capability()
    return facts | ({"gpu": device_name(device)} if device.type == "cuda" else {})


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    (arguments,) = Parser(SpeedArguments).parse(argv)

    def save(report: dict[str, Any]) -> None:
        if arguments.output_dir is not None:
            write_report(report, arguments.output_dir)

    with make_folder(arguments.output_dir) if arguments.output_dir else nullcontext():
        report = measure(arguments, command_line(__file__, argv), save)
    print(to_markdown(report))


if __name__ == "__main__":
    main(sys.argv[1:])
