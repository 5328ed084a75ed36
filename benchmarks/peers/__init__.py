"""The engines beside other libraries' vectorised envs, in one run and by turns: `python -m benchmarks.peers`.

Turns, rounds, the limit and shares are those of `vecenvs.bench`, the processes and the run those of `benchmarks.stack`.
What is here:

    grid       the cells: which env is stepped, by how many envs, with what around it; the promised figures
    candidates the candidates and their settings
    turns      the turns of a cell
    libraries  how each library is driven; steppers: the loops
    figures    what the readings say: shares, ratios, promises
    page       the readings as tables (docs/benchmarks.md); axis_charts: the pictures beside it

Run it from the repository's root, in the environment that `sh benchmarks/peers.sh` makes.
"""
