"""Other libraries' names over the core: one module each, so that their users change an import and nothing else.

* `baselines`: the VecEnv classes and wrappers of OpenAI baselines
* `pfrl`: MultiprocessVectorEnv
* `remote_vector_env`: RLlib's RemoteVectorEnv and RemoteBaseEnv
* `ray_env_wrapper`, `ray_multiprocess_env`: what the packages of these names have

The other modules are parts of these.
"""
