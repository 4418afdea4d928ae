# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""The demo: its steps, and the page in a browser (needs gradio, playwright and an installed Chromium)."""

import colorsys
import html
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import SpaceCardData
from transformers import PreTrainedTokenizerFast

from common.tokenizers import train_tokenizer
from modeling_aogpt import AOGPTForAnyOrderLM
from modeling_aogpt.infill import encode_with_masks

pytest.importorskip("gradio", reason="the demo needs gradio: pip install -e '.[demo]'")
from demo import app

ROOT = Path(__file__).parents[1]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)


def collect_steps(
    model: AOGPTForAnyOrderLM,
    tokenizer: PreTrainedTokenizerFast,
    text: str = "ab__e_",
    ending: str = "end",
    longest_gap: int = 1,
    seed: int = 0,
    **settings: object,
) -> list[list[app.Token]]:
    ids = app.encode(model, tokenizer, text, ending, longest_gap)
    return list(app.fill(model, tokenizer, ids, seed, **settings))


def test_masks_are_filled_in_one_after_another(
    tiny_model: AOGPTForAnyOrderLM, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    shown = collect_steps(tiny_model, tiny_tokenizer, order="left_to_right")
    masked = [[position for position, token in enumerate(tokens) if token.text is None] for tokens in shown]
    assert masked == [[2, 3, 5], [3, 5], [5], [], []]
    assert [token.text for token in shown[0][:5]] == ["a", "b", None, None, "e"]
    assert {token.text for token in shown[0][6:]} == {"<eos>"}
    assert [token.step for token in shown[-1]][:6] == [None, None, 0, 1, None, 2]
    assert all(token.log_probability is None for tokens in shown[:-1] for token in tokens)


@pytest.mark.parametrize(("ending", "is_allowed"), [("end", False), ("continue", True)])
def test_a_gap_of_a_model_that_ends_gaps_contains_no_end(
    ending: str, is_allowed: bool, tiny_model: AOGPTForAnyOrderLM, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    tiny_model.config.max_gap_length = 3
    with torch.no_grad():
        tiny_model.lm_head.bias[tiny_tokenizer.eos_token_id] += 100
    filled = [
        token.text for token in collect_steps(tiny_model, tiny_tokenizer, ending=ending)[-1] if token.step is not None
    ]
    assert ("<eos>" in filled) == is_allowed


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("a_c", ["a", None, "c"]),
        (r"a\_c_", ["a", "_", "c", None]),
        (r"a\\_", ["a", "\\", None]),
        (r"\a_", ["\\", "a", None]),
    ],
)
def test_a_literal_underscore_is_written_with_a_backslash(
    written: str, expected: list[str | None], tiny_model: AOGPTForAnyOrderLM, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    tiny_tokenizer.add_tokens(["_", "\\"])
    ids = app.encode(tiny_model, tiny_tokenizer, written, "end")[0, : len(expected)]
    assert [app.decode(token, tiny_tokenizer) for token in ids.tolist()] == expected


@pytest.mark.parametrize("text", ["def f():\n    _\n", "ab _ cd_", "_  _", "_"])
def test_text_with_masks_is_encoded_as_infill_does(text: str, tiny_model: AOGPTForAnyOrderLM) -> None:
    tokenizer = train_tokenizer(["def f():\n    ab cd"], 265)
    expected = encode_with_masks(text.replace("_", tokenizer.mask_token), tokenizer)
    assert app.encode(tiny_model, tokenizer, text, "end")[0, : len(expected)].tolist() == expected


@pytest.mark.parametrize("ending", ["end", "continue"])
def test_the_model_chooses_the_lengths_of_gaps(
    ending: str,
    tiny_model: AOGPTForAnyOrderLM,
    tiny_tokenizer: PreTrainedTokenizerFast,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tiny_model.config, "eos_token_id", tiny_tokenizer.eos_token_id)
    ids, mask = torch.tensor(tiny_tokenizer("ab<mask>c<mask>").input_ids), tiny_tokenizer.mask_token_id
    lengths = range(1, 4) if ending == "end" else [range(1, 4), [1]]  # with more text, the last gap has no length
    first, second = tiny_model.infill(ids, lengths, 12 if ending == "end" else None).lengths.tolist()
    masked = [
        token.text is None for token in collect_steps(tiny_model, tiny_tokenizer, "ab_c_", ending, longest_gap=3)[0]
    ]
    text = [False, False, *[True] * first, False, *[True] * second]
    assert masked == text + [ending == "continue"] * (12 - len(text))
    assert (app.encode(tiny_model, tiny_tokenizer, "ab_c_", ending)[0, :5] == mask).tolist() == [0, 0, 1, 0, 1]


def test_adjacent_gaps_are_one_gap(
    tiny_model: AOGPTForAnyOrderLM, tiny_tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_model.config, "eos_token_id", tiny_tokenizer.eos_token_id)
    ids = torch.tensor(tiny_tokenizer("ab<mask>e").input_ids)
    length = int(tiny_model.infill(ids, range(2, 5), 12).lengths)
    is_mask = app.encode(tiny_model, tiny_tokenizer, "ab__e", "end", 2)[0] == tiny_tokenizer.mask_token_id
    assert is_mask.tolist() == [False] * 2 + [True] * length + [False] * (10 - length)
    encoder = SimpleNamespace(config=tiny_model.config, encode_text=tiny_model.encode_text)
    for model, text, message in (
        (tiny_model, "__", "The text has nothing but gaps"),
        (encoder, "a_b", "This model is an encoder"),
    ):
        with pytest.raises(ValueError, match=f'^{message}, so their lengths .* Set "Maximum tokens for each _" to 1'):
            app.encode(model, tiny_tokenizer, text, "end", 2)


def test_fewer_steps_fill_in_several_positions_at_once(
    tiny_model: AOGPTForAnyOrderLM, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    shown = collect_steps(tiny_model, tiny_tokenizer, text="", ending="continue", num_steps=2)
    assert len(shown[0]) == 12
    assert len(shown) <= 4
    assert {token.step for token in shown[-1]} <= {0, 1}


def test_text_after_end_of_text_is_filled_in(
    tiny_model: AOGPTForAnyOrderLM, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    tiny_model.generation_config.eos_token_id = tiny_tokenizer.eos_token_id
    with torch.no_grad():
        tiny_model.lm_head.bias[tiny_tokenizer.eos_token_id] += 10.0
    shown = collect_steps(tiny_model, tiny_tokenizer, text="ab_", ending="continue", order="left_to_right")
    assert [token.text for token in shown[-1]][2] == "<eos>"
    assert [token.step for token in shown[-1]] == [None, None, *range(10)]
    assert None not in [token.text for token in shown[-1]]


def test_shown_probabilities_multiply_to_the_likelihood_of_the_text(
    tiny_model: AOGPTForAnyOrderLM, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    """Their product is p(text | order), also when the text was page_html at another temperature."""
    tokens = collect_steps(tiny_model, tiny_tokenizer, order="left_to_right", text="_" * 12, temperature=0.5)[-1]
    ids = tiny_tokenizer.convert_tokens_to_ids([token.text for token in tokens])
    expected = tiny_model.log_likelihood(torch.tensor([ids])).log_likelihood.item()
    total = sum(token.log_probability for token in tokens)
    assert total == pytest.approx(expected, rel=1e-4)
    assert f"{expected:.2f} nats" in app.render(tokens)


def test_wrong_inputs_are_errors(tiny_model: AOGPTForAnyOrderLM, tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    for text, message in (
        ("abc", "The text has nothing to fill in. Write _"),
        ("_" * 13, "at most 12 tokens, but has 13"),
        ("_" * 2001, "at most 2000 characters, but has 2001"),
    ):
        with pytest.raises(ValueError, match=message):
            collect_steps(tiny_model, tiny_tokenizer, text=text)
    with pytest.raises(ValueError, match="`temperature` must"):
        collect_steps(tiny_model, tiny_tokenizer, temperature=0.0)


def test_equal_seeds_give_equal_texts(tiny_model: AOGPTForAnyOrderLM, tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    first, again, other = (
        collect_steps(tiny_model, tiny_tokenizer, text="_" * 12, seed=seed)[-1] for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([("a", None), ("<eos>", None), ("<eos>", None)], ["a"]),
        ([("a", None), ("<eos>", 1), ("<eos>", 0)], ["a", "<eos>"]),
        ([("a", None), (None, None), ("<eos>", 0)], ["a", "?", "<eos>"]),
        ([("<eos>", 0), ("a", None), ("<eos>", None)], ["<eos>", "a"]),
        ([("<eos>", 0), ("<eos>", 1)], ["<eos>"]),
    ],
)
def test_end_of_text_is_shown_once(tokens: list[tuple[str | None, int | None]], expected: list[str]) -> None:
    """Only where it was generated. A text without it would look unfinished, and a row of it is hard to read."""
    page = app.render([app.Token(*token) for token in tokens], "<eos>")
    assert re.findall(r'<span class="token[^>]*>([^<]*)<small>', page) == [html.escape(text) for text in expected]


def test_a_very_unlikely_token_has_a_finite_log_likelihood() -> None:
    assert "-200.50 nats" in app.render([app.Token("a", 0, -200.0), app.Token("b", 1, -0.5)])


@pytest.mark.parametrize("step", range(21))
def test_white_text_has_enough_contrast(step: int) -> None:
    """The contrast with each color is at least that of WCAG 2, level AA."""
    hue, saturation, lightness = map(int, re.findall(r"\d+", app.step_color(step, 20)))
    rgb = colorsys.hls_to_rgb(hue / 360, lightness / 100, saturation / 100)
    red, green, blue = (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in rgb)
    assert 1.05 / (0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05) >= 4.5


def test_text_is_escaped() -> None:
    page_html = app.render([app.Token("<script>", 0, -0.5), app.Token("<b>"), app.Token(None)])
    assert "<script>" not in page_html
    assert "<b>" not in page_html
    assert len(re.findall('class="token[ "]', page_html)) == 3


# ------------------------------------------------------------------------------------------------------------- the page


def test_the_page_shows_each_step_and_errors(
    tiny_model: AOGPTForAnyOrderLM, tiny_tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = []
    monkeypatch.setattr(app, "load", {"text": (tiny_model, tiny_tokenizer)}.__getitem__)
    monkeypatch.setenv("AOGPT_MODEL", "text")
    monkeypatch.setattr(app.gr.Blocks, "launch", lambda page, **_: pages.append(page))
    app.main([])
    [show] = [function.fn for function in pages[0].fns.values() if function.name == "show"]
    settings = (1, "nothing", "random", 0, 1.0, 1.0, 7, 0)
    shown = list(show("ab__e_", *settings))
    assert len(shown) == 6  # nothing, the masks, three steps, and the probabilities
    assert "Seed 7: 3 tokens in 3 steps" in shown[-1]
    with pytest.raises(app.gr.Error, match="nothing to fill in"):
        list(show("abc", *settings))


# ----------------------------------------------------------------------------------------------------------- the folder


def test_a_model_that_cannot_be_loaded_is_a_one_line_error(tmp_path: Path, tiny_model: AOGPTForAnyOrderLM) -> None:
    with pytest.raises(SystemExit, match=r"^error: The model 'nowhere' cannot be loaded"):
        app.main(["nowhere"])
    tiny_model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_text("no weights")
    with pytest.raises(SystemExit, match=f"^error: The model '{tmp_path}' cannot be loaded"):
        app.main([str(tmp_path)])


def test_models_that_are_not_any_order_are_an_error(judge: str) -> None:
    with pytest.raises(SystemExit, match=r"^error: The model .* is a GPT2Model, not an any-order model"):
        app.main([judge])


def test_the_readme_has_the_metadata_of_a_space() -> None:
    readme = (ROOT / "demo" / "README.md").read_text()
    fields = dict(line.split(": ", 1) for line in readme.split("---\n")[1].strip().splitlines())
    data = SpaceCardData(**fields)
    assert (ROOT / "demo" / data.app_file).is_file()
    assert data.sdk == "gradio"
    code = (ROOT / "demo" / "app.py").read_text()
    assert set(re.findall(r"AOGPT_\w+", code)) == set(re.findall(r"AOGPT_\w+", readme))
    assert not re.search(r"^(from|import) (modeling_aogpt|common|training|eval)", code, re.MULTILINE)


# ------------------------------------------------------------------------------------------------------- the browser


@pytest.fixture
def url(tiny_model: AOGPTForAnyOrderLM, tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> Iterator[str]:
    """Start the demo with a tiny model, and return its URL."""
    tiny_model.save_pretrained(tmp_path / "model")
    tiny_tokenizer.save_pretrained(tmp_path / "model")
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "HF_MODULES_CACHE": str(tmp_path / "modules")}
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, str(ROOT / "demo" / "app.py"), str(tmp_path / "model")]
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 120
        while not (started := re.search(r"local URL: +(http://[\w.]+:\d+)\b.*\n", (tmp_path / "log").read_text())):
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, "the demo did not start"
            time.sleep(0.2)
        yield started[1]
    finally:
        process.terminate()
        process.wait()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_in_a_browser(url: str) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 860, "height": 800})
        errors, requests = [], []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(url)
        sliders = page.locator(".head:has(input[type=number])")
        sliders.nth(3).wait_for()
        for slider in sliders.all()[1:]:  # no label overlaps the number beside it (that of the steps has several lines)
            name, number = (slider.locator(part).bounding_box() for part in ("label span", "input"))
            assert name["x"] + name["width"] < number["x"] - 4 or name["y"] + name["height"] <= number["y"]
        page.locator("#text textarea").fill("ab__e_")
        page.locator("#start").click()
        page.locator("#result .token.new").first.wait_for()  # visible while the text is being filled in
        page.locator("#result .summary").wait_for()
        assert page.locator("#result .token.filled").count() == 3
        assert page.locator("#result .token.masked").count() == 0
        assert sorted(
            page.locator("#result .token.filled").evaluate_all("all => all.map(one => one.dataset.step)")
        ) == list("012")
        seeds = set()
        for given in ("-1", "-1", ""):  # each click draws a new seed, and shows it
            page.get_by_label("Seed").fill(given)
            page.locator("#start").click()
            page.locator("#result .summary").wait_for(state="detached")
            seeds.add(re.search(r"Seed (\d+)", page.locator("#result .summary").text_content())[1])
        assert len(seeds) == 3
        page.get_by_label("Seed").fill("7")
        page.locator("#start").click()
        page.get_by_text("Seed 7: 3 tokens").wait_for()
        page.locator("#text textarea").fill("abc")
        page.locator("#start").click()
        page.get_by_text("The text has nothing to fill in").wait_for()
        browser.close()
    assert errors == []
    assert [request for request in requests if not request.startswith((url, "data:", "blob:"))] == []
