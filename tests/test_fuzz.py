# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Random settings of the public methods: every result equals full forward passes, or a `ValueError` says why not."""

import itertools
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import (
    DynamicCache,
    PreTrainedTokenizerBase,
    RepetitionPenaltyLogitsProcessor,
    StaticCache,
    Trainer,
    TrainingArguments,
    pipeline,
)

from modeling_aogpt import (
    AnyOrderGenerationOutput,
    AOGPTForAnyOrderLM,
    AOGPTForCausalLM,
    AOGPTForMaskedLM,
    DataCollatorForAnyOrderLM,
)
from modeling_aogpt.orders import random_orders
from modeling_aogpt.sampling import compute_probabilities, make_warpers
from modeling_aogpt.validation import check_orders
from tests.references import network_output, random_encoder, random_model, seeded, with_class
from tests.tokenizers_of_all_kinds import byte_level, characters, llama, with_start, word_piece

EOS, MASK, LENGTH = 4, 11, 7
NUM_CHUNKS, PER_CHUNK = 5, 200

Context = list[tuple[int, int]]  # (position, token), in the order in which they were unmasked

SETTINGS = {
    "order": ["random", "left_to_right", "confidence", "margin", "entropy", "tensor", None],
    "block_length": [1, 2, 3, 20],
    "stride": [1, 2, 5],
    "num_steps": [1, 2, 4, 30],
    "schedule": ["linear", "cosine"],
    "unmasking": ["bernoulli", "fixed_count", "entropy_bound", "threshold", "euler"],
    "entropy_bound": [0.0, 0.5, 30.0],
    "threshold": [0.0, 0.5, 0.9],
    "window": [1, 3],
    "do_sample": [True, False],
    "temperature": [0.3, 1.0, 3.0],
    "top_k": [0, 1, 4],
    "top_p": [0.3, 0.9, 1.0],
    "top_p_rule": ["inclusive", "exclusive"],
    "min_p": [0.1, 0.6],
    "strategy": ["parallel", "speculative", "speculative"],
    "draft": ["model", "prompt_lookup"],
    "draft_length": [2, 3, 9],
    "stop_at_eos": [True, False],
    "eos_token_id": [EOS, [EOS, 2]],
    "pad_token_id": [0, 9],
    "repetition_penalty": [0.5, 2.0],
    "suppress_tokens": [[1], [2, 5]],
    "min_new_tokens": [2],
    "min_length": [3],
    "no_repeat_ngram_size": [1, 2],
    "num_return_sequences": [1, 2],
    "refine_rounds": [1],
    "refine_length": [1],
    "refine_selection": ["neighbours", "least_likely"],
}


@pytest.fixture(scope="module", params=["decoder", "encoder"])
def model(request: pytest.FixtureRequest) -> torch.nn.Module:
    """Return a model that often generates EOS. The decoder has a padded token table."""
    is_decoder = request.param == "decoder"
    model = random_model(vocab_size=16, num_valid_tokens=11) if is_decoder else random_encoder()
    with torch.no_grad():
        model.lm_head.bias[EOS] += 1.0
    return model


@torch.no_grad()
def reference_logits(model: torch.nn.Module, context: Context, target: int, length: int) -> torch.Tensor:
    """Return the logits (valid tokens,) of a position given a context, from a pass over the whole sequence."""
    ids = torch.full((1, length), 0 if isinstance(model, AOGPTForAnyOrderLM) else MASK)
    for position, token in context:
        ids[0, position] = token
    if not isinstance(model, AOGPTForAnyOrderLM):
        return network_output(model, ids)[0, target, :11]
    known = [position for position, _ in context]
    rest = [position for position in range(length) if position not in (*known, target)]
    return model(ids, orders=torch.tensor([[*known, target, *rest]])).logits[0, target, :11]


