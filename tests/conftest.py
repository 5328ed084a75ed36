"""Configure the tests: their backends, their tiers, the processes that run them, and the check for leaks.

`--backend NAME` (repeatable) or VECENVS_TEST_BACKENDS="mpi ray" chooses backends; the default is those that need no
other library. A test with the fixture `configuration` runs on each configuration of the chosen backends in the `matrix`
that its class or module names. The tests of a chosen backend that cannot be imported fail.

The tests have two tiers. `make test` leaves out those marked `long`; `make test-all` runs all. A configuration can mark
its tests as long. If a class of tests has an attribute `short`, a suite, all its tests outside this suite are long.

On the first configuration of a matrix the short tier has all combinations of a test's parameters; on the others, which
are `sparse`, it has one, by turns another one in each test of a class. The marker `sparse` does the same to a test or
class; `sparse("name")` leaves one for each value of this parameter.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import signal
import sys
import sysconfig
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import vecenvs._native
from vecenvs.backends import BACKENDS, backend_class
from vecenvs.pool.hosts import Hosts
from vecenvs.testing import leaks
from vecenvs.testing.envs.awaiting import awaiting
from vecenvs.vec_env import VecEnv
from vecenvs.worker import preload

sys.path.append(str(Path(__file__).parent / "ray"))  # for `ray_session`, which the tests of replay share, and `later`
sys.path.append(str(Path(__file__).parent / "mpi"))  # for `hosts`

pytest.register_assert_rewrite("batched_attributes", "batched_resets", "batched_rules")  # suites of tests/conformance

preload.MODULES.append("vecenvs.testing.suite")  # and with it pytest, which each worker would import for 0.1 s

# setup.py leaves cpprb out of the tests' libraries where it has no wheel; where it is missing elsewhere, tests fail.
NO_REPLAY = sys.version_info >= (3, 13) and importlib.util.find_spec("cpprb") is None
collect_ignore = ["replay", "examples/test_replay_examples.py"] if NO_REPLAY else []

# Nothing was compiled, as setup.py says: there is no compiler, or this is a free-threaded build of Python.
NO_CORE = not vecenvs._native.is_compiled() and (
    shutil.which("cc") is None or bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
)

NO_ENVPOOL = sys.version_info < (3, 11)  # it has no wheel there

NO_GPU = not any(Path("/dev").glob("nvidia[0-9]*"))
collect_ignore += ["wrappers/test_on_gpu.py"] if NO_GPU else []

DEFAULT_BACKENDS = ("dummy", "subproc")


@dataclass(frozen=True)
class Configuration:
    """A backend and how it is set up."""

    name: str
    backend: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    long: bool = False
    """Whether its tests belong to the long tier."""
    python: bool = False
    """Whether the twin of the compiled core runs, here and in workers by fork."""
    sparse: bool = False
    """Whether the short tier has all combinations of parameters on another configuration."""

    def make_vec(self, env_fns: Any, **common: Any) -> VecEnv:
        """Make the VecEnv; no more workers than envs, and one for each host but those that the caller steps."""
        kwargs = {**self.kwargs, **common}
        if "num_workers" in kwargs and len(env_fns):
            least = 1 if kwargs.get("caller_steps") else Hosts(env_fns).default_workers(1)
            kwargs["num_workers"] = max(least, min(kwargs["num_workers"], len(env_fns)))
        if kwargs.get("concurrency") == "asyncio":
            env_fns = awaiting(env_fns)
        with pytest.MonkeyPatch.context() as patch:
            if self.python:
                patch.setattr(vecenvs._native, "chosen", vecenvs._native.twin)
            return backend_class(self.backend)(env_fns, **kwargs)


NOWHERE = Configuration("nowhere", "")


def sb3() -> Any:
    """Return Stable-Baselines3's `vec_env`. A process that has loaded torch takes twice as long for every fork."""
    from stable_baselines3.common import vec_env

    return vec_env


