"""The engines beside other libraries' vectorised envs, in one run and by turns: `python -m benchmarks.peers`.

Turns, rounds, the limit and shares are those of `vecenvs.bench`. What is here:

    grid               the cells: which env is stepped, by how many envs, with what around it; the promised figures
    lineup             the contestants and their settings
    libraries          how each library is driven; steppers: the loops
    library_processes  a process per library, in which it takes its turns; serve_turns: its program
    budget             the rounds that fit into a given time
    figures            what the readings say: shares, ratios, promises
    page               the readings as tables (docs/benchmarks.md); axis_charts: the pictures beside it

Run it from the repository's root, in the environment that `sh benchmarks/peers.sh` makes.
"""
