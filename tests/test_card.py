# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Model cards: they are complete, cite published numbers, show measurements, and their snippets run."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from transformers import PreTrainedTokenizerFast

from model_cards.card import find_cards, read_facts, render_card
from model_cards.measurements import Measurement, read_zero_shot_measurements
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, MDMEncoderConfig, MDMEncoderForMaskedLM
from tests.test_tables import make_results

RELEASED = [name for name in find_cards() if name.startswith(("ao-gpt", "sigma-gpt", "sedd", "radd"))]
ENCODERS = ("sedd", "radd", "mdlm", "encoder", "converted_masked")
SOURCE = {"model_type": "qwen3", "_name_or_path": "someone/causal", "license": "mit"}


def make_card(name: str, measurements: list[Measurement] = (), **settings: Any) -> ModelCard:
    if name.startswith("converted"):
        settings = {"source_config": SOURCE} | settings
    config = MDMEncoderConfig(**settings) if name.startswith(ENCODERS) else AOGPTConfig(**settings)
    values = {"num_parameters": 170_600_000, "dtype": "float32"}
    return render_card("somebody/model", read_facts(name), config, "<|mask|>", measurements, **values)


@pytest.mark.parametrize("name", find_cards())
def test_every_card_is_complete(name: str) -> None:
    card = make_card(name)
    licences = {"quickstart": "apache-2.0", "converted": "mit", "converted_masked": "mit", "mdlm": "apache-2.0"}
    assert card.data.license == licences.get(name, "unknown")
    assert card.data.tags == ["custom_code", *read_facts(name).get("tags", [])]
    is_encoder = name.startswith(ENCODERS)
    assert card.data.pipeline_tag == ("fill-mask" if is_encoder else "text-generation")
    assert f"| architecture | {'encoder, full attention' if is_encoder else 'decoder, any order'} |" in card.text
    assert "| parameters | 170,600,000 |" in card.text
    for heading in ("Intended use", "Load", "Generate", "Infill", "Score", "Training", "Results", "Limits and biases"):
        text = card.text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
        assert len(text.strip()) > 40, heading
    assert "trust_remote_code=True" in card.text
    assert re.search(r"```bibtex\n@misc\{xue2025aogpt,[^`]*2506\.19935[^`]*```\n$", str(card))


def test_cards_of_converted_models_name_their_source_and_its_licence() -> None:
    card = make_card("converted")
    assert (card.data.base_model, card.data.license) == ("someone/causal", "mit")
    text = " ".join(card.text.split())
    assert "It was converted from [someone/causal](https://huggingface.co/someone/causal)" in text
    assert "whose licence (mit) also applies" in text
    local = make_card("converted", source_config={"model_type": "llama", "architectures": ["LlamaForCausalLM"]})
    assert (local.data.base_model, local.data.license) == (None, "unknown")
    assert "It was converted from a local `LlamaForCausalLM`" in " ".join(local.text.split())
    with pytest.raises(ValueError, match="source_license"):
        make_card("converted", source_config=None)


@pytest.mark.parametrize("name", ["x](https://evil.example/)", "a/b/c", "a\n# b", "../x", ""])
def test_facts_of_a_source_are_not_inserted_unless_they_are_plain_names(name: str) -> None:
    card = make_card("converted", source_config={"model_type": "llama", "_name_or_path": name, "license": "mit\n# x"})
    assert (card.data.base_model, card.data.license) == (None, "unknown")
    assert "converted from a local `llama`" in " ".join(card.text.split())
    assert "# x" not in card.text
    with pytest.raises(ValueError, match="`architectures`"):
        make_card("converted", source_config={"model_type": "llama", "architectures": ["`<script>"]})


@pytest.mark.parametrize("text", ["one 😀 two", 'a "b" \\ c', "x\ty z"])
def test_texts_are_literals_of_python(text: str) -> None:
    facts = read_facts("default") | {"text": text, "infill": text}
    card = render_card("somebody/model", facts, AOGPTConfig(), "<|mask|>", num_parameters=1)
    literals = re.findall(r"= tokenizer\((.*), return_tensors", card.text)
    assert [ast.literal_eval(literal) for literal in literals] == [text, text]


def test_the_gap_of_the_example_is_inside_the_text() -> None:
    assert 'model.infill("GREEK <|mask|> LETTER ALPHA", ' in make_card("quickstart").text


