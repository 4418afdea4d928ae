# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Runs with several processes equal those with one, up to rounding, and either can resume the other."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import FullyShardedDataParallelPlugin, accelerator
from accelerate.utils import DistributedType, DynamoBackend
from transformers import AutoConfig, AutoModelForCausalLM

from modeling_aogpt.tokenization import load_tokenizer
from tests.training_runs import SHARDED, STEPS, final_state, losses, results, scores, train, write_config
from training import sharding
from training.checkpoints import checkpoints_in
from training.conversion.causal_lm import convert
from training.conversion.export_causal_lm import export, restore_mask_token
from training.sharding import check_sharding, set_up_sharding

ROOT = Path(__file__).parents[1]
SELECTIVE = "--activation_checkpointing=selective"

# FSDP2 runs on CPUs, but Accelerate uses it on accelerators only. Its state is therefore changed after it is made.
FSDP2_ON_CPUS = """
import atexit
import os
import sys
import time
from pathlib import Path
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin, ParallelismConfig, PartialState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from modeling_aogpt import modeling_aogpt
from training.pretrain import Pretraining, main

bf16 = "--mixed_precision=bf16" in sys.argv
torch.cpu._is_avx512_bf16_supported = lambda: True  # emulated if not supported
state = Accelerator(cpu=True, mixed_precision="bf16" if bf16 else "no").state
state.fsdp_plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=True
)
state.distributed_type = PartialState().distributed_type = DistributedType.FSDP
if "PARALLELISM_CONFIG_DP_SHARD_SIZE" in os.environ:  # HSDP
    state.parallelism_config = ParallelismConfig()
    state.device_mesh = state.parallelism_config.get_device_mesh("cpu")
train = Pretraining.train
prepare = Accelerator.prepare

def checked_prepare(accelerator, *arguments):
    devices = {weight.device.type for weight in arguments[0].parameters()}
    assert devices == ({"cpu"} if accelerator.is_main_process else {"meta"})
    return prepare(accelerator, *arguments)

def check_threads():
    for _ in range(50):  # threads of a closed group end a little later
        names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
        # PyTorch keeps the groups that shard the parameters.
        if sum("gloo_tcp" in name for name in names) <= (4 if state.parallelism_config else 1):
            return
        time.sleep(0.1)
    print("Threads of other process groups are still running:", *names, file=sys.stderr)
    os._exit(1)

atexit.register(check_threads)  # runs after the functions that are registered later

def check_precision(module, arguments, batch, loss):
    assert (loss.dtype, batch["times"].dtype) == (torch.float32, torch.float64)

def checked(run):
    is_compiled = os.environ.get("ACCELERATE_DYNAMO_BACKEND") is not None
    assert all((layer._compiled_call_impl is not None) == is_compiled for layer in run.model.model.layers)
    assert hasattr(modeling_aogpt.differentiate_chunk, "_torchdynamo_orig_callable") == is_compiled
    if run.settings["architecture"] == "encoder":
        run.objective.register_forward_hook(check_precision, with_kwargs=True)
    tensors = [*run.model.parameters(), *run.ema.weights.values()]
    assert all(isinstance(tensor, DTensor) for tensor in tensors)
    assert sum(tensor.to_local().numel() for tensor in tensors) < 0.7 * sum(tensor.numel() for tensor in tensors)
    return train(run)

FSDPModule.set_requires_gradient_sync = None  # not called: no process keeps the gradients of all weights
if bf16:
    state.fsdp_plugin.set_mixed_precision("bf16")  # as Accelerate does on accelerators
Pretraining.train, Accelerator.prepare = checked, checked_prepare
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = write_config(tmp_path_factory.mktemp("corpus"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", path.with_name("cache"))
        patch.setenv("HF_DATASETS_CACHE", str(path.with_name("cache")))
        yield path


@pytest.fixture(scope="module")
def single(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run with one process, with all checkpoints."""
    out = tmp_path_factory.mktemp("runs") / "single"
    train(config, out, "--save_total_limit=9")
    return out


def run(*command: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", *command],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=500,
    )


def run_fsdp2(folder: Path, config: Path, out: Path, *options: str, processes: int = 2, **environment: str) -> None:
    (folder / "fsdp2_on_cpus.py").write_text(FSDP2_ON_CPUS)
    launch = ("torch.distributed.run", "--standalone", f"--nproc_per_node={processes}")
    launch = (*launch, str(folder / "fsdp2_on_cpus.py"))
    done = run(*launch, str(config), f"--output_dir={out}", *options, **environment)
    assert done.returncode == 0, done.stderr