def draw_inputs(draw: random.Random) -> dict[str, torch.Tensor]:
    """Return inputs of one of several kinds: none, prompts, masked text, with and without padding."""
    kind = draw.choice(["none", "prompt", "masked", "masked", "padded", "nothing to do"])
    if kind == "none":
        return {"max_length": LENGTH}
    batch = draw.choice([1, 2, 3])
    inputs = torch.randint(0, 11, (batch, LENGTH), generator=seeded(draw.randrange(2**31)))
    if kind == "prompt":
        return {"inputs": inputs[:, :2], "max_new_tokens": LENGTH - 2}
    if kind == "nothing to do":
        return {"inputs": inputs}
    for row in inputs:
        for position in draw.sample(range(LENGTH), draw.randint(1, LENGTH)):
            row[position] = MASK
    if kind == "masked":
        return {"inputs": inputs}
    attention_mask = torch.ones_like(inputs)
    for row in attention_mask:
        row[draw.sample(range(LENGTH), draw.randint(0, LENGTH - 2))] = 0
    return {"inputs": inputs, "attention_mask": attention_mask}


def draw_settings(draw: random.Random) -> dict[str, object]:
    chosen = draw.sample(sorted(SETTINGS), draw.choice([0, 1, 2, 3, 4, 5]))
    settings = {name: draw.choice(SETTINGS[name]) for name in chosen}
    if any(name.startswith("refine_") for name in settings):
        settings |= {"refine_rounds": 1, "refine_length": 1}
    if "draft" in settings or "draft_length" in settings:
        settings["strategy"] = "speculative"
    if "schedule" in settings or settings.get("unmasking") == "fixed_count":
        settings.setdefault("num_steps", 3)
    return settings


def check_message(error: Exception) -> None:
    """Check that an error is a sentence that names an argument or says what is wrong."""
    message = str(error)
    assert re.match(r"[A-Z`]", message), message
    assert message.endswith((".", "?")), message
    assert len(message) > 30, message


def check_generation(
    model: torch.nn.Module, arguments: dict[str, object], settings: dict[str, object], output: AnyOrderGenerationOutput
) -> None:
    """Check a generation against its arguments, and its log-probabilities against full forward passes."""
    repeats = settings.get("num_return_sequences", 1)
    length = output.sequences.shape[1]
    inputs = arguments.get("inputs", torch.zeros(1, 0, dtype=torch.long))
    is_token = arguments.get("attention_mask", torch.ones_like(inputs))
    inputs, is_token = (values.repeat_interleave(repeats, dim=0) for values in (inputs, is_token))
    inputs = torch.nn.functional.pad(inputs, (0, length - inputs.shape[1]), value=MASK)
    is_token = torch.nn.functional.pad(is_token, (0, length - is_token.shape[1]), value=1) != 0
    is_masked = (inputs == MASK) & is_token
    assert torch.equal(output.sequences[~is_masked], inputs[~is_masked])
    check_orders("orders", output.orders, len(inputs), length)
    is_generated = output.unmasking_steps >= 0
    assert not (is_generated & ~is_masked).any()
    assert (output.sequences[is_masked] < 11).all()
    assert (output.token_logprobs[~is_generated] == 0).all()
    assert (output.token_logprobs <= 1e-12).all()
    if (is_masked & ~is_generated).any():  # positions after end-of-text
        assert settings.get("stop_at_eos") is not False
        eos = settings.get("eos_token_id")
        pad = settings.get("pad_token_id", eos[0] if isinstance(eos, list) else eos)
        assert (output.sequences[is_masked & ~is_generated] == pad).all()
    if "refine_rounds" in settings:
        return
    for row in range(len(inputs)):
        check_sequence(model, settings, output, row, is_token[row], is_masked[row])


