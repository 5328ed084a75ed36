/* What the caller does with each batch. Python code may change any array, so what is known of one holds until the next
   call of Python. */

#include "core.h"

#include <string.h>

enum { BLOCK = 256 }; /* rows */

#ifdef __GNUC__
#define APART __attribute__((noinline)) /* where it is inlined, gcc forgets that its pointers are restrict */
#else
#define APART
#endif

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

PyObject *
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

PyObject *
write_arrays(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    PyArrayObject *column = count == 2 ? (PyArrayObject *)args[0] : NULL;
    if (column == NULL || !PyArray_CheckExact(args[0]) || !PyArray_ISCARRAY(column) || PyArray_NDIM(column) < 1 ||
        PyDataType_REFCHK(PyArray_DESCR(column)) || !(PyList_CheckExact(args[1]) || PyTuple_CheckExact(args[1]))) {
        PyErr_SetString(PyExc_TypeError, "write_arrays takes an array of numbers and a list or tuple");
        return NULL;
    }
    Py_ssize_t n = PySequence_Fast_GET_SIZE(args[1]);
    if (n != PyArray_DIM(column, 0)) {
        Py_RETURN_FALSE;
    }
    for (Py_ssize_t k = 0; k < n; k++) {
        PyArrayObject *row = (PyArrayObject *)PySequence_Fast_GET_ITEM(args[1], k);
        if (!PyArray_CheckExact((PyObject *)row) || PyArray_NDIM(row) != PyArray_NDIM(column) - 1 ||
            !PyArray_ISCARRAY_RO(row) ||
            (PyArray_DESCR(row) != PyArray_DESCR(column) &&
             !PyArray_EquivTypes(PyArray_DESCR(row), PyArray_DESCR(column))) ||
            !PyArray_CompareLists(PyArray_DIMS(row), PyArray_DIMS(column) + 1, PyArray_NDIM(row))) {
            Py_RETURN_FALSE;
        }
    }
    size_t size = row_bytes(column);
    for (Py_ssize_t k = 0; k < n; k++) {
        memmove(PyArray_BYTES(column) + k * size, PyArray_DATA((PyArrayObject *)PySequence_Fast_GET_ITEM(args[1], k)), size);
    }
    Py_RETURN_TRUE;
}

static int
write_number(char *cell, int type, PyObject *value)
/* Write a value that is exactly of Python's type for this type of numbers. Return whether it is, and fits. */
{
    int over = 0;
    if (type == NPY_FLOAT64 && PyFloat_CheckExact(value)) {
        double number = PyFloat_AS_DOUBLE(value);
        memcpy(cell, &number, sizeof number);
    }
    else if (type == NPY_INT64 && PyLong_CheckExact(value)) {
        npy_int64 number = PyLong_AsLongLongAndOverflow(value, &over);
        memcpy(cell, &number, sizeof number);
    }
    else if (type == NPY_BOOL && PyBool_Check(value)) {
        *cell = value == Py_True;
    }
    else {
        return 0;
    }
    return !over;
}

PyObject *
write_column(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    enum { COLUMN, ROWS, VALUES, ARGUMENTS };
    PyArrayObject *column = count == ARGUMENTS ? (PyArrayObject *)args[COLUMN] : NULL;
    if (column == NULL || !PyArray_CheckExact(args[COLUMN]) || PyArray_NDIM(column) != 1 ||
        !PyArray_ISWRITEABLE(column) || PyArray_ISBYTESWAPPED(column) ||
        (!PySlice_Check(args[ROWS]) && !PyList_CheckExact(args[ROWS])) ||
        (!PyList_CheckExact(args[VALUES]) && !PyTuple_CheckExact(args[VALUES]))) {
        PyErr_SetString(PyExc_TypeError, "write_column takes a column, a slice or a list of rows, a list or tuple of values");
        return NULL;
    }
    PyObject *values = args[VALUES], *rows = PyList_CheckExact(args[ROWS]) ? args[ROWS] : NULL;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(values), row = 0, stop, step, length = PyArray_DIM(column, 0);
    if (rows == NULL && PySlice_Unpack(args[ROWS], &row, &stop, &step) < 0) {
        return NULL;
    }
    if ((rows == NULL ? PySlice_AdjustIndices(length, &row, &stop, step) : PyList_GET_SIZE(rows)) != n ||
        (rows == NULL && step != 1)) {
        PyErr_SetString(PyExc_ValueError, "write_column takes one value for each row, and rows one after another");
        return NULL;
    }
    int type = PyArray_TYPE(column);
    for (Py_ssize_t k = 0; k < n; k++) { /* none of this calls Python code */
        Py_ssize_t at = rows == NULL ? row + k : PyLong_AsSsize_t(PyList_GET_ITEM(rows, k));
        if (at < 0 || at >= length) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_IndexError, "there is no row of this index");
            }
            return NULL;
        }
        if (!write_number(PyArray_BYTES(column) + at * PyArray_STRIDE(column, 0), type, PySequence_Fast_GET_ITEM(values, k))) {
            Py_RETURN_FALSE;
        }
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

