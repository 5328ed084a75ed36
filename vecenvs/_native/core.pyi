from vecenvs._native.twin import flagged as flagged
from vecenvs._native.twin import plain_result as plain_result
from vecenvs._native.twin import rows_result as rows_result
from vecenvs._native.twin import step_envs as step_envs
from vecenvs._native.twin import take_batch as take_batch
from vecenvs._native.twin import take_outcomes as take_outcomes
from vecenvs._native.twin import write_arrays as write_arrays
from vecenvs._native.twin import write_column as write_column
from vecenvs._native.twin import write_outcomes as write_outcomes
from vecenvs._native.twin import writes_to as writes_to

def know(kind: int, wrapper: type, base: type = ..., /) -> None: ...
