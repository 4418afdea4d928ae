# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import copy
import re
import sys
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, MDMEncoderConfig
from training.activation_checkpointing import checkpoint_activations
from training.arguments import TrainingArguments
from training.command_line import parse_arguments
from training.dry_run import device_memory, main, read_model_config
from training.lora import add_lora
from training.objectives import AnyOrderObjective
from training.optimization import ExponentialMovingAverage, create_optimizer, trainable_weights
from training.tracking import flops_per_token

FOLDER = Path(__file__).parents[1] / "training"
FSDP2, HSDP = (f"--launch={FOLDER / 'accelerate' / name}.yaml" for name in ("fsdp2", "hsdp_nodes"))
Estimate = Callable[..., dict[str, str]]


@pytest.fixture
def estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Estimate:
    """Return a function that runs the command for two layers of the medium model, and returns the rows of the table."""
    path = tmp_path / "run.yaml"
    keys = "tokenizer: null\nvocab_size: 50304\nnum_hidden_layers: 2\n"
    path.write_text(f"base: {FOLDER / 'configs' / 'medium'}.yaml\n{keys}")
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10**11))

    def run(*options: str) -> dict[str, str]:
        monkeypatch.setattr(sys, "argv", ["dry_run.py", str(path), f"--output_dir={tmp_path / 'run'}", *options])
        main()
        return dict(re.findall(r"^\| (\w.*?) \| (.*?) \|$", capsys.readouterr().out, re.MULTILINE))

    return run


def gigabytes(rows: dict[str, str]) -> float:
    return float(rows["memory per GPU"].split()[0])


def test_estimate_of_the_papers_medium_run(estimate: Estimate, tmp_path: Path) -> None:
    rows = estimate("--num_hidden_layers=24", "--save_total_limit=7", "--gpu=NVIDIA H200", "--mfu=0.5")
    config = read_model_config(*parse_arguments([str(tmp_path / "run.yaml"), "--num_hidden_layers=24"]))
    flops = 500_000 * 2**19 * flops_per_token(config, 1024)
    days = flops / (8 * 989.4e12 * 0.5) / 86400
    assert rows["parameters"] == "425,804,928"
    assert rows["tokens"] == "262,144,000,000 (524,288 per step)"
    assert rows["FLOPs"] == f"{flops:.2e}"
    assert rows["machine"] == "8 x NVIDIA H200, 8 passes per step"
    assert rows["time"] == f"{days:.1f} days without evaluations"
    assert rows["speed"] == f"{500_000 / days / 24:,.0f} steps per hour at 50% MFU"
    assert rows["memory per GPU"].endswith(" of 141 GB")
    assert rows["disk"] == "8 checkpoints of 6.8 GB, model of 1.7 GB; 100 GB are free"
    assert not (tmp_path / "run").exists()
    rows = estimate("--learning_rate_schedule=warmup_stable_decay")  # the checkpoint before the decay is also kept
    assert rows["disk"].startswith("4 checkpoints of ")


def test_sharding_and_recomputation_take_less_memory(estimate: Estimate) -> None:
    full = "--activation_checkpointing=full"
    sizes = [
        gigabytes(estimate(*options, "--num_processes=8", "--gpu_memory=99"))
        for options in (["--mixed_precision=no"], [], ["--activation_checkpointing=selective"], [full], [full, FSDP2])
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 5


@pytest.mark.parametrize(
    ("lora_rank", "passes", "checkpointing", "distillation"),
    [
        (0, 1, "none", None),
        (0, 2, "selective", None),
        (4, 1, "none", None),
        (4, 1, "full", None),
        (0, 1, "full", 1.0),
        (4, 1, "full", 1.0),
    ],
)
def test_memory_of_a_step_is_that_which_is_allocated(
    lora_rank: int, passes: int, checkpointing: str, distillation: float | None
) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3, "vocab_size": 500}
    kinds = {"position_encoding": "rotary", "target_injection": "none", "gated_mlp": True, "norm": "rmsnorm"}
    model = AOGPTForAnyOrderLM(AOGPTConfig(**sizes, num_attention_heads=4, max_position_embeddings=128, **kinds))
    training = TrainingArguments(
        init_from="a",
        lora_rank=lora_rank,
        activation_checkpointing=checkpointing,
        batch_size=8,
        distillation_weight=distillation,
    )
    if lora_rank:
        add_lora(model, training)
    launch = {"use_cpu": True, "mixed_precision": "no", "distributed_type": "NO", "num_processes": 1}
    expected = device_memory(copy.deepcopy(model).to("meta"), (8, 128), passes, training, launch)

    checkpoint_activations(model.train(), checkpointing)
    optimizer, average = create_optimizer(model, training), ExponentialMovingAverage(model, 0.9)
    batch = {"input_ids": torch.zeros(8, 128, dtype=torch.long), "orders": torch.arange(128).repeat(8, 1)}
    batch["left_to_right_rows"] = torch.arange(8)
    objective = AnyOrderObjective(model)
    objective.distillation_weight = distillation
    if distillation and not lora_rank:
        objective.source = copy.deepcopy(model).requires_grad_(False)
    for weight in trainable_weights(model).values():  # the state of AdamW
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    optimizer.zero_grad()
    used = sum(weight.nbytes for weight in objective.parameters()) + 12 * sum(
        w.numel() for w in average.weights.values()
    )
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        for _ in range(passes):
            objective(**batch).backward()
        optimizer.step()
    events = (event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]")
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    assert expected == pytest.approx(used + max(accumulate(changes)), rel=0.1)


