# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""What general compressors need for the held-out documents of a corpus, in bits per byte.

    python eval/compression_baselines.py [--corpus NAME_OR_FILES ...]

The bytes are those that a model's bits per byte count: the UTF-8 text of each document, in the corpus's order, and one
newline after it.
"""

import lzma
import sys
import zlib
from collections.abc import Iterable

from training.data import DataArguments, load_documents
from training.errors import errors_in_a_line
from training.options import Parser


def compression_bits_per_byte(training_documents: Iterable[str], held_out_documents: Iterable[str]) -> dict[str, float]:
    """Compressed size of the held-out documents over their size, in bits per byte.

    Returns:
        `zlib` (level 9) and `xz` (preset 9, extreme) of the held-out documents alone, and `xz_after_training`: how much
        larger xz gets when they follow the training documents (of which it looks back on the last 64 MiB).

    Raises:
        ValueError: without held-out documents.
    """
    training, held_out = join(training_documents), join(held_out_documents)
    if not held_out:
        raise ValueError("There are no held-out documents to compress.")
    sizes = {
        "zlib": len(zlib.compress(held_out, 9)),
        "xz": xz_size(held_out),
        "xz_after_training": xz_size(training + held_out) - xz_size(training),
    }
    return {name: 8 * size / len(held_out) for name, size in sizes.items()}


def join(documents: Iterable[str]) -> bytes:
    return "".join(document + "\n" for document in documents).encode()


def xz_size(data: bytes) -> int:
    return len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))


@errors_in_a_line()
def main(argv: list[str]) -> None:
    (arguments,) = Parser(DataArguments).parse(argv)
    documents = load_documents(arguments)
    figures = compression_bits_per_byte(
        filter(None, documents["train"]["text"]), filter(None, documents["validation"]["text"])
    )
    for name, bits in figures.items():
        print(f"{name:<18} {bits:.3f} bits per byte")


if __name__ == "__main__":
    main(sys.argv[1:])
