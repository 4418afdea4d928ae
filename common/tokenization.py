# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers learned from a corpus, what a model must know of a tokenizer, and the text of padded sequences."""

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from modeling_aogpt.configuration_aogpt import GPT2_PADDED_VOCAB_SIZE, GPT2_VOCAB_SIZE
from modeling_aogpt.tokenization import add_mask_token

END_OF_TEXT = "<|endoftext|>"
SMALLEST_VOCAB_SIZE = 257  # the bytes and end-of-text


def train_tokenizer(documents: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """
    Train a byte-level BPE like GPT-2's: merges stay inside words, and any text can be encoded.

    The same documents in the same order give the same tokenizer, byte for byte.

    Args:
        documents: The training split.
        vocab_size: Ids of the model's table: 256 bytes, `<|endoftext|>` (id 0) and merges. The mask token is added to
            them.

    Raises:
        ValueError: If the documents have too little text for so many merges, or `vocab_size` is too small.
    """
    if vocab_size < SMALLEST_VOCAB_SIZE:
        raise ValueError(f"vocab_size is {vocab_size}; byte-level BPE needs at least {SMALLEST_VOCAB_SIZE}.")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    if tokenizer.get_vocab_size() < vocab_size:
        raise ValueError(
            f"The corpus is too small for vocab_size={vocab_size}: its words are whole tokens at "
            f"{tokenizer.get_vocab_size()}. Choose at most that."
        )
    # End-of-text pads, as is usual for GPT-2: batches carry an attention mask, so padding is never told by its id.
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT, pad_token=END_OF_TEXT
    )
    return add_mask_token(wrapped)


def vocabulary_arguments(tokenizer: PreTrainedTokenizerBase) -> dict[str, int | None]:
    """
    Return the arguments of `AOGPTConfig` that depend on the tokenizer.

    The mask id follows the valid tokens, and lies outside the model's table (a decoder never embeds it). GPT-2's 50257
    ids get the table of 50304 of the released checkpoints.
    """
    valid = tokenizer.mask_token_id
    return {
        "vocab_size": GPT2_PADDED_VOCAB_SIZE if valid == GPT2_VOCAB_SIZE else valid,
        "num_valid_tokens": valid,
        "mask_token_id": valid,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def decode(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the text of a sequence padded with end-of-text. An end-of-text inside the text is kept."""
    return tokenizer.decode(ids[: num_unpadded(ids, tokenizer.eos_token_id)])


def num_unpadded(ids: Sequence[int], end_of_text: int) -> int:
    """Return the number of ids before the end-of-text tokens at the end."""
    end = len(ids)
    while end and ids[end - 1] == end_of_text:
        end -= 1
    return end
