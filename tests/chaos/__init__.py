"""Random schedules with kills, stops, exceptions and Ctrl-C on every engine, every row checked against a model.

`make chaos SECONDS=600 ENGINES="dummy subproc-fork"` runs it. `PYTHONPATH=tests python -m chaos --help` lists options.

* `env`: an env with predictable rows, whose actions make it fail, hang or kill its process.
* `hosts`: the batched envs and single envs of a round.
* `model`: the states of one slot, and the rows that may come next in each.
* `options`: the option that some rounds have: seeds of each episode, tasks, envs that raise and go on.
* `plan`: the parameters of a round, the outcome of a call, violations.
* `calls`: carries out calls, perhaps with a Ctrl-C inside.
* `expected`: the possible states of all slots. Every answer narrows them.
* `player`: makes each kind of call with random arguments and compares its answer with what is expected.
* `schedule`: draws the order of the calls, and signals to workers between them.
* `disturb`: Ctrl-C by a timer or at the n-th bytecode; SIGKILL and SIGSTOP from a thread.
* `rounds`: one VecEnv from its constructor to its end, and the check for leaks after it.
* `__main__`: runs rounds in processes of their own, since a round may hang or crash, and counts.
"""
