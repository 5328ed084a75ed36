/* What each step does for each env. */

#include "core.h"

#include <math.h>
#include <string.h>

/* What an env's step has returned. */
typedef struct {
    PyObject *obs, *reward, *terminated, *truncated, *info;
} Row;

static void
row_clear(Row *row)
{
    Py_CLEAR(row->obs);
    Py_CLEAR(row->reward);
    Py_CLEAR(row->terminated);
    Py_CLEAR(row->truncated);
    Py_CLEAR(row->info);
}

static int
is_five(PyObject *result)
{
    return PyTuple_CheckExact(result) && PyTuple_GET_SIZE(result) == 5;
}

static PyObject *
five(State *state, PyObject *result)
/* Return a tuple of five for what a step has returned, and give up the reference to that. */
{
    if (result != NULL && !is_five(result)) {
        Py_SETREF(result, PyObject_CallOneArg(state->unpack_row, result));
    }
    return result;
}

static int
row_take(Row *row, PyObject *result)
/* Unpack a tuple of five, and give up the reference to it. */
{
    if (result == NULL) {
        return -1;
    }
    row->obs = Py_NewRef(PyTuple_GET_ITEM(result, 0));
    row->reward = Py_NewRef(PyTuple_GET_ITEM(result, 1));
    row->terminated = Py_NewRef(PyTuple_GET_ITEM(result, 2));
    row->truncated = Py_NewRef(PyTuple_GET_ITEM(result, 3));
    row->info = Py_NewRef(PyTuple_GET_ITEM(result, 4));
    Py_DECREF(result);
    return 0;
}

static int
is_false(State *state, PyObject *flag)
{
    return flag == Py_False || flag == state->no;
}

/* One env */

static PyObject *
action_at(PyObject *actions, Py_ssize_t local, PyObject *number)
/* Return an action that shares no memory with `actions`, as the twin does. */
{
    if (PyArray_CheckExact(actions)) {
        PyArrayObject *array = (PyArrayObject *)actions;
        if (PyArray_NDIM(array) == 0 || local >= PyArray_DIM(array, 0)) {
            PyErr_SetString(PyExc_IndexError, "there is no action for this env");
            return NULL;
        }
        char *place = PyArray_BYTES(array) + local * PyArray_STRIDE(array, 0);
        if (PyArray_NDIM(array) == 1) {
            return PyArray_Scalar(place, PyArray_DESCR(array), actions);
        }
        if (PyArray_IS_C_CONTIGUOUS(array) && !PyDataType_REFCHK(PyArray_DESCR(array))) {
            PyArray_Descr *dtype = PyArray_DESCR(array);
            Py_INCREF(dtype);
            PyObject *row = PyArray_NewFromDescr(
                &PyArray_Type, dtype, PyArray_NDIM(array) - 1, PyArray_DIMS(array) + 1, NULL, NULL, 0, NULL);
            if (row != NULL) {
                memcpy(PyArray_DATA((PyArrayObject *)row), place, PyArray_NBYTES((PyArrayObject *)row));
            }
            return row;
        }
        PyErr_SetString(PyExc_TypeError, "actions must be in a contiguous array of numbers");
        return NULL;
    }
    return PyObject_GetItem(actions, number);
}

static int
has_ended(State *state, const Row *row)
/* Return whether an episode has ended, or -1. */
{
    if (is_false(state, row->terminated) && is_false(state, row->truncated)) {
        return 0;
    }
    PyObject *over = PyObject_CallFunctionObjArgs(state->is_over, row->terminated, row->truncated, NULL);
    if (over == NULL) {
        return -1;
    }
    int answer = PyObject_IsTrue(over);
    Py_DECREF(over);
    return answer;
}

