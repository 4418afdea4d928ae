# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Every card is whole, says what is known and measured, and its snippets run."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import EvalResultEntry, ModelCard, parse_eval_result_entries
from transformers import PreTrainedTokenizerFast

from model_cards.card import cards, read_facts, render
from model_cards.measurements import Measurement, zero_shot_measurements
from model_cards.publish import write_benchmark_results
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, MDMEncoderConfig, MDMEncoderForMaskedLM

RELEASED = [name for name in cards() if name not in ("default", "quickstart")]


def card_of(name: str, measurements: list[Measurement] = (), repo_id: str = "somebody/model") -> ModelCard:
    config = MDMEncoderConfig() if name.startswith(("sedd", "radd")) else AOGPTConfig()
    return render(repo_id, read_facts(name), config, 170_600_000, "float32", "<|mask|>", measurements)


def test_there_is_a_card_for_each_model_that_is_known() -> None:
    families = ("ao-gpt", "sigma-gpt", "sedd", "radd")
    of_families = {f"{family}-{size}" for family in families for size in ("small", "medium")}
    assert set(RELEASED) == of_families | {"radd-small-t-dce"}


@pytest.mark.parametrize("name", cards())
def test_every_card_is_whole(name: str) -> None:
    card = card_of(name)
    assert card.data.license == ("apache-2.0" if name == "quickstart" else "unknown")
    assert card.data.tags == ["custom_code", *read_facts(name).get("tags", [])]
    is_encoder = name.startswith(("sedd", "radd"))
    assert card.data.pipeline_tag == ("fill-mask" if is_encoder else "text-generation")
    assert f"| architecture | {'encoder, full attention' if is_encoder else 'decoder, any order'}; " in card.text
    assert "| parameters | 170,600,000 |" in card.text
    for heading in ("Intended use", "Load", "Generate", "Infill", "Score", "Training", "Results", "Limits and biases"):
        text = card.text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
        assert len(text.strip()) > 40, heading
    assert "trust_remote_code=True" in card.text
    assert "  author    = {Shuchen Xue" in card.text
    assert str(card).endswith("```\n")


@pytest.mark.parametrize("name", RELEASED)
def test_published_figures_are_cited_as_such(name: str) -> None:
    card = card_of(name)
    owners = {"ao-gpt": "Cauthyyy", "sigma-gpt": "Cauthyyy", "sedd": "louaaron", "radd": "JingyangOu"}
    assert card.data.base_model.startswith(owners[name.partition("-small")[0].partition("-medium")[0]] + "/")
    assert card.data.language == "en"
    assert re.search(r"Published, not measured here: .*Tables? [245].*2506\.19935", card.text)
    assert "Nothing was measured with these weights" in card.text
    assert card.data.eval_results is None
    rows = [
        line for line in card.text.splitlines() if re.match(r"\| (left to right|order-agnostic|random orders)", line)
    ]
    assert len(rows) >= 2
    assert all(line.count("|") == 7 for line in rows)
    assert "no licence" in card.text or "not known here" in card.text


@pytest.mark.parametrize("name", cards())
def test_rows_of_a_table_have_as_many_cells_as_its_head(name: str) -> None:
    """A pipe ends a cell on the Hub even between backticks, unless it is escaped; in code it is as it is."""
    text = card_of(name, [Measurement("names", "held out", "perplexity", "left to right", 3.0)]).text
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(tables) >= 2
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table
    assert r"mask `<\|mask\|>`" in text
    if name in RELEASED:
        assert "is<|mask|>, and that" in text


def test_hyperparameters_are_those_of_all_sizes_and_of_one() -> None:
    text = card_of("ao-gpt-medium").text
    assert "| learning rate | 3e-4 |" in text
    assert "| schedule | cosine over 500,000 steps, down to 6e-5 |" in text


def test_published_figures_are_the_papers() -> None:
    """Tables 4 and 5: the first and last column of some rows."""
    ends = {name: list(read_facts(name)["published"]["rows"].values()) for name in RELEASED}
    assert [(row[0], row[-1]) for row in ends["ao-gpt-medium"]][:2] == [(42.44, 50.23), (49.79, 65.90)]
    assert [(row[0], row[-1]) for row in ends["ao-gpt-small"]][-1] == (54.92, 76.73)
    assert [(row[0], row[-1]) for row in ends["sigma-gpt-small"]] == [(68.61, 90.98), (65.83, 87.71)]
    assert [(row[0], row[-1]) for row in ends["radd-small"]] == [(49.09, 63.33), (50.27, 74.28)]
    assert [(row[0], row[-1]) for row in ends["sedd-medium"]] == [(39.19, 53.54), (42.77, 61.19)]


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
    card = render(str(tmp_path), facts, model.config, 1, "float32", "<mask>")
    source = "\n".join(re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)).replace(", trust_remote_code=True", "")
    names: dict[str, Any] = {}
    exec(source, names)
    assert names["samples"].shape == (2, 12)
    assert not (names["filled"] == 16).any()
    assert names["any_order"].log_likelihood.shape == (1,)
    assert ("left_to_right" in names) == (kind == "decoder")


