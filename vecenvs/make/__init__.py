"""Make VecEnvs from ids and functions: `make_vec_env`, and the wrappers of each env type."""
