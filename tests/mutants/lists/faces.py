"""Faults in backends, and in what shows a VecEnv to others: arguments, compat, views, wrappers."""

from __future__ import annotations

from mutants.fault import Fault

LAUNCHING = "tests/mpi/test_launching.py"
RANKS = "tests/mpi/test_ranks.py"
MPI = f"{LAUNCHING} {RANKS} tests/mpi/test_conformance.py"
MANNERS = "tests/ray/test_ray_manners.py"
RAY = f"{MANNERS} tests/ray/test_ray_contract.py"
BOOKKEEPING = "tests/ray/test_ray_bookkeeping.py"
MONITOR = "tests/test_monitor.py"
NORMALIZE = "tests/wrappers/test_vec_normalize.py"
PFRL = "tests/views/test_pfrl.py"
SMALL = "tests/wrappers/test_vec_small.py"

FAULTS = [
    Fault(
        "arguments.py",
        'if isinstance(getattr(given, "vec", None), VecEnv):',
        'if isinstance(getattr(given, "venv", None), VecEnv):',
        f"{SMALL} tests/wrappers/test_vec_arguments.py",
    ),
    Fault("arguments.py", 'layer = getattr(layer, "venv", None)', "layer = None", "tests/wrappers/test_vec_torch.py"),
    # backends
    Fault(
        "make/auto.py",
        "not keep_caller_free and workers > 1",
        "not keep_caller_free and workers > 2",
        "tests/test_make.py",
    ),
    Fault(
        "backends/dummy.py",
        "        commands.stepping = None  # nothing",
        "        # nothing",
        "tests/conformance/test_contract.py -k 'TestRules and dummy'",
    ),
    Fault("backends/mpi/hosting.py", "_, end = self._ends.pop()", "_, end = self._ends.pop(0)", RANKS),
    Fault("backends/mpi/job.py", "if comm.Get_size() < 2:", "if comm.Get_size() < 1:", RANKS),
    Fault("backends/mpi/job.py", "    if os.getpid() != _pid:  # a fork", "    if False:  # a fork", RANKS),
    Fault(
        "backends/mpi/library.py",
        "except (ImportError, RuntimeError) as exc:",
        "except ImportError as exc:",
        f"{LAUNCHING} tests/test_doctor.py",
    ),
    Fault(
        "backends/mpi/library.py",
        "            return name\n",
        "            return text\n",
        f"{LAUNCHING} tests/test_doctor.py",
    ),
    Fault("backends/mpi/rank_server.py", "        self._deadline = math.inf\n", "        self._deadline = 0.0\n", MPI),
    Fault(
        "backends/mpi/launched_worker.py",
        "        self.ranks.forget(self)\n        self._stopped = True",
        "        self._stopped = True",
        RANKS,
    ),
    Fault("backends/mpi/ranks.py", "                self._heard[rank] = time.monotonic()\n", "", RANKS),
    Fault(
        "backends/mpi/ranks.py",
        "launched.gone = launched.gone or launched.peer.rank == rank",
        "launched.gone = launched.peer.rank == rank",
        RANKS,
    ),
    Fault("backends/mpi/transport.py", "unused.getsockname()[0]", "address[0]", RANKS),
    Fault("backends/ray/actor_end.py", "    if not has_ended(call, seconds):", "    if has_ended(call, seconds):", RAY),
    Fault("backends/ray/actors.py", "placed >= self.min_workers", "placed > self.min_workers", BOOKKEEPING),
    Fault("backends/ray/cluster.py", "        self.pid = os.getpid()\n", "        self.pid = os.getppid()\n", MANNERS),
    Fault("backends/ray/cluster.py", "        Session._users += 1\n", "", BOOKKEEPING),
    Fault("backends/ray/placement.py", "if all(free[name] >= amount", "if all(free[name] > amount", BOOKKEEPING),
    Fault(
        "backends/ray/transport.py",
        "return None if self.location is None else",
        "return None if self.location is not None else",
        RAY,
    ),
    # compat
    Fault(
        "compat/baselines_envs.py",
        "FirstSeed(env, seed + subrank)",
        "FirstSeed(env, seed)",
        "tests/compat/test_baselines.py -k make_env",
    ),
    Fault("compat/pfrl.py", "        if self.vec.closed:\n", "        if False:\n", PFRL),
    # views
    Fault(
        "views/gymnasium/from_gymnasium.py",
        "found = given if declared is None else declared",
        "found = declared if given is None else given",
        "tests/views/test_from_gymnasium.py",
    ),
    Fault(
        "views/gymnasium/make_vec.py",
        '["vec_kwargs"].pop("autoreset_mode")',
        '["vec_kwargs"]["autoreset_mode"]',
        "tests/views/test_gymnasium_make_vec.py",
    ),
    Fault(
        "views/gymnasium/vector_infos.py",
        "if len(info) > 1:  #",
        "if len(info) > 2:  #",
        "tests/views/test_gymnasium_rows.py",
    ),
    Fault(
        "views/gymnasium/vector_infos.py",
        "        apart[list(made)] = True\n",
        "",
        "tests/views/test_gymnasium_rows.py tests/views/test_gymnasium_wrappers.py",
    ),
    Fault(
        "views/gymnasium/view.py",
        'self._pending, self._reset = "reset", reset\n            raise_as_gymnasium(error, "reset")\n        except VecEnv',  # noqa: E501
        'self._pending = "reset"\n            raise_as_gymnasium(error, "reset")\n        except VecEnv',
        "tests/views/test_gymnasium_async.py tests/views/test_gymnasium_resets.py",
    ),
    Fault(
        "views/pfrl.py",
        "= step()\n        except EnvError as error:\n            self._keep_steps(error)\n",
        "= step()\n        except EnvError:\n",
        PFRL,
    ),
    Fault("views/pfrl.py", "                done[slot] = False\n        self", "        self", PFRL),
    # wrappers
    Fault("wrappers/results.py", "[value or None for value in values]", "values", MONITOR),
    Fault(
        "wrappers/results_writer.py",
        "        self._rows.writerow(episode)\n        self._file.flush()",
        "        self._rows.writerow(episode)",
        MONITOR,
    ),
    Fault(
        "wrappers/vec_check_nan.py",
        "[np.copy(part) for part in parse_actions",
        "[part for part in parse_actions",
        SMALL,
    ),
    Fault("wrappers/vec_check_nan.py", "if done and TERMINAL in info:", "if TERMINAL in info:", SMALL),
    Fault(
        "wrappers/vec_frame_stack.py",
        'parse_int("n_stack", n_stack, 1)',
        'parse_int("n_stack", n_stack, 0)',
        "tests/wrappers/test_vec_frame_stack.py tests/wrappers/test_vec_arguments.py",
    ),
    Fault("wrappers/vec_normalize.py", "return self._normalized.copy() if", "return self._normalized if", NORMALIZE),
    Fault("wrappers/vec_torch.py", "if not self.copy:", "if self.copy:", "tests/wrappers/test_vec_torch.py"),
]