static int
end_row(PyObject *end_episode, PyObject *local, Row *row)
/* Replace observation and info by those that `end_episode` returns. */
{
    PyObject *both = PyObject_CallFunctionObjArgs(
        end_episode, local, row->obs, row->terminated, row->truncated, row->info, NULL);
    if (both == NULL) {
        return -1;
    }
    if (!PyTuple_CheckExact(both) || PyTuple_GET_SIZE(both) != 2) {
        Py_DECREF(both);
        PyErr_SetString(PyExc_TypeError, "end_episode must return a tuple of two");
        return -1;
    }
    Py_SETREF(row->obs, Py_NewRef(PyTuple_GET_ITEM(both, 0)));
    Py_SETREF(row->info, Py_NewRef(PyTuple_GET_ITEM(both, 1)));
    Py_DECREF(both);
    return 0;
}

static int
is_plain_value(PyObject *value)
/* Tell whether a value of an info is of one of the usual types, none of which can be changed. */
{
    PyTypeObject *type = Py_TYPE(value);
    return type == &PyFloat_Type || type == &PyLong_Type || type == &PyBool_Type || type == &PyUnicode_Type ||
           value == Py_None || type == &PyDoubleArrType_Type || type == &PyFloatArrType_Type ||
           type == &PyInt64ArrType_Type || type == &PyBoolArrType_Type;
}

static int
own_info(State *state, Row *row)
/* Replace an info that is not an empty dict by a copy. */
{
    PyObject *key, *value;
    int plain = PyDict_CheckExact(row->info);
    if (plain && PyDict_GET_SIZE(row->info) == 0) {
        return 0;
    }
    for (Py_ssize_t position = 0; plain && PyDict_Next(row->info, &position, &key, &value);) {
        plain = is_plain_value(value);
    }
    Py_SETREF(row->info, plain ? PyDict_Copy(row->info) : PyObject_CallOneArg(state->own_info, row->info));
    return row->info == NULL ? -1 : 0;
}

static int plain_number(PyObject *reward, double *number);

static int
own_reward(State *state, Row *row)
/* Replace a reward of another type than the usual ones, which its env may change, by a number. */
{
    double number;
    if (!plain_number(row->reward, &number)) {
        Py_SETREF(row->reward, PyObject_CallOneArg(state->own_reward, row->reward));
    }
    return row->reward == NULL ? -1 : 0;
}

static int
write_whole_number(PyArrayObject *column, Py_ssize_t local, PyObject *obs)
/* Write an int to a column of int64. Return 1 if done, 0 if `obs` is something else. */
{
    long long number;
    if (PyLong_CheckExact(obs)) {
        int overflow;
        number = PyLong_AsLongLongAndOverflow(obs, &overflow);
        if (overflow) {
            return 0;
        }
    }
    else if (Py_TYPE(obs) == &PyInt64ArrType_Type) {
        number = (long long)PyArrayScalar_VAL(obs, Int64);
    }
    else {
        return 0;
    }
    *(npy_int64 *)(PyArray_BYTES(column) + local * PyArray_STRIDE(column, 0)) = (npy_int64)number;
    return 1;
}

static int
write_rounded(float *to, const double *from, npy_intp n)
/* Write numbers as float32. Return 0, with nothing written, if one is too large for that. */
{
    for (npy_intp k = 0; k < n; k++) {
        if (isinf((float)from[k]) && !isinf(from[k])) {
            return 0;
        }
    }
    for (npy_intp k = 0; k < n; k++) {
        to[k] = (float)from[k];
    }
    return 1;
}

