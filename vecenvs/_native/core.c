/* The compiled core: what each step does for each env, and what the caller does with each batch.

   twin.py beside this file has the same functions in Python, and says what they do. What is here takes only values of
   exactly the usual types; for all others it calls the Python that is there for them. It checks for no signals, so the
   handler of one runs in the envs' own Python code or after a function of this file has returned. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#define NPY_TARGET_VERSION NPY_1_22_API_VERSION
#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>

#include <float.h>
#include <math.h>
#include <string.h>

enum { BLOCK = 256 }; /* rows */

#ifdef __GNUC__
#define APART __attribute__((noinline)) /* where it is inlined, gcc forgets that its pointers are restrict */
#else
#define APART
#endif

/* Bits of a row's flags: as in twin.py */
enum { TERMINATED = 1, TRUNCATED = 2, FIRST = 4, FINAL = 8, LAST = 16 };

typedef struct {
    PyObject *is_over; /* Python functions of twin.py, for values of other types */
    PyObject *unpack_row;
    PyObject *own_info;
    PyObject *own_reward;
    PyObject *end_fork;
    int forks; /* as forks.py counts them */
    PyObject *no; /* numpy's False, of which there is one */
    PyObject *clock;
} State;

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

static PyObject *
writes_to(PyObject *module, PyObject *column)
{
    (void)module;
    return PyBool_FromLong(is_written_to(column));
}

