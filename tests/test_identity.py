"""Numbers of workers on a machine that nobody has placed, as Ray's."""

from __future__ import annotations

import subprocess
import sys

from vecenvs.identity import ThisWorker
from vecenvs.worker.identity import UNKNOWN, Told

CLAIM = """
import sys
from vecenvs.identity import ThisWorker
from vecenvs.worker.identity import UNKNOWN, Told
told = Told(ThisWorker(int(sys.argv[1]), 3, range(1), None, "", UNKNOWN), 1, sys.argv[2])
print(told.placed().index_on_node, flush=True)
sys.stdin.read()
"""


def claim(worker, key):
    command = [sys.executable, "-c", CLAIM, str(worker), key]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, int(process.stdout.readline())


def test_each_has_the_lowest_that_no_other_has():
    first, zero = claim(7, "vecenvs-test-a")
    second, one = claim(3, "vecenvs-test-a")
    other, also_zero = claim(2, "vecenvs-test-b")
    try:
        assert (zero, one, also_zero) == (0, 1, 0)
        first.communicate()  # its end gives the number back
        third, again = claim(5, "vecenvs-test-a")
        third.communicate()
        assert again == 0
    finally:
        for process in (first, second, other):
            process.kill()
            process.communicate()


def test_a_number_that_is_given_stays():
    told = Told(ThisWorker(4, 9, range(4), None, "", 2), 1, "vecenvs-test-a")
    assert told.placed().index_on_node == 2
    assert UNKNOWN < 0
