# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Report of `speed.py`: Markdown tables, and a picture of time against steps."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from common.files import write_json, write_text
from common.reports import Panel, markdown_table, save_panels


def write_report(report: dict[str, Any], folder: Path) -> None:
    """Write speed.json, speed.md and speed.png."""
    write_json(folder / "speed.json", report)
    write_text(folder / "speed.md", to_markdown(report) + "\n")
    batch_sizes = sorted({point["batch_size"] for point in report["points"]})
    save_panels([make_panel(report["points"], size, report["length"]) for size in batch_sizes], folder / "speed.png")


def to_markdown(report: dict[str, Any]) -> str:
    """Return the text of speed.md."""
    machine = report["hardware"] | {name: report["versions"][name] for name in ("torch", "transformers", "python")}
    contenders = [
        (name, "" if facts["num_parameters"] is None else f"{facts['num_parameters'] / 1e6:.1f} M", facts["remark"])
        for name, facts in report["contenders"].items()
    ]
    points = [
        (
            *(str(point["batch_size"]), str(point["num_steps"] or "own"), point["contender"]),
            *(f"{point['seconds']:.3g}", f"{point['ratio']:.2f}"),
        )
        for point in report["points"]
    ]
    weights = "random weights" if report["model"] is None else report["model"]
    return "\n\n".join(
        [
            "# Speed of generation",
            f"{report['length']} tokens per sequence, {report['dtype']}, {weights}. Seconds are those of the fastest "
            "round. The ratio (median over rounds) is relative to the decoder with as many steps or, without a number "
            "of steps, to one-by-one.",
            f"```bash\n{report['command']}\n```",
            markdown_table(["machine", ""], [(name, str(value)) for name, value in machine.items()], "lr"),
            markdown_table(["contender", "parameters", "what it does"], contenders, "lrl"),
            markdown_table(["batch", "steps", "contender", "seconds", "ratio"], points, "rrlrr"),
        ]
    )


def make_panel(points: list[dict[str, Any]], batch_size: int, length: int) -> Panel:
    """Plot time against steps at one batch size. A horizontal line shows a contender without a number of steps."""
    points = [point for point in points if point["batch_size"] == batch_size]
    steps = [point["num_steps"] for point in points if point["num_steps"]]
    lines = defaultdict(list)
    for point in points:
        for num_steps in [point["num_steps"]] if point["num_steps"] else [min(steps), max(steps)]:
            lines[point["contender"]].append((num_steps, point["seconds"]))
    return Panel(f"batch {batch_size}, {length} tokens", "steps", "seconds", lines)
