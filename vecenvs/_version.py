"""The version, for `__init__`, setup.py and the command line."""

__version__ = "0.1.0"
