"""The engines beside other libraries' vectorised envs, in one run and by turns: `python -m benchmarks.peers`.

    grid         the cells: what is stepped, by how many envs, with what around it; what is promised of them
    contestants  who takes part, at which setting
    libraries    how each library is driven; steppers: the loops
    turn, serve  a turn; a process per library, which takes turns when told to
    crew         those processes, seen from the benchmark: started, waited for with a limit, ended
    contest      turns in rounds, within a budget of time
    figures      what the readings say: shares, ratios, promises
    report       the readings as tables (docs/benchmarks.md); charts: as pictures beside it

Run it from the repository's root, in the environment that `sh benchmarks/peers.sh` makes.
"""
