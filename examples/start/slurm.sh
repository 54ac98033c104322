#!/bin/bash
# Trains on two nodes with four ranks each: sbatch slurm.sh PROGRAM [ARGUMENT...]
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4

# PMI carries rank 0's address and a new secret to all ranks.
srun --mpi=pmi2 "$@"
