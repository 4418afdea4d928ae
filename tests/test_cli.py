# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""The command `aogpt`: text in, text out, JSON, options of `generate`, and errors in one line."""

import io
import json
import math
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from aogpt.cli import main
from modeling_aogpt import AOGPTForAnyOrderLM, MDMEncoderConfig, MDMEncoderForMaskedLM
from tests.references import SIZES


def run(capsys: pytest.CaptureFixture, *argv: str) -> str:
    main(argv)
    return capsys.readouterr().out


def test_generate_continues_fills_in_and_writes_text(
    folder: str, tiny_model: AOGPTForAnyOrderLM, tiny_tokenizer: PreTrainedTokenizerFast, capsys: pytest.CaptureFixture
) -> None:
    greedy = {"do_sample": False, "order": "left_to_right", "stop_at_eos": False}
    options = ("--temperature", "0", "--order", "left_to_right", "--stop_at_eos", "false")
    for text, ids, lengths, more in (
        ("ab", [[0, 1]], {"max_new_tokens": 3}, ("--max_new_tokens", "3")),
        ("ab", [[0, 1]], {"max_length": 12}, ()),
        ("a<mask>b", [[0, 16, 1]], {}, ()),
    ):
        expected = tiny_model.generate(torch.tensor(ids), **greedy, **lengths)
        texts = tiny_tokenizer.batch_decode(expected, skip_special_tokens=True)
        assert run(capsys, "generate", folder, text, *options, *more) == f"{texts[0]}\n"
    expected = tiny_model.generate(num_return_sequences=2, top_k=3, generator=torch.Generator().manual_seed(5))
    output = run(capsys, "generate", folder, "--seed", "5", "--num_return_sequences", "2", "--top_k", "3", "--json")
    assert json.loads(output) == {"texts": tiny_tokenizer.batch_decode(expected, skip_special_tokens=True)}


def test_an_edited_end_of_text_at_which_texts_do_not_end_gives_a_warning(
    folder: str, tiny_tokenizer: PreTrainedTokenizerFast, capsys: pytest.CaptureFixture
) -> None:
    model = AOGPTForAnyOrderLM.from_pretrained(folder)
    tiny_tokenizer.eos_token = "b"
    for ends, has_warning in ((0, True), ([0, 2], True), (1, False), ([0, 1], False), (None, False)):
        model.generation_config.eos_token_id = ends
        model.save_pretrained(folder)
        tiny_tokenizer.save_pretrained(folder)
        main(["generate", folder, "a", "--max_new_tokens", "1"])
        assert ("Texts do not end at 'b'" in capsys.readouterr().err) == has_warning


@pytest.mark.parametrize("limit", [{"max_length": 5}, {"max_new_tokens": 3}])
def test_the_length_in_the_settings_of_the_model_is_used(
    folder: str, tiny_tokenizer: PreTrainedTokenizerFast, limit: dict[str, int], capsys: pytest.CaptureFixture
) -> None:
    model = AOGPTForAnyOrderLM.from_pretrained(folder)
    model.generation_config.update(**limit, do_sample=False, stop_at_eos=False)
    model.save_pretrained(folder)
    expected = model.generate(torch.tensor([[0, 1]]))
    assert expected.shape == (1, 5)
    assert run(capsys, "generate", folder, "ab") == f"{tiny_tokenizer.decode(expected[0], skip_special_tokens=True)}\n"


def test_infill_reads_standard_input(
    folder: str,
    tiny_model: AOGPTForAnyOrderLM,
    tiny_tokenizer: PreTrainedTokenizerFast,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"do_sample": False, "order": "confidence"}
    expected = tiny_model.infill("ab<mask>c", lengths=[1, 2, 3], tokenizer=tiny_tokenizer, **settings)
    data = io.BytesIO("\ufeffab<mask>c\r\n".encode())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(data, encoding="latin-1"))  # of Windows
    options = ("--max_gap", "3", "--do_sample", "false", "--order", "confidence", "--json")
    output = json.loads(run(capsys, "infill", folder, *options))
    assert output["texts"] == expected.texts
    assert output["lengths"] == expected.lengths.tolist()
    assert output["candidates"] == [[1], [2], [3]]
    assert output["log_probs"] == pytest.approx(expected.log_probs.tolist())


def test_gaps_are_by_default_as_long_as_in_training(folder: str, capsys: pytest.CaptureFixture) -> None:
    model = AOGPTForAnyOrderLM.from_pretrained(folder)
    model.config.max_gap_length, model.config.eos_token_id = 2, 4
    model.save_pretrained(folder)
    output = json.loads(run(capsys, "infill", folder, "ab<mask>c", "--json"))
    assert output["lengths"][0] <= 2