def test_hybrid_sharding_divides_the_states_among_the_gpus_of_a_machine(estimate: Estimate) -> None:
    launches = [(FSDP2, 8), (HSDP, 16), (HSDP, 32)]
    assert len({gigabytes(estimate(launch, f"--num_processes={number}")) for launch, number in launches}) == 1


def test_a_launch_file_needs_no_keys(estimate: Estimate, tmp_path: Path) -> None:
    path = tmp_path / "launch.yaml"
    path.write_text("use_cpu: false\n")
    rows = estimate(f"--launch={path}", "--gpu_memory=999", "--batch_size=8", "--max_steps=500000")
    assert rows["machine"] == "1 x NVIDIA H100 80GB HBM3, 1 pass per step"
    assert rows["time"] == f"{500_000 / float(rows['speed'].split()[0].replace(',', '')):.1f} hours without evaluations"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpu_memory=5"], "does not fit. Memory: "),
        (["--save_total_limit=1000000"], "does not fit. Disk: "),
        (["--num_processes=7"], "`batch_size` must be a multiple"),
        (["--gpu=A100"], "`gpu` .* NVIDIA A100-SXM4-40GB, .*'A100'"),
        (["--launch=none.yaml"], "none.yaml"),
        ([HSDP, "--num_processes=4"], "`num_processes` must be a multiple of 8"),
        (["--learnin_rate=1"], "Did you mean `learning_rate`"),
    ],
)
def test_runs_that_do_not_fit_and_wrong_options_are_errors(
    estimate: Estimate, options: list[str], message: str
) -> None:
    with pytest.raises(SystemExit, match=f"^error: .*{message}"):
        estimate(*options)


def test_the_default_gpu_is_that_of_this_machine(estimate: Estimate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100-SXM4-40GB")
    rows = estimate("--activation_checkpointing=full")
    assert rows["machine"].startswith("8 x NVIDIA A100-SXM4-40GB, ")
    assert rows["memory per GPU"].endswith(" of 40 GB")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA L4")
    with pytest.raises(SystemExit, match=r"`gpu` .*'NVIDIA L4'"):
        estimate()


def test_architecture_of_encoders_and_of_initial_models(tmp_path: Path, tiny_model: AOGPTForAnyOrderLM) -> None:
    arguments = parse_arguments([str(FOLDER / "configs" / "quickstart.yaml"), "--architecture=encoder"])
    assert isinstance(read_model_config(*arguments), MDMEncoderConfig)
    tiny_model.save_pretrained(tmp_path)
    path = tmp_path / "run.yaml"
    path.write_text(f"corpus: a.txt\ninit_from: {tmp_path}\ntokenizer: gpt2\n")
    config = read_model_config(*parse_arguments([str(path)]))
    assert (config.hidden_size, config.vocab_size) == (tiny_model.config.hidden_size, tiny_model.config.vocab_size)


def test_lora_needs_no_gradients_and_optimizer_state_for_frozen_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"vocab_size": 1000, "num_hidden_layers": 3, "max_position_embeddings": 64}
    sizes |= {"hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 4096}
    kind = {"position_encoding": "rotary", "target_injection": "none", "dtype": torch.bfloat16}
    AOGPTConfig(**sizes, **kind).save_pretrained(tmp_path)
    options = [f"--init_from={tmp_path}", "--corpus=unicode-names", f"--output_dir={tmp_path / 'run'}"]
    recipe = str(FOLDER / "configs" / "finetune.yaml")
    command = ["dry_run.py", recipe, *options, "--batch_size=1", "--sequence_length=1", "--num_processes=1"]
    sizes_of_state = []
    for lora in ((), ("--lora_rank=4", "--lora_targets=q_proj"), ("--distillation_weight=1",)):
        monkeypatch.setattr(sys, "argv", [*command, "--per_device_batch_size=1", *lora])
        main()
        rows = dict(re.findall(r"^\| (\w.*?) \| (.*?) \|$", capsys.readouterr().out, re.MULTILINE))
        sizes_of_state.append(rows)
    assert sizes_of_state[0]["tokens"].startswith("at most ")  # examples are not padded
    assert sizes_of_state[1]["parameters"].endswith(f", LoRA trains {3 * 2 * 4 * 1024:,}")
    assert sizes_of_state[1]["disk"].startswith("3 checkpoints of 0.0 GB, model of 0.0 GB")
    assert gigabytes(sizes_of_state[1]) < gigabytes(sizes_of_state[0]) / 5
    num_parameters = int(sizes_of_state[2]["parameters"].replace(",", ""))
    copy = gigabytes(sizes_of_state[2]) - gigabytes(sizes_of_state[0])
    assert copy == pytest.approx(4 * num_parameters / 1e9, abs=0.11)
    flops = [float(rows["FLOPs"]) for rows in sizes_of_state]
    assert flops[1] == pytest.approx(flops[0] * 2 / 3, rel=0.01)  # no gradients of frozen weights
    assert flops[2] == pytest.approx(flops[0] * 4 / 3, rel=0.01)  # `gaps_last` may be left to right
    monkeypatch.setattr(sys, "argv", [*command, "--per_device_batch_size=1", "--lora_rank=4", "--gpu_memory=0.01"])
    with pytest.raises(SystemExit, match=r"does not fit.*`quantization`"):
        main()
