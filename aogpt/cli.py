# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""The command `aogpt`, which generates, fills in, scores, converts and serves."""

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import torch
from transformers import PreTrainedTokenizerBase

from modeling_aogpt.configuration_aogpt import as_list
from modeling_aogpt.convert_reference_checkpoint import convert
from modeling_aogpt.generation_config import FIELDS
from modeling_aogpt.loading import Model, find_device, find_model, load_model
from modeling_aogpt.tokenization import load_matching_tokenizer


class Parser(argparse.ArgumentParser):
    """`ArgumentParser` that prints errors in one line and does not accept abbreviated options."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Print an error message in one line, and exit with status 2."""
        self.exit(2, f"error: {message} (`{self.prog} --help` lists all options)\n")


# ------------------------------------------------------------------------------------------------------------ options


def read_value(text: str) -> Any:
    """Return the value of a setting: JSON, such as `0.7`, `false` or `[1, 2]`, or else a string."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def add_model_options(parser: Parser) -> None:
    """Add the model and its device."""
    parser.add_argument("model", metavar="MODEL", help="folder or Hub repository")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="default: %(default)s")


def add_settings(parser: Parser, has_gaps: bool, *unused: str) -> None:
    """Add options for fields of `AnyOrderGenerationConfig` except `unused` and, if `has_gaps`, for `infill`."""
    if has_gaps:
        parser.add_argument("--max_gap", type=int, help="longest gap, in tokens; default: as in training, or 8")
        parser.add_argument("--padded_length", type=int, help="for a model that was trained on padded documents")
    group = parser.add_argument_group("settings of generate", "AnyOrderGenerationConfig and docs/generation.md explain")
    for name in FIELDS:
        if name not in ("return_dict_in_generate", "output_history", *unused):  # the first change the output type
            group.add_argument(f"--{name}", type=read_value, metavar="VALUE")


def read_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the given settings of `generate`. With `--temperature 0`, set `do_sample=False` instead."""
    settings = {name: value for name in FIELDS if (value := getattr(options, name, None)) is not None}
    return {"do_sample": False} | settings if settings.get("temperature") == 0 else settings


def read_text(text: str) -> str:
    """Return `text`. If it is `-`, return standard input without a byte-order mark or a final line break."""
    if text == "-":  # always UTF-8, as files are, whatever the locale
        text = sys.stdin.buffer.read().decode(errors="surrogateescape").removeprefix("\ufeff")
        text = text.removesuffix("\n").removesuffix("\r")
    elif os.path.isfile(text):
        print(f"warning: The text {text!r} names a file. To read the file, pass `- < {text}`.", file=sys.stderr)
    if any("\ud800" <= character <= "\udfff" for character in text):  # a byte that Python could not decode
        raise ValueError("The text is not valid UTF-8. Convert it first, for instance with `iconv`.")
    return text


def load(options: argparse.Namespace) -> tuple[Model, PreTrainedTokenizerBase]:
    """Return the model of a command on its device, and its tokenizer."""
    device, name = find_device(options.device), find_model(options.model)
    model = load_model(name).to(device)
    tokenizer, ends = load_matching_tokenizer(model.config, name), model.generation_config.eos_token_id
    if ends is not None and tokenizer.eos_token_id not in as_list(ends):
        text = f"Texts do not end at {tokenizer.eos_token!r}, the end-of-text of the tokenizer."
        print(f"warning: {text} Add its id to `eos_token_id` in generation_config.json.", file=sys.stderr)
    return model, tokenizer


def make_generator(options: argparse.Namespace) -> torch.Generator | None:
    """Return a generator with the seed of a command, or None without `--seed`."""
    return None if options.seed is None else torch.Generator().manual_seed(options.seed)


def print_result(options: argparse.Namespace, text: str, result: dict[str, Any]) -> None:
    """Print the text or, with `--json`, the result as a JSON object."""
    print(json.dumps(result, ensure_ascii=False) if options.json else text)


# ----------------------------------------------------------------------------------------------------------- commands


def run_generate(options: argparse.Namespace) -> None:
    """Continue a text, fill in its masks, or write a whole text."""
    model, tokenizer = load(options)
    text, settings = read_text(options.prompt), read_settings(options)
    ids = model.encode_text(text, tokenizer) if text else None
    has_masks = ids is not None and bool((ids == model.config.mask_token_id).any())
    limits = {"max_length", "max_new_tokens"}
    if not has_masks and not limits & settings.keys() and not any(getattr(model.generation_config, n) for n in limits):
        settings["max_length"] = model.config.max_position_embeddings
    sequences = model.generate(ids, generator=make_generator(options), **settings)
    texts = tokenizer.batch_decode(sequences, skip_special_tokens=True)
    print_result(options, "\n".join(texts), {"texts": texts})


def longest_gap(options: argparse.Namespace, model: Model) -> int:
    """Return the option `--max_gap`, or its default for a model."""
    return (model.config.max_gap_length or 8) if options.max_gap is None else options.max_gap


def run_infill(options: argparse.Namespace) -> None:
    """Fill in gaps of unknown length."""
    model, tokenizer = load(options)
    if not hasattr(model, "infill"):
        raise ValueError("`infill` needs a decoder, but the model is an encoder. Use `generate`, with masks.")
    output = model.infill(
        read_text(options.text),
        lengths=range(1, longest_gap(options, model) + 1),
        padded_length=options.padded_length,
        generator=make_generator(options),
        tokenizer=tokenizer,
        **read_settings(options),
    )
    tensors = {name: output[name].tolist() for name in ("lengths", "candidates", "log_probs")}
    print_result(options, "\n".join(output.texts), {"texts": output.texts, **tensors})