def check_sequence(
    model: torch.nn.Module,
    settings: dict[str, object],
    output: AnyOrderGenerationOutput,
    row: int,
    is_token: torch.BoolTensor,
    is_masked: torch.BoolTensor,
) -> None:
    ids, steps, logprobs = output.sequences[row], output.unmasking_steps[row], output.token_logprobs[row]
    position = (is_token.long().cumsum(0) - 1).tolist()
    order, num_tokens = output.orders[row].tolist(), int(is_token.sum())
    in_parallel = "num_steps" in settings or settings.get("unmasking") in ("entropy_bound", "threshold", "euler")
    warpers = make_warpers(
        settings.get("temperature", 1.0),
        settings.get("top_k", 0),
        settings.get("top_p", 1.0),
        settings.get("top_p_rule", "inclusive"),
        settings.get("min_p", 0.0),
    )
    for rank, column in enumerate(order):
        if steps[column] < 0:
            continue
        before = [c for c in order[:rank] if is_token[c] and (steps[c] >= 0 or not is_masked[c])]
        if in_parallel:
            before = [c for c in before if steps[c] < steps[column]]
        context = [(position[c], ids[c].item()) for c in before]
        logits = reference_logits(model, context, position[column], num_tokens)[None].clone()
        apply_settings(logits, settings, context, position[column], int(is_masked[: column + 1].sum()))
        log_probs = compute_probabilities(logits, warpers)[0].log()
        assert abs(log_probs[ids[column]] - logprobs[column]) < 1e-8
        if settings.get("do_sample") is False:
            assert log_probs[ids[column]] >= log_probs.max() - 1e-8


def apply_settings(
    logits: torch.Tensor, settings: dict[str, object], context: Context, position: int, number: int
) -> None:
    """Change the logits (1, vocab_size) of the masked position of this number from the left, in place."""
    if "repetition_penalty" in settings and context:
        visible = torch.tensor([[token for _, token in context]])
        logits.copy_(RepetitionPenaltyLogitsProcessor(settings["repetition_penalty"])(visible, logits))
    text = [token for place, token in sorted(context) if place < position]
    size = settings.get("no_repeat_ngram_size")
    if size and len(text) == position >= size:
        tail = text[len(text) - size + 1 :]
        for start in range(len(text) - size + 1):
            if text[start : start + size - 1] == tail:
                logits[0, text[start + size - 1]] = -torch.inf
    logits[:, settings.get("suppress_tokens", [])] = -torch.inf
    if number <= settings.get("min_new_tokens", 0) or position < settings.get("min_length", 0):
        logits[:, settings["eos_token_id"]] = -torch.inf


@pytest.mark.parametrize("chunk", range(NUM_CHUNKS))
def test_generations_equal_full_forward_passes_or_are_refused(chunk: int, model: torch.nn.Module) -> None:
    num_done = 0
    for case in range(chunk * PER_CHUNK, (chunk + 1) * PER_CHUNK):
        draw = random.Random(case)
        arguments, settings = draw_inputs(draw), draw_settings(draw)
        given = dict(settings)
        if given.get("order") == "tensor":
            batch = len(arguments.get("inputs", [0])) * given.get("num_return_sequences", 1)
            given["order"] = random_orders(batch, LENGTH, generator=seeded(case))
        try:
            output = model.generate(**arguments, **given, generator=seeded(case), return_dict_in_generate=True)
        except ValueError as error:
            check_message(error)
            continue
        check_generation(model, arguments, settings, output)
        num_done += 1
    assert num_done > PER_CHUNK / 4


