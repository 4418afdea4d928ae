# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Command that shows the steps of a generation in the terminal, or writes them to an animated GIF.

    python eval/watch.py MODEL ["TEXT with <mask> tokens" ...] [--order ...] [--output_dir DIR]
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from rich.console import Console
from rich.live import Live
from rich.text import Text
from transformers import PreTrainedTokenizerBase

from common.commands import Options, Parser, one_line_errors, option
from common.models import find_model, load_model
from common.reports import save_animation
from common.tokenization import num_unpadded
from eval.benchmarks.quickstart_texts import make_printable
from modeling_aogpt.generation import AnyOrderGenerationOutput
from modeling_aogpt.orders import ORDER_NAMES
from modeling_aogpt.tokenization import load_tokenizer
from modeling_aogpt.unmasking import CERTAINTY_MEASURES

MASKED = "░"
INK, PALE = "#22262a", "#c9ced3"
DOTS_PER_INCH = 100
CHARACTER_WIDTH = 9 / DOTS_PER_INCH  # inches; a whole number of dots, so that columns of characters are aligned
FONT_SIZE = 72 * CHARACTER_WIDTH / 0.602  # points; characters of DejaVu Sans Mono are 0.602 font sizes wide
LINE_HEIGHT = 1.7 * FONT_SIZE / 72


