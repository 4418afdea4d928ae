# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Functions that load tokenizers and add a mask token with the highest id, so that all lower ids stand for text."""

import json
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AddedToken, AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import cached_file, logging

from .configuration_aogpt import AOGPTConfig
from .infill import words_include_space

logger = logging.get_logger(__name__)

SAMPLE = "I saw  the cat,\n 12 (a).\n\n\tDON'T if(x==1234567)"  # tokenizers differ in how they divide it
MASK = AddedToken("<|mask|>", special=True)
# Settings of a tokenizer that its file tokenizer.json does not contain.
SETTINGS = ["model_max_length", "padding_side", "truncation_side", "model_input_names", "extra_special_tokens"]
SETTINGS += ["chat_template", "clean_up_tokenization_spaces", "split_special_tokens"]


def load_tokenizer(name_or_path: str | Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer from a Hub repository or folder, and give it a mask token (see [`add_mask_token`]).

    A tokenizer without a padding token gets its end-of-text token as padding token. Raise a `ValueError` if no
    tokenizer can be loaded, or if the tokenizer is random (BPE dropout) or has no end-of-text token.
    """
    is_folder = os.path.isdir(name_or_path)
    if is_folder and not any(name.startswith(("tokenizer", "vocab")) for name in os.listdir(name_or_path)):
        raise ValueError(f"The folder {name_or_path} contains no tokenizer. Pass the tokenizer, or save it there.")
    try:
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, trust_remote_code=False)
        ids = tokenizer(SAMPLE, add_special_tokens=False, verbose=False).input_ids  # fails without an unknown token
    except Exception as error:  # a damaged file can raise errors of any kind
        raise ValueError(f"The tokenizer {name_or_path!r} cannot be loaded from a folder or Hub: {error}") from error
    if tokenizer.is_fast and getattr(tokenizer.backend_tokenizer.model, "dropout", None):
        raise ValueError(f"The tokenizer {name_or_path!r} is random. Set `dropout` to null in its tokenizer.json.")
    # The class that tokenizer_config.json names can change the settings in tokenizer.json, and so drop all spaces.
    quiet = dict.fromkeys(("_raise_exceptions_for_missing_entries", "_raise_exceptions_for_connection_errors"), False)
    file = cached_file(name_or_path, "tokenizer.json", **quiet) if tokenizer.is_fast else None
    if own := file and type(tokenizer.backend_tokenizer).from_file(file):
        own.no_truncation()
        own.no_padding()
    if own and own.encode(SAMPLE, add_special_tokens=False).ids != ids:
        logger.warning(
            f"{type(tokenizer).__name__} encodes {SAMPLE!r} differently from {file}, and decodes the ids to "
            f"{tokenizer.decode(ids)!r}. If the model was trained with that file, set `tokenizer_class` in "
            "tokenizer_config.json to 'PreTrainedTokenizerFast'. If the model has type qwen2, load it with this class."
        )
    if tokenizer.eos_token_id is None:
        raise ValueError(f"The tokenizer {name_or_path!r} has no end-of-text token. Set its `eos_token` and save it.")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.clean_up_tokenization_spaces = False  # would change decoded texts, such as " ," to ","
    return add_mask_token(tokenizer)


def check_chat(messages: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase, tools: list | None = None) -> None:
    """Raise an error if the chat template leaves out a system or tool message. Warn if it leaves out a key."""
    render = partial(tokenizer.apply_chat_template, tools=tools, tokenize=False)
    template, given = tokenizer.get_chat_template(tools=tools), (*messages, {"tools": tools})
    filled = [i for i, message in enumerate(messages) if message["content"].strip()]
    others = [i for i in filled if messages[i]["role"] not in ("user", "assistant")]
    keys = {key for one in given for key in one if isinstance(one[key], str | list | dict) and one[key]}
    unread = [key for key in keys if not re.search(rf"\b{re.escape(key)}\b", template)]
    text = render(messages) if others or unread else ""
    for i in others:
        changed = [*messages[:i], messages[i] | {"content": f".{messages[i]['content']}"}, *messages[i + 1 :]]
        if render(changed) == text:
            raise ValueError(f"The chat template leaves out message {i} ({messages[i]['role']!r}). Remove the message.")
    for key in unread:
        if render([{name: one[name] for name in one if name != key} for one in messages]) == text:
            logger.warning_once(f"The chat template omits `{key}`. Change the template, or move `{key}` to `content`.")


def load_matching_tokenizer(config: AOGPTConfig, name_or_path: str) -> PreTrainedTokenizerBase:
    """Load a tokenizer as [`load_tokenizer`] does, and check that its mask token has the mask id of the model."""
    tokenizer = load_tokenizer(name_or_path)
    if tokenizer.mask_token_id != config.mask_token_id:
        raise ValueError(
            f"The tokenizer {name_or_path!r} does not fit the model: its mask has the id {tokenizer.mask_token_id}, "
            f"but the mask of the model has the id {config.mask_token_id}. Use the tokenizer of the model's training."
        )
    tokenizer.model_max_length = config.max_position_embeddings
    return tokenizer


def add_mask_token(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Give the tokenizer the mask token `<|mask|>` with the highest id, and return the tokenizer.

    If the mask token already has the highest id, it is kept. A mask token with a lower id, such as BERT's, is replaced,
    because a model predicts every id below its mask id. If tokens of words include the space before the word, the mask
    token includes one space before it (see [`include_space_in_mask`]).

    Raise a `ValueError` if `<|mask|>` is already a token with a lower id, or if the ids have gaps.
    """
    vocabulary = tokenizer.get_vocab()
    last = max(vocabulary.values())
    if tokenizer.mask_token_id == last and not tokenizer.added_tokens_decoder[last].lstrip:
        return tokenizer
    if tokenizer.mask_token_id != last:
        if tokenizer.mask_token:
            logger.warning(f"The mask of the model is {MASK}, not {tokenizer.mask_token}. Write {MASK} in its inputs.")
        tokenizer.add_special_tokens({"mask_token": MASK})
    if tokenizer.mask_token_id != max(tokenizer.get_vocab().values()):
        reason = "the ids of its other tokens have gaps. Number the tokens from 0 without gaps."
        if MASK.content in vocabulary:
            reason = "it is already a token. Rename that token, or remove it from the vocabulary."
        raise ValueError(f"{MASK.content} has the id {tokenizer.mask_token_id} instead of {last + 1}, because {reason}")
    return include_space_in_mask(tokenizer) if words_include_space(tokenizer) else tokenizer


def include_space_in_mask(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return a tokenizer whose mask token includes one space before it, as the token of a word does.

    Without this space, filling in "LETTER <|mask|> WITH" would leave two spaces after "LETTER". The option `lstrip` of
    a token would also drop line breaks and indentation. A normalizer therefore removes the space. A space that the
    tokenizer puts before each text is also put there by a normalizer, which, unlike the pre-tokenizer, does not put
    another space after each mask.
    """
    mask, state = tokenizer.mask_token, json.loads(tokenizer.backend_tokenizer.to_str())
    normalizer, words = state["normalizer"] or {"type": "Sequence", "normalizers": []}, state["pre_tokenizer"] or {}
    steps = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
    steps = [{"type": "Replace", "pattern": {"String": f" {mask}"}, "content": mask}] + [
        _replace_start(mask, step["prepend"]) if step["type"] == "Prepend" else step for step in steps
    ]
    num_steps = len(steps)
    if words.get("prepend_scheme") == "always":  # Metaspace
        words["prepend_scheme"] = "never"
        steps.append(_replace_start(mask, words["replacement"], unless=f"[ {words['replacement']}]"))
    elif words.get("type") == "ByteLevel" and words["add_prefix_space"]:
        words["add_prefix_space"] = False
        surplus = {"Regex": rf"\A (?= |{re.escape(mask)})"}  # an insertion of width 0 makes byte-level encoding panic
        steps += [{"type": "Prepend", "prepend": " "}, {"type": "Replace", "pattern": surplus, "content": ""}]
    # The library keeps old options of a token that is added again, so the options are changed here.
    options = {"lstrip": False, "rstrip": False, "normalized": True}
    tokens = [token | options if token["content"] == mask else token for token in state["added_tokens"]]
    if len(steps) > num_steps:  # a new step would also change the names of normalized tokens
        names = [token["content"] for token in tokens if token["normalized"] and token["content"] != mask]
        if names and any(step["type"] not in ("Prepend", "Replace") for step in steps):
            logger.warning(f"The tokens {names} are found only where a text has exactly these characters.")
        tokens = [token | {"normalized": token["content"] == mask} for token in tokens]
    state |= {"normalizer": {"type": "Sequence", "normalizers": steps}, "added_tokens": tokens}
    return _with_state(tokenizer, state)


def without_special_tokens(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return a tokenizer that adds no special tokens, such as `<s>`, to texts. Training adds none to documents."""
    if not tokenizer.num_special_tokens_to_add():
        return tokenizer
    logger.warning(f"The tokenizer adds {tokenizer('').tokens()} to texts. The trained model's tokenizer adds none.")
    return _with_state(tokenizer, json.loads(tokenizer.backend_tokenizer.to_str()) | {"post_processor": None})


def _with_state(tokenizer: PreTrainedTokenizerBase, state: dict[str, Any]) -> PreTrainedTokenizerFast:
    """Return a tokenizer of the generic class, which saves any normalizer. `state` is a parsed tokenizer.json."""
    settings = tokenizer.special_tokens_map | {name: getattr(tokenizer, name) for name in SETTINGS}
    backend = type(tokenizer.backend_tokenizer).from_str(json.dumps(state))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **settings)


def keep_space_before_masks(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return a copy of a tokenizer, for texts in which the name of the mask token is text (`split_special_tokens`)."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    if steps := (state["normalizer"] or {}).get("normalizers"):
        state["normalizer"]["normalizers"] = [step for step in steps if step.get("content") != tokenizer.mask_token]
    return _with_state(tokenizer, state)


def _replace_start(mask: str, content: str, unless: str = "") -> dict[str, Any]:
    """Return a normalizer that puts `content` before each text that starts neither with a mask nor with `unless`."""
    pattern = rf"\A(?!{'|'.join(filter(None, (unless, re.escape(mask))))})"
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}
