"""The faults, by where they are. Files and lines were drawn by lot; see `mutants.faults`."""
