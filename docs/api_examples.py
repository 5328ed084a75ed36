"""Short programs that the API pages show below a signature. The tests run them, but for those that need a launcher."""

from __future__ import annotations

ELSEWHERE = ("vecenvs.MpiVecEnv", "vecenvs.RayVecEnv", "vecenvs.replay.Replay")  # these need a job or a cluster
EXAMPLES = {
    "vecenvs.make_vec_env": """
vec = make_vec_env("CartPole-v1", num_envs=8, seed=0, backend="subproc", num_workers=2)
obs = vec.reset()
obs, rewards, dones, infos = vec.step([0] * 8)
vec.close()""",
    "vecenvs.Batched": """
make = functools.partial(gym.make_vec, "CartPole-v1", vectorization_mode="vector_entry_point")
vec = SubprocVecEnv([Batched(lambda: make(num_envs=512), 512)] * 2, autoreset="next_step")
obs = vec.reset(seed=0)  # (1024, 4), from two workers
vec.close()""",
    "vecenvs.worker_cores": """
def make_slow_env():
    torch.set_num_threads(worker_cores())  # called in a worker: its share of the cores
    return gym.make("CartPole-v1")""",
    "vecenvs.DummyVecEnv": """
vec = DummyVecEnv([lambda: gym.make("CartPole-v1")] * 4)
obs = vec.reset(seed=0)
obs, rewards, dones, infos = vec.step([0, 1, 0, 1])""",
    "vecenvs.SubprocVecEnv": """
env_fns = [lambda: gym.make("CartPole-v1")] * 8
vec = SubprocVecEnv(env_fns, num_workers=2, on_failure="restart")
obs = vec.reset(seed=0)
vec.send([0, 1, 0], indices=[0, 3, 5])
batch = vec.recv(min_envs=2, timeout=10.0)  # the first two rows that are ready
vec.close()""",
    "vecenvs.MpiVecEnv": """
# train.py, started by: python -m vecenvs.mpi -n 5 train.py
vec = MpiVecEnv([lambda: gym.make("CartPole-v1")] * 8)  # on four worker ranks
obs = vec.reset(seed=0)""",
    "vecenvs.RayVecEnv": """
vec = RayVecEnv([lambda: gym.make("CartPole-v1")] * 8, num_workers=2, placement="spread")
obs = vec.reset(seed=0)""",
    "vecenvs.VecEnv": """
vec = make_vec_env("CartPole-v1", num_envs=8, seed=0, info_attrs=("unwrapped.gravity",))
obs = vec.reset()
obs, rewards, dones, infos = vec.step([0, 1] * 4)
gravity = vec.info_array("unwrapped.gravity")  # (8,)
vec.send([0, 1], indices=[2, 5])  # some envs
batch = vec.recv()  # batch.indices, .obs, .rewards, .terminated, .truncated, .infos
vec.close()""",
    "vecenvs.VecEnvWrapper": """
class Doubled(VecEnvWrapper):
    def reset(self):
        return self.venv.reset()

    def step_wait(self):
        obs, rewards, dones, infos = self.venv.step_wait()
        return obs, 2 * rewards, dones, infos


vec = Doubled(make_vec_env("CartPole-v1", num_envs=2))""",
    "vecenvs.views.as_sb3": """
venv = as_sb3(make_vec_env("CartPole-v1", num_envs=8))
model = PPO("MlpPolicy", venv)""",
    "vecenvs.views.as_gymnasium": """
envs = as_gymnasium(make_vec_env("CartPole-v1", num_envs=4, autoreset="next_step"))
obs, infos = envs.reset(seed=0)
obs, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())""",
    "vecenvs.views.from_gymnasium": """
vec = from_gymnasium(gym.make_vec("CartPole-v1", num_envs=64, vectorization_mode="vector_entry_point"))
obs = vec.reset(seed=0)""",
    "vecenvs.views.as_pfrl": """
env = as_pfrl(make_vec_env("CartPole-v1", num_envs=4, autoreset="disabled"))
obss = env.reset()
obss, rewards, dones, infos = env.step([0, 1, 0, 1])
env.reset([not done for done in dones])""",
    "vecenvs.wrappers.VecNormalize": """
vec = VecNormalize(make_vec_env("Pendulum-v1", num_envs=4, seed=0))
obs = vec.reset()
vec.save("normal.npz")""",
    "vecenvs.wrappers.VecFrameStack": """
vec = VecFrameStack(make_vec_env("CartPole-v1", num_envs=4), n_stack=4)
assert vec.observation_space.shape == (16,)""",
    "vecenvs.wrappers.VecMonitor": """
vec = VecMonitor(DummyVecEnv([lambda: gym.make("CartPole-v1")] * 4), "logs")""",
    "vecenvs.wrappers.VecTorch": """
vec = VecTorch(make_vec_env("CartPole-v1", num_envs=4), device="cpu")
obs = vec.reset(seed=0)  # torch.float32, (4, 4)""",
    "vecenvs.wrappers.load_results": """
make_vec_env("CartPole-v1", num_envs=2, monitor_dir="runs").close()
results = load_results("runs")""",
    "vecenvs.replay.Replay": """
replay = Replay(make_vec, Policy, num_explorers=4, capacity=1_000_000, batch_size=256)
batch = replay.sample()  # columns: batch.obs, batch.action, batch.reward, ...
replay.stop()""",
}