@pytest.mark.parametrize("chunk", range(2))
def test_likelihoods_equal_full_forward_passes_or_are_refused(chunk: int, model: torch.nn.Module) -> None:
    is_decoder, num_done = isinstance(model, AOGPTForAnyOrderLM), 0
    for case in range(chunk * 40, (chunk + 1) * 40):
        draw = random.Random(case)
        batch = draw.choice([1, 3])
        ids = torch.randint(0, 11, (batch, LENGTH), generator=seeded(case))
        roles = torch.tensor([[draw.choice([0, 1, 1, 2]) for _ in range(LENGTH)] for _ in range(batch)])
        targets, context, orders = roles == 1, roles == 2, random_orders(batch, LENGTH, generator=seeded(case))
        arguments = {"orders": orders, "rows_per_pass": draw.choice([1, 10, 4096])}
        arguments |= draw.choice([{}, {}, {"num_orders": 2}, {"block_length": 2}, {"rows_per_pass": 0}, {"stride": 0}])
        if is_decoder:
            arguments["context_orders"] = orders
        try:
            output = model.log_likelihood(ids, targets=targets, context=context, **arguments)
        except ValueError as error:
            check_message(error)
            continue
        num_done += 1
        for row in range(batch):
            known = [p for p in orders[row].tolist() if context[row, p]] if targets[row].any() else []
            expected = torch.zeros(LENGTH, dtype=torch.float64)
            for target in (p for p in orders[row].tolist() if targets[row, p]):
                given = [(p, ids[row, p].item()) for p in known]
                expected[target] = reference_logits(model, given, target, LENGTH).log_softmax(-1)[ids[row, target]]
                known.append(target)
            torch.testing.assert_close(output.token_log_likelihood[row], expected, rtol=0, atol=1e-8)
    assert num_done > 8


LIKELIHOOD_ARGUMENTS = {
    "orders": ["random", "left_to_right", "backwards"],
    "num_orders": [1, 2, 0],
    "block_length": [2],
    "stride": [3],
    "ensemble_size": [1, 3],
    "num_ranks": [2, 3, 4],
    "num_times": [4, 5],
    "rows_per_pass": [1, 50],
}


def test_random_arguments_of_likelihoods_give_consistent_results_or_are_refused(model: torch.nn.Module) -> None:
    num_done = 0
    for case in range(150):
        draw = random.Random(case)
        ids = torch.randint(0, 11, (2, LENGTH), generator=seeded(case))
        chosen = draw.sample(sorted(LIKELIHOOD_ARGUMENTS), draw.randint(0, 4))
        arguments = {name: draw.choice(LIKELIHOOD_ARGUMENTS[name]) for name in chosen}
        attention_mask = torch.ones_like(ids)
        attention_mask[0, draw.sample(range(LENGTH), draw.randint(0, LENGTH - 3))] = 0
        try:
            output = model.log_likelihood(ids, attention_mask=attention_mask, generator=seeded(case), **arguments)
        except (ValueError, TypeError) as error:
            check_message(error)
            continue
        num_done += 1
        torch.testing.assert_close(output.token_log_likelihood.sum(1), output.log_likelihood)
        assert (output.token_log_likelihood[attention_mask == 0] == 0).all()
        assert ((output.standard_error >= 0) | output.standard_error.isnan()).all()
        assert output.log_likelihood.isfinite().all()
        if output.get("importance_weighted") is not None:
            assert (output.importance_weighted >= output.log_likelihood - 1e-9).all()
    assert num_done > 40


COLLATOR_ARGUMENTS: dict[str, list | Callable] = {
    "orders": ["random", "shared", "left_to_right", "context_first", "gaps_last", "fixed"],
    "block_length": [1, 3, 50, 0],
    "min_context": [0, 2],
    "max_context": [1, 20],
    "stride": [1, 4],
    "left_to_right_fraction": [0, 0.5, 1, -1],
    "pad_token_id": [0, 3],
    "pad_to_multiple_of": [1, 8],
    "seed": [0, 2**70, -5],
}