static PyObject *
step_envs(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    State *state = PyModule_GetState(module);
    if (count != 11) {
        PyErr_Format(PyExc_TypeError, "step_envs takes 11 arguments, not %zd", count);
        return NULL;
    }
    Step step = {args[0], args[1], args[2], args[3], args[4], args[5], args[6], args[7], args[8], state->forks};
    if (!PyList_CheckExact(step.acts) || !PyList_CheckExact(step.rewards) || !PyList_CheckExact(step.infos) ||
        !(step.chosen == Py_None || PyList_CheckExact(step.chosen)) ||
        !(PyList_CheckExact(step.cells) || is_written_to(step.cells))) {
        PyErr_SetString(PyExc_TypeError, "step_envs takes lists, and cells or columns that `writes_to` takes");
        return NULL;
    }
    double until = PyFloat_AsDouble(args[10]);
    if (until == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    Py_buffer column; /* held, so that no env's code can release it */
    if (PyObject_GetBuffer(args[9], &column, PyBUF_CONTIG | PyBUF_FORMAT)) {
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

/* The caller's side: Python code may change any array, so what is known of one holds until the next call of Python. */

static int
is_vector(PyObject *given, int type, npy_intp n)
/* Tell whether this is a contiguous array of n items of this type; -1 for any number. */
{
    PyArrayObject *array = (PyArrayObject *)given;
    return PyArray_CheckExact(given) && PyArray_NDIM(array) == 1 && PyArray_TYPE(array) == type &&
           PyArray_ISCARRAY_RO(array) && (n < 0 || PyArray_DIM(array, 0) == n);
}

static const npy_int64 *
rows_in(PyArrayObject *column, PyObject *rows, npy_intp *count)
/* Return the indices of some rows of a column, all of which exist, or NULL after an exception. */
{
    PyArrayObject *array = (PyArrayObject *)rows;
    if (!is_vector(rows, NPY_INT64, -1) || !PyArray_ISCARRAY(column) || PyArray_NDIM(column) < 1 ||
        PyDataType_REFCHK(PyArray_DESCR(column))) {
        PyErr_SetString(PyExc_TypeError, "rows of a contiguous column are named by an array of int64");
        return NULL;
    }
    const npy_int64 *indices = PyArray_DATA(array);
    *count = PyArray_DIM(array, 0);
    for (npy_intp k = 0; k < *count; k++) {
        if (indices[k] < 0 || indices[k] >= PyArray_DIM(column, 0)) {
            PyErr_SetString(PyExc_IndexError, "there is no row of this index");
            return NULL;
        }
    }
    return indices;
}

static size_t
row_bytes(PyArrayObject *column)
{
    return PyArray_DIM(column, 0) ? (size_t)(PyArray_NBYTES(column) / PyArray_DIM(column, 0)) : 0;
}

/* Write four columns of numbers to rows of `width` numbers; a constant width lets the compiler take several rows at once. */
#define COPY_FOUR(name, number, constant)                                                                              \
    static APART void name(number *restrict to, const number *restrict a, const number *restrict b,                    \
                           const number *restrict c, const number *restrict d, npy_intp n, npy_intp width)             \
    {                                                                                                                  \
        npy_intp size = constant ? constant : width;                                                                   \
        for (npy_intp row = 0; row < n; row++) {                                                                       \
            to[row * size] = a[row];                                                                                   \
            to[row * size + 1] = b[row];                                                                               \
            to[row * size + 2] = c[row];                                                                               \
            to[row * size + 3] = d[row];                                                                               \
        }                                                                                                              \
    }
COPY_FOUR(copy_4_of_4, npy_uint32, 4)
COPY_FOUR(copy_4_of_more, npy_uint32, 0)
COPY_FOUR(copy_wide_4_of_4, npy_uint64, 4)
COPY_FOUR(copy_wide_4_of_more, npy_uint64, 0)

/* Write n rows of `width` numbers, of which the columns begin at from, from + between, ... */
#define COPY_COLUMNS(name, number, all, some)                                                                          \
    static void name(number *to, const number *from, npy_intp n, npy_intp width, npy_intp between)                     \
    {                                                                                                                  \
        npy_intp k = 0;                                                                                                \
        for (; k + 4 <= width; k += 4, to += 4, from += 4 * between) {                                                 \
            (width == 4 ? all : some)(to, from, from + between, from + 2 * between, from + 3 * between, n, width);     \
        }                                                                                                              \
        for (; k < width; k++, to++, from += between) {                                                                \
            for (npy_intp row = 0; row < n; row++) {                                                                   \
                to[row * width] = from[row];                                                                           \
            }                                                                                                          \
        }                                                                                                              \
    }
COPY_COLUMNS(copy_columns, npy_uint32, copy_4_of_4, copy_4_of_more)
COPY_COLUMNS(copy_wide_columns, npy_uint64, copy_wide_4_of_4, copy_wide_4_of_more)

static int
copy_transposed(PyArrayObject *target, PyArrayObject *source)
/* Copy a batch whose columns are contiguous, of 4 or 8 bytes each; return 0 for any other. numpy's own copy takes rows
   of few numbers one at a time. */
{
    npy_intp n = PyArray_DIM(source, 0), width = PyArray_DIM(source, 1), size = PyArray_ITEMSIZE(source);
    npy_intp between = PyArray_STRIDE(source, 1);
    if ((size != 4 && size != 8) || PyArray_STRIDE(source, 0) != size || between < n * size || between % size ||
        !PyArray_ISCARRAY(target) || !PyArray_ISBEHAVED_RO(source) ||
        !(PyArray_ISINTEGER(source) || PyArray_ISFLOAT(source))) {
        return 0;
    }
    for (npy_intp row = 0; row < n; row += BLOCK) { /* so many rows stay in the nearest cache */
        npy_intp rows = n - row < BLOCK ? n - row : BLOCK;
        const void *from = PyArray_BYTES(source) + row * size;
        void *to = PyArray_BYTES(target) + row * width * size;
        if (size == 4) {
            copy_columns(to, from, rows, width, between / size);
        }
        else {
            copy_wide_columns(to, from, rows, width, between / size);
        }
    }
    return 1;
}

static PyObject *
take_batch(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count < 2 || count > 3 || !PyArray_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "take_batch takes an array, a batch and indices or not");
        return NULL;
    }
    PyArrayObject *column = (PyArrayObject *)args[0], *batch = (PyArrayObject *)args[1];
    if (!PyArray_CheckExact(args[1]) || PyArray_NDIM(column) != PyArray_NDIM(batch) ||
        (PyArray_DESCR(column) != PyArray_DESCR(batch) &&
         !PyArray_EquivTypes(PyArray_DESCR(column), PyArray_DESCR(batch)))) {
        Py_RETURN_FALSE;
    }
    if (count == 2) {
        if (!PyArray_SAMESHAPE(column, batch)) {
            Py_RETURN_FALSE;
        }
        int done = PyArray_NDIM(batch) == 2 && copy_transposed(column, batch);
        return !done && PyArray_CopyInto(column, batch) ? NULL : Py_NewRef(Py_True);
    }
    npy_intp n;
    const npy_int64 *rows = rows_in(column, args[2], &n);
    if (rows == NULL) {
        return NULL;
    }
    if (PyArray_DIM(batch, 0) != n || !PyArray_ISCARRAY_RO(batch) ||
        !PyArray_CompareLists(PyArray_DIMS(column) + 1, PyArray_DIMS(batch) + 1, PyArray_NDIM(column) - 1)) {
        Py_RETURN_FALSE;
    }
    size_t size = row_bytes(column);
    for (npy_intp k = 0; k < n; k++) {
        memmove(PyArray_BYTES(column) + rows[k] * size, PyArray_BYTES(batch) + k * size, size);
    }
    Py_RETURN_TRUE;
}

static PyObject *
as_float32(PyObject *numbers, PyObject *indices)
/* Return numbers, or those of some rows, as float32: infinite where they are too large for it. */
{
    PyArrayObject *array = (PyArrayObject *)numbers;
    npy_intp n = PyArray_DIM(array, 0);
    const npy_int64 *rows = indices == NULL ? NULL : rows_in(array, indices, &n);
    PyObject *copy = indices != NULL && rows == NULL ? NULL : PyArray_SimpleNew(1, &n, NPY_FLOAT32);
    if (copy == NULL) {
        return NULL;
    }
    const double *source = PyArray_DATA(array);
    float *target = PyArray_DATA((PyArrayObject *)copy);
    for (npy_intp k = 0; rows == NULL && k < n; k++) {
        target[k] = (float)source[k];
    }
    for (npy_intp k = 0; rows != NULL && k < n; k++) {
        target[k] = (float)source[rows[k]];
    }
    return copy;
}

static PyObject *
copies(PyObject *infos, npy_intp n)
{
    if (!PyDict_CheckExact(infos)) {
        return Py_NewRef(infos);
    }
    PyObject *list = PyList_New(n);
    for (npy_intp k = 0; list != NULL && k < n; k++) {
        PyObject *info = PyDict_Copy(infos);
        if (info == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, k, info);
    }
    return list;
}

static PyObject *
as_tuple(PyObject **parts, int count)
/* Return these objects as a tuple, or NULL if one is NULL, and give up the references to them. */
{
    int some = count;
    for (int k = 0; k < count; k++) {
        some -= parts[k] == NULL;
    }
    PyObject *result = some < count ? NULL : PyTuple_New(count);
    for (int k = 0; k < count; k++) {
        if (result != NULL) {
            PyTuple_SET_ITEM(result, k, parts[k]);
        }
        else {
            Py_XDECREF(parts[k]);
        }
    }
    return result;
}

static PyObject *
plain_result(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 3 || !is_vector(args[1], NPY_DOUBLE, -1)) {
        PyErr_SetString(PyExc_TypeError, "plain_result takes observations, an array of float64 and infos");
        return NULL;
    }
    npy_intp n = PyArray_DIM((PyArrayObject *)args[1], 0);
    PyObject *parts[4] = {NULL, as_float32(args[1], NULL)};
    parts[2] = parts[1] == NULL ? NULL : PyArray_ZEROS(1, &n, NPY_BOOL, 0);
    if (parts[2] != NULL) {
        parts[0] = PyArray_CheckExact(args[0]) ? PyArray_NewCopy((PyArrayObject *)args[0], NPY_CORDER)
                                               : PyObject_CallNoArgs(args[0]);
    }
    parts[3] = parts[0] == NULL ? NULL : copies(args[2], n);
    return as_tuple(parts, 4);
}

