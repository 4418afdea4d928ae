# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Five minutes on a GPU: kernels of a step of generation and of training, their times, and the tests that need a GPU.

    python eval/benchmarks/gpu_short.py [--deadline 270] [--output_dir runs/gpu/short]

The command needs only PyTorch and Transformers. After each result, it writes results.json and README.md, which names
the missing results. It exits at the deadline. The same command then measures the missing results.
"""

import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark import Timer

from common.commands import Options, Parser, command_line, one_line_errors, option
from common.files import make_folder, read_json, write_json, write_text
from common.hardware import default_device, peak_flops, peak_memory, versions
from eval.benchmarks.contenders import Contender, make_contenders, sample_any_order
from eval.benchmarks.speed import SIZES, SpeedArguments, describe_hardware, load_decoder, synchronize, time_generation
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, modeling_aogpt
from modeling_aogpt.cuda_graphs import Recording
from training.tracking import flops_per_token

DEVICE = default_device()
BATCH_SIZES, STEPS, TRAINING_BATCH_SIZE = [32, 1], [1024, 16, 256, 64], 16  # compiled decoders: only 1024 steps
FEW, MANY = 16, 64  # numbers of steps of the encoder; its other times are extrapolated
KINDS, UNMASKING = ("plain", "compiled"), ("fixed_count", "bernoulli")
FIRST_STEP, LAST_STEP = 4, 40  # the CPU time is that of these steps, and the kernels are those of the last one
TESTS = ("tests/test_cuda.py", "tests/test_status.py")
Plan = dict[str, Callable[[], float | str]]


@dataclass
class ShortArguments(Options):
    """Options of eval/benchmarks/gpu_short.py."""

    size: Literal["small", "medium", "tiny"] = option("small", "Size of the models that generate. tiny: for tests.")
    deadline: int = option(270, "Seconds after which the command exits, whatever it is doing.", least=1)
    output_dir: Path = option(Path("runs/gpu/short"), "Folder for results.json and README.md.")


def make_profile() -> profile:
    """Return a profiler of kernels or, on a CPU, of operators."""
    return profile(activities=[ProfilerActivity.CPU if DEVICE.type == "cpu" else ProfilerActivity.CUDA])


def list_kernels(profiler: profile) -> str:
    """Return a table of the slowest kernels."""
    column = f"self_{'cpu' if DEVICE.type == 'cpu' else 'device'}_time_total"
    return profiler.key_averages().table(column, row_limit=50, max_name_column_width=90)


def measure_step(model: AOGPTForAnyOrderLM, batch_size: int) -> str:
    """Return the CPU time and the kernels of a step of one token, from a replay (on a CPU, a pass) to the next one."""
    times, frequent, profiler = defaultdict(list), [], make_profile()
    owner, name = (type(model.model), "forward") if DEVICE.type == "cpu" else (Recording, "replay")
    run = getattr(owner, name)

    def begin_and_run(self: Any, *arguments: Any, **options: Any) -> Any:
        times[self].append(time.thread_time())
        if len(times[self]) == LAST_STEP:
            frequent.append(self)  # the first is a recording of passes
        if frequent[:1] == [self] and len(times[self]) <= LAST_STEP + 1:
            synchronize(DEVICE)
            (profiler.start if len(times[self]) == LAST_STEP else profiler.stop)()
        return run(self, *arguments, **options)

    with make_profile():  # initialize the profiler before CUDA graphs are recorded
        synchronize(DEVICE)
    with patch.object(owner, name, begin_and_run):
        length = model.config.max_position_embeddings
        model.generate(num_return_sequences=batch_size, num_steps=length, unmasking="fixed_count")
    seconds = [end - start for start, end in pairwise(times[frequent[0]][FIRST_STEP:LAST_STEP])]
    return f"CPU time: {1e6 * statistics.median(seconds):.0f} microseconds\n{list_kernels(profiler)}"


def measure_generation(contender: Contender, num_warm_ups: int, *sizes: int) -> float:
    """Return the seconds of the faster of two generations. `sizes` are arguments of `Contender.sample`."""
    for _ in range(num_warm_ups):
        contender.sample(*sizes)
    return min(time_generation(contender, *sizes, DEVICE) for _ in range(2))


def make_training_step(config: AOGPTConfig) -> Callable[[], None]:
    """Return a function that runs a compiled training step in bfloat16, like that of training/pretrain.py."""
    shape = TRAINING_BATCH_SIZE, config.max_position_embeddings
    with DEVICE:
        model = AOGPTForAnyOrderLM(config).train()
        ids, orders = torch.randint(config.num_valid_tokens, shape), torch.rand(shape).argsort(dim=-1)
    model.model.compile()
    modeling_aogpt.differentiate_chunk = torch.compile(modeling_aogpt.differentiate_chunk)
    optimizer, weights = torch.optim.AdamW(model.parameters(), fused=True), list(model.parameters())
    averages = [weight.detach().clone() for weight in weights]

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = model(ids, orders=orders, labels=ids, skip_logits=True).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch._foreach_lerp_(averages, [weight.detach() for weight in weights], 1e-4)

    return step


def measure_training(config: AOGPTConfig, num_warm_ups: int = 3, num_steps: int = 10) -> str:
    """Return the time, the utilization, the memory (on a GPU) and the kernels of a training step."""
    used = 0
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        used = torch.cuda.memory_allocated()  # by the models that generate
    step = make_training_step(config)
    for _ in range(num_warm_ups):
        step()
    seconds = Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads()).timeit(num_steps).mean
    memory = (peak_memory(DEVICE) - used) / 1e9
    with make_profile() as profiler:
        step()
        synchronize(DEVICE)
    length, peak = config.max_position_embeddings, peak_flops(DEVICE, "bf16")
    flops = flops_per_token(config, length) * TRAINING_BATCH_SIZE * length
    utilization = "unknown" if peak is None else f"{flops / seconds / peak:.1%}"
    sizes = f"{TRAINING_BATCH_SIZE} x {length} tokens"
    return f"{sizes}: {seconds:.4g} s, utilization {utilization}, {memory:.2f} GB\n{list_kernels(profiler)}"


def run_tests(end: float) -> str | None:
    """Run the tests that need a GPU, and return the last line of pytest. Return None if they do not end in time."""
    command = [sys.executable, "-m", "pytest", "-q", *TESTS, *(["-n", "6"] if find_spec("xdist") else [])]
    with suppress(subprocess.TimeoutExpired):
        process = subprocess.run(command, capture_output=True, text=True, timeout=end - time.monotonic())
        return (process.stdout or process.stderr).strip().splitlines()[-1]
    return None


def make_plan(size: str, end: float) -> Plan:
    """Return a function for each result, by its name. Times of generations have the name (model, batch size, steps)."""
    plan: Plan = {}
    for is_compiled, kind in enumerate(KINDS):
        model = load_decoder(SpeedArguments(size=size, dtype="bfloat16", compile=bool(is_compiled)), DEVICE)
        length = model.config.max_position_embeddings
        contenders = make_contenders(["encoder"], model, length, bool(is_compiled))
        names = UNMASKING[:1] if is_compiled else UNMASKING
        contenders |= {name: sample_any_order(model, name, unmasking=name) for name in names}
        if not is_compiled:
            plan |= {
                f"step, batch {batch_size}": partial(measure_step, model, batch_size) for batch_size in BATCH_SIZES
            }
        for batch_size, (name, contender) in product(BATCH_SIZES, contenders.items()):
            for steps in (FEW, MANY) if name == "encoder" else STEPS[:1] if is_compiled else STEPS:
                function = partial(measure_generation, contender, 1 + is_compiled, batch_size, length, steps)
                plan[f"{kind} {name}, batch {batch_size}, {steps} steps"] = function
        if not is_compiled:
            trained = AOGPTConfig(**SIZES["tiny" if size == "tiny" else "medium"])
            plan |= {"tests": partial(run_tests, end), "training step": partial(measure_training, trained)}
    return plan


def compare(results: dict[str, Any], kind: str, batch_size: int, steps: int, name: str) -> str:
    """Return the time of the decoder and, in parentheses, that of the encoder relative to it."""

    def seconds(model: str, count: int) -> Any:
        return results.get(f"{kind} {model}, batch {batch_size}, {count} steps")

    decoder, few, many = seconds(name, steps), seconds("encoder", FEW), seconds("encoder", MANY)
    if not isinstance(decoder, float):
        return ""
    if not isinstance(few, float) or not isinstance(many, float):
        return f"{decoder:.3g}"
    encoder = few + (many - few) * (steps - FEW) / (MANY - FEW)
    return f"{decoder:.3g} ({encoder / decoder:.1f}x{'' if steps in (FEW, MANY) else '*'})"


def to_markdown(report: dict[str, Any]) -> str:
    """Return the text of README.md."""
    results = report["results"]
    rows = [["batch", "steps", "unmasking", *KINDS], ["--:", "--:", ":--", "--:", "--:"]]
    for batch_size, steps, name in product(BATCH_SIZES, sorted(STEPS), UNMASKING):
        rows.append([batch_size, steps, name, *(compare(results, kind, batch_size, steps, name) for kind in KINDS)])
    texts = [
        f"# Five minutes on a GPU\n\nWritten by `{report['command']}` on {report['machine']}.",
        f"Missing results: {'; '.join(name for name, result in results.items() if result is None) or 'none'}.",
        "Seconds of a generation with random weights in bfloat16. In parentheses: the time of the encoder, divided by "
        f"the time of the decoder (both plain or both compiled). *: extrapolated from {FEW} and {MANY} encoder steps.",
        "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows),
        *(f"## {name}\n\n```text\n{text}\n```" for name, text in results.items() if isinstance(text, str)),
    ]
    return "\n\n".join(texts) + "\n"


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    started = time.monotonic()
    (arguments,) = Parser(ShortArguments).parse(argv)
    signal.alarm(arguments.deadline)  # ends the process, even if a kernel never ends
    torch._dynamo.config.recompile_limit = 64
    plan = make_plan(arguments.size, started + arguments.deadline - 2)
    file = arguments.output_dir / "results.json"
    with make_folder(arguments.output_dir):
        earlier = read_json(file, ["results"], __file__)["results"] if file.exists() else {}
    results = {name: earlier.get(name) for name in plan}
    machine = describe_hardware(DEVICE) | versions()
    report = {"command": command_line(__file__, argv), "machine": machine, "results": results}
    for name in ("", *plan):
        if name and results[name] is None:
            try:
                results[name] = plan[name]()
            except Exception as error:  # other results may still be possible
                results[name] = f"{type(error).__name__}: {error}"
            print(f"{time.monotonic() - started:.0f} s: {name}", flush=True)
        write_json(file, report)
        write_text(arguments.output_dir / "README.md", to_markdown(report))
    signal.alarm(0)


if __name__ == "__main__":
    main(sys.argv[1:])
