"""Making VecEnvs from ids and functions: `make_vec_env`, and what each kind of env is wrapped in."""
