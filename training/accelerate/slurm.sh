#!/bin/bash
# Train on one or several machines with Slurm:
#
#   sbatch --nodes 2 --gpus-per-node 8 training/accelerate/slurm.sh training/configs/medium.yaml [--key value ...]
#
# `LAUNCH=hsdp_nodes sbatch ...` uses hsdp_nodes.yaml instead of ddp.yaml, and `LAUNCH=fsdp2` uses fsdp2.yaml.
#
# Slurm sends SIGTERM five minutes before the time limit and before it preempts a job. The run then saves a checkpoint
# and stops, and the job is requeued to resume it.
#SBATCH --job-name=aogpt
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

set -euo pipefail
cd "${SLURM_SUBMIT_DIR:?run this script with sbatch}"
gpus=${SLURM_GPUS_ON_NODE:?set --gpus-per-node}
address=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# Runs on every machine. After a SIGTERM, the launcher waits only 30 seconds for its processes, which is too short to
# save a large model. It therefore runs in its own session, and the signal is sent to the processes directly.
on_machine='
  setsid accelerate launch --config_file "training/accelerate/$1.yaml" \
    --num_machines "$SLURM_NNODES" --num_processes $(($2 * SLURM_NNODES)) --machine_rank "$SLURM_NODEID" \
    --parallelism_config_dp_replicate_size "$SLURM_NNODES" --parallelism_config_dp_shard_size "$2" \
    --main_process_ip "$3" --main_process_port 29500 training/pretrain.py "${@:4}" &
  launcher=$!
  stopped=0
  trap "stopped=143; pkill -TERM -P $launcher" TERM
  wait "$launcher"
  status=$?
  while kill -0 "$launcher" 2>/dev/null; do wait "$launcher"; done # a signal interrupts the first wait
  exit $((stopped ? stopped : status))
'
status=0
# Since Slurm 22.05, srun needs the number of cores; otherwise all processes of a machine may be bound to one core.
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=0 \
  bash -c "$on_machine" launch "${LAUNCH:-ddp}" "$gpus" "$address" "$@" || status=$?
if [ "$status" -eq 143 ]; then # stopped by a signal
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
