# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Generation: the distribution of samples, prompts and padding, and the output."""

import re

import numpy as np
import pytest
import torch
from transformers import SuppressTokensLogitsProcessor

from modeling_aogpt import DataCollatorForAnyOrderLM
from tests.references import Enumeration, chi_square, conditional, cut_order, ragged_inputs, random_model, seeded

pytestmark = pytest.mark.usefixtures("large_chunks")


# -------------------------------------------------------------------------------------------- distribution of samples


@pytest.fixture(scope="module")
def tiny() -> Enumeration:
    """Return a model of three positions and three tokens for which every unmasking rule gives another distribution."""
    model = random_model(vocab_size=3, max_position_embeddings=3, position_encoding="rotary", initializer_range=0.3)
    with torch.no_grad():
        model.lm_head.weight *= 0.5  # so that no sequence is too rare to be counted
    return Enumeration(model, length=3)


def draw(tiny: Enumeration, num_samples: int = 30_000, **arguments: object) -> torch.Tensor:
    samples = tiny.model.generate(num_return_sequences=num_samples, generator=seeded(), **arguments)
    return tiny.count(samples)


@pytest.mark.parametrize("num_steps", [1, 2, 3, 5])
def test_bernoulli_samples_the_reverse_process(tiny: Enumeration, num_steps: int) -> None:
    expected = tiny.of_bernoulli([1 / num_steps] * num_steps)
    assert chi_square(draw(tiny, num_steps=num_steps, unmasking="bernoulli"), expected) < 1


def test_cosine_bernoulli_samples_the_reverse_process(tiny: Enumeration) -> None:
    expected = tiny.of_bernoulli([1 - 0.75**0.5, 0.75**0.5 - 0.5, 0.5])
    assert chi_square(draw(tiny, num_steps=3, unmasking="bernoulli", schedule="cosine"), expected) < 1


@pytest.mark.parametrize(("num_steps", "counts"), [(1, [3]), (2, [1, 2]), (3, [1, 1, 1]), (4, [1, 1, 1])])
def test_fixed_counts_sample_groups_of_random_positions(tiny: Enumeration, num_steps: int, counts: list[int]) -> None:
    assert chi_square(draw(tiny, num_steps=num_steps, unmasking="fixed_count"), tiny.of_fixed_counts(counts)) < 1


def test_without_num_steps_samples_follow_the_chain_rule(tiny: Enumeration) -> None:
    assert chi_square(draw(tiny), tiny.of_fixed_counts([1, 1, 1])) < 1
    assert chi_square(draw(tiny, order="left_to_right"), tiny.of_groups(((0,), (1,), (2,)))) < 1


def test_given_orders_are_followed(tiny: Enumeration) -> None:
    order = (2, 0, 1)
    given = torch.tensor([order]).expand(30_000, -1)
    counts = draw(tiny, order=given, num_steps=2, unmasking="fixed_count")
    assert chi_square(counts, tiny.of_groups(cut_order(order, [1, 2]))) < 1


def test_bernoulli_in_a_fixed_order_unmasks_binomial_counts(tiny: Enumeration) -> None:
    """The first of two steps unmasks 0, 1, 2 or 3 of three positions with probability 1/8, 3/8, 3/8 and 1/8."""
    expected = sum(
        weight / 8 * tiny.of_groups(cut_order((0, 1, 2), counts))
        for weight, counts in ((2, [3]), (3, [1, 2]), (3, [2, 1]))
    )
    assert chi_square(draw(tiny, order="left_to_right", num_steps=2, unmasking="bernoulli"), expected) < 1


def test_other_unmasking_rules_fail_the_chi_square_test(tiny: Enumeration) -> None:
    counts = draw(tiny, num_steps=2, unmasking="bernoulli")
    others = [
        tiny.of_fixed_counts([1, 2]),
        tiny.of_fixed_counts([1, 1, 1]),
        tiny.of_fixed_counts([3]),
        tiny.of_bernoulli([1 / 3] * 3),
    ]
    assert all(chi_square(counts, other) > 2 for other in others)


