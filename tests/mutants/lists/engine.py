"""Faults in the engine: batches, the pool, transports, workers."""

from __future__ import annotations

from mutants.fault import Fault

CONTRACT = "tests/conformance/test_contract.py"
RULES = f"{CONTRACT} -k 'TestRules and fork'"
INFOS = "tests/test_infos.py tests/test_info_channel.py"
BATCHED = f"{CONTRACT} -k 'TestBatched and fork and not Workers'"
DEATHS = f"{CONTRACT} -k '(TestWorkers or TestRestarts or TestBatchedWorkers) and fork-2'"
UNREAD = f"{CONTRACT} -k 'cannot_be_unpickled and fork'"
TWIN = "tests/test_native.py tests/test_native_blocks.py"
TCP = "tests/test_tcp.py"
NODE = "tests/conformance/test_node.py -k TestNode"

FAULTS = [
    # _native
    Fault(
        "_native/twin.py",
        "list(map(dict.copy, repeat(infos, len(rewards))))",
        "[infos] * len(rewards)",
        f"{TWIN}; {CONTRACT} -k 'TestRules and python'",
    ),
    Fault(
        "_native/results.c",
        "(flags & (TERMINATED | TRUNCATED | FIRST)) != FIRST",
        "(flags & FIRST) == 0",
        f"{TWIN}; {RULES}",
    ),
    Fault("_native/results.c", "flags = source[rows[k]]", "flags = source[k]", f"{TWIN}; {RULES}"),
    Fault(
        "_native/results.c",
        "for (npy_intp k = 0; found != NULL && k < began; k++) {",
        "for (npy_intp k = 1; found != NULL && k < began; k++) {",
        f"{TWIN}; {BATCHED}",
    ),
    Fault(
        "_native/results.c", "lasts += (of_row & LAST) != 0;", "lasts += (of_row & FINAL) != 0;", f"{TWIN}; {BATCHED}"
    ),
    Fault(
        "_native/results.c",
        "PyArray_BYTES(column) + rows[k] * size, size)",
        "PyArray_BYTES(column) + rows[0] * size, size)",
        f"{TWIN}; {RULES}",
    ),
    # batch
    Fault(
        "batch/columns.py",
        "                array[rows] = part\n",
        "                array[: len(part)] = part\n",
        f"{CONTRACT} -k 'TestRules and fork or TestSpaces and fork'",
    ),
    Fault(
        "batch/info_arrays.py",
        "isinstance(values, LazyTerminalObs) and values.layout.is_flat",
        "isinstance(values, LazyTerminalObs)",
        BATCHED,
    ),
    Fault(
        "batch/info_batches.py",
        "{**some, **others, **both}",
        "{**both, **some, **others}",
        f"tests/wrappers/test_vec_batched.py; {BATCHED}",
    ),
    Fault(
        "batch/lazy_infos.py",
        "                self._made.pop(row, None)\n",
        "                pass\n",
        f"tests/wrappers/test_vec_batched.py; {BATCHED}",
    ),
    Fault("batch/packed_infos.py", "            del arrays[before:]\n", "", f"{INFOS}; {BATCHED}"),
    # pool
    Fault(
        "pool/answers.py",
        "        if bits & ~each.left:\n            return",
        "        if bits & ~each.bits:\n            return",
        "tests/test_interrupted.py",
    ),
    Fault("pool/answers.py", "            self._batch.flags[list(failures)] = 0\n", "", UNREAD),
    Fault(
        "pool/unanswered.py",
        "            self.pending_slots &= ~bits\n        if self",
        "        if self",
        "tests/test_interrupted.py",
    ),
    Fault(
        "pool/finalizers.py",
        "    atexit.unregister(_close_all)\n    atexit.register(_close_all)\n",
        "    atexit.unregister(_close_all)\n",
        "tests/test_recovery.py",
    ),
    Fault(
        "pool/hosts.py",
        "least = 1 if caller_steps else len(hosts)",
        "least = 1",
        "tests/test_shards.py",
    ),
    Fault("pool/episodes.py", "            self._ended[slots] = self._waits_for_reset(slots)\n", "", DEATHS),
    Fault("pool/episodes.py", "((flags & DONE) != 0) & ((flags & FIRST) == 0)", "(flags & DONE) != 0", DEATHS),
    Fault("pool/hosts.py", "len(part.slots) < len(host)", "len(part.slots) < 1", BATCHED),
    Fault("pool/pool_base.py", "                self._step_results.keep_rows = True\n", "", DEATHS),
    Fault("pool/pool_vec_env.py", "extras, subset.array.copy())", "extras, subset.array)", RULES),
    Fault(
        "pool/pool_vec_env.py", "whole = [slot for slot in slots if slot not in failed]", "whole = list(slots)", RULES
    ),
    Fault(
        "pool/recovery.py",
        "            self.left += 1  # `_replace` counts it\n",
        "            pass\n",
        "tests/test_recovery.py",
    ),
    Fault("pool/remote_calls.py", "reply._replace(slot=slot) for slot in group", "reply for _ in group", RULES),
    Fault(
        "pool/info_columns.py", "tables.count(tables[0]) == len(tables)", "tables[0] is not None", f"{INFOS}; {RULES}"
    ),
    Fault("batch/infos.py", "            self._mark(STEP, rows, 0)\n", "            pass\n", INFOS),
    Fault(
        "pool/unanswered.py",
        "        if self.request is not None:\n            for worker in self.without_reply():",
        "        if self.request is not None and not found:\n            for worker in self.without_reply():",
        f"{CONTRACT} -k 'TestRules and fork or TestWorkers and fork'",
    ),
    Fault("pool/workers.py", "                self._worked = worker\n", "", "tests/test_shards.py"),
    # transport
    Fault(
        "transport/channel.py",
        "self.closed = not pieces[-1]",
        "self.closed = False",
        "tests/test_channel.py tests/test_tcp.py",
    ),
    Fault(
        "transport/frames.py",
        "        for array in self._columns(width):\n",
        "        for array in self._columns(0):\n",
        "tests/test_packed.py",
    ),
    Fault(
        "transport/leader.py",
        "        if number in self._members:\n            return\n        self._shards",
        "        self._shards",
        "tests/test_leader.py",
    ),
    Fault("transport/leader.py", "always=True)", "always=False)", NODE),
    Fault("transport/remote.py", "_member.inbox.popleft()\n", "_member.inbox.pop()\n", NODE),
    Fault("transport/frames.py", "(count, *array", "(len(self._shards), *array", "tests/test_packed.py"),
    Fault("transport/frames.py", "batch.latency, *batch.info_marks]", "batch.latency]", "tests/test_packed.py"),
    Fault(
        "transport/remote.py",
        "        except ConnectionError:\n            raise\n",
        "",
        "tests/test_remote.py",
    ),
    Fault(
        "transport/shared.py",
        "return cls(new_name(), new_name(), wake)",
        "return cls(new_name(), wake, wake)",
        f"{CONTRACT} -k 'TestRules and fork'",
    ),
    Fault("transport/tcp.py", "self._socket.getsockname()[1]", "port", TCP),
    Fault("transport/tcp.py", "silent > 1e3 * SILENCE", "silent > SILENCE", TCP),
    # worker
    Fault(
        "worker/async_resets.py",
        "        threads.begin([Job(local, partial(self._close, local), lambda *_: None) for local in left])\n",
        "",
        f"tests/test_async_resets.py; {CONTRACT} -k 'async or close or Lifecycle'",
    ),
    Fault(
        "worker/hosts/batched_shard.py",
        "        if self._begun_next.any():\n            self._fresh",
        "        if False:\n            self._fresh",
        DEATHS,
    ),
    Fault(
        "worker/hosts/batched_host.py", 'getattr(env, f"single_{which}", None)', "getattr(env, which, None)", BATCHED
    ),
    Fault(
        "worker/make_envs.py",
        "        close_envs(envs, first, remote=remote, runner=runner)\n        if not",
        "        if not",
        f"{CONTRACT} -k 'TestRules or TestStarts'",
    ),
    Fault(
        "worker/row_writer.py", "        self.info_writer.report_again()  #", "        #", "tests/test_interrupted.py"
    ),
    Fault(
        "worker/worker.py",
        "                given = None\n            self._unanswered",
        "            self._unanswered",
        RULES,
    ),
    Fault(
        "worker/worker.py",
        "            self._resets.drop([slot - self._first])\n            self.env_shard.fail",
        "            self.env_shard.fail",
        UNREAD,
    ),
]
