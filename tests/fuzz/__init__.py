"""Random programs over any spaces, sizes and engines, every row compared with a model written from the contract alone.

`make fuzz SECONDS=60 ENGINES="fork caller"` runs it. `PYTHONPATH=tests python -m fuzz --help` lists options.

* `worlds`: spaces, and the value that belongs to a place (env, life, episode, step and all that the env was told).
* `programs`: the parameters and calls of a program, drawn from its seed; how it is played, and made smaller.
* `__main__`: plays programs on each engine for some seconds, and counts.

The model is `vecenvs.testing.ledger`.
"""