PyObject *
plain_result(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 3 || !is_vector(args[1], NPY_DOUBLE, -1)) {
        PyErr_SetString(PyExc_TypeError, "plain_result takes observations, an array of float64 and infos");
        return NULL;
    }
    npy_intp n = PyArray_DIM((PyArrayObject *)args[1], 0);
    PyObject *parts[4] = {NULL};
    if ((parts[1] = as_float32(args[1], NULL)) == NULL || (parts[2] = PyArray_ZEROS(1, &n, NPY_BOOL, 0)) == NULL) {
        goto done;
    }
    parts[0] = PyArray_CheckExact(args[0]) ? PyArray_NewCopy((PyArrayObject *)args[0], NPY_CORDER)
                                           : PyObject_CallNoArgs(args[0]);
    if (parts[0] != NULL) {
        parts[3] = copies(args[2], n);
    }
done:
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

static int
split_flags(PyArrayObject *column, PyObject *indices, PyObject **parts)
/* Make of the flags of some rows: bytes, and for each row whether it is terminated, truncated, a transition. Return 0
   after an exception. */
{
    npy_intp n;
    const npy_int64 *rows = rows_in(column, indices, &n);
    if (rows == NULL || (parts[0] = PyBytes_FromStringAndSize(NULL, n)) == NULL) {
        return 0;
    }
    for (int k = 1; k < 4; k++) {
        if ((parts[k] = PyArray_SimpleNew(1, &n, NPY_BOOL)) == NULL) {
            return 0;
        }
    }
    const unsigned char *source = PyArray_DATA(column);
    for (npy_intp k = 0; k < n; k++) {
        unsigned char flags = source[rows[k]];
        PyBytes_AS_STRING(parts[0])[k] = (char)flags;
        ((npy_bool *)PyArray_DATA((PyArrayObject *)parts[1]))[k] = (flags & TERMINATED) != 0;
        ((npy_bool *)PyArray_DATA((PyArrayObject *)parts[2]))[k] = (flags & TRUNCATED) != 0;
        ((npy_bool *)PyArray_DATA((PyArrayObject *)parts[3]))[k] = (flags & (TERMINATED | TRUNCATED | FIRST)) != FIRST;
    }
    return 1;
}

PyObject *
rows_result(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 5 || !is_vector(args[1], NPY_DOUBLE, -1) || !is_vector(args[2], NPY_UINT8, -1) ||
        !is_vector(args[3], NPY_INT64, -1)) {
        PyErr_SetString(PyExc_TypeError, "rows_result takes observations, float64, uint8, int64 and an info");
        return NULL;
    }
    npy_intp n = PyArray_DIM((PyArrayObject *)args[3], 0);
    PyObject *parts[7] = {NULL};
    if ((parts[1] = as_float32(args[1], args[3])) == NULL ||
        !split_flags((PyArrayObject *)args[2], args[3], parts + 2)) {
        goto done;
    }
    parts[0] = PyArray_CheckExact(args[0]) ? copied_rows((PyArrayObject *)args[0], args[3])
                                           : PyObject_CallOneArg(args[0], args[3]);
    if (parts[0] != NULL) {
        parts[6] = copies(args[4], n);
    }
done:
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

PyObject *
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

PyObject *
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
    PyObject *parts[6] = {NULL};
    if ((parts[1] = PyArray_SimpleNew(1, &n, NPY_BOOL)) == NULL ||
        (parts[2] = PyArray_SimpleNew(1, &n, NPY_UINT8)) == NULL) {
        goto done;
    }
    npy_bool *dones = PyArray_DATA((PyArrayObject *)parts[1]);
    unsigned char *flags = PyArray_DATA((PyArrayObject *)parts[2]);
    split_block(PyArray_DATA((PyArrayObject *)args[1]), flags, dones, n, &begun, &last, &final);
    parts[3] = PyBool_FromLong(begun > 0);
    if ((parts[4] = rows_with(flags, n, LAST, last)) == NULL || (parts[5] = rows_with(flags, n, FINAL, final)) == NULL) {
        goto done;
    }
    parts[0] = as_float32(args[0], NULL);
done:
    return as_tuple(parts, 6);
}

static void
test_flags(const unsigned char *restrict flags, npy_bool *restrict found, npy_intp n, unsigned char mask)
{
    for (npy_intp k = 0; k < n; k++) {
        found[k] = (flags[k] & mask) != 0;
    }
}

PyObject *
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
