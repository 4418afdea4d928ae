# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Command that generates text, prints it, and writes the steps to an animated GIF.

python eval/studies/names/watch.py MODEL ["TEXT with <mask> tokens" ...] [--order ...] [--output_dir DIR]
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from transformers import PreTrainedTokenizerBase

from common.commands import Options, Parser, one_line_errors, option
from common.files import atomic_file
from common.hardware import default_device
from common.results import default_length
from common.tokenizers import num_unpadded
from modeling_aogpt.generation import AnyOrderGenerationOutput
from modeling_aogpt.loading import find_model, load_model
from modeling_aogpt.orders import ORDER_NAMES
from modeling_aogpt.tokenization import load_tokenizer
from modeling_aogpt.unmasking import CERTAINTY_MEASURES

MASKED = "░"
INK, PALE = "#22262a", "#c9ced3"
DOTS_PER_INCH = 100
CHARACTER_WIDTH = 9 / DOTS_PER_INCH  # inches; a whole number of dots, so that columns of characters are aligned
FONT_SIZE = 72 * CHARACTER_WIDTH / 0.602  # points; characters of DejaVu Sans Mono are 0.602 font sizes wide
LINE_HEIGHT = 1.7 * FONT_SIZE / 72
SETTINGS = ("order", "num_steps", "temperature")  # arguments of `generate`


@dataclass
class WatchArguments(Options):
    """Options of the command."""

    num_samples: int = option(1, "Number of samples of each text.", least=1)
    length: int | None = option(
        None,
        "Number of tokens in a sequence. Shorter texts are padded with end-of-text. Defaults to the length of the "
        "longest text. Without texts, it defaults to the run's sequence length or, for other models, to the model's "
        "maximum.",
        least=1,
    )
    order: str = option("random", f"Order of unmasking: {', '.join((*ORDER_NAMES, *CERTAINTY_MEASURES))}.")
    num_steps: int | None = option(None, "Number of generation steps. By default, each step unmasks one position.")
    temperature: float = option(1.0, "Temperature.", least=1e-6)
    seed: int = option(0, "Seed of orders and tokens.")
    seconds: float = option(0.15, "Seconds to show each step.", least=0.01, below=60)
    output_dir: Path = option(Path("runs/watch"), "Folder for samples.gif.")


def watch(model_name: str, texts: list[str], arguments: WatchArguments) -> tuple[list[str], str]:
    """Generate text, and write the steps to samples.gif. Return the texts, and a line about the cost."""
    model = load_model(model_name, dtype=torch.float32).to(default_device())
    tokenizer = load_tokenizer(model_name)
    tokenizer.pad_token = tokenizer.eos_token
    longest = max(map(len, tokenizer(texts, add_special_tokens=False).input_ids)) if texts else 0
    if arguments.length is not None and arguments.length < longest:
        raise ValueError(
            f"`length` is {arguments.length}, but the longest text has {longest} tokens. Set at least {longest}."
        )
    if texts and not any(tokenizer.mask_token in text for text in texts):
        raise ValueError(f"No text contains a mask. Put {tokenizer.mask_token} where a token should be filled in.")
    options = {"add_special_tokens": False, "padding_side": "right", "max_length": arguments.length}
    options["padding"] = "max_length" if arguments.length else True
    output = model.generate(
        tokenizer(texts, **options, return_tensors="pt").input_ids.to(model.device) if texts else None,
        max_length=arguments.length or (None if texts else default_length(model_name, model.config)),
        num_return_sequences=arguments.num_samples,
        **{name: getattr(arguments, name) for name in SETTINGS},
        generator=torch.Generator().manual_seed(arguments.seed),
        return_dict_in_generate=True,
    )
    caption = (
        f"{int((output.unmasking_steps >= 0).sum())} tokens in {output.num_forward_passes} forward passes, "
        f"{output.num_rows} rows in all"
    )
    draw(output, tokenizer, caption, arguments.seconds, arguments.output_dir / "samples.gif")
    sequences = output.sequences.tolist()
    return [tokenizer.decode(ids[: num_unpadded(ids, tokenizer.eos_token_id)]) for ids in sequences], caption


def make_printable(text: str) -> str:
    """Replace line breaks and other control characters. A poorly trained model may generate such characters."""
    return "".join(character if character.isprintable() else "�" for character in text)


def draw(
    output: AnyOrderGenerationOutput, tokenizer: PreTrainedTokenizerBase, caption: str, seconds: float, path: Path
) -> None:
    """Write the steps to an animated GIF that repeats. Colors go from blue (first step) to orange (last step)."""
    num_steps, num_lines = int(output.unmasking_steps.max()) + 1, len(output.sequences)
    style = {"family": "DejaVu Sans Mono", "fontsize": FONT_SIZE, "va": "center_baseline", "parse_math": False}
    figure = Figure(facecolor="white", dpi=DOTS_PER_INCH)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    tokens, width = [], len(caption)
    for line, (ids, steps) in enumerate(zip(output.sequences.tolist(), output.unmasking_steps.tolist(), strict=True)):
        column = 0
        for id, step in zip(ids[: num_unpadded(ids, tokenizer.eos_token_id)], steps, strict=False):
            text = make_printable(tokenizer.decode(id))
            tokens.append((axes.text(column, line, "", **style), text, step))
            column += len(text)
        width = max(width, column)
    counter = axes.text(0, num_lines + 0.7, "", color=INK, **style)
    axes.set(xlim=(-1, width + 1), ylim=(num_lines + 1.4, -0.8))
    figure.set_size_inches((width + 2) * CHARACTER_WIDTH, (num_lines + 2.2) * LINE_HEIGHT)

    def draw_step(now: int) -> None:
        for artist, text, step in tokens:
            color = colormaps["plasma"](0.1 + 0.7 * step / max(num_steps - 1, 1))
            artist.set_text(MASKED * len(text) if step > now else text)
            artist.set_color(PALE if step > now else INK if step < 0 else color)
        counter.set_text(f"step {now + 1} of {num_steps}" if now < num_steps - 1 else caption)

    save_animation(figure, draw_step, range(-1, num_steps), seconds, path)


def save_animation(
    figure: Figure, draw: Callable[[int], None], steps: Sequence[int], seconds: float, path: Path
) -> None:
    """Write an animated GIF that repeats. For each of `steps`, `draw` draws one frame on `figure`.

    Each frame is shown for `seconds`. The last frame is shown longer.
    """
    canvas, frames = FigureCanvasAgg(figure), []
    for step in steps:
        draw(step)
        canvas.draw()
        frames.append(Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"))
    durations = [1000 * seconds] * (len(frames) - 1) + [1000 * (seconds + 2.5)]  # milliseconds
    with atomic_file(path) as temporary:
        options = {"append_images": frames[1:], "duration": durations, "loop": 0}
        frames[0].save(temporary, format="GIF", save_all=True, **options)


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(WatchArguments)
    parser.add_argument("model", help="Folder of a model or a run, or Hub name.")
    parser.add_argument("text", nargs="*", help="Texts with mask tokens. Without texts, whole sequences are generated.")
    arguments, others = parser.parse(argv)
    generated, caption = watch(find_model(others.model), others.text, arguments)
    print(*generated, sep="\n")
    print(f"{caption}. Written: {arguments.output_dir}/samples.gif")


if __name__ == "__main__":
    main(sys.argv[1:])