static PyObject *
copied_rows(PyArrayObject *column, PyObject *indices)
{
    npy_intp shape[NPY_MAXDIMS];
    const npy_int64 *rows = rows_in(column, indices, shape);
    if (rows == NULL) {
        return NULL;
    }
    memcpy(shape + 1, PyArray_DIMS(column) + 1, (PyArray_NDIM(column) - 1) * sizeof(npy_intp));
    PyArray_Descr *dtype = PyArray_DESCR(column);
    Py_INCREF(dtype);
    PyObject *copy = PyArray_NewFromDescr(&PyArray_Type, dtype, PyArray_NDIM(column), shape, NULL, NULL, 0, NULL);
    if (copy != NULL) {
        size_t size = row_bytes(column);
        for (npy_intp k = 0; k < shape[0]; k++) {
            memcpy(PyArray_BYTES((PyArrayObject *)copy) + k * size, PyArray_BYTES(column) + rows[k] * size, size);
        }
    }
    return copy;
}

static void
split_flags(PyArrayObject *column, PyObject *indices, PyObject **parts)
/* Make of the flags of some rows: bytes, and for each row whether it is terminated, truncated, a transition. */
{
    npy_intp n;
    const npy_int64 *rows = rows_in(column, indices, &n);
    parts[0] = rows == NULL ? NULL : PyBytes_FromStringAndSize(NULL, n);
    for (int k = 1; k < 4; k++) {
        parts[k] = parts[k - 1] == NULL ? NULL : PyArray_SimpleNew(1, &n, NPY_BOOL);
    }
    if (parts[3] == NULL) {
        return;
    }
    const unsigned char *source = PyArray_DATA(column);
    for (npy_intp k = 0; k < n; k++) {
        unsigned char flags = source[rows[k]];
        PyBytes_AS_STRING(parts[0])[k] = (char)flags;
        ((npy_bool *)PyArray_DATA((PyArrayObject *)parts[1]))[k] = (flags & TERMINATED) != 0;
        ((npy_bool *)PyArray_DATA((PyArrayObject *)parts[2]))[k] = (flags & TRUNCATED) != 0;
        ((npy_bool *)PyArray_DATA((PyArrayObject *)parts[3]))[k] = (flags & (TERMINATED | TRUNCATED | FIRST)) != FIRST;
    }
}

