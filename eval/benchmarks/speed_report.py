# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Report of `speed.py`: tables, a plot of time against steps (like Figure 5 of the paper), and a plot of memory."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from common.files import write_json, write_text
from common.reports import Panel, markdown_table, save_panels

FLOOR = "floor of the decoder"
MEMORY = {
    "cache_bytes": "keys and values",
    "modulation_bytes": "modulation table",
    "peak_bytes": "decoder, peak",
    "encoder_peak_bytes": "encoder, peak",
}


def write_report(report: dict[str, Any], folder: Path) -> None:
    """Write speed.json, speed.md, speed.png and, if memory was measured, memory.png."""
    write_json(folder / "speed.json", report)
    write_text(folder / "speed.md", to_markdown(report) + "\n")
    batch_sizes = sorted({point["batch_size"] for point in report["points"]})
    save_panels([make_panel(report["points"], size, report["length"]) for size in batch_sizes], folder / "speed.png")
    if "memory" in report:
        lines = {
            title: [(row["length"], row[name] / 1e6) for row in report["memory"]] for name, title in MEMORY.items()
        }
        save_panels([Panel("memory beside the weights, batch 1", "tokens", "MB", lines)], folder / "memory.png")


def to_markdown(report: dict[str, Any]) -> str:
    """Return the text of speed.md."""
    machine = {
        **report["hardware"],
        **{name: report["versions"][name] for name in ("torch", "transformers", "python")},
        "large matrix products": f"{report['machine']['flop_per_second'] / 1e9:.0f} GFLOP/s",
        "reading of weights": f"{report['machine']['bytes_per_second'] / 1e9:.1f} GB/s",
    }
    contenders = [
        (name, "" if facts["num_parameters"] is None else f"{facts['num_parameters'] / 1e6:.1f} M", facts["remark"])
        for name, facts in report["contenders"].items()
    ]
    points = [
        (
            *(str(point["batch_size"]), str(point["num_steps"] or "own")),
            point["contender"] + (" (computed from fewer steps)" if point["is_computed"] else ""),
            "out of memory" if point["seconds"] is None else f"{point['seconds']:.3g}",
            "" if point["seconds"] is None else f"{point['seconds'] / point['floor_seconds']:.2f}",
            "" if point["ratio"] is None else f"{point['ratio']:.2f}",
        )
        for point in report["points"]
    ]
    weights = "random weights" if report["model"] is None else report["model"]
    parts = [
        "# Speed of generation",
        f"{report['length']} tokens per sequence, {report['dtype']}, {weights}. Seconds are those of the fastest "
        "round. The floor is a lower bound on the time of the decoder. The ratio (median over rounds) is relative to "
        "the decoder with as many steps or, without a number of steps, to one-by-one.",
        f"```bash\n{report['command']}\n```",
        markdown_table(["machine", ""], [(name, str(value)) for name, value in machine.items()], "lr"),
        markdown_table(["contender", "parameters", "what it does"], contenders, "lrl"),
        markdown_table(["batch", "steps", "contender", "seconds", "relative to floor", "ratio"], points, "rrlrrr"),
    ]
    if memory := report.get("memory"):
        rows = [(str(row["length"]), *(f"{row[name] / 1e6:.1f}" for name in MEMORY)) for row in memory]
        parts += [
            "Memory of a generation of one sequence in MB, beside the weights. On a CPU, the decoder's peak includes a "
            "second copy of the weights, packed for oneDNN.",
            markdown_table(["tokens", *MEMORY.values()], rows, "rrrrr"),
        ]
    return "\n\n".join(parts)


def make_panel(points: list[dict[str, Any]], batch_size: int, length: int) -> Panel:
    """Plot time against steps at one batch size. A contender without a number of steps is a horizontal line."""
    points = [point for point in points if point["batch_size"] == batch_size]
    steps = [point["num_steps"] for point in points if point["num_steps"]]
    lines = defaultdict(list)
    for point in points:
        if point["seconds"] is None:
            continue
        for num_steps in [point["num_steps"]] if point["num_steps"] else [min(steps), max(steps)]:
            lines[point["contender"]].append((num_steps, point["seconds"]))
    floors = {(point["num_steps"], point["floor_seconds"]) for point in points if point["num_steps"]}
    return Panel(f"batch {batch_size}, {length} tokens", "steps", "seconds", {**lines, FLOOR: sorted(floors)})