def test_infilling_samples_the_conditional(tiny: Enumeration) -> None:
    """That is the joint distribution, restricted to sequences that contain the prompt and normalized."""
    mask = tiny.model.config.mask_token_id
    inputs = torch.tensor([[mask, 2, mask]])
    samples = tiny.model.generate(inputs, num_return_sequences=20_000, generator=seeded())
    assert (samples[:, 1] == 2).all()
    matching = torch.tensor([sequence[1] == 2 for sequence in tiny.sequences])
    expected = (tiny.of_groups(((1,), (0,), (2,))) + tiny.of_groups(((1,), (2,), (0,))))[matching]
    assert chi_square(tiny.count(samples)[matching], expected / expected.sum()) < 1


@pytest.mark.parametrize("settings", [{}, {"block_length": 2}, {"strategy": "speculative"}, {"order": "confidence"}])
def test_given_tokens_come_first_from_left_to_right(settings: dict) -> None:
    model, mask = random_model(), 11
    inputs = torch.tensor([[1, mask, 2, 3, mask, 4], [mask, mask, 5, mask, 6, 7], [1, 2, mask, 3, 0, 0]])
    attention_mask = torch.tensor([[1] * 6, [1] * 6, [1, 1, 1, 1, 0, 0]])
    output = model.generate(
        inputs,
        attention_mask=attention_mask,
        generator=seeded(),
        return_dict_in_generate=True,
        num_return_sequences=4,
        **settings,
    )
    given = [[0, 2, 3, 5], [2, 4, 5], [0, 1, 3]]
    for number, order in enumerate(output.orders.tolist()):
        assert order[: len(given[number // 4])] == given[number // 4]
    if not settings:
        assert {tuple(order[4:]) for order in output.orders[:4].tolist()} == {(1, 4), (4, 1)}


def test_given_orders_also_order_the_given_tokens() -> None:
    order = torch.tensor([[4, 3, 2, 1, 0]])
    output = random_model().generate(torch.tensor([[1, 2, 11, 3, 11]]), order=order, return_dict_in_generate=True)
    assert output.orders.tolist() == [[3, 1, 0, 4, 2]]


# ----------------------------------------------------------------------------------------------- prompts and padding


def test_lengths() -> None:
    model, mask = random_model(), 11
    assert model.generate().shape == (1, 12)
    assert model.generate(max_length=5, num_return_sequences=3).shape == (3, 5)
    prompt = torch.tensor([[1, 2], [3, 4]])
    assert model.generate(prompt, max_new_tokens=3).shape == (2, 5)
    longer = model.generate(prompt, max_length=7, num_return_sequences=2)
    assert longer[:, :2].tolist() == [[1, 2], [1, 2], [3, 4], [3, 4]]
    assert longer.shape == (4, 7)
    assert (longer != mask).all()
    assert model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=1).shape == (2, 3)
    assert model.generate(torch.empty(2, 0, dtype=torch.long), max_new_tokens=1).shape == (2, 1)


def test_blocks_do_not_count_padding() -> None:
    inputs = torch.full((8, 5), 11)
    attention_mask = torch.tensor([[0, 1, 1, 1, 1]]).expand(8, -1)
    output = random_model().generate(
        inputs, attention_mask=attention_mask, block_length=2, generator=seeded(), return_dict_in_generate=True
    )
    steps = output.unmasking_steps
    assert (steps[:, 1:].view(8, 2, 2).sort().values == torch.tensor([[0, 1], [2, 3]])).all()
    assert len(steps[:, 1].unique()) == len(steps[:, 3].unique()) == 2  # a random order within each block


def test_each_returned_sequence_keeps_its_prompt_and_padding() -> None:
    model, mask = random_model(), 11
    inputs, attention_mask = torch.tensor([[1, mask, 9], [2, 9, mask]]), torch.tensor([[1, 1, 0], [1, 0, 1]])
    samples = model.generate(inputs, attention_mask=attention_mask, num_return_sequences=2)
    inputs, attention_mask = (values.repeat_interleave(2, dim=0) for values in (inputs, attention_mask))
    for row, given, is_token in zip(samples, inputs, attention_mask.bool(), strict=True):
        assert torch.equal(row[~is_token], given[~is_token])
        assert row[0] == given[0]
        assert (row != mask).all()


def test_all_outputs_of_a_tokenizer_are_accepted() -> None:
    model, ids = random_model(), torch.tensor([[1, 2, 11, 3]])
    encoded = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    assert model.generate(**encoded, generator=seeded()).equal(model.generate(ids, generator=seeded()))
    encoded["input_ids"] = ids.clamp(max=10)
    assert model.log_likelihood(**encoded).log_likelihood.equal(model.log_likelihood(ids.clamp(max=10)).log_likelihood)


@pytest.mark.parametrize("method", ["forward", "generate", "log_likelihood", "collator"])
def test_token_types_of_a_pair_give_a_warning(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    monkeypatch.setattr("modeling_aogpt.validation.logger.warning_once", messages.append)
    model, types = random_model(), [[0, 0, 1]]
    pair = {"input_ids": torch.tensor([[1, 2, 3]]), "token_type_ids": torch.tensor(types)}
    if method == "collator":
        DataCollatorForAnyOrderLM()([{"input_ids": [1, 2, 3], "token_type_ids": types[0]}])
    else:
        getattr(model, method)(**pair, **({"max_new_tokens": 1} if method == "generate" else {}))
    assert len(messages) == 1
    assert "token_type_ids" in messages[0]


def test_integers_of_all_types_are_accepted() -> None:
    inputs = torch.tensor([[1, 11, 11]], dtype=torch.int32)
    assert random_model().generate(inputs, num_steps=np.int64(2)).dtype == torch.long


def test_ids_of_small_types_are_not_confused_with_the_mask() -> None:
    """As an 8-bit integer, the mask id 300 would be 44."""
    model = random_model(vocab_size=300)
    prompt = torch.tensor([[5, 44, 7]], dtype=torch.uint8)
    output = model.generate(prompt, max_new_tokens=2, return_dict_in_generate=True)
    assert output.orders.tolist() == [[0, 1, 2, 3, 4]]
    for dtype in (torch.uint8, torch.uint16):
        scores = model.log_likelihood(prompt.to(dtype), targets=torch.tensor([[0, 0, 1]]))
        assert scores.token_log_likelihood[0, 2] < 0


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_orders_of_both_integer_types_are_accepted(dtype: torch.dtype) -> None:
    output = random_model().generate(order=torch.arange(11, -1, -1, dtype=dtype)[None], return_dict_in_generate=True)
    assert output.orders.tolist() == [[*range(11, -1, -1)]]


# ------------------------------------------------------------------------------------------------- output and options


def test_generator_makes_samples_reproducible() -> None:
    model = random_model()
    first, second = (model.generate(num_return_sequences=4, num_steps=6, generator=seeded(3)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, model.generate(num_return_sequences=4, num_steps=6, generator=seeded(4)))


def test_output_of_prompt_and_generated_tokens() -> None:
    inputs = torch.tensor([[1, 11, 2, 11, 11, 3]])
    output = random_model().generate(
        inputs, num_steps=2, unmasking="fixed_count", generator=seeded(), return_dict_in_generate=True
    )
    is_masked = inputs == 11
    assert (output.unmasking_steps[~is_masked] == -1).all()
    assert sorted(output.unmasking_steps[is_masked].tolist()) == [0, 1, 1]
    assert (output.token_logprobs[~is_masked] == 0).all()
    assert set(output.orders[0, :3].tolist()) == {0, 2, 5}
    assert output.orders.sort().values.tolist() == [list(range(6))]


def test_tokens_per_forward_counts_generated_tokens_only() -> None:
    """Here 12, 1 and 5 tokens in 4 passes. Tokens that were erased after an end-of-text token do not count."""
    model = random_model()
    output = model.generate(ragged_inputs(), num_steps=4, unmasking="fixed_count", return_dict_in_generate=True)
    assert output.num_forward_passes == 4
    assert output.tokens_per_forward.tolist() == [3, 0.25, 1.25]
    with torch.no_grad():
        model.lm_head.bias[7] += 100
    inputs = torch.tensor([[1, 11, 11], [1, 2, 11]])
    output = model.generate(
        inputs, order="left_to_right", stop_at_eos=True, eos_token_id=7, return_dict_in_generate=True
    )
    assert output.tokens_per_forward.tolist() == [1, 1]


def test_greedy_generation_takes_the_likeliest_tokens() -> None:
    model = random_model()
    output = model.generate(do_sample=False, order="left_to_right", return_dict_in_generate=True)
    ids, context = output.sequences[0].tolist(), ()
    for position in range(12):
        assert ids[position] == conditional(model, context, position, 12).argmax()
        context += ((position, ids[position]),)


def test_ids_that_are_not_text_are_never_sampled() -> None:
    model = random_model(num_valid_tokens=2)
    samples = model.generate(num_return_sequences=200, num_steps=3, temperature=5.0, generator=seeded())
    assert samples.max() == 1


@pytest.mark.parametrize("truncation", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}])
def test_extreme_truncation_is_greedy(truncation: dict) -> None:
    model = random_model()
    greedy = model.generate(do_sample=False, order="left_to_right")
    assert torch.equal(model.generate(order="left_to_right", **truncation), greedy)


def test_generation_keeps_training_modes_and_makes_no_gradients() -> None:
    model = random_model().train()
    model.gradient_checkpointing_enable()
    model.model.layers[1].eval()  # as for a frozen part
    modes = [module.training for module in model.modules()]
    result = model.generate(num_steps=6, generator=seeded())
    assert not result.requires_grad
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(result, random_model().generate(num_steps=6, generator=seeded()))


@pytest.mark.parametrize(("autocast", "encoding"), [(False, "learned"), (True, "learned"), (True, "rotary")])
def test_bfloat16_log_probabilities_are_near_the_likelihood(autocast: bool, encoding: str) -> None:
    model = random_model(initializer_range=0.1, position_encoding=encoding)
    model = model.float() if autocast else model.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = model.generate(num_return_sequences=3, generator=seeded(), return_dict_in_generate=True)
        scores = model.log_likelihood(output.sequences, output.orders).log_likelihood
        ragged = model.generate(ragged_inputs(), generator=seeded(), return_dict_in_generate=True)
        token_log_probs = model.log_likelihood(ragged.sequences, ragged.orders).token_log_likelihood
    torch.testing.assert_close(output.token_logprobs.sum(1), scores, rtol=0, atol=0.2)
    token_log_probs = token_log_probs.masked_fill(ragged.unmasking_steps < 0, 0.0)
    torch.testing.assert_close(ragged.token_logprobs.sum(1), token_log_probs.sum(1), rtol=0, atol=0.2)


def test_the_head_may_have_another_dtype_or_kind() -> None:
    model = random_model().bfloat16()
    head = model.lm_head.float()
    head.register_forward_pre_hook(lambda module, arguments: (arguments[0].float(),))
    expected = model.generate(num_return_sequences=2, generator=seeded())
    model.lm_head = torch.nn.Sequential(head)
    assert torch.equal(model.generate(num_return_sequences=2, generator=seeded()), expected)


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": torch.tensor([[1.5, 11.0]])}, "`inputs` must hold integers, but has dtype"),
        ({"inputs": torch.tensor([1, 11])}, "`inputs` must have shape (batch, n) with"),
        (
            {"inputs": torch.tensor([[1, 11]]), "input_ids": torch.tensor([[1, 11]])},
            "`inputs` and `input_ids` are two names of the",
        ),
        (
            {"inputs": torch.tensor([[1, 11]]), "attention_mask": torch.ones(1, 3)},
            "`attention_mask` must have one value per",
        ),
        ({"attention_mask": torch.ones(1, 3)}, "`attention_mask` has no effect without"),
        ({"inputs": torch.tensor([[1, 12]]), "max_new_tokens": 1}, "`input_ids` contains the id 12, but ids of"),
        ({"inputs": torch.zeros(2, 0).long()}, "nothing to generate: `inputs` contains no"),
        ({"inputs": torch.tensor([[1, 2]])}, "nothing to generate: `inputs` contains no"),
        ({"inputs": torch.tensor([[1, 12]])}, "`input_ids` contains the id 12, but ids of"),
        (
            {"inputs": torch.tensor([[1, 11]]), "attention_mask": torch.tensor([[1, 0]])},
            "nothing to generate: `inputs` contains no",
        ),
        ({"inputs": torch.tensor([[1, 2, 11]]), "max_length": 2}, "`max_length` (2) is less than the length of"),
        ({"max_length": 13}, "`inputs` has 0 tokens per sequence (with padding), and 13"),
        (
            {"inputs": torch.tensor([[1, 2]]), "max_new_tokens": 20},
            "`inputs` has 2 tokens per sequence (with padding), and 20",
        ),
        (
            {"inputs": torch.full((1, 13), 11), "max_new_tokens": 1},
            "`inputs` has 13 tokens per sequence (with padding), and 1",
        ),
        ({"order": torch.tensor([[0, 0, 1]]), "max_length": 3}, "`order[0]` must contain each position from 0"),
        ({"order": torch.tensor([[0, 1]]), "max_length": 3}, "shape (1, 3), but has shape (1, 2)"),
        (
            {"inputs": torch.tensor([[1, 11]]), "order": torch.tensor([[0, 1]]), "num_return_sequences": 3},
            "shape (3, 2), but has shape (1, 2)",
        ),
    ],
)
def test_invalid_inputs_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        random_model().generate(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": [[1, 11]]}, "`inputs` must be a torch.Tensor, but has type"),
        ({"inputs": np.array([[1, 11]])}, "`inputs` must be a torch.Tensor, but has type"),
        (
            {"inputs": torch.tensor([[1, 11]]), "attention_mask": [[1, 1]]},
            "`attention_mask` must be a torch.Tensor, but",
        ),
        ({"generator": 42}, "`generator` must be a torch.Generator, but"),
        ({"generation_config": {"max_new_tokens": 4}}, "`generation_config` must be a"),
        ({"logits_processor": SuppressTokensLogitsProcessor([1])}, "`logits_processor` must be a list"),
    ],
)
def test_arguments_of_the_wrong_type_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        random_model().generate(**arguments)


