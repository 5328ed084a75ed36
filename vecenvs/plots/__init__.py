"""Learning curves from monitor files. `curves` computes them, `chart` draws; only the latter needs matplotlib."""