def workers(backend: str, num_workers: int, label: str = "", **kwargs: Any) -> Configuration:
    """Return a configuration with a number of workers."""
    parts = [backend, *([label] if label else []), str(num_workers)]
    return Configuration("-".join(parts), backend, {"num_workers": num_workers, **kwargs})


def subproc(label: str, num_workers: int, *, long: bool = False) -> Configuration:
    """Return SubprocVecEnv by a start method, or "caller": by fork, with the caller stepping the last shard."""
    kwargs = {"start_method": "fork", "caller_steps": True} if label == "caller" else {"start_method": label}
    return replace(workers("subproc", num_workers, label, **kwargs), long=long)


DUMMY = [Configuration("dummy", "dummy")]
# The same with the twin of the compiled core, whose rules are the same.
BOTH = [*DUMMY, Configuration("dummy-python", "dummy", python=True)]
OTHERS = "others"  # backends without an entry of their own in a matrix
NO_OTHERS: dict[str, list[Configuration]] = {"dummy": [], OTHERS: []}

BACKENDS["node"] = "one_node:NodeVecEnv"
NODES = [
    Configuration("node-2", "node", {"num_workers": 2}),
    Configuration("connections-2", "node", {"num_workers": 2, "leader": False}),
]

# Workers run the same code whatever started them. `fork` starts fastest and has all tests in the short tier. The other
# start methods have there what they can change: starts, restarts, and what travels to a worker that starts. "caller"
# has what can depend on a shard in the caller's process beside shards in others.
MATRICES: dict[str, dict[str, list[Configuration]]] = {
    # Every start method and number of workers.
    "wide": {
        "dummy": BOTH,
        "subproc": [
            *(subproc("fork", k, long=k not in (2, 3)) for k in (1, 2, 3, 4, 5)),
            *(subproc("caller", k, long=k != 3) for k in (1, 2, 3, 5)),
            *(subproc("forkserver", k, long=k != 2) for k in (1, 2, 3, 5)),
            *(subproc("spawn", k, long=True) for k in (1, 2, 3, 5)),
        ],
    },
    # One of each kind.
    "each": {
        "dummy": DUMMY,
        "subproc": [
            subproc("fork", 2),
            subproc("caller", 3),
            subproc("forkserver", 2),
            subproc("spawn", 2, long=True),
        ],
    },
    # For starts.
    "forkserver": {**NO_OTHERS, "subproc": [subproc("forkserver", 2)]},
    "spawn": {**NO_OTHERS, "subproc": [subproc("spawn", 2)]},
    # For what only engines with processes can do.
    "workers": {
        "dummy": [],
        "subproc": [subproc("fork", 2), subproc("caller", 3, long=True), subproc("forkserver", 2)],
    },
    "workers with nodes": {"dummy": [], "subproc": [subproc("fork", 2), subproc("forkserver", 2), *NODES]},
    # For whole programs, whose starts take longest; and for what happens in workers, whatever has started them.
    "by fork": {
        "dummy": [],
        "subproc": [subproc("fork", 2), subproc("caller", 3, long=True), subproc("forkserver", 2, long=True)],
    },
    "not fork": {**NO_OTHERS, "subproc": [subproc("caller", 3), subproc("forkserver", 2)]},
    # For tests that make many VecEnvs.
    "fast": {"dummy": DUMMY, "subproc": [subproc("fork", 2), subproc("caller", 3)]},
    # The same, and workers by connections.
    "infos": {"dummy": DUMMY, "subproc": [subproc("fork", 2), subproc("caller", 3), *NODES]},
    # The two halves of it.
    "plain": {
        "dummy": [*DUMMY, replace(BOTH[1], long=True)],
        "subproc": [
            subproc("fork", 2),
            replace(subproc("fork", 2, long=True), name="subproc-fork-2-python", python=True),
        ],
    },
    "caller": {**NO_OTHERS, "subproc": [replace(subproc("caller", 3), sparse=True)]},
    # For batched envs, which the compiled core does not step.
    "batched": {
        "dummy": [*DUMMY, Configuration("dummy-python", "dummy", python=True, long=True)],
        "subproc": [
            subproc("fork", 2),
            replace(subproc("fork", 2, long=True), name="subproc-fork-2-python", python=True),
        ],
    },
    # For large rows: what carries them, with compiled code at either end or its twin.
    "sizes": {
        "dummy": [replace(DUMMY[0], long=True)],
        "subproc": [
            subproc("fork", 2),
            replace(subproc("fork", 2, long=True), name="subproc-fork-2-python", python=True),
            subproc("caller", 3, long=True),
            subproc("forkserver", 2, long=True),
            subproc("spawn", 2, long=True),
        ],
    },
    # For envs that wait.
    "threads": {
        "dummy": [Configuration("dummy-threads", "dummy", {"concurrency": "threads"})],
        "subproc": [workers("subproc", 2, "threads", start_method="fork", concurrency="threads")],
        OTHERS: [],
    },
    "threads elsewhere": {
        **NO_OTHERS,
        "subproc": [
            workers("subproc", 2, f"threads-{method}", start_method=method, concurrency="threads")
            for method in ("forkserver", "spawn")
        ],
    },
    "coroutines elsewhere": {
        **NO_OTHERS,
        "subproc": [
            workers("subproc", 2, f"asyncio-{method}", start_method=method, concurrency="asyncio")
            for method in ("forkserver", "spawn")
        ],
    },
    "threads of workers": {
        **NO_OTHERS,
        "subproc": [workers("subproc", 2, "threads", start_method="fork", concurrency="threads")],
    },
    "coroutines of workers": {
        **NO_OTHERS,
        "subproc": [workers("subproc", 2, "asyncio", start_method="fork", concurrency="asyncio")],
    },
    "asyncio": {
        "dummy": [Configuration("dummy-asyncio", "dummy", {"concurrency": "asyncio"})],
        "subproc": [workers("subproc", 2, "asyncio", start_method="fork", concurrency="asyncio")],
        OTHERS: [],
    },
    # For what is built on the contract alone (views, other libraries' names).
    "contract": {"dummy": DUMMY, "subproc": [subproc("fork", 2), subproc("caller", 3, long=True)]},
    # The same, by compiled code and by its twin.
    "spaces": {"dummy": BOTH, "subproc": [subproc("fork", 2), subproc("caller", 3, long=True)]},
}