static int
write_to_column(PyArrayObject *column, Py_ssize_t local, PyObject *obs)
/* Return 1 if the observation is written, 0 if it is not exactly a row of this column, -1 after an exception. */
{
    if (local >= PyArray_DIM(column, 0)) {
        PyErr_SetString(PyExc_IndexError, "there is no row for this env");
        return -1;
    }
    int ndim = PyArray_NDIM(column) - 1;
    if (ndim == 0) {
        return write_whole_number(column, local, obs);
    }
    if (!PyArray_CheckExact(obs)) {
        return 0;
    }
    PyArrayObject *given = (PyArrayObject *)obs;
    if (PyArray_NDIM(given) != ndim ||
        !PyArray_CompareLists(PyArray_DIMS(given), PyArray_DIMS(column) + 1, ndim)) {
        return 0;
    }
    char *place = PyArray_BYTES(column) + local * PyArray_STRIDE(column, 0);
    if (PyArray_DESCR(given) != PyArray_DESCR(column) &&
        !PyArray_EquivTypes(PyArray_DESCR(given), PyArray_DESCR(column))) {
        return PyArray_TYPE(given) == NPY_DOUBLE && PyArray_TYPE(column) == NPY_FLOAT &&
               PyArray_ISCARRAY_RO(given) &&
               write_rounded((float *)place, PyArray_DATA(given), PyArray_SIZE(given));
    }
    if (PyArray_IS_C_CONTIGUOUS(given)) {
        memmove(place, PyArray_DATA(given), PyArray_NBYTES(given));
        return 1;
    }
    PyArray_Descr *dtype = PyArray_DESCR(column);
    Py_INCREF(dtype);
    PyObject *row = PyArray_NewFromDescr(
        &PyArray_Type, dtype, ndim, PyArray_DIMS(column) + 1, NULL, place, NPY_ARRAY_CARRAY, NULL);
    if (row == NULL) {
        return -1;
    }
    int failed = PyArray_CopyInto((PyArrayObject *)row, given);
    Py_DECREF(row);
    return failed ? -1 : 1;
}

static int
write_to_columns(PyObject *columns, Py_ssize_t local, PyObject *obs)
/* Do what write_to_column does, of a dict or tuple of columns; what is in these is never changed. */
{
    if (PyArray_CheckExact(columns)) {
        return write_to_column((PyArrayObject *)columns, local, obs);
    }
    int written = 1;
    PyObject *key, *column;
    if (PyDict_CheckExact(columns)) {
        if (!PyDict_CheckExact(obs) || PyDict_GET_SIZE(obs) != PyDict_GET_SIZE(columns)) {
            return 0;
        }
        for (Py_ssize_t position = 0; written > 0 && PyDict_Next(columns, &position, &key, &column);) {
            PyObject *part = Py_XNewRef(PyDict_GetItemWithError(obs, key)); /* keys may have Python's __eq__ */
            written = part == NULL ? (PyErr_Occurred() ? -1 : 0) : write_to_columns(column, local, part);
            Py_XDECREF(part);
        }
        return written;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(columns);
    if (!PyTuple_CheckExact(obs) || PyTuple_GET_SIZE(obs) != count) {
        return 0;
    }
    for (Py_ssize_t k = 0; written > 0 && k < count; k++) {
        written = write_to_columns(PyTuple_GET_ITEM(columns, k), local, PyTuple_GET_ITEM(obs, k));
    }
    return written;
}

static int
write_obs(PyObject *cells, PyObject *where, Py_ssize_t local, PyObject *obs)
/* Return 1 if the observation is written, 0 if `take_odd` is to do that, -1 after an exception. */
{
    if (!PyList_CheckExact(cells)) {
        return write_to_columns(cells, local, obs);
    }
    PyObject *cell = PySequence_GetItem(cells, local);
    if (cell == NULL) {
        return -1;
    }
    int failed = PyObject_SetItem(cell, where, obs);
    Py_DECREF(cell);
    if (!failed) {
        return 1;
    }
    if (!PyErr_ExceptionMatches(PyExc_Exception)) {
        return -1;
    }
    PyErr_Clear();
    return 0;
}

static int
add_info(PyObject *infos, PyObject *local, PyObject *info)
{
    if (!PyDict_CheckExact(info)) {
        PyErr_SetString(PyExc_TypeError, "an info of a row is a dict");
        return -1;
    }
    if (PyDict_GET_SIZE(info) == 0) {
        return 0;
    }
    PyObject *both = PyTuple_Pack(2, local, info);
    if (both == NULL) {
        return -1;
    }
    int failed = PyList_Append(infos, both);
    Py_DECREF(both);
    return failed;
}

/* The loop */

typedef struct {
    PyObject *acts, *actions, *cells, *where, *rewards, *infos, *end_episode, *take_odd, *chosen;
    int forks;
} Step;

static int
is_forked(State *state, const Step *step)
/* Tell whether this is a child that an env's code has forked, after having tried to end it. */
{
    if (state->forks == step->forks) {
        return 0;
    }
    Py_XDECREF(PyObject_CallNoArgs(state->end_fork));
    return 1;
}

static int
step_one(State *state, const Step *step, Py_ssize_t local, Row *row)
{
    int answer = -1;
    PyObject *number = PyLong_FromSsize_t(local);
    PyObject *act = number == NULL ? NULL : PyList_GetItem(step->acts, local);
    Py_XINCREF(act);
    PyObject *action = act == NULL ? NULL : action_at(step->actions, local, number);
    if (action == NULL || row_take(row, five(state, PyObject_CallOneArg(act, action)))) {
        goto done;
    }
    if (is_forked(state, step) || own_info(state, row) || own_reward(state, row)) {
        goto done;
    }
    int over = has_ended(state, row);
    if (over < 0 || (over && (end_row(step->end_episode, number, row) || is_forked(state, step)))) {
        goto done;
    }
    int written = write_obs(step->cells, step->where, local, row->obs);
    if (written < 0) {
        goto done;
    }
    if (!written) {
        PyObject *none = PyObject_CallFunctionObjArgs(step->take_odd, number, row->obs, NULL);
        if (none == NULL) {
            goto done;
        }
        Py_DECREF(none);
    }
    if (add_info(step->infos, number, row->info) == 0 && PyList_Append(step->rewards, row->reward) == 0) {
        answer = 0;
    }
done:
    Py_XDECREF(number);
    Py_XDECREF(act);
    Py_XDECREF(action);
    return answer;
}

static Py_ssize_t
local_at(PyObject *chosen, Py_ssize_t position)
/* Return the index of an env in its shard, or -1 after an exception. */
{
    if (chosen == Py_None) {
        return position;
    }
    PyObject *number = PyList_GetItem(chosen, position);
    if (number == NULL) {
        return -1;
    }
    Py_ssize_t local = PyLong_AsSsize_t(number);
    if (local < 0 && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_IndexError, "the index of an env is negative");
    }
    return local;
}

