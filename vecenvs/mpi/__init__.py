"""MPI: the helpers of `MpiVecEnv` (one learner, envs on all ranks) and of SPMD programs (every rank a learner)."""
