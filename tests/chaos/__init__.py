"""Random schedules with kills, stops, exceptions and Ctrl-C on every engine, every row checked against a model.

`make chaos SECONDS=600 ENGINES="dummy subproc-fork"` runs it; `PYTHONPATH=tests python -m chaos --help` tells the rest.

* `env`: an env whose every row can be foretold, and whose actions make it fail, hang or kill its process.
* `model`: what one slot may be in, and which rows it may give next. After an exception several answers are possible.
* `player`: draws calls at random, carries them out, and holds what comes to the model.
* `disturb`: Ctrl-C by a timer or at the n-th bytecode; SIGKILL and SIGSTOP from a thread.
* `rounds`: one VecEnv from its making to its end, and what is left after it.
* `__main__`: runs rounds in processes of their own, since a round may hang or crash, and counts.
"""