# --------------------------------------------------------------------------------------------------- default order


def test_prompts_are_continued_left_to_right_by_default() -> None:
    model, prompt = random_model(), torch.tensor([[3, 1, 4]])
    arguments = {"generator": seeded(), "return_dict_in_generate": True}
    output = model.generate(prompt, max_new_tokens=5, **arguments)
    assert output.orders.tolist() == [list(range(8))]
    assert model.generate(prompt, max_length=6, strategy="speculative", **arguments).orders.tolist() == [list(range(6))]
    assert model.generate(prompt, max_new_tokens=5, order="random", **arguments).orders.tolist() != [list(range(8))]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"max_length": 9},
        {"inputs": torch.tensor([[3, 11, 4, 11, 11, 11, 11, 11]])},
        {"inputs": torch.tensor([[3, 1, 4], [3, 1, 11]]), "max_new_tokens": 6},
        {"inputs": torch.tensor([[3, 1, 4]]), "max_new_tokens": 6, "num_steps": 6},
        {"inputs": torch.tensor([[3, 1, 4]]), "max_new_tokens": 6, "unmasking": "entropy_bound"},
        {"inputs": torch.tensor([[3, 1, 4]]), "max_new_tokens": 6, "refine_rounds": 1, "refine_length": 1},
        {"inputs": torch.tensor([[3, 1, 4]]), "max_new_tokens": 6, "block_length": 8},
    ],
)
def test_other_generations_are_in_random_orders_by_default(arguments: dict) -> None:
    model = random_model()
    common = {"return_dict_in_generate": True, **arguments}
    default = model.generate(generator=seeded(), **common)
    assert torch.equal(default.orders, model.generate(generator=seeded(), order="random", **common).orders)
    assert not torch.equal(default.orders, model.generate(generator=seeded(), order="left_to_right", **common).orders)