static PyObject *
rows_result(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 5 || !is_vector(args[1], NPY_DOUBLE, -1) || !is_vector(args[2], NPY_UINT8, -1) ||
        !is_vector(args[3], NPY_INT64, -1)) {
        PyErr_SetString(PyExc_TypeError, "rows_result takes observations, float64, uint8, int64 and an info");
        return NULL;
    }
    npy_intp n = PyArray_DIM((PyArrayObject *)args[3], 0);
    PyObject *parts[7] = {NULL, as_float32(args[1], args[3])};
    if (parts[1] != NULL) {
        split_flags((PyArrayObject *)args[2], args[3], parts + 2);
    }
    if (parts[5] != NULL) {
        parts[0] = PyArray_CheckExact(args[0]) ? copied_rows((PyArrayObject *)args[0], args[3])
                                               : PyObject_CallOneArg(args[0], args[3]);
    }
    parts[6] = parts[0] == NULL ? NULL : copies(args[4], n);
    return as_tuple(parts, 7);
}

/* Batched envs */

static npy_intp
rows_of_column(PyObject *rewards, PyObject *flags)
/* Return how many rows these columns have; -1 if they are none, with an exception. */
{
    npy_intp n = is_vector(rewards, NPY_DOUBLE, -1) ? PyArray_DIM((PyArrayObject *)rewards, 0) : -1;
    if (n >= 0 && is_vector(flags, NPY_UINT8, n) && PyArray_ISWRITEABLE((PyArrayObject *)rewards)) {
        return n;
    }
    PyErr_SetString(PyExc_TypeError, "outcomes have columns of float64 and uint8");
    return -1;
}

static PyObject *
rows_with(const unsigned char *flags, npy_intp n, unsigned char mask, npy_intp count)
/* Return the indices of the rows that have a flag of `mask`, which are `count` in number. */
{
    PyObject *rows = PyArray_SimpleNew(1, &count, NPY_INT64);
    npy_int64 *found = rows == NULL ? NULL : PyArray_DATA((PyArrayObject *)rows);
    npy_uint64 masks = mask * (npy_uint64)0x0101010101010101;
    for (npy_intp k = 0, next = 0; found != NULL && next < count && k < n;) {
        npy_uint64 eight = masks;
        npy_intp stop = k + 8 < n ? k + 8 : n;
        if (k + 8 <= n) {
            memcpy(&eight, flags + k, 8);
        }
        if (!(eight & masks)) { /* most often */
            k = stop;
        }
        for (; k < stop && next < count; k++) { /* without a branch on flags, which are random */
            found[next] = k;
            next += (flags[k] & mask) != 0;
        }
    }
    return rows;
}

static npy_intp
join_flags(const npy_bool *restrict terminated, const npy_bool *restrict truncated, unsigned char *restrict flags,
           npy_intp n, unsigned char mark)