def test_facts_that_a_file_lacks_are_those_of_the_default_card(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("license: mit\ntags: [chess]\n")
    for default in ("default", "encoder", "converted"):
        expected, facts = read_facts(default), read_facts(str(path), default)
        assert (facts["license"], facts["tags"]) == ("mit", ["chess"])
        assert (facts["summary"], facts["limits"]) == (expected["summary"], expected["limits"])
    assert "The licence of the weights is unknown." in make_card("default").text
    assert "The licence of the weights is mit." in make_card(str(path)).text
    wrong = ("license: [mit]", "license: 'mit, really'", "tags: chess", "tags: [on]", "language: no", "title: 1.10")
    for line in wrong:
        path.write_text(line)
        with pytest.raises(ValueError, match=f"`{line.partition(':')[0]}`"):
            make_card(str(path))


@pytest.mark.parametrize("name", RELEASED)
def test_published_numbers_are_cited(name: str) -> None:
    card = make_card(name)
    owners = {"ao-gpt": "Cauthyyy", "sigma-gpt": "Cauthyyy", "sedd": "louaaron", "radd": "JingyangOu"}
    assert card.data.base_model.startswith(owners[name.partition("-small")[0].partition("-medium")[0]] + "/")
    assert card.data.language == "en"
    assert re.search(
        r"published results, which were not measured with these weights: .*Tables? [245].*2506\.19935", card.text
    )
    assert "No results were measured with these weights." in card.text
    assert card.data.eval_results is None
    rows = [line for line in card.text.splitlines() if re.match(r"\| (left to right|random orders)", line)]
    assert len(rows) >= 2
    assert all(line.count("|") == 7 for line in rows)


@pytest.mark.parametrize("name", find_cards())
def test_all_rows_of_a_table_have_the_same_number_of_cells(name: str) -> None:
    """On the Hub, a pipe ends a cell even between backticks, unless it is escaped. Code blocks must not be escaped."""
    text = make_card(name, [Measurement("text-generation", "names", "names", "perplexity", 3.0)]).text
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(tables) >= 2
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table
    assert r"mask `<\|mask\|>`" in text
    if name in RELEASED:
        assert "is<|mask|>, and that" in text


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_snippets_run(kind: str, tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 12,
    }  # fmt: skip
    if kind == "decoder":
        model = AOGPTForAnyOrderLM(AOGPTConfig(vocab_size=16, **sizes))
    else:
        model = MDMEncoderForMaskedLM(MDMEncoderConfig(vocab_size=17, **sizes))
    model.save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    facts = read_facts("default") | {"text": "abcd", "infill": "a{mask}c{mask}"}
    card = render_card(str(tmp_path), facts, model.config, "<mask>", num_parameters=1)
    source = "\n".join(re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)).replace(", trust_remote_code=True", "")
    names: dict[str, Any] = {}
    exec(source, names)
    assert names["samples"].shape == (2, 12)
    assert not (names["filled"] == 16).any()
    assert names["any_order"].log_likelihood.shape == (1,)
    assert ("left_to_right" in names) == (kind == "decoder")
    assert ("model.infill(" in source) == (kind == "decoder")
    by_default = "By default, this model fills in masks from left to right"
    assert by_default not in card.text
    card = render_card(str(tmp_path), facts, model.config, "<mask>", num_parameters=1, is_left_to_right=True)
    assert ("| architecture | decoder, from left to right by default |" in card.text) == (kind == "decoder")
    assert f"## Generate\n\n{by_default}" in card.text


def test_measurements_of_an_evaluation(tmp_path: Path) -> None:
    perplexities = {"sequences": 128, "perplexity": 42.441, "perplexity_standard_error": None}
    both = perplexities | {"bits_per_byte": 1.5, "bits_per_byte_standard_error": 0.25}
    results = make_results(
        num_parameters=1000,
        arguments={"ensemble_size": 8, "num_orders": 4, "dtype": "float32"},
        datasets={
            "text_files": {
                "files": ["texts/one.txt"],
                "packing": "packed",
                "measures": {"left_to_right": both, "any_order": both},
            },
            "wikitext2": {
                "split": "test",
                "documents": 4358,
                "sequences": 301,  # of which `released_subset` scores 128
                "measures": {"ensemble": perplexities},
            },
            "wikitext103": {
                "split": "test",
                "documents": 4358,
                "sequences": 128,
                "measures": {"ensemble": perplexities},
            },
        },
    )
    (tmp_path / "zero_shot.json").write_text(json.dumps(results))
    measured = read_zero_shot_measurements(tmp_path / "zero_shot.json", "text-generation", 1000)
    assert [row.shown for row in measured] == ["42.44", "1.500 ± 0.250"] * 2 + ["42.44"] * 2
    assert [(row.dataset_type, row.dataset_config) for row in measured[-2:]] == [
        ("Salesforce/wikitext", "wikitext-2-raw-v1"),
        ("Salesforce/wikitext", "wikitext-103-raw-v1"),
    ]
    names = [row.metric_name for row in measured[:3:2]]
    assert names == ["perplexity, left to right", "perplexity, random orders, 4 per sequence"]
    card = make_card("ao-gpt-small", measured)
    split = "all, packed, sequences of 1024 tokens, mixed precision 'bf16'"
    assert f"| one.txt, {split} | perplexity, left to right | 42.44 |" in card.text
    split = "test, published protocol, 128 of 301 sequences, but with the test split of WikiText2 (published: train)"
    orders = "random orders, 8 context orders, 4 per sequence"
    assert f"| WikiText2, {split} | perplexity, {orders} | 42.44 |" in card.text
    read = ModelCard(str(card)).data.eval_results
    assert [row.dataset_name for row in read] == ["one.txt"] * 4 + ["WikiText2", "WikiText103"]
    assert read[-1].dataset_split == "test, published protocol"
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="not written by"):
        read_zero_shot_measurements(tmp_path / "other.json", "text-generation", 1000)


def test_wrong_cards_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no card 'ao-gpt-large'"):
        read_facts("ao-gpt-large")
    path = tmp_path / "mine.yaml"
    for content, message in (
        ("title: Mine\nintended_uses: everything\n", "unknown keys: intended_uses"),
        ("limits: [", "cannot be read as YAML"),
        ("just words\n", "must contain lines"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=rf"mine\.yaml {message}|mine\.yaml has {message}"):
            read_facts(str(path))
    for gap in ("[More Information Needed]", None, "", "{{ limits }}", "{mask}"):
        path.write_text(json.dumps({"limits": gap}))
        expected = f"unfilled placeholders: {re.escape(gap)}" if gap else "The keys limits of the card have no values"
        with pytest.raises(ValueError, match=expected):
            make_card(str(path))
    for empty in ({"learning rate": None}, None):
        path.write_text(json.dumps({"infill": None, "hyperparameters": empty, "sizes": None}))
        with pytest.raises(ValueError, match="The keys hyperparameters, infill of the card"):
            make_card(str(path))