def assert_close_training(one: Path, other: Path) -> None:
    expected, state = final_state(one), final_state(other)
    assert state.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(state[name], expected[name], rtol=1e-4, atol=1e-5, msg=name)
    assert scores(other)[-1] == pytest.approx(scores(one)[-1], rel=1e-4)
    for key in ("sequences", "bytes"):
        assert results(other)["evaluations"][-1][key] == results(one)["evaluations"][-1][key]


def test_two_processes_share_the_batch(config: Path, tmp_path: Path) -> None:
    options = ("--orders=context_first", SELECTIVE)  # the passes of a step have different numbers of labels
    train(config, tmp_path / "one", *options)
    file = ROOT / "training" / "accelerate" / "cpus.yaml"
    launch = ("accelerate.commands.launch", "--config_file", str(file), "--main_process_port=0")
    script = str(ROOT / "training" / "pretrain.py")
    options = (f"--output_dir={tmp_path / 'two'}", "--per_device_batch_size=3", *options)
    done = run(*launch, script, str(config), *options)
    assert done.returncode == 0, done.stderr
    assert results(tmp_path / "two")["hardware"]["num_processes"] == 2
    assert_close_training(tmp_path / "one", tmp_path / "two")


@SHARDED
def test_sharded_run_equals_that_of_one_process_and_any_number_can_resume_it(
    config: Path, single: Path, tmp_path: Path
) -> None:
    run_fsdp2(tmp_path, config, tmp_path / "sharded", "--save_total_limit=9", "--per_device_batch_size=3", SELECTIVE)
    assert_close_training(single, tmp_path / "sharded")
    assert [path.name for path in checkpoints_in(tmp_path / "sharded")] == [f"checkpoint-{n:08d}" for n in (3, 6, 8)]
    shutil.copytree(tmp_path / "sharded" / "checkpoint-00000003", tmp_path / "resumed" / "checkpoint-00000003")
    train(config, tmp_path / "resumed")
    assert_close_training(single, tmp_path / "resumed")
    # Checkpoints are written before evaluations, so this run starts with one.
    shutil.copytree(tmp_path / "sharded" / "checkpoint-00000003", tmp_path / "evaluated" / "checkpoint-00000003")
    run_fsdp2(tmp_path, config, tmp_path / "evaluated", "--eval_steps=3")
    assert_close_training(single, tmp_path / "evaluated")
    assert [step for step, *_ in scores(tmp_path / "evaluated")] == [3, 6, 8]
    if not hasattr(accelerator, "compile_regions_fsdp2"):
        return  # this version of Accelerate does not support hybrid sharding by these variables
    shutil.copytree(tmp_path / "sharded" / "checkpoint-00000003", tmp_path / "hybrid" / "checkpoint-00000003")
    hybrid = {"PARALLELISM_CONFIG_DP_REPLICATE_SIZE": "2", "PARALLELISM_CONFIG_DP_SHARD_SIZE": "2"}
    run_fsdp2(tmp_path, config, tmp_path / "hybrid", processes=4, **hybrid)
    assert torch.equal(losses(tmp_path / "hybrid")[:3], losses(tmp_path / "sharded")[:3])
    assert_close_training(single, tmp_path / "hybrid")


