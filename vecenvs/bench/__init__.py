"""Measure VecEnvs against the limit: what one bare `env.step` loop per core, all cores at once, gives in the same run.

    workloads    what is stepped: any Gymnasium env, or a synthetic one of a known cost
    limit        the bare loops
    contestants  our backends, by name, ready to be measured
    made         envs as make_vec_env makes them, for both
    measure      turns in rounds: the limit, A, B, ..., the limit, A, B, ...
    report       shares of the limit with their spread, as a record (JSON) and a table
    chart        the same as a picture
    weigh        the memory that a contestant takes
    machine      the machine's facts

`measure` knows nothing of VecEnvs: a `Contestant` may be any library that steps envs in batches.
"""

from importlib.util import find_spec


def check_libraries() -> None:
    """Raise ImportError, with the pip command, if a library that only the benchmark needs is missing."""
    missing = [name for name in ("psutil", "rich", "matplotlib") if find_spec(name) is None]
    if missing:
        raise ImportError(f"the benchmark needs {', '.join(missing)}: pip install {' '.join(missing)}")