def test_the_order_of_a_generation_config_replaces_the_default() -> None:
    model, prompt = random_model(), torch.tensor([[3, 1, 4]])
    model.generation_config.order = "confidence"
    common = {"max_new_tokens": 6, "return_dict_in_generate": True}
    adaptive = model.generate(prompt, generator=seeded(), **common)
    assert torch.equal(adaptive.orders, model.generate(prompt, order="confidence", generator=seeded(), **common).orders)
    assert model.generate(prompt, order=None, **common).orders.tolist() == [list(range(9))]


# ----------------------------------------------------------------------------------------------------- first contact


@pytest.mark.parametrize(
    ("prompts", "arguments", "warns"),
    [
        ([[3, 1, 9], [3, 1, 4]], {}, True),
        ([[9, 3, 1], [3, 1, 4]], {}, True),
        ([[3, 9, 1], [3, 1, 4]], {}, False),
        ([[9]], {}, False),  # a prompt of a single token
        ([[3, 9, 1], [3, 1, 4]], {"pad_token_id": 4}, True),
        ([[3, 1, 9], [3, 1, 4]], {"attention_mask": torch.tensor([[1, 1, 0], [1, 1, 1]])}, False),
        ([[3, 11, 9], [3, 1, 4]], {"max_new_tokens": None}, False),  # infilling: text may be padded on purpose
    ],
)
def test_padding_without_a_mask_gives_a_warning(
    prompts: list, arguments: dict, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = []
    monkeypatch.setattr("modeling_aogpt.generation.logger.warning_once", messages.append)
    model = random_model()
    model.generation_config.pad_token_id = 9
    model.generate(torch.tensor(prompts), **{"max_new_tokens": 2, **arguments})
    assert len(messages) == warns
    pad = arguments.get("pad_token_id", 9)
    assert all(f"padding token ({pad}), but there is no `attention_mask`" in message for message in messages)


@pytest.mark.parametrize(
    ("random", "fixed"),
    [
        ({}, {"order": "confidence"}),
        ({"order": "confidence", "num_steps": 2}, {"unmasking": "fixed_count"}),
        ({"order": "left_to_right", "refine_rounds": 1, "refine_length": 1}, {"refine_selection": "least_likely"}),
    ],
)
def test_greedy_generation_at_random_positions_gives_a_warning(
    random: dict, fixed: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, model, inputs = [], random_model(), torch.tensor([[3, 11, 11]])
    monkeypatch.setattr("modeling_aogpt.generation.logger.warning_once", messages.append)
    for others in (fixed, {"generator": seeded()}, {"do_sample": True}, {}):
        assert not messages
        model.generate(inputs, **{"do_sample": False} | random | others)
    assert len(messages) == 1
    assert "an `order` that is not random" in messages[0]
    model.infill(torch.tensor([3, 11, 5]), [3], do_sample=False, **{"order": "confidence"} | random)
    assert messages[1:] == (messages[:1] if "order" in random else [])


def test_prompts_are_continued_from_left_to_right_even_if_padding_has_the_mask_id() -> None:
    model, is_token = random_model(), torch.tensor([[0, 1, 1]])
    for pad in (model.config.mask_token_id, 1):
        inputs = torch.tensor([[pad, 5, 6]])
        output = model.generate(inputs, attention_mask=is_token, max_new_tokens=6, return_dict_in_generate=True)
        assert output.unmasking_steps[0, 3:].tolist() == list(range(6))


@pytest.mark.parametrize("mask_token_id", [None, 3, -1, 2.5])
def test_a_mask_id_that_was_changed_to_text_is_an_error(mask_token_id: object) -> None:
    model = random_model()
    model.config.mask_token_id = mask_token_id
    message = rf"`mask_token_id` must be at least `num_valid_tokens` \(11\), .* but is {mask_token_id}"
    for call in (model.generate, lambda: model.generate(torch.tensor([[1, 11]]))):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"num_steps": 2},
        {"order": "margin"},
        {"strategy": "speculative"},
        {"strategy": "speculative", "draft": "prompt_lookup"},
    ],
)
def test_logits_that_are_not_finite_end_a_generation_at_once(arguments: dict) -> None:
    model = random_model()
    passes = []
    model.model.register_forward_hook(lambda *_: passes.append(1))
    with torch.no_grad():
        model.lm_head.bias[3] = float("nan")
    with pytest.raises(ValueError, match=r"logits are not finite .* Check the weights"):
        model.generate(**arguments)
    assert len(passes) <= 2


def test_a_vocabulary_of_one_token_has_a_margin() -> None:
    model = random_model(vocab_size=1)
    assert model.generate(order="margin", max_length=4).tolist() == [[0] * 4]
