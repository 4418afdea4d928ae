#!/bin/bash
# Trains on one or several machines under Slurm:
#
#   sbatch --nodes 2 --gpus-per-node 8 training/accelerate/slurm.sh training/configs/medium.yaml [--key value ...]
#
# LAUNCH=fsdp2_nodes sbatch ... takes another file of this folder. Slurm sends SIGTERM five minutes before the end of
# the time limit, and to jobs that it takes back: the run saves, stops, is put into the queue again and goes on.
#SBATCH --job-name=aogpt
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

set -euo pipefail
cd "${SLURM_SUBMIT_DIR:?this script is for sbatch}"
gpus=${SLURM_GPUS_ON_NODE:?give --gpus-per-node}
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then
  set -- "$@" --resume auto # what was requeued goes on, also where the job was to begin anew
fi
address=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# On every machine. The launcher gives its processes 30 seconds after a SIGTERM, too few to save a large model: so it is
# kept out of the way, in a session of its own, and the signal goes to the processes themselves.
on_machine='
  setsid accelerate launch --config_file "training/accelerate/$1.yaml" \
    --num_machines "$SLURM_NNODES" --num_processes $(($2 * SLURM_NNODES)) --machine_rank "$SLURM_NODEID" \
    --main_process_ip "$3" --main_process_port 29500 training/pretrain.py "${@:4}" &
  launcher=$!
  stopped=0
  trap "stopped=143; pkill -TERM -P $launcher" TERM
  wait "$launcher"
  status=$?
  while kill -0 "$launcher" 2>/dev/null; do wait "$launcher"; done # a signal ends the first wait
  exit $((stopped ? stopped : status))
'
status=0
# From Slurm 22.05 on srun must be told the number of cores anew, or all processes of a machine may be bound to one.
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=0 \
  bash -c "$on_machine" launch "${LAUNCH:-ddp_nodes}" "$gpus" "$address" "$@" || status=$?
if [ "$status" -eq 143 ]; then # stopped, not finished and not failed
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