def short_tier(config: pytest.Config) -> bool:
    """Tell whether `make test` runs, and so no long test."""
    return config.getoption("markexpr") == "not long"


def pytest_configure(config: pytest.Config) -> None:
    """Restore SIGINT and SIGHUP, here and in programs that tests start: `nohup make test &` ignores both.

    Tests by hypothesis have no limits of time: beside other processes an example may take any. In the short tier those
    that name no number of examples have fewer.
    """
    settings.register_profile(
        "tests",
        max_examples=25 if short_tier(config) else 100,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    settings.load_profile("tests")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_report_header() -> list[str]:
    """List what is not tested here."""
    from virtual_hosts import can_make_hosts

    missing = [
        (NO_REPLAY, "vecenvs.replay: NOT TESTED, since cpprb has no wheel for this Python"),
        (NO_ENVPOOL, "EnvPool: NOT TESTED, since it has no wheel for this Python"),
        (NO_GPU, "VecTorch and VecJax on a GPU: NOT TESTED, since there is none"),
        (not can_make_hosts(), "MPI over two hosts: NOT TESTED, which needs root, ip, nsenter and unshare"),
    ]
    return [words for holds, words in missing if holds]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --backend and --part."""
    parser.addoption("--backend", action="append", default=[], help="run the tests on this backend (repeatable)")
    parser.addoption("--part", default="0/1", metavar="K/N", help="run every N-th test only, from number K on")


def chosen_backends(config: pytest.Config) -> list[str]:
    """Return the names of the backends to test."""
    return config.getoption("--backend") or os.environ.get("VECENVS_TEST_BACKENDS", "").split() or [*DEFAULT_BACKENDS]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize `configuration`. A backend without an entry in a matrix has one configuration, with two workers."""
    if "configuration" in metafunc.fixturenames:
        matrix = MATRICES[getattr(metafunc.cls or metafunc.module, "matrix", "each")]
        chosen = [
            configuration
            for backend in chosen_backends(metafunc.config)
            for configuration in matrix.get(backend, matrix.get(OTHERS, [workers(backend, 2)]))
            if not (configuration.long and short_tier(metafunc.config))
        ]
        first = next((each for each in chosen if not each.long), None)
        params = [
            pytest.param(
                replace(configuration, sparse=configuration.sparse or configuration is not first),
                id=configuration.name,
                marks=[pytest.mark.long] if configuration.long else [],
            )
            for configuration in chosen or [NOWHERE]
        ]
        metafunc.parametrize("configuration", params)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import, for the short tier, a module whose tests are all long: some of them load torch."""
    if not short_tier(config) or collection_path.suffix != ".py":
        return None
    long = ("\npytestmark = pytest.mark.long", "\npytestmark = [pytest.mark.long")
    return True if any(line in collection_path.read_text() for line in long) else None


def pytest_pycollect_makeitem(collector: Any, name: str, obj: Any) -> list[pytest.Item] | None:
    """Make, for the short tier, no items of long tests: each of its processes would spend seconds on them."""
    if not (short_tier(collector.config) and name.startswith("test") and collector.istestfunction(obj, name)):
        return None
    long = beyond_short(collector.obj, name) or any(mark.name == "long" for mark in getattr(obj, "pytestmark", []))
    return [] if long else None


def beyond_short(cls: Any, name: str) -> bool:
    """Tell whether a class keeps this test out of the short tier."""
    short = getattr(cls, "short", None)
    return short is not None and not hasattr(short, name)


def left_out(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the tests that the short tier leaves out of those of sparse configurations and of those marked `sparse`.

    Long ones do not count: the short tier collects few of them, and the rest of it must not depend on that.
    """
    same: dict[tuple[Any, ...], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("long"):
            continue
        params = getattr(getattr(item, "callspec", None), "params", {})
        configuration, mark = params.get("configuration", NOWHERE), item.get_closest_marker("sparse")
        if configuration.sparse or mark:
            names = mark.args if mark and not configuration.sparse else ()
            place = item.parent, configuration.name
            same.setdefault((place, item.originalname, *(id(params.get(name)) for name in names)), []).append(item)
    turns: Counter[Any] = Counter()
    for (place, *_), tests in same.items():
        kept = tests[turns[place] % len(tests)]
        turns[place] += 1
        yield from (item for item in tests if item is not kept)


def pytest_collection_finish() -> None:
    """Keep the garbage collector, here and in forks, away from the hundreds of thousands of objects that stay."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark long tests and order them; deselect (and so count) tests that apply to none of the chosen backends.

    Tests that repeat those of the short tier on another configuration come last, since CI has no time for all: one of
    each for each configuration, then those with other parameters.
    """
    beyond = {item for item in items if beyond_short(getattr(item, "cls", None), getattr(item, "originalname", ""))}
    for item in beyond:
        item.add_marker(pytest.mark.long)
    others, nowhere = {*left_out(items)}, set()
    for item in others:
        item.add_marker(pytest.mark.long)
    repeats = others | beyond
    seen: Counter[tuple[Any, ...]] = Counter()
    order = dict.fromkeys(items, 0)
    for item in items:
        params = getattr(item, "callspec", None)
        configurations = (
            [value for value in params.params.values() if isinstance(value, Configuration)] if params else []
        )
        if any(configuration.long for configuration in configurations):
            repeats.add(item)
        if NOWHERE in configurations:
            nowhere.add(item)
        if item in repeats:
            same = (item.parent, getattr(item, "originalname", ""), *(each.name for each in configurations))
            seen[same] += 1
            order[item] = seen[same] + (item in others)
    if nowhere:
        config.hook.pytest_deselected(items=list(nowhere))
    first, step = map(int, config.getoption("--part").split("/"))
    items[:] = sorted((item for item in items if item not in nowhere), key=order.__getitem__)[first::step]


@pytest.hookimpl(optionalhook=True)  # the tests' second MPI has no pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run each group in one process. The marker `xdist_group` has no effect under pytest 9.2 and pytest-xdist 3.8."""
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    # In the short tier one process runs all that loads large libraries, so that forks of the others stay fast.
    short = short_tier(config)

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            group = group_of(nodeid)
            return "large" if short and group is not None and group not in MPIS else group or nodeid

        def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
            """Forget groups that are done: otherwise the scheduler counts the tests of all of them after each test."""
            super().mark_test_complete(node, item_index, duration)
            group = self._split_scope(self.registered_collections[node][item_index])
            if all(self.assigned_work[node][group].values()):
                del self.assigned_work[node][group]

    return ByGroup(config, log)


MPIS = ("mpich", "openmpi")  # their programs start ranks: they load nothing themselves
SHARE_A_RAY = ("test_ray_manners", "test_ray_env_wrapper", "test_ray_multiprocess_env", "test_replay_ray")
BEGIN_A_RAY = (
    "tests/ray/",
    "tests/replay/test_replay_docs",
    "tests/examples/test_replay_examples",
    "tests/examples/test_rllib",
)

# What loads torch or matplotlib, besides the tests with "sb3" in their names.
LOAD_TORCH = (
    "tests/compat/test_baselines.py::test_set_global_seeds",
    "tests/examples/test_ddpg",
    "tests/test_bench.py::TestReport::test_draws",
    "tests/test_evaluate_command.py::test_models_of",
    "tests/test_tensor_envs",
    "tests/test_training_benchmark.py",
    "tests/views/test_gymnasium_programs.py::test_floats_for_integers",
    "tests/views/test_gymnasium_programs.py::test_what_is_no_row",
    "tests/views/test_sb3",
    "tests/wrappers/test_vec_frame_stack.py::test_an_order_for_each_key",
    "tests/wrappers/test_vec_small.py::test_what_is_no_vec_env",
    "tests/wrappers/test_vec_torch",
)
LOAD_SIMULATORS = ("HalfCheetah", "ALE/", "atari")  # words in the names of tests


def group_of(nodeid: str) -> str | None:
    """Return the group of a test, which one process runs in order; None if any process may run it."""
    path, _, name = nodeid.partition("::")
    if path.endswith("test_ray_contract.py"):
        return f"{path}::{name.partition('::')[0]}"  # one way to an actor
    if Path(path).stem in SHARE_A_RAY:
        return "a Ray"
    if path.startswith(BEGIN_A_RAY):
        return "other Rays"
    if path.startswith("tests/mpi/"):
        return "mpich" if "mpich" in name else "openmpi"
    if "sb3" in name or nodeid.startswith(LOAD_TORCH):
        return "torch"
    if any(word in name for word in LOAD_SIMULATORS):
        return "simulators"
    return None


@pytest.hookimpl(wrapper=True)  # around fixtures of classes and modules, too
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """End the tests' Ray after the last test that uses it.

    Restore SIGTERM then: the handler of Ray stays after `ray.shutdown`, and every fork inherits it.
    """
    from ray_session import leave

    try:
        result = yield
        leave(nextitem)
        return result
    finally:
        ray = sys.modules.get("ray")
        if ray is not None and not ray.is_initialized():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves a process or a shared-memory file behind."""
    with leaks.no_leaks():
        yield


@pytest.fixture(autouse=True, scope="session")
def sb3_logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Write the logs of Stable-Baselines3, also of processes started here, to a temporary folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SB3_LOGDIR", str(tmp_path_factory.mktemp("sb3")))
        yield
