/* What the files of the compiled core share. */

#ifndef VECENVS_CORE_H
#define VECENVS_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#define NPY_TARGET_VERSION NPY_1_22_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL vecenvs_numpy /* one table of NumPy's functions, which core.c fills */
#ifndef VECENVS_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>

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

/* Functions of the module: twin.py has the same in Python. */
typedef PyObject *Fast(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* step.c */
Fast step_envs;
PyObject *writes_to(PyObject *module, PyObject *column);

/* results.c */
Fast flagged, plain_result, rows_result, take_batch, take_outcomes, write_arrays, write_column, write_outcomes;

#endif
