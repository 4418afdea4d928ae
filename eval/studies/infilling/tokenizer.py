# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Tokenizer of all models of the study: byte-level BPE with the sentinels of fill-in-the-middle as added tokens.

python eval/studies/infilling/tokenizer.py OUTPUT_DIR
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from common.commands import Parser, one_line_errors
from common.corpora import load_corpus
from common.data_arguments import DataArguments
from common.tokenizers import END_OF_TEXT, train_tokenizer
from eval.studies.infilling.fill_in_the_middle import SENTINELS
from modeling_aogpt.tokenization import add_mask_token

CORPUS, VOCAB_SIZE = "python-stdlib", 4096


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Train the tokenizer as training/pretrain.py does, and add the sentinels before the mask token."""
    texts = load_corpus(DataArguments(corpus=[CORPUS])).train
    trained = train_tokenizer(texts, VOCAB_SIZE)
    state = json.loads(trained.backend_tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] == END_OF_TEXT]
    state["normalizer"] = None  # only the mask token needs it
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
    )
    tokenizer.add_tokens(list(SENTINELS), special_tokens=True)
    return add_mask_token(tokenizer)


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser((), description="Write the tokenizer of the study.")
    parser.add_argument("folder", type=Path, help="Folder to write.")
    (arguments,) = parser.parse(argv)
    make_tokenizer().save_pretrained(arguments.folder)


if __name__ == "__main__":
    main(sys.argv[1:])
