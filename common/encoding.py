# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Tokenization of documents, with the bytes and the context of their tokens."""

import logging
import re
from collections.abc import Callable, Iterable
from typing import Any
from unicodedata import normalize

import numpy as np
from datasets import Dataset, Features, Sequence, Value
from transformers import PreTrainedTokenizerBase

from common.caching import versioned
from common.splitting import select_all
from modeling_aogpt import tokenization

logger = logging.getLogger(__name__)


def encode_documents(
    texts: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    with_token_bytes: bool,
    num_workers: int | None = None,
    context_marks: str | None = None,
    select: Callable[[Iterable[str | None]], list[str]] = select_all,
) -> Dataset:
    """Return a dataset with the columns `input_ids`, `num_tokens` and `num_bytes` of documents in the column `text`.

    The ids of each document end with end-of-text. They are stored in 16 bits, or in 32 bits for large vocabularies. If
    `with_token_bytes`, the column `token_bytes` lists the number of bytes of each token. Their sum is `num_bytes`.

    If `context_marks` is given (see [`split_context`]), the column `labels` is added. It contains the ids, and -100 for
    tokens of the context. A token that is only partly in the context is not a token of the context.

    Only the documents that `select` returns are encoded. By default, it leaves out null. `num_workers` is the number of
    processes that encode documents. With None, no processes are started.
    """
    if not tokenizer.is_fast:
        raise ValueError(
            f"{type(tokenizer).__name__} cannot be used, because it does not return the characters of each token. Use "
            "a fast tokenizer (of the library `tokenizers`)."
        )
    id_type = Value("uint16" if max(tokenizer.get_vocab().values()) < 2**16 else "uint32")
    columns = {"input_ids": Sequence(id_type), "num_tokens": Value("int64"), "num_bytes": Value("int64")}
    if with_token_bytes:
        columns["token_bytes"] = Sequence(Value("int32"))
    if context_marks is not None:
        columns["labels"] = Sequence(Value("int32"))
    options = {"tokenizer": tokenizer, "with_token_bytes": with_token_bytes, "context_marks": context_marks}
    encoded = texts.map(
        versioned(_encode_selected, tokenization),
        batched=True,
        input_columns="text",
        remove_columns=texts.column_names,
        features=Features(columns),
        fn_kwargs={"select": select, "columns": list(columns), **options},
        num_proc=num_workers,
        desc="Tokenizing",
    )
    chunks = encoded.data.column("input_ids").chunks[:8]  # thousands of texts; reading all may take minutes
    warn_of_unknown((chunk.flatten().to_numpy() for chunk in chunks), tokenizer)
    _warn_of_changes([text for text in texts[:100]["text"] if text], tokenizer)
    return encoded


def warn_of_unknown(parts: Iterable[np.ndarray], tokenizer: PreTrainedTokenizerBase) -> None:
    """Warn if ids contain the unknown token, because it costs few bits whatever it replaces."""
    unknown = tokenizer.unk_token_id
    # GPT-2's unknown token is end-of-text, so it is not counted.
    count = 0 if unknown in (None, tokenizer.eos_token_id) else sum(np.count_nonzero(ids == unknown) for ids in parts)
    if count:
        text = "%d or more tokens are %s, because the tokenizer lacks characters. Bits per byte are too low."
        logger.warning(f"{text} Remove such texts, or use another tokenizer.", count, tokenizer.unk_token)


