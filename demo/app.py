# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
A text with holes, filled in step by step in the chosen order: a demo for a laptop or a Space of the Hub.

    python demo/app.py [MODEL]

MODEL is a folder or a Hub repository (default: $AOGPT_MODEL, then runs/quickstart/model). Needs gradio, torch and
transformers; the package itself is not needed, the model brings its code.
"""

import argparse
import html
import math
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # nothing goes out that nobody asked for

import gradio as gr
import torch
from safetensors import SafetensorError
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

MODEL = "runs/quickstart/model"
HOLE = "_"
ORDERS = ["random", "left_to_right", "confidence", "margin", "entropy"]
ENDS = {"the text ends here": "end", "write on": "on"}
LONGEST = 128  # tokens; more are not pleasant to watch
MIN_WIDTH = 260  # dots, of a slider: room for its name beside its number
EXAMPLES = ["LATIN SMALL LETTER _ WITH _", "_ WHITE _ SYMBOL", "GREEK _ _ _", "_ _ _ _ _"]
CSS = """
.canvas { font-family: ui-monospace, Menlo, Consolas, monospace; line-height: 1.2; display: flex; flex-wrap: wrap;
          gap: 6px 3px }
.token { padding: 5px 6px 3px; border-radius: 5px; border: 1px solid #d6dade; text-align: center; min-width: 1em;
         background: #f4f5f6; color: #22262a; white-space: pre }
.token small { display: block; font-size: 10px; opacity: .75; min-height: 12px }
.token.hidden { border-style: dashed; background: #fff; color: #667 }
.token.filled { color: #fff; border-color: transparent }
.token.filled small { color: #fff !important; opacity: 1 }
.token.new { outline: 3px solid #e8a33d }
.summary { margin-top: 12px; font-size: 14px }
"""
# Fonts of the reader's own system: none are fetched.
THEME = gr.themes.Base(font="system-ui", font_mono="ui-monospace")


@dataclass(frozen=True)
class Token:
    """A position as it is shown: its text (None: masked), the step that filled it in (None: given), and its score."""

    text: str | None
    step: int | None = None
    log_probability: float | None = None  # nats; its exponential may be 0 where this is finite


# ------------------------------------------------------------------------------------------------------ generation


def encode(text: str, end: str, tokenizer: PreTrainedTokenizerBase, longest: int) -> torch.LongTensor:
    """
    Return the ids (1, n) of a text in which every `_` masks one token; `\\_` is an underscore, `\\\\` a backslash.

    What comes after the text is end-of-text, if it ends there, otherwise masked too, up to `longest` tokens.

    Raises:
        ValueError: If the text is too long, or nothing is masked.
    """
    text = re.sub(rf"\\([{HOLE}\\])|{HOLE}", lambda found: found[1] or tokenizer.mask_token, text)
    ids = tokenizer(text).input_ids if text else []
    if len(ids) > longest:
        raise ValueError(f"The text has {len(ids)} tokens, but at most {longest} are allowed: shorten it.")
    rest = tokenizer.eos_token_id if end == "end" else tokenizer.mask_token_id
    ids = ids + [rest] * (longest - len(ids))
    if tokenizer.mask_token_id not in ids:
        raise ValueError(
            f"There is nothing to fill in: write {HOLE} for each token that is to be found, or let it write on."
        )
    return torch.tensor([ids])


def decode(token: int, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return a token's text, or None if it is masked."""
    return None if token == tokenizer.mask_token_id else tokenizer.decode([token])


def fill(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    end: str,
    order: str,
    num_steps: int,
    temperature: float,
    top_p: float,
    seed: int | None,
) -> Iterator[list[Token]]:
    """
    Yield the tokens of a text, first with its holes, then after each step, and at last with their probabilities.

    The last probabilities are the model's own, without temperature or top-p: p(token | tokens filled in before). Their
    product is the likelihood of the text in the order in which it was filled in. `num_steps` 0: one position at a time.

    Raises:
        ValueError: If the text cannot be filled in, a setting is not allowed, or there is no seed.
    """
    if seed is None:
        raise ValueError("There is no seed: give a whole number, the same for the same text again.")
    ids = encode(text, end, tokenizer, min(model.config.max_position_embeddings, LONGEST))
    given = [Token(decode(token, tokenizer)) for token in ids[0].tolist()]
    yield given
    output = model.generate(
        ids,
        order=order,
        num_steps=int(num_steps) or None,
        temperature=temperature,
        top_p=top_p,
        generator=torch.Generator().manual_seed(int(seed)),
        return_dict_in_generate=True,
    )
    steps = output.unmasking_steps[0].tolist()
    filled = [
        token if step < 0 else Token(decode(id, tokenizer), step)
        for token, id, step in zip(given, output.sequences[0].tolist(), steps, strict=True)
    ]
    for now in sorted(set(steps) - {-1}):
        yield [masked if step > now else token for masked, token, step in zip(given, filled, steps, strict=True)]
    scores = model.log_likelihood(output.sequences, orders=output.orders).token_log_likelihood[0].tolist()
    yield [replace(token, log_probability=score) for token, score in zip(filled, scores, strict=True)]


# ------------------------------------------------------------------------------------------------------- appearance


def colour(step: int, last: int) -> str:
    """Return a colour: blue for the first step, over green, to red for the last."""
    return f"hsl({round(215 - 205 * step / max(last, 1))} 60% 30%)"


def draw(tokens: list[Token], end_of_text: str | None = None) -> str:
    """Return the tokens as HTML, without given end-of-text at the end."""
    shown = list(tokens)
    while end_of_text is not None and shown and (shown[-1].text, shown[-1].step) == (end_of_text, None):
        shown.pop()
    revealed = [token.step for token in tokens if token.step is not None]
    last = max(revealed, default=0)
    is_done = any(token.log_probability is not None for token in tokens)
    cells = "".join(draw_token(token, last, is_done) for token in shown)
    return (
        f'<div class="canvas" role="region" aria-label="The text" data-steps="{len(set(revealed))}">{cells}</div>'
        f"{summary(tokens)}"
    )


def draw_token(token: Token, last: int, is_done: bool) -> str:
    if token.text is None:
        return '<span class="token hidden">?<small></small></span>'
    text = html.escape(token.text)
    if token.step is None:
        return f'<span class="token">{text}<small></small></span>'
    fresh = " new" if token.step == last and not is_done else ""
    likelihood = "" if token.log_probability is None else f"{100 * math.exp(token.log_probability):.3g} %"
    return (
        f'<span class="token filled{fresh}" data-step="{token.step}" title="step {token.step + 1} {likelihood}" '
        f'style="background: {colour(token.step, last)}">{text}<small>{likelihood}</small></span>'
    )


def summary(tokens: list[Token]) -> str:
    filled = [token for token in tokens if token.step is not None and token.log_probability is not None]
    if not filled:
        return ""
    nats = sum(token.log_probability for token in filled)
    return (
        f'<div class="summary" role="status">{len(filled)} tokens in {len({token.step for token in filled})} steps, '
        f"blue first, red last; log-likelihood of what was filled in, in this order: {nats:.2f} nats. Below each "
        "token: its probability given the tokens filled in before it.</div>"
    )


def build(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> gr.Blocks:
    """Return the page."""

    def show(
        text: str, end: str, order: str, steps: int, temperature: float, top_p: float, seed: int, pause: float
    ) -> Any:
        try:
            yield ""  # what an error leaves
            for number, tokens in enumerate(
                fill(model, tokenizer, text, ENDS[end], order, steps, temperature, top_p, seed)
            ):
                if number:
                    time.sleep(pause)
                yield draw(tokens, tokenizer.eos_token)
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from error  # no fault of the program

    with gr.Blocks(title="Any-order text", analytics_enabled=False) as page:
        gr.Markdown(
            "# Any-order text\nWrite a text with holes, one `_` for each token, and watch a decoder-only language "
            "model ([AO-GPT](https://arxiv.org/abs/2506.19935)) fill them in, in the order you choose. An underscore "
            r"of the text itself is `\_`."
        )
        text = gr.Textbox(EXAMPLES[0], label="Text with holes", elem_id="text", max_length=2000)
        with gr.Row():
            end = gr.Radio(list(ENDS), value=next(iter(ENDS)), label="After it")
            order = gr.Dropdown(ORDERS, value="random", label="Order")
            steps = gr.Slider(0, 32, 0, step=1, label="Steps (0: one position at a time)")
        with gr.Row():
            temperature = gr.Slider(0.1, 2, 1, step=0.05, label="Temperature", min_width=MIN_WIDTH)
            top_p = gr.Slider(0.05, 1, 1, step=0.05, label="Top-p", min_width=MIN_WIDTH)
            seed = gr.Number(0, label="Seed", precision=0, minimum=0, maximum=2**31, min_width=MIN_WIDTH)
            pause = gr.Slider(0, 1, 0.3, step=0.05, label="Seconds per step", min_width=MIN_WIDTH)
        start = gr.Button("Fill in", variant="primary", elem_id="start")
        canvas = gr.HTML(elem_id="canvas")
        inputs = [text, end, order, steps, temperature, top_p, seed, pause]
        gr.on([start.click, text.submit], show, inputs, canvas, show_progress="hidden")
        gr.Examples(EXAMPLES, text)
    return page


def load(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model with its code and tokenizer, or exit if there is none."""
    try:
        model = AutoModel.from_pretrained(name, trust_remote_code=True).eval()
        return model, AutoTokenizer.from_pretrained(name, trust_remote_code=True)
    except (OSError, ValueError, SafetensorError) as error:
        sys.exit(f"error: There is no model {name!r}, on the Hub or as a folder: {error}")


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description="A text with holes, filled in step by step.")
    parser.add_argument("model", nargs="?", default=os.environ.get("AOGPT_MODEL", MODEL), help="folder or Hub name")
    model, tokenizer = load(parser.parse_args(argv).model)
    build(model, tokenizer).queue().launch(css=CSS, theme=THEME)


if __name__ == "__main__":
    main(sys.argv[1:])
