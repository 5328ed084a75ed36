"""Measure VecEnvs against the limit: one bare `env.step` loop per core, all cores at once, in the same run.

    workloads         the envs to step: any Gymnasium env by its id, or a synthetic env of known cost
    monitored         the same envs with the wrappers of make_vec_env
    limit             the bare loops which measure the limit
    contest           turns in rounds, each between two readings of the limit
    candidates       backends as candidates, parsed from their names
    mpi_job           MPI jobs as candidates
    learner           backends as candidates, with a caller that computes between steps
    measurement       contests with several numbers of envs, with a progress bar
    tuning            the search for the fastest backend; tuning_table prints it
    report            shares of the limit with their spread, as a record (JSON) and a table
    bar_chart         shares of the limit as a picture
    memory_use        the memory that a candidate takes
    machine           facts about the machine
    child             fresh processes

`contest` knows nothing of VecEnvs: a `Candidate` can be any library which steps envs in batches.
"""

from importlib.util import find_spec


def check_libraries() -> None:
    """Raise ImportError, with the pip command, if a library that only the benchmark needs is missing."""
    missing = [name for name in ("psutil", "rich", "matplotlib") if find_spec(name) is None]
    if missing:
        raise ImportError(f"the benchmark needs {', '.join(missing)}: pip install {' '.join(missing)}")
