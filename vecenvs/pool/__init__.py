"""The caller's side: a VecEnv over workers, whichever engine has launched them."""
