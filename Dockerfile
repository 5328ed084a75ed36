# Trains an example, one learner with envs on two other MPI ranks:
#     docker build -t vecenvs . && docker run --rm --shm-size=256m vecenvs
# Another program:
#     docker run --rm --shm-size=256m vecenvs python -m vecenvs doctor
FROM python:3.12-slim

# The compiler is for the part of vecenvs that is compiled; without one its Python twin runs.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*

WORKDIR /vecenvs
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt ".[bench,mpi]"

WORKDIR /vecenvs/examples
CMD ["python", "-m", "vecenvs.mpi", "-n", "3", "mpi_train.py"]
