# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Demo that fills in missing tokens of a text step by step, in the order that the user chooses.

    python demo/app.py [MODEL]

The same file runs on a laptop and as a Space of the Hub. MODEL is a folder or a Hub repository. It defaults to
$AOGPT_MODEL, or to runs/quickstart/model if the variable is not set. The demo needs gradio, torch and transformers. It
does not need the package modeling_aogpt, because the folder of a model contains the code.
"""

import argparse
import html
import itertools
import math
import os
import random
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

import gradio as gr
import torch
from safetensors import SafetensorError
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

MODEL = "runs/quickstart/model"
BLANK = "_"
ORDERS = ["random", "left_to_right", "confidence", "margin", "entropy"]
ENDINGS = {"nothing": "end", "more text": "continue"}
MAX_LENGTH = 128  # tokens; longer texts take too long to watch
MAX_CHARACTERS = 2000
MIN_WIDTH = 260  # pixels; narrower sliders cut off their labels
# With the quickstart model, the first example and TEMPERATURE, 99 % of the texts contain only words of the corpus.
EXAMPLES = ["LATIN _ LETTER _ WITH _", "GREEK _ LETTER _", "_ DIGIT _", "_ _ LETTER _"]
TEMPERATURE = 0.7
CSS = """
.tokens { font-family: ui-monospace, Menlo, Consolas, monospace; line-height: 1.2; display: flex; flex-wrap: wrap;
          gap: 6px 3px }
