#!/usr/bin/env bash
# A search on all GPUs of some SLURM nodes: sbatch examples/slurm-cluster.sh --problem 4x16x2048x128
# Arguments go to `evoengine search`. Run it in the checkout, whose folder all nodes mount.
#SBATCH --job-name=evoengine
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=02:00:00
set -euo pipefail

source .venv/bin/activate
export RAY_USAGE_STATS_ENABLED=0
export EVOENGINE_CACHE=$PWD/.cache/evoengine   # shared by the nodes

nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head=${nodes[0]}
port=$((20000 + SLURM_JOB_ID % 20000))

# The head's processes; two cores are left to the coordinator, which is this script's node.
srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \
  ray start --head --block --port="$port" --num-cpus=$((SLURM_CPUS_PER_TASK - 2)) --num-gpus="$SLURM_GPUS_ON_NODE" &
until ray status --address="$head:$port" >/dev/null 2>&1; do sleep 2; done
if ((${#nodes[@]} > 1)); then
  srun --nodes=$((${#nodes[@]} - 1)) --ntasks=$((${#nodes[@]} - 1)) --exclude="$head" --overlap \
    ray start --block --address="$head:$port" --num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus="$SLURM_GPUS_ON_NODE" &
fi

# A search that is ended by the time limit goes on with the same command in the next job.
evoengine search --cluster "$head:$port" "$@"
