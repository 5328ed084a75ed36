"""Tools to test a VecEnv: toy envs, a plain loop to compare with, leak checks, and a conformance suite.

    from vecenvs.testing.suite import VecEnvConformance

    class TestMine(VecEnvConformance):
        make_vec = staticmethod(lambda env_fns, **common: MyVecEnv(env_fns, **common))

This package itself imports no test library, so that workers can load the toy envs; `suite` needs pytest, `strategies`
hypothesis.
"""
