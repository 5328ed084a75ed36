"""What training costs beside a torch policy, over each library's vectorised envs: `python -m benchmarks.training`.

    grid         the cells: measurement, env and number of envs; the settings of the learner
    contestants  the contestants: each library's vector env, driven through its own `step`
    gaps         the time inside `step` when the caller computes between steps; the CPU that workers use during updates
    agent        a policy with values, in torch
    ppo          PPO in one loop over all envs, or over the half of them that is ready
    sb3_ppo      Stable-Baselines3's PPO
    parts        where the time of a step goes, by notes of caller and workers: a program of its own
    phases       time in `step`, inference and update; CPU time of other processes and threads
    serve_turns  the process of a library, in which its contestants take their turns
    figures      what the readings say: medians, quartiles, ratios
    tables       the readings as markdown; charts: as pictures

Run it from the repository's root, in the environment that `sh benchmarks/peers.sh` makes.
"""