def run_score(options: argparse.Namespace) -> None:
    """Compute the log-likelihood of a text."""
    model, tokenizer = load(options)
    orders = {} if options.num_orders is None else {"orders": "random", "num_orders": options.num_orders}
    text = read_text(options.text)
    start = getattr(model.config, "start_token_id", None)
    scored = text if start is None else text.removeprefix(tokenizer.convert_ids_to_tokens(start))  # it has no loss
    if not scored:
        raise ValueError("The text is empty. Pass a text with at least one character.")
    ids = model.encode_text(text, tokenizer)
    output = model.log_likelihood(ids, generator=make_generator(options), **orders)
    special = "|".join(map(re.escape, tokenizer.all_special_tokens))  # counts as one byte, like end-of-text elsewhere
    nats, num_bytes = output.log_likelihood.item(), len(re.sub(special, " ", scored).encode())
    error = output.standard_error.item()
    result = {
        "log_likelihood": nats,
        "standard_error": None if math.isnan(error) else error,  # NaN for a single random order
        "bits_per_byte": -nats / math.log(2) / num_bytes,
        "tokens": tokenizer.convert_ids_to_tokens(ids[0].tolist()),
        "token_log_likelihood": output.token_log_likelihood[0].tolist(),
    }
    shown = f"{nats:.4f} ± {error:.4f}" if error > 0 else f"{nats:.4f}"
    print_result(options, f"{shown} nats, {ids.shape[1]} tokens, {result['bits_per_byte']:.4f} bits per byte", result)


def run_convert(options: argparse.Namespace) -> None:
    """Convert a released model into a folder that `AutoModel.from_pretrained` loads."""
    model = convert(options.source, options.output_dir, options.weights, options.tokenizer)
    weights = options.weights or "as published"
    print(f"{options.output_dir}: {type(model).__name__} with {model.num_parameters():,} parameters, weights {weights}")


def run_serve(options: argparse.Namespace) -> None:
    """Serve a model over HTTP."""
    if missing := [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]:
        raise ValueError(f"`aogpt serve` needs {' and '.join(missing)}. Run: pip install 'aogpt[serve]'")
    from .serve import Server, serve

    model, tokenizer = load(options)
    model.generation_config.update(**read_settings(options))
    limits = {name: getattr(options, name) for name in ("max_batch", "max_queue", "padded_length")}
    key = options.api_key or os.environ.get("AOGPT_API_KEY") or None
    server = Server(model, tokenizer, options.model, key, max_gap=longest_gap(options, model), **limits)
    serve(server, options.host, options.port)


# ------------------------------------------------------------------------------------------------------- command line


def make_parser() -> Parser:
    """Return the parser of all commands."""
    parser = Parser(prog="aogpt", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace], None]) -> Parser:
        command = commands.add_parser(name, help=run.__doc__, description=run.__doc__)
        command.set_defaults(run=run, error=command.error)
        return command

    for name, run, text, default, given in (
        ("generate", run_generate, "prompt", "", "text to continue, or with masks; default: write a whole text"),
        ("infill", run_infill, "text", "-", "text in which each mask token stands for a gap"),
        ("score", run_score, "text", "-", "text to score, from left to right by default"),
    ):
        command = add(name, run)
        add_model_options(command)
        command.add_argument(text, nargs="?", default=default, metavar=text.upper(), help=f"{given}; `-` reads stdin")
        command.add_argument("--json", action="store_true", help="print a JSON object")
        command.add_argument("--seed", type=int, help="seed of random numbers")
        if name == "score":
            command.add_argument("--num_orders", type=int, help="average over this number of random orders")
        else:
            add_settings(command, has_gaps=name == "infill")

    command = add("convert", run_convert)
    command.add_argument("source", type=Path, metavar="SOURCE", help="a released .pt file, or a folder of SEDD, ...")
    command.add_argument("output_dir", type=Path, metavar="OUTPUT", help="the folder to write, new or empty")
    command.add_argument("--weights", choices=("ema", "live"), help="default: the weights of the published numbers")
    command.add_argument("--tokenizer", metavar="NAME", help="folder or Hub name of a tokenizer to save, such as gpt2")

    command = add("serve", run_serve)
    add_model_options(command)
    command.add_argument("--host", default="127.0.0.1", help="address to listen at; default: %(default)s")
    command.add_argument("--port", type=int, default=8000, help="0 lets the system choose; default: %(default)s")
    command.add_argument("--api_key", help="key that requests must have; default: $AOGPT_API_KEY, or none")
    command.add_argument("--max_batch", type=int, default=32, help="texts to generate at once; default: %(default)s")
    command.add_argument("--max_queue", type=int, default=64, help="requests that may wait; default: %(default)s")
    add_settings(command, True, "max_length", "max_new_tokens", "num_return_sequences")  # requests set them
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command. After a one-line error message, exit with status 1 for wrong input, or 2 for a wrong option."""
    options, unknown = make_parser().parse_known_args(argv)
    if unknown:
        options.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        options.run(options)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {' '.join(str(error).split())}")
    except KeyboardInterrupt:
        sys.exit(130)