@dataclass
class WatchArguments(Options):
    """Options of eval/watch.py."""

    num_samples: int | None = option(None, "Number of samples of each text. Defaults to 1.", least=1)
    length: int | None = option(
        None,
        "Number of tokens in a sequence. Shorter texts are padded with end-of-text. Defaults to the texts' length.",
        least=1,
    )
    order: str = option("random", f"Order of unmasking: {', '.join((*ORDER_NAMES, *CERTAINTY_MEASURES))}.")
    num_steps: int | None = option(None, "Number of generation steps. By default, each step unmasks one position.")
    strategy: str = option("parallel", "parallel, or speculative (exact sampling in fewer forward passes).")
    block_length: int | None = option(None, "Fill in contiguous blocks of this length from left to right.")
    temperature: float = option(1.0, "Temperature.")
    top_p: float = option(1.0, "Sample from the likeliest tokens whose probabilities add up to this value.")
    seed: int = option(0, "Seed of orders and tokens.")
    seconds: float = option(0.15, "Seconds to show each step.")
    output_dir: Path | None = option(None, "Folder for samples.gif. By default, steps are shown in the terminal.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.seconds < float("inf"):
            raise ValueError(f"`seconds` must be positive and finite, but is {self.seconds}.")


class Token(NamedTuple):
    """A token of a line: its text, and the step at which its position was unmasked (-1 if the token was given)."""

    text: str
    step: int


def watch(model_name: str, texts: list[str], arguments: WatchArguments) -> None:
    """Generate, then show every step in the terminal or in a GIF."""
    model = load_model(model_name, dtype=torch.float32)
    tokenizer = load_tokenizer(model_name)
    output = model.generate(
        make_inputs(texts, tokenizer, arguments.length),
        max_length=arguments.length,
        num_return_sequences=arguments.num_samples or 1,
        order=arguments.order,
        num_steps=arguments.num_steps,
        strategy=arguments.strategy,
        block_length=arguments.block_length,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        generator=torch.Generator().manual_seed(arguments.seed),
        return_dict_in_generate=True,
    )
    lines = make_lines(output, tokenizer)
    if arguments.output_dir is None:
        _show(lines, output, arguments.seconds)
    else:
        _draw(lines, output, arguments.seconds, arguments.output_dir / "samples.gif")


def make_inputs(texts: list[str], tokenizer: PreTrainedTokenizerBase, length: int | None) -> torch.LongTensor | None:
    """Return the ids (batch, n) of the texts, padded to `length` with end-of-text, or None if there are no texts."""
    if not texts:
        return None
    ids = tokenizer(texts).input_ids
    if not any(tokenizer.mask_token_id in row for row in ids):
        raise ValueError(
            f"The texts contain no mask, so there is nothing to fill in. Write {tokenizer.mask_token} for each token "
            "to fill in."
        )
    lengths = [len(row) for row in ids]
    if length is None and len(set(lengths)) > 1:
        raise ValueError(
            f"The texts must have the same length, but have {', '.join(map(str, lengths))} tokens. Set `length` to pad "
            "the texts with end-of-text."
        )
    if max(lengths) > (length or max(lengths)):
        raise ValueError(
            f"`length` must be at least {max(lengths)} (the length of the longest text), but is {length}. Increase it."
        )
    return torch.tensor([row + [tokenizer.eos_token_id] * ((length or len(row)) - len(row)) for row in ids])


def make_lines(output: AnyOrderGenerationOutput, tokenizer: PreTrainedTokenizerBase) -> list[list[Token]]:
    """Return the tokens of each sequence without padding."""
    lines = []
    for ids, steps in zip(output.sequences, output.unmasking_steps, strict=True):
        kept = ids.tolist()[: num_unpadded(ids, tokenizer.eos_token_id)]
        texts = [make_printable(tokenizer.decode(token)) for token in kept]
        lines.append([Token(*value) for value in zip(texts, steps.tolist(), strict=False)])
    return lines


def _step_color(step: int, num_steps: int) -> str:
    """Return the colour of a step, from blue (early) to orange (late). Step -1 has the colour of given tokens."""
    return INK if step < 0 else to_hex(colormaps["plasma"](0.1 + 0.7 * step / max(num_steps - 1, 1)))


def _show(lines: list[list[Token]], output: AnyOrderGenerationOutput, seconds: float) -> None:
    """Show the steps in the terminal, with each token in the colour of its step."""
    num_steps = int(output.unmasking_steps.max()) + 1
    console = Console()
    with Live(console=console, auto_refresh=False) as live:
        for step in range(-1, num_steps):
            live.update(make_frame(lines, step, num_steps), refresh=True)
            time.sleep(seconds if console.is_terminal else 0)
    console.print(_caption(output), style="dim")


def make_frame(lines: list[list[Token]], step: int, num_steps: int) -> Text:
    """Return the text of the lines as they are after `step`."""
    text = Text()
    for line in lines:
        for token in line:
            if token.step > step:
                text.append(MASKED * len(token.text), style="dim")
            else:
                text.append(token.text, style=None if token.step < 0 else _step_color(token.step, num_steps))
        text.append("\n")
    return text


def _caption(output: AnyOrderGenerationOutput) -> str:
    num_tokens = int((output.unmasking_steps >= 0).sum())
    return f"{num_tokens} tokens in {output.num_forward_passes} forward passes, {output.num_rows} rows in all"


def _draw(lines: list[list[Token]], output: AnyOrderGenerationOutput, seconds: float, path: Path) -> None:
    """Write the steps to an animated GIF that repeats."""
    num_steps = int(output.unmasking_steps.max()) + 1
    width = max(sum(len(token.text) for token in line) for line in lines) + 2
    figure = Figure(figsize=(width * CHARACTER_WIDTH, (len(lines) + 2.2) * LINE_HEIGHT), facecolor="white")
    figure.set_dpi(DOTS_PER_INCH)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-1, width - 1), ylim=(len(lines) + 1.4, -0.8))
    axes.set_axis_off()
    style = {"family": "DejaVu Sans Mono", "fontsize": FONT_SIZE, "va": "center_baseline", "parse_math": False}
    artists = []
    for row, line in enumerate(lines):
        column = 0
        for token in line:
            artists.append((axes.text(column, row, "", **style), token))
            column += len(token.text)
    counter = axes.text(0, len(lines) + 0.7, "", color=INK, **(style | {"fontsize": 0.85 * FONT_SIZE}))

    def draw(step: int) -> None:
        for artist, token in artists:
            is_masked = token.step > step
            artist.set_text(MASKED * len(token.text) if is_masked else token.text)
            artist.set_color(PALE if is_masked else _step_color(token.step, num_steps))
        counter.set_text(f"step {step + 1} of {num_steps}" if step < num_steps - 1 else _caption(output))

    save_animation(figure, draw, range(-1, num_steps), seconds, path)


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(WatchArguments)
    parser.add_argument("model", help="Folder of a model or a run, or Hub name.")
    parser.add_argument("text", nargs="*", help="Texts with mask tokens. Without texts, whole sequences are generated.")
    arguments, others = parser.parse(argv)
    watch(find_model(others.model), others.text, arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
