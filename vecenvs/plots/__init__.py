"""Learning curves from monitor files. `curves` computes them; `curve_chart` draws them and needs matplotlib."""