.token { padding: 5px 6px 3px; border-radius: 5px; border: 1px solid #d6dade; text-align: center; min-width: 1em;
         background: #f4f5f6; color: #22262a; white-space: pre }
.token small { display: block; font-size: 10px; opacity: .75; min-height: 12px }
.token.masked { border-style: dashed; background: #fff; color: #667 }
.token.filled { color: #fff; border-color: transparent }
.token.filled small { color: #fff !important; opacity: 1 }
.token.new { outline: 3px solid #e8a33d }
.summary { margin-top: 12px; font-size: 14px }
"""
THEME = gr.themes.Base(font="system-ui", font_mono="ui-monospace")  # other fonts would be downloaded


@dataclass(frozen=True)
class Token:
    """A position of the text. `text` is None while the position is masked; `step` is None if it was never masked."""

    text: str | None
    step: int | None = None
    log_probability: float | None = None  # in nats; None until all positions are filled in


# ---------------------------------------------------------------------------------------------------------- generation


def encode(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str, ending: str, longest_gap: int = 1
) -> torch.LongTensor:
    r"""Return the ids (1, n) of a text with masks.

    In the text, `\_` stands for an underscore, and `\\` for a backslash. Each other `_` stands for 1 to `longest_gap`
    missing tokens. The model chooses how many. `ending="end"` pads the text with end-of-text;
    `ending="continue"` pads it with masks.

    Raises:
        ValueError: If the text is too long, if it contains nothing to fill in, or if it cannot be encoded or filled in.
    """
    if len(text) > MAX_CHARACTERS:  # only the page enforces the `max_length` of a textbox
        raise ValueError(f"The text must have at most {MAX_CHARACTERS} characters, but has {len(text)}. Shorten it.")
    length, is_end = min(model.config.max_position_embeddings, MAX_LENGTH), ending == "end"
    text = re.sub(rf"\\([{BLANK}\\])|{BLANK}", lambda match: match[1] or tokenizer.mask_token, text)
    ids = model.encode_text(text, tokenizer)[0].tolist()
    if longest_gap > 1 and tokenizer.mask_token_id in ids:
        ids = _choose_lengths(model, ids, longest_gap, length if is_end else None)
    if len(ids) > length:
        raise ValueError(f"The text must have at most {length} tokens, but has {len(ids)}. Shorten the text.")
    padding = tokenizer.eos_token_id if is_end else tokenizer.mask_token_id
    ids = ids + [padding] * (length - len(ids))
    if tokenizer.mask_token_id not in ids:
        raise ValueError(f'The text has nothing to fill in. Write {BLANK} per missing token, or choose "more text".')
    return torch.tensor([ids])


def _choose_lengths(model: PreTrainedModel, ids: list[int], longest_gap: int, padded_length: int | None) -> list[int]:
    """Let the model choose the number of masks of each gap, up to `longest_gap` for each mask in `ids`. Return the ids.

    Adjacent masks are one gap. Without `padded_length`, a gap at the end has no length, because text would continue it.
    """
    mask = model.config.mask_token_id
    parts = [(is_gap, list(part)) for is_gap, part in itertools.groupby(ids, lambda token: token == mask)]
    if not hasattr(model, "infill") or len(parts) == 1:
        reason = "The text has nothing but gaps" if len(parts) == 1 else "This model is an encoder"
        raise ValueError(f'{reason}, so their lengths cannot be chosen. Set "Maximum tokens for each {BLANK}" to 1.')
    choices = [range(len(part), len(part) * longest_gap + 1) for is_gap, part in parts if is_gap]
    if padded_length is None and parts[-1][0]:
        choices[-1] = [len(parts[-1][1])]
    text = [token for is_gap, part in parts for token in (part[:1] if is_gap else part)]
    lengths = iter(model.infill(torch.tensor(text), choices, padded_length, do_sample=False).lengths.tolist())
    return [token for is_gap, part in parts for token in ([mask] * next(lengths) if is_gap else part)]


def decode(token: int, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return the text of a token, or None for a mask."""
    return None if token == tokenizer.mask_token_id else tokenizer.decode([token])


def fill(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, ids: torch.LongTensor, seed: int, **settings: Any
) -> Iterator[list[Token]]:
    """Yield tokens before the first step, after each step, and finally with their log-probabilities.

    The model computes the log-probability of a token without temperature and top-p, given the tokens filled in before
    it. The sum of these values is the log-likelihood of the generated tokens in the order in which they were filled in.

    `ids` (1, n) is the result of `encode`. `settings` are further arguments of `generate`.

    Raises:
        ValueError: If a setting is not allowed.
    """
    prompt = [Token(decode(token, tokenizer)) for token in ids[0].tolist()]
    yield prompt
    # By default, left-to-right text ends at end-of-text. Later positions would then stay masked on the page.
    settings |= {"stop_at_eos": False, "return_dict_in_generate": True}
    if getattr(model.config, "max_gap_length", None) and tokenizer.mask_token_id != ids[0, -1]:
        settings["suppress_tokens"] = [tokenizer.eos_token_id]  # it would end the gap, but the length is fixed
    output = model.generate(ids, generator=torch.Generator().manual_seed(seed), **settings)
    steps = output.unmasking_steps[0].tolist()
    filled = [
        token if step < 0 else Token(decode(id, tokenizer), step)
        for token, id, step in zip(prompt, output.sequences[0].tolist(), steps, strict=True)
    ]
    for now in sorted(set(steps) - {-1}):
        yield [masked if step > now else token for masked, token, step in zip(prompt, filled, steps, strict=True)]
    scores = model.log_likelihood(output.sequences, orders=output.orders).token_log_likelihood[0].tolist()
    yield [replace(token, log_probability=score) for token, score in zip(filled, scores, strict=True)]


# ---------------------------------------------------------------------------------------------------------- appearance


def step_color(step: int, last: int) -> str:
    """Return the color of a step: blue for the first step, green between, and red for the last step."""
    return f"hsl({round(215 - 205 * step / max(last, 1))} 60% 30%)"


def render(tokens: list[Token], end_of_text: str = "", seed: int | None = None) -> str:
    """Return tokens as HTML without end-of-text tokens at the end. The first one is kept if it was generated."""
    length = len(tokens)
    while length and tokens[length - 1].text == end_of_text:
        length -= 1
    length += any(token.step is not None for token in tokens[length : length + 1])
    steps = {token.step for token in tokens if token.step is not None}
    is_done = any(token.log_probability is not None for token in tokens)
    shown = "".join(_render_token(token, max(steps, default=0), is_done) for token in tokens[:length])
    return (
        f'<div class="tokens" role="region" aria-label="The text" data-steps="{len(steps)}">{shown}</div>'
        f"{_render_summary(tokens, seed)}"
    )


def _render_token(token: Token, last: int, is_done: bool) -> str:
    if token.text is None:
        return '<span class="token masked">?<small></small></span>'
    text = html.escape(token.text)
    if token.step is None:
        return f'<span class="token">{text}<small></small></span>'
    mark = " new" * (token.step == last and not is_done)
    probability = "" if token.log_probability is None else f"{100 * math.exp(token.log_probability):.3g} %"
    return (
        f'<span class="token filled{mark}" data-step="{token.step}" title="step {token.step + 1} {probability}" '
        f'style="background: {step_color(token.step, last)}">{text}<small>{probability}</small></span>'
    )


def _render_summary(tokens: list[Token], seed: int | None) -> str:
    filled = [token for token in tokens if token.step is not None and token.log_probability is not None]
    if not filled:
        return ""
    nats = sum(token.log_probability for token in filled)
    return (
        f'<div class="summary" role="status">Seed {seed}: {len(filled)} tokens in {len({t.step for t in filled})} '
        "steps, from blue (first) to red (last). The number below a token is its probability given the tokens filled "
        f"in before it. The log-likelihood of all filled-in tokens in this order is {nats:.2f} nats.</div>"
    )


# ------------------------------------------------------------------------------------------------------------ the page


def build(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> gr.Blocks:
    """Return the web page of the demo."""

    def show(
        text: str,
        longest_gap: int,
        ending: str,
        order: str,
        num_steps: int,
        temperature: float,
        top_p: float,
        seed: int | None,
        wait: float,
    ) -> Iterator[str]:
        seed = random.randrange(2**31) if seed in (None, -1) else int(seed)
        settings = {"order": order, "num_steps": int(num_steps) or None, "temperature": temperature, "top_p": top_p}
        yield ""  # clears the previous result, so that it is not shown beside an error
        try:
            ids = encode(model, tokenizer, text, ENDINGS[ending], longest_gap)
            for index, tokens in enumerate(fill(model, tokenizer, ids, seed, **settings)):
                time.sleep(wait if index else 0)
                yield render(tokens, tokenizer.eos_token, seed)
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from error

    with gr.Blocks(title="Any-order text", analytics_enabled=False) as page:
        gr.Markdown(
            "# Any-order text\nWrite a text with `_` where text is missing. A decoder-only language model "
            "([AO-GPT](https://arxiv.org/abs/2506.19935)) fills it in, in the order that you choose. Each `_` is one "
            "token. If you allow more tokens for each `_`, the model chooses how many. Write `\\_` for an underscore."
        )
        text = gr.Textbox(EXAMPLES[0], label="Text", elem_id="text", max_length=MAX_CHARACTERS)
        with gr.Row():
            gap = gr.Slider(1, 8, 1, step=1, label="Maximum tokens for each _", min_width=MIN_WIDTH)
            ending = gr.Radio(list(ENDINGS), value=next(iter(ENDINGS)), label="What follows the text")
            order = gr.Dropdown(ORDERS, value="random", label="Order")
            steps = gr.Slider(0, 32, 0, step=1, label="Steps (0: one position at a time)")
        with gr.Row():
            temperature = gr.Slider(0.1, 2, TEMPERATURE, step=0.05, label="Temperature", min_width=MIN_WIDTH)
            top_p = gr.Slider(0.05, 1, 1, step=0.05, label="Top-p", min_width=MIN_WIDTH)
            seed = gr.Number(
                -1, minimum=-1, maximum=2**31, precision=0, label="Seed (-1: a new one each time)", min_width=MIN_WIDTH
            )
            wait = gr.Slider(0, 1, 0.3, step=0.05, label="Seconds per step", min_width=MIN_WIDTH)
        start = gr.Button("Fill in", variant="primary", elem_id="start")
        result = gr.HTML(elem_id="result")
        inputs = [text, gap, ending, order, steps, temperature, top_p, seed, wait]
        gr.on([start.click, text.submit], show, inputs, result, show_progress="hidden")
        gr.Examples(EXAMPLES, text)
    return page


def load(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model with the code in its folder, and its tokenizer. If this fails, exit with an error message."""
    try:
        model = AutoModel.from_pretrained(name, trust_remote_code=True).eval()
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=True)
    except (OSError, ValueError, SafetensorError) as error:
        sys.exit(f"error: The model {name!r} cannot be loaded. Pass a folder or a Hub name. (Cause: {error})")
    if not hasattr(model, "log_likelihood"):
        sys.exit(
            f"error: The model {name!r} is a {type(model).__name__}, not an any-order model. Convert or train one."
        )
    return model, tokenizer


def main(argv: list[str]) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Fill in missing tokens of a text, in a web page.")
    parser.add_argument("model", nargs="?", default=os.environ.get("AOGPT_MODEL", MODEL), help="folder or Hub name")
    model, tokenizer = load(parser.parse_args(argv).model)
    build(model, tokenizer).queue().launch(css=CSS, theme=THEME)


if __name__ == "__main__":
    main(sys.argv[1:])
