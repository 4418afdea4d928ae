# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import shutil
from itertools import islice
from pathlib import Path

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from tokenizers.processors import TemplateProcessing

from common.corpora import unicode_names
from common.tokenizers import num_unpadded, train_tokenizer, vocabulary_arguments
from eval.studies.names.watch import CHARACTER_WIDTH, DOTS_PER_INCH, FONT_SIZE, main
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, MDMEncoderConfig, MDMEncoderForMaskedLM
from modeling_aogpt.generation import AnyOrderGenerationOutput
from modeling_aogpt.tokenization import load_tokenizer
from tests.references import make_run

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tokenizer = train_tokenizer((name for _, name in islice(unicode_names(), 3000)), vocab_size=400)
    torch.manual_seed(0)
    config = AOGPTConfig(**SIZES | vocabulary_arguments(tokenizer))
    AOGPTForAnyOrderLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_encoder(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = load_tokenizer(str(folder))
    vocabulary = vocabulary_arguments(tokenizer)
    config = MDMEncoderConfig(**SIZES | vocabulary | {"vocab_size": vocabulary["mask_token_id"] + 1})
    MDMEncoderForMaskedLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    main([str(tmp_path), "<|mask|> SIGN", "--length", "8", "--output_dir", str(tmp_path)])
    assert "1 tokens in 1 forward passes, 8 rows in all" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seconds", "0"], r"error: `seconds` must be at least 0\.01, but is 0\.0"),
        (["A SIGN"], r"error: No text contains a mask. Put <\|mask\|> where"),
        (["--temperature", "0"], r"error: `temperature` must be at least 1e-06, but is 0\.0"),
        (["--num_steps", "0"], "error: `num_steps` must be an integer of at least 1, but is 0"),
    ],
)
def test_bad_input_is_an_error_in_one_line(folder: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        main([str(folder), *arguments])


def test_gif(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "samples.gif"
    main([str(folder), "--num_samples", "3", "--num_steps", "4", "--output_dir", str(path.parent), "--seconds", "0.5"])
    with Image.open(path) as picture:
        assert picture.format == "GIF"
        assert picture.info["loop"] == 0
        assert 3 <= picture.n_frames <= 5  # the inputs, and at most four steps
        picture.seek(picture.n_frames - 1)
        assert picture.info["duration"] == 3000  # the result is shown for 2.5 more seconds
    assert list(path.parent.iterdir()) == [path]


def test_whole_sequences_have_the_given_length_and_seed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = []
    for seed in ("0", "0", "1"):
        main([str(folder), "--length", "3", "--seed", seed, "--output_dir", str(tmp_path)])
        assert "3 tokens in 3 forward passes" in capsys.readouterr().out
        pictures.append((tmp_path / "samples.gif").read_bytes())
    assert pictures[0] == pictures[1] != pictures[2]


def test_the_length_of_whole_sequences_is_that_of_the_run(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = shutil.copytree(folder, tmp_path / "model")
    make_run(str(copied), 3)
    main([str(copied), "--output_dir", str(tmp_path)])
    assert "3 tokens in 3 forward passes" in capsys.readouterr().out


def test_characters_of_a_picture_are_aligned_in_columns() -> None:
    figure = Figure(dpi=DOTS_PER_INCH)
    renderer = FigureCanvasAgg(figure).get_renderer()
    text = figure.text(0, 0, "M" * 60, family="DejaVu Sans Mono", fontsize=FONT_SIZE)
    assert abs(text.get_window_extent(renderer).width - 60 * CHARACTER_WIDTH * DOTS_PER_INCH) < 2


def test_texts_are_padded(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Padding is not filled in: there are three masks in the two texts."""
    texts = ["<|mask|>", "<|mask|><|mask|>"]
    for length in ([], ["--length", "3"]):
        main([str(folder), *texts, *length, "--output_dir", str(tmp_path)])
        assert "3 tokens in 2 forward passes" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"^error: `length` is 1, but the longest text has 2 tokens"):
        main([str(folder), *texts, "--length", "1", "--output_dir", str(tmp_path)])


def test_texts_are_encoded_as_in_training_and_printed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tokenizers of some converted models add beginning-of-text, and pad on the left."""
    tokenizer = load_tokenizer(str(folder))
    lengths = [len(tokenizer(text).input_ids) for text in ("A", "SIGN")]
    end = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{end} $A", special_tokens=[(end, tokenizer.eos_token_id)]
    )
    tokenizer.padding_side = "left"
    shown: list[AnyOrderGenerationOutput] = []
    monkeypatch.setattr("eval.studies.names.watch.load_tokenizer", lambda name: tokenizer)
    monkeypatch.setattr("eval.studies.names.watch.draw", lambda output, *others: shown.append(output))
    main([str(folder), "A<|mask|>", "SIGN<|mask|>", "--length", "8", "--output_dir", str(tmp_path)])
    (output,) = shown
    assert (output.unmasking_steps >= 0).nonzero()[:, 1].tolist() == lengths
    assert (output.sequences[:, -1] == tokenizer.eos_token_id).all()
    texts = [tokenizer.decode(ids[: num_unpadded(ids, tokenizer.eos_token_id)]) for ids in output.sequences.tolist()]
    assert texts[1].startswith("SIGN")
    assert capsys.readouterr().out.startswith("\n".join(texts) + "\n")