def test_batches_of_random_collators_are_valid_or_refused() -> None:
    num_done = 0
    for case in range(400):
        draw = random.Random(case)
        chosen = draw.sample(sorted(COLLATOR_ARGUMENTS), draw.randint(0, 4))
        arguments = {name: draw.choice(COLLATOR_ARGUMENTS[name]) for name in chosen}
        lengths = [draw.randint(0 if draw.random() < 0.1 else 1, 9) for _ in range(draw.randint(1, 4))]
        if draw.random() < 0.5:
            lengths = [lengths[0]] * len(lengths)
        features = [{"input_ids": list(range(length)), "order_seed": draw.randrange(-9, 9)} for length in lengths]
        try:
            batch = DataCollatorForAnyOrderLM(**arguments)(features)
        except ValueError as error:
            check_message(error)
            continue
        num_done += 1
        size, width = batch["input_ids"].shape
        check_orders("orders", batch["orders"], size, width)
        for row, length in enumerate(lengths):
            labels = torch.tensor([*range(length), *[-100] * (width - length)])
            is_given = (batch["labels"][row] == -100) & (torch.arange(width) < length)
            assert torch.equal(batch["labels"][row], labels.masked_fill(is_given, -100))
            assert arguments.get("orders") == "context_first" or not is_given.any()
            assert batch["orders"][row, : is_given.sum()].tolist() == is_given.nonzero().flatten().tolist()
            assert batch["orders"][row, length:].tolist() == list(range(length, width))
            alone = DataCollatorForAnyOrderLM(**arguments | {"pad_token_id": 0})([features[row]])
            assert torch.equal(alone["orders"][0, :length], batch["orders"][row, :length])
    assert num_done > 80


START, SIZE = 3, 12
NO_INJECTION = {"target_injection": "none", "position_encoding": "rotary"}


def draw_texts(draw: random.Random, has_start_token: bool) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """
    Return ids and mask (batch, columns) of random texts, some empty and some of full length, and each text alone.

    Padding may be anywhere. With `has_start_token`, some texts begin with START, which is not part of the text alone.
    """
    texts, rows = [], []
    width = SIZE + has_start_token
    for _ in range(draw.choice([1, 2, 4])):
        text = [draw.randrange(11) for _ in range(draw.choice([0, 1, 3, SIZE - 1, SIZE]))]
        if has_start_token and text[:1] == [START]:
            text[0] = START + 1  # otherwise, the text alone would begin with the start token
        texts.append(torch.tensor([text], dtype=torch.long))
        rows.append([START] * (has_start_token and draw.random() < 0.6) + text)
    keep = torch.zeros(len(rows), width, dtype=torch.long)
    ids = torch.tensor([[draw.choice([0, START, 99]) for _ in range(width)] for _ in rows])
    for row, tokens in enumerate(rows):
        places = sorted(draw.sample(range(width), len(tokens)))
        if draw.random() < 0.5:
            places = [place + width - len(tokens) for place in range(len(tokens))]  # padding on the left
        ids[row, places], keep[row, places] = torch.tensor(tokens, dtype=torch.long), 1
    return ids, keep, texts


@pytest.mark.parametrize("start_token_id", [None, START])
@pytest.mark.parametrize("settings", [{}, NO_INJECTION], ids=["adaln", "none"])
@torch.no_grad()
def test_texts_of_every_length_are_scored_as_alone(settings: dict, start_token_id: int | None) -> None:
    """In several views, with and without padding, start tokens and caches."""
    model = random_model(**settings, start_token_id=start_token_id)
    causal = with_class(model, AOGPTForCausalLM)
    first = model(torch.tensor([[1]])).logits[0, 0]
    for case in range(60):
        draw = random.Random(case)
        ids, keep, texts = draw_texts(draw, start_token_id is not None)
        scores, num_columns = model.log_likelihood(ids, attention_mask=keep), ids.shape[1]
        cache = draw.choice(
            [None, DynamicCache(config=causal.config), StaticCache(config=causal.config, max_cache_len=15)]
        )
        cuts = [] if cache is None else draw.sample(range(1, num_columns), draw.choice([0, 1, 3]))
        parts = [
            causal(ids[:, start:end], attention_mask=keep[:, :end], cache=cache).logits
            for start, end in itertools.pairwise([0, *sorted(cuts), num_columns])
        ]
        logits = torch.cat(parts, dim=1)
        for row, text in enumerate(texts):
            length, places = text.shape[1], keep[row].nonzero()[:, 0]
            columns = places[len(places) - length :]
            alone = model.log_likelihood(text).token_log_likelihood[0] if length else torch.zeros(0).double()
            torch.testing.assert_close(scores.token_log_likelihood[row, columns], alone, rtol=0, atol=1e-9)
            assert abs(scores.log_likelihood[row] - alone.sum()) < 1e-9
            if len(places) > length:
                torch.testing.assert_close(logits[row, places[0]], first, rtol=0, atol=1e-9)
            if length:
                expected = causal(text).logits[0]
                torch.testing.assert_close(logits[row, columns], expected, rtol=0, atol=1e-9, equal_nan=True)
                is_beyond = length == SIZE and settings != NO_INJECTION
                assert logits[row, columns].isnan().any(dim=-1).tolist() == [False] * (length - 1) + [is_beyond]