static int
plain_number(PyObject *reward, double *number)
/* Return 1 and the number if the reward is one of the usual types, else 0. */
{
    if (PyFloat_CheckExact(reward) || Py_TYPE(reward) == &PyDoubleArrType_Type) {
        *number = PyFloat_AS_DOUBLE(reward);
        return 1;
    }
    if (PyLong_CheckExact(reward)) {
        *number = PyLong_AsDouble(reward);
        if (*number == -1.0 && PyErr_Occurred()) { /* too large */
            PyErr_Clear();
            return 0;
        }
        return 1;
    }
    if (Py_TYPE(reward) == &PyFloatArrType_Type) {
        *number = (double)PyArrayScalar_VAL(reward, Float);
        return 1;
    }
    return 0;
}

static int
write_rewards(PyObject *rewards, PyObject *chosen, Py_buffer *column)
/* Return 1 if all rewards are written, 0 if one is of another type, -1 after an exception. */
{
    Py_ssize_t n = PyList_GET_SIZE(rewards);
    for (Py_ssize_t position = 0; position < n; position++) {
        Py_ssize_t local = local_at(chosen, position);
        if (local < 0) {
            return -1;
        }
        double number;
        if (local >= column->shape[0] || !plain_number(PyList_GET_ITEM(rewards, position), &number)) {
            return 0;
        }
        ((double *)column->buf)[local] = number;
    }
    return 1;
}

static int
is_past(State *state, double time)
/* Return whether the clock shows this time or a later one, or -1 after an exception. */
{
    PyObject *now = PyObject_CallNoArgs(state->clock);
    if (now == NULL) {
        return -1;
    }
    int past = PyFloat_AsDouble(now) >= time;
    Py_DECREF(now);
    return past;
}

