"""`as_gymnasium` and `from_gymnasium`: VecEnvs and Gymnasium's vector envs, each behind the other's interface."""
