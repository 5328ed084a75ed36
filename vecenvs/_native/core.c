/* The compiled core: what each step does for each env (step.c), and what the caller does with each batch (results.c).

   twin.py beside this file has the same functions in Python, and says what they do. What is in C takes only values of
   exactly the usual types; for all others it calls the Python that is there for them. It checks for no signals, so the
   handler of one runs in the envs' own Python code or after a function of these files has returned. */

#define VECENVS_IMPORTS_NUMPY
#include "core.h"

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
    {"write_arrays", (PyCFunction)(void (*)(void))write_arrays, METH_FASTCALL, "See twin.py."},
    {"write_column", (PyCFunction)(void (*)(void))write_column, METH_FASTCALL, "See twin.py."},
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
