"""Faults in what stands around the engine: the command line, measuring, making, plots, MPI's helpers, replay."""

from __future__ import annotations

from mutants.fault import Fault

BENCH = "tests/test_bench.py"
EVALUATE = "tests/test_evaluate.py tests/conformance/test_contract.py -k 'evaluate and (dummy or subproc-fork)'"
MAKE = "tests/test_make.py"
REPLAY = (
    "tests/replay/test_replay_buffer.py tests/replay/test_replay_checkpoint.py tests/replay/test_replay_explorer.py"
)
RAY_REPLAY = "tests/replay/test_replay_ray.py"
SERVER = "tests/replay/test_server_actor.py"
RUN = "tests/test_run.py"

FAULTS = [
    Fault("__main__.py", '.partition("\\n")[0]', '.partition("\\n")[2]', "tests/test_cli.py -k 'help or command'"),
    # bench
    Fault("bench/bar_chart.py", "divmod(index, columns)", "divmod(index, lines)", f"{BENCH} -k draws"),
    Fault("bench/limit.py", "(start, seconds, warmup)", "(start, warmup, seconds)", "tests/test_bench_processes.py"),
    Fault("bench/mpi_job.py", "        self._log.close()\n", "", "tests/mpi/test_bench_job.py"),
    Fault("bench/mpi_job.py", "sys.path[:] = connection.recv()", "connection.recv()", "tests/mpi/test_bench_job.py"),
    Fault("bench/report.py", "if size >= factor:", "if size > factor:", BENCH),
    Fault("bench/workloads.py", 'mujoco") or find_module', 'mujoco") and find_module', "tests/test_bench_names.py"),
    # cli
    Fault("cli/_play.py", '"errors of envs": stats["errors"]', '"errors of envs": 0', f"{RUN} -k errors"),
    Fault(
        "make/env_types.py",
        'for part in attribute.split("."):',
        "for part in [attribute]:",
        "tests/test_evaluate_command.py -k method",
    ),
    Fault(
        "cli/doctor.py",
        'Finding(BROKEN, f"subproc, {method}"',
        'Finding(OK, f"subproc, {method}"',
        "tests/test_doctor.py",
    ),
    # evaluation
    Fault("evaluation/episode_pool.py", "self._sums[slot] = self._steps[slot] = 0\n", "pass\n", EVALUATE),
    Fault("evaluation/episode_pool.py", "self._seed + k for k in numbers", "self._seed for k in numbers", EVALUATE),
    Fault("evaluation/episode_pool.py", "self._waiting.appendleft(number)", "self._waiting.append(0)", EVALUATE),
    Fault("evaluation/episode_pool.py", "real = slots[batch.active]", "real = slots", EVALUATE),
    Fault("evaluation/episode_pool.py", "begins(batch) | (over & self._holds)", "begins(batch)", EVALUATE),
    Fault(
        "evaluation/episode_pool.py",
        "     self._reserve(slot)\n\n    def _record",
        "     pass\n\n    def _record",
        EVALUATE,
    ),
    Fault(
        "evaluation/episode_pool.py", "self.errors[number] = has_error(info)", "self.errors[number] = False", EVALUATE
    ),
    Fault("evaluation/episode_pool.py", "if self._waiting else None\n", "if False else None\n", EVALUATE),
    # make
    Fault("make/env_fn.py", '["t_start"]) >= begun', '["t_start"]) <= begun', MAKE),
    Fault("make/env_fn.py", "        close_refused(env)\n", "", f"{MAKE} tests/test_env_types.py"),
    Fault(
        "make/env_types.py",
        'if error.name != module.partition(".")[0]:',
        "if error.name != module:",
        f"{MAKE} tests/test_env_types.py",
    ),
    Fault("make/env_types.py", "own not in (PLAIN, env_type)", "own != env_type", f"tests/test_env_types.py {MAKE}"),
    Fault("make/native.py", "AutoresetMode.NEXT_STEP)", "AutoresetMode.SAME_STEP)", "tests/test_native_envs.py"),
    Fault("make/preprocessing.py", "return cls(**kwargs)", "return cls()", MAKE),
    Fault("make/preprocessing.py", "_last_axis(below.high)", "_last_axis(below.low)", "tests/test_env_types.py"),
    # mpi
    Fault("mpi/arrays.py", "value.detach().cpu()", "value.cpu()", "tests/test_tensor_envs.py -k spmd"),
    Fault(
        "mpi/supervise.py", "if os.getppid() != parent:", "if os.getppid() == parent:", "tests/mpi/test_supervise.py"
    ),
    # plots
    Fault("plots/curve_chart.py", 'if x == "steps":', 'if x != "steps":', "tests/test_plot.py"),
    Fault("plots/curves.py", "path.is_file() or get_monitor_files(path)", "path.is_file()", "tests/test_plot.py"),
    # replay
    Fault("replay/buffer.py", "if count > self.capacity:", "if count >= self.capacity:", REPLAY),
    Fault("replay/explorer.py", "while not len(self._fragment):", "if not len(self._fragment):", REPLAY),
    Fault("replay/explorers.py", "        self.location = location\n", "", SERVER),
    Fault(
        "replay/recorder.py",
        "self._steps, self._nsteps, self.count = [], nsteps, 0",
        "self._steps, self._nsteps = [], nsteps",
        REPLAY,
    ),
    Fault(
        "replay/replay.py",
        "[self.explorers.stop, *self._parts, session.release]",
        "[*self._parts, self.explorers.stop, session.release]",
        SERVER,
    ),
    Fault(
        "replay/schema.py",
        "for leaf in layout.leaves:\n        if leaf.is_object",
        "for leaf in layout.leaves[:1]:\n        if leaf.is_object",
        REPLAY,
    ),
    Fault(
        "replay/server.py",
        'parse_int("batch_size", batch_size, 1)',
        'parse_int("batch_size", batch_size, 0)',
        f"{RAY_REPLAY} -k 'wrong'",
    ),
    Fault(
        "replay/server_actor.py",
        "except (OSError, ValueError) as exc:",
        "except ValueError as exc:",
        SERVER,
    ),
    Fault(
        "replay/server_actor.py",
        "        self._scheduled = False\n        self._process",
        "        self._process",
        SERVER,
    ),
    Fault("replay/storage.py", "            self._priorities[positions] = priorities\n", "", REPLAY),
    Fault("replay/throttle.py", "(1 / INSERTS - 1)", "(1 / INSERTS)", "tests/replay/test_replay_limiter.py"),
]
