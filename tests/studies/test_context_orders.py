# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import itertools
import json
import math
from pathlib import Path

import pytest
import torch

from eval.studies.context_orders.context_orders import (
    Arguments,
    count_predictions,
    draw_predictions,
    ensemble_nats,
    main,
    measure_run,
    score_context_orders,
)
from eval.studies.runner.scores import held_out_rows
from tests.references import random_encoder, random_model, seeded
from tests.training_runs import train, write_config


def test_the_numbers_of_predictions_are_those_of_an_enumeration() -> None:
    for length in range(1, 6):
        ordered = {
            (target, context)
            for size in range(length)
            for context in itertools.permutations(range(length), size)
            for target in set(range(length)) - set(context)
        }
        unordered = {(target, frozenset(context)) for target, context in ordered}
        assert count_predictions(length) == (len(unordered), len(ordered))
        assert count_predictions(length) == (length * 2 ** (length - 1), int(math.e * math.factorial(length)) - 1)


def test_targets_have_all_ranks_and_contexts_are_random() -> None:
    targets, context = draw_predictions(500, 4, 8, seeded())
    assert targets.shape == context.shape == (2000, 8)
    assert (targets.sum(dim=-1) == 1).all()
    assert not (targets & context).any()
    sizes = context.sum(dim=-1).view(500, 4)
    assert all(set(sizes[:, stratum].tolist()) == {2 * stratum, 2 * stratum + 1} for stratum in range(4))
    for is_chosen, expected in ((targets, 1 / 8), (context, 3.5 / 8)):
        assert torch.allclose(is_chosen.double().mean(dim=0), torch.full((8,), expected).double(), atol=0.04)


def test_a_decoder_is_scored_with_each_order_of_the_context() -> None:
    model, ids = random_model(), torch.randint(11, (3, 6), generator=seeded())
    targets, context = draw_predictions(3, 1, 6, seeded(3))
    num_context = context.sum(dim=-1)
    assert (num_context > 1).any()
    scores = score_context_orders(model, ids, targets, context, num_orders=40, generator=seeded())
    assert scores.shape == (3, 40)
    for row in range(3):
        (target,), positions = targets[row].nonzero()[0].tolist(), context[row].nonzero()[:, 0].tolist()
        others = [position for position in range(6) if position not in (target, *positions)]
        expected = set()
        for order in itertools.permutations(positions):
            logits = model(ids[row : row + 1], orders=torch.tensor([[*order, target, *others]])).logits
            expected.add(round(logits[0, target].log_softmax(-1)[ids[row, target]].item(), 9))
        assert set(scores[row].numpy().round(9).tolist()) <= expected
        assert len(set(scores[row].numpy().round(9).tolist())) > (len(positions) > 1)


def test_an_encoder_has_no_order_of_the_context() -> None:
    model, ids = random_encoder(), torch.randint(11, (4, 6), generator=seeded())
    targets, context = draw_predictions(4, 1, 6, seeded())
    scores = score_context_orders(model, ids, targets, context, num_orders=3, generator=seeded())
    masked = ids.masked_fill(~context, model.config.mask_token_id)
    expected = model(masked).logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0][targets]
    torch.testing.assert_close(scores, expected[:, None].expand(-1, 3))


def test_ensembles_are_means_of_probabilities() -> None:
    scores = torch.tensor([[0.5, 0.25, 0.125, 0.125], [1.0, 1.0, 0.5, 1.0]]).double().log()
    assert ensemble_nats(scores, 1) == pytest.approx(-scores.mean().item())
    expected = -(math.log(0.375) + math.log(0.125) + math.log(1) + math.log(0.75)) / 4
    assert ensemble_nats(scores, 2) == pytest.approx(expected)
    assert ensemble_nats(scores, 4) == pytest.approx(-(math.log(0.25) + math.log(0.875)) / 2)


@pytest.mark.usefixtures("datasets_cache")
def test_a_decoder_is_compared_with_an_encoder(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    config, folders = write_config(tmp_path), []
    for architecture in ("decoder", "encoder"):
        for seed in (0, 1):
            folders.append(str(tmp_path / str(seed) / architecture))
            options = [f"--architecture={architecture}", f"--seed={seed}", "--tracker=none", "--num_samples=0"]
            train(config, Path(folders[-1]), *options)
    size = ["--num_sequences=4", "--num_contexts=3"]
    main([*folders, *size, "--max_ensemble=8", f"--output_dir={tmp_path}"])
    models = json.loads((tmp_path / "context_orders.json").read_text())["models"]
    assert list(models) == ["decoder", "encoder"]
    assert list(models["decoder"]["bits_per_byte"]) == ["1", "2", "4", "8"]
    values = {name: [value["mean"] for value in entry["bits_per_byte"].values()] for name, entry in models.items()}
    assert values["decoder"] == sorted(values["decoder"], reverse=True)  # by Jensen's inequality
    assert len(set(values["encoder"])) == 1 or max(values["encoder"]) == pytest.approx(min(values["encoder"]))
    assert (len(models["decoder"]["spread"]["values"]), models["encoder"]["spread"]["mean"]) == (2, 0.0)
    spreads = [estimate["mean"] for estimate in models["decoder"]["spreads"]]
    assert models["decoder"]["spread"]["mean"] > 0
    assert models["decoder"]["spread"]["mean"] == pytest.approx(sum(spreads) / 3)
    assert models["decoder"]["context_sizes"] == sorted(models["decoder"]["context_sizes"])
    gains = models["decoder"]["gain"]["values"]
    bits = [models["decoder"]["bits_per_byte"][size]["values"] for size in ("1", "8")]
    assert gains == pytest.approx([one - other for one, other in zip(*bits, strict=True)])
    assert not {"gain", "minus_encoder"} & set(models["encoder"])
    pairs = zip(*(models[name]["bits_per_byte"]["8"]["values"] for name in ("decoder", "encoder")), strict=True)
    difference = models["decoder"]["minus_encoder"]["8"]
    assert difference["values"] == [one - other for one, other in pairs]
    table = json.loads((tmp_path / "context_orders.json").read_text())["table"]
    assert table["decoder"]["M = 8"] == models["decoder"]["bits_per_byte"]["8"]
    assert table["decoder, minus encoder"]["M = 8"] == difference
    arguments = [Arguments(num_sequences=4, num_contexts=3, max_ensemble=2, seed=seed) for seed in (0, 0, 1)]
    folder = Path(folders[0])
    measured, again, other = (measure_run(folder, held_out_rows(folder, 4), given) for given in arguments)
    assert measured == again != other
    main([*folders[1:], *size, "--max_ensemble=2", f"--output_dir={tmp_path}"])  # a decoder with one seed
    table = json.loads((tmp_path / "context_orders.json").read_text())["table"]
    assert "decoder, minus encoder" not in table
    with pytest.raises(SystemExit, match=r"Runs with the folder name decoder .* but"):
        main([folders[0], folders[0], *size, f"--output_dir={tmp_path}"])
    train(config, tmp_path / "other", "--sequence_length=9", "--tracker=none", "--num_samples=0")
    with pytest.raises(SystemExit, match=r"All runs must have the same held-out"):
        main([folders[0], str(tmp_path / "other"), *size, f"--output_dir={tmp_path}"])