@pytest.mark.parametrize("make", [byte_level, lambda: with_start(llama), word_piece, characters])
def test_tools_of_other_libraries_score_and_continue_texts_as_the_methods_do(
    make: Callable[[], PreTrainedTokenizerBase],
) -> None:
    harness_models = pytest.importorskip("lm_eval.models.huggingface")
    from lm_eval.api.instance import Instance

    tokenizer = make()
    special = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    start = tokenizer.bos_token_id if tokenizer("a").input_ids[0] == tokenizer.bos_token_id else None
    model = random_model(
        vocab_size=len(tokenizer), start_token_id=start, **special, **NO_INJECTION, max_position_embeddings=24
    )
    tokenizer.add_special_tokens({"mask_token": "<mask>", "pad_token": tokenizer.eos_token})
    causal, masked = with_class(model, AOGPTForCausalLM), with_class(model, AOGPTForMaskedLM)

    harness = harness_models.HFLM(pretrained=causal, tokenizer=tokenizer, device="cpu", batch_size=3)
    pairs = [("I saw", " a cat"), ("", "the cat"), ("the cat", " sat")]
    requests = [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(pairs)]
    for pair, (score, _) in zip(pairs, harness.loglikelihood(requests, disable_tqdm=True), strict=True):
        context, completion = harness._encode_pair(*pair) if pair[0] else ([harness.prefix_token_id], [])
        completion = completion or harness.tok_encode(pair[1], add_special_tokens=False)
        expected = model.log_likelihood(torch.tensor([[*context, *completion]])).token_log_likelihood[0, len(context) :]
        assert score == pytest.approx(float(expected.sum()), abs=1e-5)

    generate = pipeline("text-generation", model=causal, tokenizer=tokenizer)
    for prompt in ("the cat", "I"):
        inputs = tokenizer(prompt, return_tensors="pt")
        expected = model.generate(**inputs, max_new_tokens=4, do_sample=False, stop_at_eos=False, order="left_to_right")
        result = generate(prompt, max_new_tokens=4, do_sample=False, eos_token_id=None, return_tensors=True)
        assert result[0]["generated_token_ids"] == expected[0].tolist()
    fill, text = pipeline("fill-mask", model=masked, tokenizer=tokenizer), "the <mask> sat"
    ids = tokenizer(text, return_tensors="pt").input_ids
    probabilities = masked(ids).logits[ids == tokenizer.mask_token_id].softmax(-1)
    assert fill(text)[0]["score"] == pytest.approx(float(probabilities.max().detach()), abs=1e-6)


def test_adapters_are_trained_on_texts_with_start_tokens_by_the_trainer(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = random_model(start_token_id=START, **NO_INJECTION).float()
    texts = [[START, 1, 4, 1, 5], [2, 6, START], [START, 8, 9, 7]]
    expected = sum(float(model.log_likelihood(torch.tensor([text])).log_likelihood) for text in texts)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "up_proj"]))
    arguments = TrainingArguments(
        tmp_path,
        max_steps=1,
        per_device_train_batch_size=3,
        remove_unused_columns=False,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    collator = DataCollatorForAnyOrderLM(pad_token_id=0, orders="left_to_right", start_token_id=START)
    trainer = Trainer(adapted, arguments, collator, [{"input_ids": text} for text in texts])
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(-expected / 10, rel=1e-4)
