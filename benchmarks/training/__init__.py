"""What training costs beside a torch policy, over each library's vectorised envs: `python -m benchmarks.training`.

    grid         the cells: measurement, env and number of envs; the settings of the learner
    candidates  the candidates: each library's vector env, driven through its own `step`
    gaps         the time inside `step` when the caller computes between steps; the CPU that workers use during updates
    agent        a policy with values, in torch
    ppo          PPO in one loop over all envs, or over the half of them that is ready
    sb3_ppo      Stable-Baselines3's PPO
    parts        where the time of a step goes, by notes of caller and workers: a program of its own
    phases       time in `step`, inference and update; CPU time of other processes and threads
    turns        the turns of a cell
    figures      what the readings say: rates, phases, times, ratios
    page         the section of docs/benchmarks.md; charts: its pictures

The processes of the libraries and the run are those of `benchmarks.stack`.

Run it from the repository's root, in the environment that `sh benchmarks/peers.sh` makes.
"""
