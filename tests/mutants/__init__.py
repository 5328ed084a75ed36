"""Small faults, put into the package one by one: what the tests do not see (`make mutants`)."""