def test_score_agrees_with_log_likelihood(
    folder: str, tiny_model: AOGPTForAnyOrderLM, capsys: pytest.CaptureFixture
) -> None:
    expected = tiny_model.log_likelihood(torch.tensor([[0, 1, 2]]))
    output = json.loads(run(capsys, "score", folder, "abc", "--json"))
    assert output["log_likelihood"] == pytest.approx(expected.log_likelihood.item())
    assert output["token_log_likelihood"] == pytest.approx(expected.token_log_likelihood[0].tolist())
    assert output["tokens"] == ["a", "b", "c"]
    left_to_right = run(capsys, "score", str(Path(folder).parent), "abc")  # the folder of a run
    assert left_to_right.startswith(f"{expected.log_likelihood.item():.4f} nats, 3 tokens")
    assert output["standard_error"] == 0
    drawn = json.loads(run(capsys, "score", folder, "abc", "--num_orders", "4", "--seed", "1", "--json"))
    shown = f"{drawn['log_likelihood']:.4f} ± {drawn['standard_error']:.4f} nats"
    assert shown in run(capsys, "score", folder, "abc", "--num_orders", "4", "--seed", "1")
    generator = torch.Generator().manual_seed(2)
    single = tiny_model.log_likelihood(torch.tensor([[0, 1, 2]]), orders="random", generator=generator)
    shown = run(capsys, "score", folder, "abc", "--num_orders", "1", "--seed", "2")
    assert single.log_likelihood.item() != pytest.approx(expected.log_likelihood.item())
    assert shown.startswith(f"{single.log_likelihood.item():.4f} nats, 3 tokens")


def test_special_tokens_count_as_one_byte(
    tiny_model: AOGPTForAnyOrderLM,
    tiny_tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    """The start token has no loss, so it counts as none."""
    eos, expected = tiny_tokenizer.eos_token, {"abc": 3, "ab{eos}": 3, "{eos}ab": 3, "{eos}{eos}": 2}
    for start, fewer in ((None, 0), (tiny_tokenizer.eos_token_id, 1)):
        tiny_model.config.start_token_id = start
        AOGPTForAnyOrderLM(tiny_model.config).save_pretrained(tmp_path)
        tiny_tokenizer.save_pretrained(tmp_path)
        for text, num_bytes in expected.items():
            output = json.loads(run(capsys, "score", str(tmp_path), text.format(eos=eos), "--json"))
            num_bytes -= fewer * text.startswith("{eos}")
            assert output["bits_per_byte"] * num_bytes * math.log(2) == pytest.approx(-output["log_likelihood"])


def test_encoders_are_scored_in_orders(
    tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    sizes = {name: value for name, value in SIZES.items() if name != "initializer_range"}
    model = MDMEncoderForMaskedLM(MDMEncoderConfig(vocab_size=17, **sizes)).eval()
    model.save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    generator = torch.Generator().manual_seed(1)
    expected = model.log_likelihood(torch.tensor([[0, 1, 2]]), num_orders=4, generator=generator).log_likelihood.item()
    output = run(capsys, "score", str(tmp_path), "abc", "--num_orders", "4", "--seed", "1", "--json")
    assert json.loads(output)["log_likelihood"] == pytest.approx(expected)


def test_the_name_of_a_file_is_a_text_with_a_warning(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "abc").touch()
    for directory, is_warned in ((tmp_path.parent, False), (tmp_path, True)):
        monkeypatch.chdir(directory)
        main(["score", folder, "abc"])
        captured = capsys.readouterr()
        assert ("`- < abc`" in captured.err) == is_warned
        assert "3 tokens" in captured.out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("generate", "{nowhere}"), "nowhere"),
        (("generate", "{folder}", "--order", "sideways"), "order.*sideways"),
        (("generate", "{folder}", "a<mask>", "--max_new_tokens", "99"), "99 new tokens"),
        (("generate", "{folder}", "--device", "nothing"), "device.*nothing"),
        (("infill", "{folder}", "abc"), "no gap"),
        (("infill", "{encoder}", "a<mask>c"), "encoder"),
        (("score", "{folder}", ""), "empty"),
        (("score", "{folder}", "caf\udce9"), "UTF-8"),  # a byte of Latin-1
        (("convert", "{nowhere}", "{nowhere}"), "training/conversion"),
        (("generate", "{folder}", "--temperature", "hot"), "temperature.*hot"),
        (("generate", "{folder}", "--do_sample", "1"), "do_sample"),
        (("generate", "{folder}", "--order", "5"), "order"),
        (("infill", "{folder}", "a<mask>c", "--suppress_tokens", "[1"), "suppress_tokens"),
        (("generate", "{folder}", "--max_new", "1"), None),
        (("infill", "{folder}", "--max_gap", "a"), None),
        *((("serve", "{nowhere}", name, "4"), None) for name in ("--max_new_tokens", "--num_return_sequences")),
        ((), None),
    ],
)
def test_errors_have_one_line(
    folder: str,
    tiny_tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    argv: tuple[str, ...],
    message: str | None,
) -> None:
    """The exit status is 1 for a wrong input (with `message`), and 2 for a wrong option."""
    sizes = {name: value for name, value in SIZES.items() if name != "initializer_range"}
    MDMEncoderForMaskedLM(MDMEncoderConfig(vocab_size=17, **sizes)).save_pretrained(tmp_path / "encoder")
    tiny_tokenizer.save_pretrained(tmp_path / "encoder")
    paths = {"folder": folder, "encoder": tmp_path / "encoder", "nowhere": tmp_path / "nowhere"}
    capsys.readouterr()  # progress bars of saving
    with pytest.raises(SystemExit, match=f"^error: .*{message}" if message else "^2$") as error:
        main([word.format(**paths) for word in argv])
    shown = str(error.value) if message else capsys.readouterr().err.rstrip("\n")
    assert message or f"`{' '.join(('aogpt', *argv[:1]))} --help`" in shown
    assert "\n" not in shown
    assert shown.startswith("error: ")
