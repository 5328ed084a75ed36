"""Everything that runs where envs live: the only package that steps, resets and closes them."""
