"""Batched envs as hosts: what a worker steps in place of a list of single envs."""
