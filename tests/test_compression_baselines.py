# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import lzma
import random
import zlib

import pytest

from eval.compression_baselines import compression_bits_per_byte, main


def test_sizes_are_those_of_the_joined_documents() -> None:
    held_out = ["größer", "größe", ""]
    data = "größer\ngröße\n\n".encode()
    figures = compression_bits_per_byte([], held_out)
    assert figures["zlib"] == 8 * len(zlib.compress(data, 9)) / len(data)
    assert figures["xz"] == 8 * len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)) / len(data)


def test_xz_profits_from_training_documents_that_tell_the_held_out_ones() -> None:
    letters = random.Random(0)
    documents = ["".join(letters.choices("abcdefgh", k=40)) for _ in range(100)]
    seen = compression_bits_per_byte(documents, documents)
    unseen = compression_bits_per_byte(reversed([document.upper() for document in documents]), documents)
    assert seen["xz"] == unseen["xz"] > 3  # eight letters: 3 bits each
    assert seen["xz_after_training"] < 0.2
    assert 2.5 < unseen["xz_after_training"] < 3.5


def test_nothing_to_compress() -> None:
    with pytest.raises(ValueError, match="no held-out documents"):
        compression_bits_per_byte(["a"], [])


def test_command_prints_three_figures(datasets_cache: None, capsys: pytest.CaptureFixture) -> None:
    main([])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["zlib", "xz", "xz_after_training"]
    for line, expected in zip(lines, (2.39, 2.30, 1.46), strict=True):  # to a tenth: Unicode and zlib have versions
        assert float(line.split()[1]) == pytest.approx(expected, abs=0.1)