/* Write the flags of rows; return how many of them end an episode. */
{
    npy_intp ended = 0;
    for (npy_intp first = 0; first < n; first += BLOCK) {
        npy_intp stop = first + BLOCK < n ? first + BLOCK : n;
        unsigned short some = 0;
        for (npy_intp k = first; k < stop; k++) {
            unsigned char one = terminated[k] != 0, other = truncated[k] != 0, over = one | other;
            some += over;
            flags[k] = (unsigned char)(one | other << 1 | (-over & mark));
        }
        ended += some;
    }
    return ended;
}

static PyObject *
write_outcomes(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 7) {
        PyErr_SetString(PyExc_TypeError, "write_outcomes takes two columns, three arrays, indices and a flag");
        return NULL;
    }
    long mark = PyLong_AsLong(args[6]);
    if (mark == -1 && PyErr_Occurred()) {
        return NULL;
    }
    npy_intp began, n = rows_of_column(args[0], args[1]);
    const npy_int64 *rows = n < 0 ? NULL : rows_in((PyArrayObject *)args[1], args[5], &began);
    if (rows == NULL) {
        return NULL;
    }
    PyArrayObject *given[3] = {(PyArrayObject *)args[2], (PyArrayObject *)args[3], (PyArrayObject *)args[4]};
    double *rewards = PyArray_DATA((PyArrayObject *)args[0]);
    unsigned char *flags = PyArray_DATA((PyArrayObject *)args[1]);
    int exact = is_vector(args[2], NPY_DOUBLE, n);
    if (!(exact || is_vector(args[2], NPY_FLOAT32, n)) || !is_vector(args[3], NPY_BOOL, n) ||
        !is_vector(args[4], NPY_BOOL, n)) {
        Py_RETURN_NONE;
    }
    if (exact) {
        memmove(rewards, PyArray_DATA(given[0]), n * sizeof(double));
    }
    for (npy_intp k = 0; !exact && k < n; k++) {
        rewards[k] = ((const float *)PyArray_DATA(given[0]))[k];
    }
    npy_intp ended = join_flags(PyArray_DATA(given[1]), PyArray_DATA(given[2]), flags, n, (unsigned char)mark);
    PyObject *found = rows_with(flags, n, TERMINATED | TRUNCATED, ended);
    for (npy_intp k = 0; found != NULL && k < began; k++) {
        rewards[rows[k]] = 0.0;
        flags[rows[k]] |= FIRST;
    }
    return found;
}

static void
split_block(const unsigned char *restrict source, unsigned char *restrict flags, npy_bool *restrict dones, npy_intp n,
            npy_intp *begun, npy_intp *last, npy_intp *final)
/* Copy flags, note whose episodes are done, and count which rows have FIRST, LAST, FINAL. */
{
    for (npy_intp first = 0; first < n; first += BLOCK) {
        npy_intp stop = first + BLOCK < n ? first + BLOCK : n;
        unsigned short firsts = 0, lasts = 0, finals = 0;
        for (npy_intp k = first; k < stop; k++) {
            unsigned char of_row = source[k];
            flags[k] = of_row;
            dones[k] = (of_row & (TERMINATED | TRUNCATED)) != 0;
            firsts += (of_row & FIRST) != 0;
            lasts += (of_row & LAST) != 0;
            finals += (of_row & FINAL) != 0;
        }
        *begun += firsts;
        *last += lasts;
        *final += finals;
    }
}

static PyObject *
take_outcomes(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "take_outcomes takes two columns");
        return NULL;
    }
    npy_intp n = rows_of_column(args[0], args[1]);
    if (n < 0) {
        return NULL;
    }
    npy_intp begun = 0, last = 0, final = 0;
    PyObject *parts[6] = {NULL, PyArray_SimpleNew(1, &n, NPY_BOOL)};
    parts[2] = parts[1] == NULL ? NULL : PyArray_SimpleNew(1, &n, NPY_UINT8);
    unsigned char *flags = parts[2] == NULL ? NULL : PyArray_DATA((PyArrayObject *)parts[2]);
    if (flags != NULL) {
        npy_bool *dones = PyArray_DATA((PyArrayObject *)parts[1]);
        split_block(PyArray_DATA((PyArrayObject *)args[1]), flags, dones, n, &begun, &last, &final);
    }
    parts[3] = parts[2] == NULL ? NULL : PyBool_FromLong(begun > 0);
    parts[4] = parts[3] == NULL ? NULL : rows_with(flags, n, LAST, last);
    parts[5] = parts[4] == NULL ? NULL : rows_with(flags, n, FINAL, final);
    parts[0] = parts[5] == NULL ? NULL : as_float32(args[0], NULL);
    return as_tuple(parts, 6);
}

