"""The names of other libraries, one module each, so that programs written for these change an import and nothing else.

* `baselines`: the VecEnv classes and wrappers of OpenAI baselines
* `pfrl`: MultiprocessVectorEnv
* `remote_vector_env`: RLlib's RemoteVectorEnv and RemoteBaseEnv
* `ray_env_wrapper`, `ray_multiprocess_env`: the classes and functions of the packages of these names

The other modules are parts of these.
"""