static int
step_rest(State *state, const Step *step, double until)
/* Step the envs that have no reward yet, until it is this time. Return 0, or -1 after an exception. */
{
    for (;;) {
        Py_ssize_t position = PyList_GET_SIZE(step->rewards);
        if (position >= PyList_GET_SIZE(step->chosen == Py_None ? step->acts : step->chosen)) {
            return 0;
        }
        Py_ssize_t local = local_at(step->chosen, position);
        Row row = {NULL, NULL, NULL, NULL, NULL};
        int failed = local < 0 ? -1 : step_one(state, step, local, &row);
        row_clear(&row);
        int past = failed || isinf(until) ? failed : is_past(state, until);
        if (past) {
            return past < 0 ? -1 : 0;
        }
    }
}

static int
is_written_to(PyObject *columns)
{
    PyObject *key, *part;
    int fits = 1;
    if (PyDict_CheckExact(columns)) {
        for (Py_ssize_t position = 0; fits && PyDict_Next(columns, &position, &key, &part);) {
            fits = is_written_to(part);
        }
        return fits;
    }
    if (PyTuple_CheckExact(columns)) {
        for (Py_ssize_t k = 0; fits && k < PyTuple_GET_SIZE(columns); k++) {
            fits = is_written_to(PyTuple_GET_ITEM(columns, k));
        }
        return fits;
    }
    PyArrayObject *array = (PyArrayObject *)columns;
    return PyArray_CheckExact(columns) && PyArray_ISCARRAY(array) &&
           (PyArray_NDIM(array) == 1 ? PyArray_TYPE(array) == NPY_INT64
                                     : PyArray_NDIM(array) > 1 && PyArray_ISNUMBER(array));
}

PyObject *
writes_to(PyObject *module, PyObject *column)
{
    (void)module;
    return PyBool_FromLong(is_written_to(column));
}

PyObject *
step_envs(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    State *state = PyModule_GetState(module);
    enum { ACTS, ACTIONS, CELLS, WHERE, REWARDS, INFOS, END_EPISODE, TAKE_ODD, CHOSEN, COLUMN, UNTIL, ARGUMENTS };
    if (count != ARGUMENTS) {
        PyErr_Format(PyExc_TypeError, "step_envs takes %d arguments, not %zd", ARGUMENTS, count);
        return NULL;
    }
    Step step = {
        .acts = args[ACTS],
        .actions = args[ACTIONS],
        .cells = args[CELLS],
        .where = args[WHERE],
        .rewards = args[REWARDS],
        .infos = args[INFOS],
        .end_episode = args[END_EPISODE],
        .take_odd = args[TAKE_ODD],
        .chosen = args[CHOSEN],
        .forks = state->forks,
    };
    if (!PyList_CheckExact(step.acts) || !PyList_CheckExact(step.rewards) || !PyList_CheckExact(step.infos) ||
        !(step.chosen == Py_None || PyList_CheckExact(step.chosen)) ||
        !(PyList_CheckExact(step.cells) || is_written_to(step.cells))) {
        PyErr_SetString(PyExc_TypeError, "step_envs takes lists, and cells or columns that `writes_to` takes");
        return NULL;
    }
    double until = PyFloat_AsDouble(args[UNTIL]);
    if (until == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    Py_buffer column; /* held, so that no env's code can release it */
    if (PyObject_GetBuffer(args[COLUMN], &column, PyBUF_CONTIG | PyBUF_FORMAT)) {
        return NULL;
    }
    int written = -1;
    if (column.ndim != 1 || column.itemsize != sizeof(double) || strcmp(column.format, "d") != 0) {
        PyErr_SetString(PyExc_TypeError, "rewards are written to a contiguous memoryview of float64");
    }
    else if (step_rest(state, &step, until) == 0) {
        written = write_rewards(step.rewards, step.chosen, &column);
    }
    PyBuffer_Release(&column);
    return written < 0 ? NULL : PyBool_FromLong(written);
}
