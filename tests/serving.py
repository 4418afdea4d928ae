# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Throughput and latency of `aogpt serve`, and its answers while a fraction of the clients hang up.

    python -m tests.serving MODEL [--num_requests N] [--clients N ...] [--output_dir DIR]

The command writes serving.json and serving.md to --output_dir.
"""

import asyncio
import random
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import torch
from transformers import PreTrainedTokenizerBase

from common.commands import Options, Parser, one_line_errors, option
from common.files import make_folder, write_json, write_text
from common.hardware import device_name, num_cores, versions
from common.reports import markdown_table
from modeling_aogpt.loading import Model, load_model
from modeling_aogpt.tokenization import load_tokenizer

SUMMARY = """# Serving

Half of the requests are completions of 16 tokens, and half are infills of 1 to 4 tokens. In the last line, half of them
have seeds, and some clients hang up. Answers are right if they are those of the model without the server, which needs
{alone:.0f} ms of CPU time for a request of the other lines, one after another.

{table}

The server had {before:.0f} MiB of resident memory before the requests of the last line, and {after:.0f} MiB after them.

The machine has {cores} cores ({device}), torch {torch} and transformers {transformers}. If other programs use it, too,
answers take longer, but the CPU time hardly changes. The command was:

    {command}
"""
OUTCOMES = ("right", "wrong", "missing", "hung up")


@dataclass
class ServingArguments(Options):
    """Options of tests/serving.py."""

    num_requests: int = option(2000, "Number of requests in each line.", least=1)
    clients: list[int] = option([1, 8, 32], "Numbers of clients.", least=1)
    output_dir: Path = option(Path("runs/serving"), "Folder for serving.json and serving.md.")


def make_bodies() -> list[dict[str, Any]]:
    """Return 16 bodies without randomness, then the same ones with seeds. Their texts are parts of this file."""
    text, bodies = Path(__file__).read_text(encoding="utf-8"), []
    for start in range(200, 1000, 100):
        body = {"prompt": text[start : start + 60].strip(), "order": "left_to_right", "temperature": 0.0}
        bodies += [body, body | {"suffix": text[start + 80 : start + 120].strip(), "lengths": [1, 2, 3, 4]}]
    return bodies + [body | {"temperature": 1.0, "seed": seed} for seed, body in enumerate(bodies)]


def answer(body: dict[str, Any], model: Model, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the whole text of a request, with the answer of the model without the server."""
    settings = {"order": body["order"], "do_sample": "seed" in body}
    settings["generator"] = torch.Generator().manual_seed(body.get("seed", 0))
    if "suffix" in body:
        text = f"{body['prompt']}{tokenizer.mask_token}{body['suffix']}"
        return model.infill(text, body["lengths"], tokenizer=tokenizer, **settings).texts[0]
    ids = model.generate(model.encode_text(body["prompt"], tokenizer), max_new_tokens=16, **settings)
    return tokenizer.decode(ids[0], skip_special_tokens=True, clean_up_tokenization_spaces=False)


async def send(url: str, requests: list[tuple[dict, str]], clients: int, patience: dict[int, float]) -> dict[str, Any]:
    """Send requests, which come with the right texts. Request i hangs up after `patience[i]` seconds."""
    counts, times, numbers = dict.fromkeys(OUTCOMES, 0), [], iter(range(len(requests)))

    async def run(client: httpx.AsyncClient) -> None:
        for number in numbers:
            (body, right), begin = requests[number], time.perf_counter()
            try:
                timeout = httpx.Timeout(600, read=patience.get(number, 600))
                response = await client.post(f"{url}/v1/completions", json=body, timeout=timeout)
                text = response.raise_for_status().json()["choices"][0]["text"]
                counts["right" if f"{body['prompt']}{text}{body.get('suffix', '')}" == right else "wrong"] += 1
                times.append(time.perf_counter() - begin)
            except httpx.HTTPError as error:
                counts["hung up" if isinstance(error, httpx.ReadTimeout) else "missing"] += 1

    started = time.perf_counter()
    async with httpx.AsyncClient() as client:
        await asyncio.gather(*(run(client) for _ in range(clients)))
    rate, (median, slow) = len(times) / (time.perf_counter() - started), 1000 * np.percentile(times, [50, 95])
    return {"clients": clients, "answers per second": rate, "median (ms)": median, "95 % (ms)": slow} | counts


def measure(url: str, process: psutil.Process, name: str, options: ServingArguments) -> dict[str, Any]:
    """Return the lines of the report for a server at `url`, and its memory in MiB."""
    model, tokenizer, bodies = load_model(name), load_tokenizer(name), make_bodies()
    answer(bodies[1], model, tokenizer)
    started, draw, count = time.process_time(), random.Random(0), options.num_requests
    pairs = [(body, answer(body, model, tokenizer)) for body in bodies[:16]]
    alone = 1000 * (time.process_time() - started) / 16

    def run(requests: list[tuple[dict, str]], clients: int, patience: dict[int, float]) -> dict[str, Any]:
        before = sum(process.cpu_times()[:2])
        line = asyncio.run(send(url, requests, clients, patience))
        seconds, answers = sum(process.cpu_times()[:2]) - before, line["right"] + line["wrong"]
        return line | {"CPU time of the server per answer (ms)": 1000 * seconds / answers}

    lines = [run((pairs * count)[:count], clients, {}) for clients in options.clients]
    pairs += [(body, answer(body, model, tokenizer)) for body in bodies[16:]]
    longest, before = lines[-1]["median (ms)"] / 500, process.memory_info().rss / 2**20
    patience = {number: longest * draw.random() for number in draw.sample(range(count), 2 * count // 5)}
    lines.append(run(draw.choices(pairs, k=count), options.clients[-1], patience))
    return {"lines": lines, "alone": alone, "before": before, "after": process.memory_info().rss / 2**20}


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(ServingArguments)
    parser.add_argument("model", help="Folder or Hub name of a decoder.")
    options, others = parser.parse(argv)
    command = [sys.executable, "-m", "aogpt", "serve", others.model, "--port", "0", "--device", "cpu"]
    with make_folder(options.output_dir), subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            found = (re.search(r"http://127\.0\.0\.1:\d+", line) for line in process.stderr)
            url = next((match[0] for match in found if match), None)
            if url is None:
                raise ValueError(f"`aogpt serve {others.model}` does not start. Run it to see the error.")
            results = measure(url, psutil.Process(process.pid), others.model, options)
        finally:
            process.terminate()
    results |= {
        "command": shlex.join(["python", "-m", "tests.serving", *argv]),
        "cores": num_cores(),
        "versions": versions(),
    }
    results["device"] = device_name(torch.device("cpu"))
    rows = [[f"{value:.4g}" for value in line.values()] for line in results["lines"]]
    table = markdown_table([*results["lines"][0]], rows, align="r" * len(rows[0]))
    write_json(options.output_dir / "serving.json", results)
    write_text(options.output_dir / "serving.md", SUMMARY.format(table=table, **results, **results["versions"]))


if __name__ == "__main__":
    main(sys.argv[1:])