def test_figures_of_an_evaluation(tmp_path: Path) -> None:
    perplexities = {"perplexity": 42.441, "perplexity_standard_error": None}
    both = perplexities | {"bits_per_byte": 1.5, "bits_per_byte_standard_error": 0.25}
    found = {
        "model_type": "aogpt",
        "num_parameters": 1000,
        "protocol": "published",
        "arguments": {"ensemble_size": 8, "num_orders": 4},
        "datasets": {
            "text_files": {"files": ["texts/one.txt"], "measures": {"left_to_right": both, "any_order": both}},
            "wikitext2": {"split": "test", "measures": {"ensemble": perplexities}},
            "wikitext103": {"split": "test", "measures": {"ensemble": perplexities}},
        },
    }
    (tmp_path / "zero_shot.json").write_text(json.dumps(found))
    measured = zero_shot_measurements(tmp_path / "zero_shot.json", "aogpt", 1000)
    assert [row.shown for row in measured] == ["42.44", "1.500 ± 0.250"] * 2 + ["42.44"] * 2
    assert [(row.dataset_id, row.dataset_config) for row in measured[-2:]] == [
        ("Salesforce/wikitext", "wikitext-2-raw-v1"),
        ("Salesforce/wikitext", "wikitext-103-raw-v1"),
    ]
    assert [row.orders for row in measured[:3:2]] == ["left to right", "random orders, 4 per sequence"]
    card = card_of("ao-gpt-small", measured)
    assert "| one.txt, all, published protocol | perplexity, left to right | 42.44 |" in card.text
    assert (
        "| WikiText2, test, published protocol | perplexity, random orders, 8 context orders, 4 per sequence | 42.44 |"
        in card.text
    )
    read = ModelCard(str(card)).data.eval_results
    assert [row.dataset_name for row in read] == ["one.txt"] * 4 + ["WikiText2", "WikiText103"]
    assert read[-1].dataset_split == "test, published protocol"
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match=r"other\.json has no model_type, .*not written by eval/zero_shot\.py"):
        zero_shot_measurements(tmp_path / "other.json", "aogpt", 1000)


def test_results_on_data_of_the_hub_are_in_its_format(tmp_path: Path) -> None:
    wikitext, lambada = ("Salesforce/wikitext", "wikitext-2-raw-v1"), ("cimec/lambada", "plain_text")
    rows = [
        Measurement("WikiText2", "test", "perplexity", "left to right", 31.5, None, *wikitext),
        Measurement("WikiText2", "test", "bits_per_byte", "left to right", 1.1, None, *wikitext),
        Measurement("WikiText2", "test", "perplexity", "random orders", 33.7, None, *wikitext),
        Measurement("LAMBADA", "test", "perplexity", "random orders", 49.8, 0.5, *lambada),
        Measurement("names", "held out", "perplexity", "left to right", 3.0),
    ]
    write_benchmark_results(tmp_path, rows)
    folder = tmp_path / ".eval_results"
    read = {file.name: parse_eval_result_entries(yaml.safe_load(file.read_text())) for file in folder.iterdir()}
    notes = "WikiText2, test; perplexity, {}"
    assert read == {
        "Salesforce--wikitext.yaml": [
            EvalResultEntry(*wikitext, 31.5, notes=notes.format("left to right")),
            EvalResultEntry(*wikitext, 33.7, notes=notes.format("random orders")),
        ],
        "cimec--lambada.yaml": [EvalResultEntry(*lambada, 49.8, notes="LAMBADA, test; perplexity, random orders")],
    }


def test_refuses_results_of_two_data_sets_that_the_hub_takes_for_one() -> None:
    rows = [
        Measurement(name, "test", "perplexity", "left to right", 31.5, dataset_id="Salesforce/wikitext")
        for name in ("WikiText2", "WikiText103")
    ]
    with pytest.raises(ValueError, match="not the same when read again"):
        card_of("default", rows)


def test_refuses_a_card_with_gaps_or_unknown_facts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="There is no card 'ao-gpt-large': name one of ao-gpt-small"):
        read_facts("ao-gpt-large")
    path = tmp_path / "mine.yaml"
    path.write_text("title: Mine\nintended_uses: everything\n")
    with pytest.raises(ValueError, match="says intended_uses, but a card takes"):
        read_facts(str(path))
    path.write_text("limits: [")
    with pytest.raises(ValueError, match=r"mine\.yaml cannot be read as YAML"):
        read_facts(str(path))
    path.write_text("just words\n")
    with pytest.raises(ValueError, match="is no YAML file of names and values"):
        read_facts(str(path))
    for gap in ("[More Information Needed]", None, "{{ limits }}", "{mask}"):
        path.write_text(json.dumps({"limits": gap}))
        with pytest.raises(ValueError, match="gaps"):
            card_of(str(path))
    path.write_text(json.dumps({"infill": None, "hyperparameters": {"learning rate": None}, "limits": "None known."}))
    with pytest.raises(ValueError, match="gaps: nothing is said of hyperparameters, infill"):
        card_of(str(path))
    path.write_text(json.dumps({"limits": "None known."}))
    assert "None known." in card_of(str(path)).text
