"""Any VecEnv behind the interface of another library, and theirs behind this one's."""
