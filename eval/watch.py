# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Command that writes the steps of a generation to an animated GIF.

    python eval/watch.py MODEL ["TEXT with <mask> tokens" ...] [--order ...] [--output_dir DIR]
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from transformers import PreTrainedTokenizerBase

from common.commands import Options, Parser, one_line_errors, option
from common.models import find_model, load_model
from common.reports import make_printable, save_animation
from common.tokenization import num_unpadded
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

SETTINGS = ("order", "num_steps", "strategy", "block_length", "temperature", "top_p")  # arguments of `generate`


@dataclass
class WatchArguments(Options):
    """Options of eval/watch.py."""

    num_samples: int = option(1, "Number of samples of each text.", least=1)
    length: int | None = option(
        None,
        "Number of tokens in a sequence. Shorter texts are padded with end-of-text. Defaults to the length of the "
        "longest text or, without texts, to the model's maximum.",
        least=1,
    )
    order: str = option("random", f"Order of unmasking: {', '.join((*ORDER_NAMES, *CERTAINTY_MEASURES))}.")
    num_steps: int | None = option(None, "Number of generation steps. By default, each step unmasks one position.")
    strategy: str = option("parallel", "parallel, or speculative (exact sampling in fewer forward passes).")
    block_length: int | None = option(None, "Fill in contiguous blocks of this length from left to right.")
    temperature: float = option(1.0, "Temperature.")
    top_p: float = option(1.0, "Sample from the likeliest tokens whose probabilities add up to this value.")
    seed: int = option(0, "Seed of orders and tokens.")
    seconds: float = option(0.15, "Seconds to show each step.", least=0.01, below=60)
    output_dir: Path = option(Path("runs/watch"), "Folder for samples.gif.")


class Token(NamedTuple):
    """A token of a line: its text, and the step at which its position was unmasked (-1 if the token was given)."""

    text: str
    step: int


def watch(model_name: str, texts: list[str], arguments: WatchArguments) -> AnyOrderGenerationOutput:
    """Generate text, write the steps to samples.gif, and return the output of `generate`."""
    model = load_model(model_name, dtype=torch.float32)
    tokenizer = load_tokenizer(model_name)
    output = model.generate(
        make_inputs(texts, tokenizer, arguments.length),
        max_length=arguments.length,
        num_return_sequences=arguments.num_samples,
        **{name: getattr(arguments, name) for name in SETTINGS},
        generator=torch.Generator().manual_seed(arguments.seed),
        return_dict_in_generate=True,
    )
    draw(make_lines(output, tokenizer), output, arguments.seconds, arguments.output_dir / "samples.gif")
    return output


def make_inputs(texts: list[str], tokenizer: PreTrainedTokenizerBase, length: int | None) -> torch.LongTensor | None:
    """Return the ids (batch, n) of texts, padded with end-of-text, or None if there are no texts."""
    if not texts:
        return None
    ids = tokenizer(texts).input_ids
    width = length or max(map(len, ids))
    if not any(tokenizer.mask_token_id in row for row in ids) or max(map(len, ids)) > width:
        raise ValueError(
            f"At least one text must contain {tokenizer.mask_token}, once for each token to fill in. Each text must "
            f"have at most {width} tokens, but they have {', '.join(str(len(row)) for row in ids)}. Correct the texts, "
            "or increase `length`."
        )
    return torch.tensor([row + [tokenizer.eos_token_id] * (width - len(row)) for row in ids])


def make_lines(output: AnyOrderGenerationOutput, tokenizer: PreTrainedTokenizerBase) -> list[list[Token]]:
    """Return the tokens of each sequence as strings, without padding."""
    lines = []
    for ids, steps in zip(output.sequences, output.unmasking_steps, strict=True):
        kept = ids.tolist()[: num_unpadded(ids, tokenizer.eos_token_id)]
        texts = [make_printable(tokenizer.decode(token)) for token in kept]
        lines.append([Token(*value) for value in zip(texts, steps.tolist(), strict=False)])
    return lines


def draw(lines: list[list[Token]], output: AnyOrderGenerationOutput, seconds: float, path: Path) -> None:
    """Write the steps to an animated GIF that repeats. The colours go from blue (early) to orange (late)."""
    num_steps = int(output.unmasking_steps.max()) + 1
    colors = [to_hex(colormaps["plasma"](0.1 + 0.7 * step / max(num_steps - 1, 1))) for step in range(num_steps)]
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

    def draw_step(step: int) -> None:
        for artist, token in artists:
            is_masked = token.step > step
            artist.set_text(MASKED * len(token.text) if is_masked else token.text)
            artist.set_color(PALE if is_masked else INK if token.step < 0 else colors[token.step])
        counter.set_text(f"step {step + 1} of {num_steps}" if step < num_steps - 1 else caption(output))

    save_animation(figure, draw_step, range(-1, num_steps), seconds, path)


def caption(output: AnyOrderGenerationOutput) -> str:
    """Return a line with the numbers of generated tokens, forward passes and rows."""
    num_tokens = int((output.unmasking_steps >= 0).sum())
    return f"{num_tokens} tokens in {output.num_forward_passes} forward passes, {output.num_rows} rows in all"


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(WatchArguments)
    parser.add_argument("model", help="Folder of a model or a run, or Hub name.")
    parser.add_argument("text", nargs="*", help="Texts with mask tokens. Without texts, whole sequences are generated.")
    arguments, others = parser.parse(argv)
    output = watch(find_model(others.model), others.text, arguments)
    print(f"{caption(output)}. Written: {arguments.output_dir}/samples.gif")


if __name__ == "__main__":
    main(sys.argv[1:])