@pytest.mark.skipif(
    not hasattr(accelerator, "compile_regions_fsdp2"),
    reason="Accelerate does not compile sharded blocks",
)
@SHARDED
def test_sharded_run_with_compiled_blocks_can_resume_that_of_one_process(
    config: Path, single: Path, tmp_path: Path
) -> None:
    (tmp_path / "resumed").mkdir()
    name = "checkpoint-00000003.safetensors"
    (tmp_path / "resumed" / name).write_bytes((single / name).read_bytes())
    compiled = {"ACCELERATE_DYNAMO_BACKEND": "aot_eager", "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "true"}
    run_fsdp2(tmp_path, config, tmp_path / "resumed", ACCELERATE_USE_CPU="true", **compiled)
    assert torch.equal(losses(tmp_path / "resumed")[:3], losses(single)[:3])
    assert len(losses(tmp_path / "resumed")) == STEPS
    assert_close_training(single, tmp_path / "resumed")


@SHARDED
def test_sharded_run_of_a_converted_model_equals_that_of_one_process(
    config: Path, single: Path, tmp_path: Path
) -> None:
    """Continue a Qwen2 with grouped heads and a tied head, and export the result."""
    settings = AutoConfig.for_model(
        "qwen2", vocab_size=270, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=8, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0,
        pad_token_id=None,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(settings).save_pretrained(tmp_path / "source")
    load_tokenizer(str(single / "model")).save_pretrained(tmp_path / "source")
    restore_mask_token(tmp_path / "source")
    convert(str(tmp_path / "source"), tmp_path / "converted")
    lines = config.read_text().splitlines()
    keys = ("vocab_size", "hidden_size", "num_", "target_embedding_size", "position_encoding")
    continued = config.with_name("continued.yaml")
    continued.write_text("\n".join(line for line in lines if not line.startswith(keys)))
    options = (f"--init_from={tmp_path / 'converted'}", "--num_samples=0")
    train(continued, tmp_path / "one", *options)
    run_fsdp2(tmp_path, continued, tmp_path / "sharded", *options)
    assert_close_training(tmp_path / "one", tmp_path / "sharded")
    assert type(export(str(tmp_path / "sharded" / "model"), tmp_path / "exported")).__name__ == "Qwen2ForCausalLM"


@SHARDED
def test_sharded_run_in_bfloat16_rounds_neither_times_nor_losses(config: Path, tmp_path: Path) -> None:
    options = ("--architecture=encoder", "--objective=score_entropy", "--target_injection=sigma", "--num_samples=1")
    run_fsdp2(tmp_path, config, tmp_path / "run", *options, "--mixed_precision=bf16", "--max_steps=3")
    assert results(tmp_path / "run")["loss_curve"]["loss"][-1] < 6


def test_gradients_of_shards_are_summed_in_float32() -> None:
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    plugin.set_mixed_precision("bf16")
    parts = {"state": SimpleNamespace(fsdp_plugin=plugin), "gradient_state": SimpleNamespace(plugin_kwargs={})}
    for kind in (DistributedType.NO, DistributedType.FSDP):
        set_up_sharding(SimpleNamespace(distributed_type=kind, mixed_precision="bf16", **parts))
    policy = plugin.mixed_precision_policy
    assert (policy.param_dtype, policy.reduce_dtype, policy.output_dtype) == (torch.bfloat16, torch.float32, None)
    assert not policy.cast_forward_inputs


@SHARDED
@pytest.mark.parametrize("kind", [DistributedType.FSDP, DistributedType.MULTI_GPU])
@pytest.mark.parametrize("is_regional", [True, False])
def test_versions_that_are_too_old_for_sharding_are_errors(
    kind: DistributedType, is_regional: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = SimpleNamespace(backend=DynamoBackend.INDUCTOR, use_regional_compilation=is_regional)
    sharding_plugin = SimpleNamespace(fsdp_version=2)
    state = SimpleNamespace(dynamo_plugin=plugin, fsdp_plugin=sharding_plugin)
    given = SimpleNamespace(distributed_type=kind, state=state)
    monkeypatch.setattr(accelerator, "compile_regions_fsdp2", None, raising=False)
    check_sharding(given)
    with monkeypatch.context() as patch:
        patch.setattr(sharding, "is_torch_version", lambda *arguments: False)
        is_error = kind is DistributedType.FSDP
        with pytest.raises(ValueError, match=r"PyTorch 2.9") if is_error else nullcontext():
            check_sharding(given)
    monkeypatch.delattr(accelerator, "compile_regions_fsdp2")
    is_error = kind is DistributedType.FSDP and is_regional
    with pytest.raises(ValueError, match="compile the layers") if is_error else nullcontext():
        check_sharding(given)


def test_several_processes_report_an_error_once(config: Path, tmp_path: Path) -> None:
    launch = ("torch.distributed.run", "--standalone", "--nproc_per_node=2", str(ROOT / "training" / "pretrain.py"))
    done = run(*launch, str(config), f"--output_dir={tmp_path / 'run'}", "--corpus=none.txt")
    assert done.returncode != 0
    assert len(re.findall("^error: ", done.stderr, re.MULTILINE)) == 1, done.stderr
    assert "Connection closed" not in done.stderr
