#!/bin/bash
# Trains on two nodes with four ranks each, and restarts all ranks up to three times after a failure:
# sbatch slurm_restarts.sh PROGRAM [ARGUMENT...]
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4

# srun passes the environment to the nodes. Slurm's controller keeps a copy that only root can read.
RINGTREE_SECRET=$(openssl rand -hex 32)
export RINGTREE_SECRET

# One launcher per node, which takes the nodes and their addresses from Slurm.
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" ringtree run --nproc-per-node 4 --max-restarts 3 -- "$@"