static void
test_flags(const unsigned char *restrict flags, npy_bool *restrict found, npy_intp n, unsigned char mask)
{
    for (npy_intp k = 0; k < n; k++) {
        found[k] = (flags[k] & mask) != 0;
    }
}

static PyObject *
flagged(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    PyArrayObject *flags = count == 2 && PyArray_CheckExact(args[0]) ? (PyArrayObject *)args[0] : NULL;
    npy_intp n = flags != NULL && PyArray_NDIM(flags) == 1 ? PyArray_DIM(flags, 0) : -1;
    if (n < 0 || !is_vector(args[0], NPY_UINT8, n)) {
        PyErr_SetString(PyExc_TypeError, "flagged takes an array of uint8 and a mask");
        return NULL;
    }
    long mask = PyLong_AsLong(args[1]);
    PyObject *found = mask == -1 && PyErr_Occurred() ? NULL : PyArray_SimpleNew(1, &n, NPY_BOOL);
    if (found != NULL) {
        unsigned char bits = (unsigned char)mask;
        test_flags(PyArray_DATA(flags), PyArray_DATA((PyArrayObject *)found), n, bits);
    }
    return found;
}

/* The module */

static PyObject *
note_fork(PyObject *module, PyObject *none)
{
    (void)none;
    State *state = PyModule_GetState(module);
    state->forks++;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"flagged", (PyCFunction)(void (*)(void))flagged, METH_FASTCALL, "See twin.py."},
    {"step_envs", (PyCFunction)(void (*)(void))step_envs, METH_FASTCALL, "See twin.py."},
    {"note_fork", note_fork, METH_NOARGS, "To be called in each fork."},
    {"plain_result", (PyCFunction)(void (*)(void))plain_result, METH_FASTCALL, "See twin.py."},
    {"rows_result", (PyCFunction)(void (*)(void))rows_result, METH_FASTCALL, "See twin.py."},
    {"take_batch", (PyCFunction)(void (*)(void))take_batch, METH_FASTCALL, "See twin.py."},
    {"take_outcomes", (PyCFunction)(void (*)(void))take_outcomes, METH_FASTCALL, "See twin.py."},
    {"write_outcomes", (PyCFunction)(void (*)(void))write_outcomes, METH_FASTCALL, "See twin.py."},
    {"writes_to", writes_to, METH_O, "See twin.py."},
    {NULL, NULL, 0, NULL},
};

static int
load(PyObject *module)
{
    if (PyArray_ImportNumPyAPI() < 0) {
        return -1;
    }
    State *state = PyModule_GetState(module);
    PyObject *twin = PyImport_ImportModule("vecenvs._native.twin");
    if (twin == NULL) {
        return -1;
    }
    state->is_over = PyObject_GetAttrString(twin, "is_over");
    state->unpack_row = PyObject_GetAttrString(twin, "unpack_row");
    state->own_info = PyObject_GetAttrString(twin, "own_info");
    state->own_reward = PyObject_GetAttrString(twin, "own_reward");
    state->end_fork = PyObject_GetAttrString(twin, "end_fork");
    state->clock = PyObject_GetAttrString(twin, "clock");
    Py_DECREF(twin);
    state->no = Py_NewRef(PyArrayScalar_False);
    return PyErr_Occurred() ? -1 : 0;
}

static int
traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    Py_VISIT(state->is_over);
    Py_VISIT(state->unpack_row);
    Py_VISIT(state->own_info);
    Py_VISIT(state->own_reward);
    Py_VISIT(state->end_fork);
    Py_VISIT(state->clock);
    return 0;
}

static int
clear(PyObject *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->is_over);
    Py_CLEAR(state->unpack_row);
    Py_CLEAR(state->own_info);
    Py_CLEAR(state->own_reward);
    Py_CLEAR(state->end_fork);
    Py_CLEAR(state->clock);
    Py_CLEAR(state->no);
    return 0;
}

static void
release(void *module)
{
    clear((PyObject *)module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, load},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED}, /* as NumPy */
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "core", NULL, sizeof(State), methods, slots, traverse, clear, release,
};

PyMODINIT_FUNC
PyInit_core(void)
{
    return PyModuleDef_Init(&definition);
}