def special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the ids of special tokens that are not text, such as the end of a message."""
    special = {token for token, value in tokenizer.added_tokens_decoder.items() if value.special}
    return special - {tokenizer.unk_token_id} | {tokenizer.eos_token_id}  # WikiText contains the name "<unk>"


def _warn_of_changes(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> None:
    """Warn if texts contain names of special tokens, or if the tokenizer loses case, spaces or forms of characters."""
    parts = [text[: 10**5] + text[10**5 :][-200:] for text in texts]
    special = sorted(tokenizer.convert_ids_to_tokens(list(special_ids(tokenizer))))
    if found := [name for name in special if any(name in part for part in parts)]:
        names = "Names of special tokens in documents, such as %s, are read as ordinary text."
        logger.warning(f"{names} Remove them. For chats, use the column `messages` (docs/finetuning.md).", found[0])
    for text in (text[:200].rstrip() for text in texts):
        others = {text.lower(), normalize("NFKC", text), re.sub(r"\s+", " ", text), re.sub(r"\s+(?=[^\w\s])", "", text)}
        encoded = tokenizer([text, *others - {text}], add_special_tokens=False, split_special_tokens=True)["input_ids"]
        if encoded[0] in encoded[1:]:
            message = "The tokenizer changes %r to %r, so bits per byte are too low. Use another one."
            logger.warning(message, text, tokenizer.decode(encoded[0]))
            break


def _encode_selected(
    texts: list[str | None], select: Callable[[Iterable[str | None]], list[str]], columns: list[str], **options: Any
) -> dict[str, list]:
    selected = select(texts)
    return encode_batch(selected, **options) if selected else {column: [] for column in columns}


def encode_batch(
    texts: list[str], tokenizer: PreTrainedTokenizerBase, with_token_bytes: bool, context_marks: str | None = None
) -> dict[str, list]:
    """Return the columns described in `encode_documents` for a batch of texts."""
    contexts: list[list[bool]] = []
    if context_marks is not None:
        texts, contexts = map(list, zip(*(split_context(text, context_marks) for text in texts), strict=True))
    if tokenizer.mask_token is not None and any(f" {tokenizer.mask_token}" in text for text in texts):
        tokenizer = tokenization.keep_space_before_masks(tokenizer)
    encoded = tokenizer(
        texts,
        add_special_tokens=False,
        split_special_tokens=True,  # "<|endoftext|>" in a text is not a special token
        return_offsets_mapping=with_token_bytes or context_marks is not None,
        verbose=False,  # no warnings about documents that are longer than a sequence
    )
    columns = {
        "input_ids": [[*ids, tokenizer.eos_token_id] for ids in encoded["input_ids"]],
        "num_tokens": [len(ids) + 1 for ids in encoded["input_ids"]],
        "num_bytes": [len(text.encode()) + 1 for text in texts],
    }
    if with_token_bytes:
        columns["token_bytes"] = list(map(count_token_bytes, texts, encoded["offset_mapping"]))
    if context_marks is not None:
        parts = zip(encoded["input_ids"], encoded["offset_mapping"], contexts, strict=True)
        columns["labels"] = [[*_label(*part), tokenizer.eos_token_id] for part in parts]
    return columns


def _label(ids: list[int], offsets: list[tuple[int, int]], is_context: list[bool]) -> list[int]:
    """Return the ids of a text, and -100 for tokens whose characters are all in the context.

    Some tokenizers leave spaces out of `offsets`. A space then belongs to the next token that has characters.
    """
    labels, before = [], 0
    following = [*(start for start, _ in offsets[1:]), len(is_context)][: len(ids)]  # none if the text is empty
    for token, (start, end), next_start in zip(ids, offsets, following, strict=True):
        start, end = min(start, before), end if start < end else max(next_start, before)
        labels.append(-100 if start < end and all(is_context[start:end]) else token)
        before = end
    return labels


def split_context(text: str, context_marks: str) -> tuple[str, list[bool]]:
    """Return a text without the context marks, and whether each of its characters is in the context.

    Each part of the context begins with the first of the two characters in `context_marks`, and ends with the second.

    Raise a `ValueError` if the marks of a text are not in pairs.
    """
    opening, closing = map(re.escape, context_marks)
    parts = re.split(f"{opening}([^{opening}{closing}]*){closing}", text)  # those with odd indices are context
    if any(mark in part for mark in context_marks for part in parts):
        opening, closing = map(repr, context_marks)
        raise ValueError(
            f"{opening} and {closing} (`context_marks`) must alternate, from {opening} to {closing}, but do not in the "
            f"document {text[:80]!r}. Correct the document, or choose other marks."
        )
    return "".join(parts), [index % 2 == 1 for index, part in enumerate(parts) for _ in part]


def count_token_bytes(text: str, offsets: list[tuple[int, int]]) -> list[int]:
    """Return the number of UTF-8 bytes of each token and, as the last item, of end-of-text.

    If a character is split into several tokens, the first of these tokens counts all its bytes. End-of-text counts one
    byte for the separator between documents, and the bytes after the last token, if any.
    """
    bytes_before = np.concatenate([[0], np.cumsum([len(character.encode()) for character in text], dtype=int)])
    ends = [0, *(end for _, end in offsets)]
    boundaries = np.maximum.accumulate(bytes_before[ends])
    return [*np.diff(boundaries).tolist(), int(bytes_before[-1] - boundaries[-1]) + 1]
