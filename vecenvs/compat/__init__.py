"""Other libraries' names over the core: one module each, so that their users change an import and nothing else."""
