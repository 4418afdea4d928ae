# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from common.encoding import encode_batch
from common.tokenizers import train_tokenizer
from eval.studies.reversal import facts, reversal
from eval.studies.reversal.reversal import KINDS, answer, main
from eval.studies.runner.recipes import encode_problems
from modeling_aogpt import AOGPTForAnyOrderLM
from tests.training_runs import TINY, train_recipes

SETTINGS = f"{TINY}corpus: {facts.__name__}:training_texts\nsequence_length: 64\nvocab_size: 300\neval_sequences: 4\n"


@pytest.fixture(autouse=True)
def few_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "NUM_PEOPLE", 6)


@pytest.mark.parametrize("vocab_size", [257, 300])
def test_missing_tokens_are_masks(vocab_size: int) -> None:
    tokenizer = train_tokenizer([text for _, text in facts.training_texts()], vocab_size)
    for kind in KINDS:
        questions = facts.questions(kind)
        inputs, solutions = encode_problems(questions, tokenizer, 64)
        assert inputs.shape == solutions.shape == (4, 64)
        for (question, text), row, solution in zip(questions, inputs, solutions, strict=True):
            assert tokenizer.decode(solution, skip_special_tokens=True) == text
            is_missing = row == tokenizer.mask_token_id
            assert torch.equal(row[~is_missing], solution[~is_missing])
            hidden = tokenizer.decode(solution[is_missing]).strip()
            assert question.replace("_" * len(hidden), hidden) == text  # neither more nor less is missing


def test_questions_are_encoded_as_in_training() -> None:
    """A tokenizer may have another padding token, pad on the left, and add beginning-of-text."""
    tokenizer = train_tokenizer([text for _, text in facts.training_texts()], 257)
    end = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{end} $A", special_tokens=[(end, tokenizer.eos_token_id)]
    )
    tokenizer.pad_token, tokenizer.padding_side = "!", "left"
    for kind in KINDS:
        questions = facts.questions(kind)
        inputs, solutions = encode_problems(questions, tokenizer, 64)
        documents = encode_batch([text for _, text in questions], tokenizer, False)["input_ids"]
        assert solutions.tolist() == [ids + [tokenizer.eos_token_id] * (64 - len(ids)) for ids in documents]
        assert (inputs[:, -1] == tokenizer.eos_token_id).all()


@pytest.mark.usefixtures("datasets_cache")
def test_runs_are_compared(tmp_path: Path) -> None:
    settings = {
        "any-0": "",
        "any-1": "seed: 1\n",
        "encoder": "architecture: encoder\nobjective: masked_diffusion\n",
        "rival": "orders: left_to_right\n",
    }
    runs, out = (
        train_recipes(tmp_path, {name: SETTINGS + lines for name, lines in settings.items()}),
        tmp_path / "results",
    )
    main([*runs, "--output_dir", str(out)])
    table = json.loads((out / "reversal.json").read_text())["table"]
    assert {name: list(row) for name, row in table.items()} == {
        "any": list(KINDS.values()),
        "encoder": list(KINDS.values()),
        "rival": [KINDS["end"], KINDS["other form"]],  # it does not see the text after a gap
    }
    assert len(table["any"][KINDS["end"]]["values"]) == 2
    assert (out / "tables.md").is_file()


@pytest.mark.usefixtures("datasets_cache")
@pytest.mark.parametrize(("orders", "order"), [("random", "confidence"), ("left_to_right", "left_to_right")])
def test_an_answer_is_right_if_all_tokens_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, orders: str, order: str
) -> None:
    (folder,) = train_recipes(tmp_path, {"tiny": f"{SETTINGS}orders: {orders}\n"})
    solutions: list[torch.LongTensor] = []

    def recorded(*arguments: object) -> tuple[torch.LongTensor, torch.LongTensor]:
        ids = encode_problems(*arguments)
        solutions.append(ids[1])
        return ids

    def generate(self: AOGPTForAnyOrderLM, inputs: torch.LongTensor, **settings: object) -> torch.LongTensor:
        assert settings == {"order": order, "do_sample": False, "pad_token_id": self.config.eos_token_id}
        is_masked = inputs == self.config.mask_token_id
        after_gap = is_masked[:, -1]  # only a left-to-right model also writes what follows the gap
        assert torch.equal(after_gap, torch.full_like(after_gap, orders == "left_to_right"))
        sequences = solutions[-1].clone()
        sequences[0, (inputs[0] == self.config.mask_token_id).nonzero()[-1]] += 1  # a single wrong token
        return sequences

    monkeypatch.setattr(reversal, "encode_problems", recorded)
    monkeypatch.setattr(AOGPTForAnyOrderLM, "generate", generate)
    run = {"run": folder, "arguments": {"orders": orders, "sequence_length": 64}}
    kinds = [kind for kind in KINDS if orders == "random" or kind != "start"]
    assert answer(run) == dict.fromkeys(kinds, 0.75)
