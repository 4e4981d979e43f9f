"""The contents of the files that build and run a container: Dockerfile, .dockerignore, compose.yaml and the Slurm script for Apptainer."""

from __future__ import annotations

import json
from collections.abc import Sequence

from trainmaster.extensions.code.secret_names import NOT_SECRETS, SECRET_FILES
from trainmaster.sweep.slurm import slurm_script
from trainmaster.sweep.sweep_command import SweepCommand, shell_command

APP, STORE = "/app", "/store"
"""The folders in a container that hold the code and the store."""

_DOCKERFILE = """\
# Written by `trainmaster container` for {target}.
#   docker build -t {name} .
#   docker run --rm -v "$PWD/runs:{store}" --user "$(id -u)" {name}
# Another image with Python {short_python} and venv: --build-arg BASE=...
# Pip reads its settings, such as another index, from --build-arg PIP_INDEX_URL=... and PIP_EXTRA_INDEX_URL=...
ARG BASE=python:{python}-slim
FROM ${{BASE}}
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL

# The image runs as any user, so that the files of a mounted store can belong to you.
RUN python3 -m venv /venv \\
    && useradd --uid 1000 --home-dir /home/trainer trainer \\
    && install -d -m 1777 /home/trainer {store}
ENV PATH=/venv/bin:$PATH \\
    HOME=/home/trainer \\
    USER=trainer \\
    PYTHONUNBUFFERED=1 \\
    PYTHONDONTWRITEBYTECODE=1

# The packages come first, so that a change to the code does not reinstall them.
COPY requirements.txt constraints.txt /build/
RUN pip install --no-cache-dir -c /build/constraints.txt -r /build/requirements.txt
{source}
COPY code {app}
ENV PYTHONPATH={path} \\
    TRAINMASTER_STORE={store} \\
    WORK_FOLDER={folder}
WORKDIR $WORK_FOLDER
USER 1000
ENTRYPOINT ["trainmaster"]
CMD {command}
"""
_SOURCE = """\
COPY trainmaster /build/trainmaster
RUN pip install --no-cache-dir -c /build/constraints.txt "/build/trainmaster[{extras}]"
"""
_COMPOSE = """\
# Written by `trainmaster container`: trains a sweep on a Ray cluster of containers.
#   export RAY_AUTH_TOKEN="$(openssl rand -hex 32)"   # every container reads it from /run/secrets
#   docker compose run --rm --build sweep{example}
#   docker compose down
# The runs are in the volume `store`. Ctrl-C saves them, and the same command continues.
name: {name}

services:
  head:
{node}
    entrypoint: [ray, start, --head, --port=6379, --num-cpus=0, --include-dashboard=false, --block]
{healthcheck}
  worker: # each trains one run at a time
{node}
    entrypoint: [ray, start, "--address=head:6379", --num-cpus=1, --block]
    deploy:
      replicas: {num_workers}
    depends_on:
      head:
        condition: service_healthy
{healthcheck}
  sweep: # joins the cluster as a node that trains nothing, because a Ray driver needs a node of its own
{node}
    entrypoint:
      - sh
      - -c
      - ray start --address=head:6379 --num-cpus=0 && exec trainmaster "$$@"
      - sh
{words}
    command: {choices}
    depends_on:
      head:
        condition: service_healthy
      worker:
        condition: service_healthy

secrets:
  ray_auth_token:
    environment: RAY_AUTH_TOKEN

volumes:
  store:
"""
_NODE = """\
    image: {name}
    build: .
    init: true
    shm_size: 2gb
    stop_grace_period: 2m
    environment:
      RAY_AUTH_MODE: token
      RAY_AUTH_TOKEN_PATH: /run/secrets/ray_auth_token
      RAY_USAGE_STATS_ENABLED: "0"
    secrets: [ray_auth_token]
    volumes: ["store:{store}"]"""
_HEALTHCHECK = """\
    healthcheck:
      test: [CMD, ray, status] # finds the node of its own container
      interval: 5s
      timeout: 30s
      start_period: 1m"""
_APPTAINER = """\
# apptainer build {name}.sif docker-daemon:{name}:latest
# sbatch --export=ALL,IMAGE=/shared/{name}.sif,STORE=/shared/runs slurm.sh{example}
image=${{IMAGE:?is the .sif file}}
store=${{STORE:?is a folder that all nodes share}}
if ! [ -d "$store" ] || ! [ -f "$image" ]; then
  echo "$(uname -n): $store or $image is not visible here; put them on a file system that all nodes share" >&2
  exit 3
fi
unset PYTHONPATH PYTHONHOME # those of the image are used
"""


def dockerfile(
    sweep: SweepCommand, name: str, python: str, folder: str, path: Sequence[str], extras: Sequence[str], is_source: bool
) -> str:
    """Return the Dockerfile.

    Args:
        folder: the folder in the image where commands run.
        path: the folders in the image from which modules are imported.
        is_source: whether to install trainmaster from the folder `trainmaster` of the build context.
    """
    return _DOCKERFILE.format(
        target=sweep.target,
        name=name,
        python=python,
        short_python=".".join(python.split(".")[:2]),
        store=STORE,
        app=APP,
        source=_SOURCE.format(extras=",".join(extras)) if is_source else "",
        path=_docker_text(":".join(path)),
        folder=_docker_text(folder),  # the argument of WORKDIR cannot contain spaces
        command=json.dumps(sweep.words(STORE) if sweep.choices else ["--help"]),
    )


def dockerignore() -> str:
    """Return a .dockerignore that excludes all files that the image does not need, in particular secrets."""
    kept = ["requirements.txt", "constraints.txt", "trainmaster", "code"]
    lines = ["*", *(f"!{each}" for each in kept)]
    lines += [f"**/{each}" for each in (".git", *sorted(SECRET_FILES))]
    return "\n".join([*lines, *(f"!code/**/{each}" for each in NOT_SECRETS)]) + "\n"


def compose_file(sweep: SweepCommand, name: str, num_workers: int) -> str:
    empty = SweepCommand(sweep.target, (), sweep.options)
    words = empty.words(STORE, "--executor", "ray", "--address", "auto", "--workers", str(num_workers))
    return _COMPOSE.format(
        name=name,
        node=_NODE.format(name=name, store=STORE),
        healthcheck=_HEALTHCHECK,
        num_workers=num_workers,
        words="\n".join(f"      - {_compose_text(each)}" for each in words),
        choices=f"[{', '.join(map(_compose_text, sweep.choices))}]",
        example="" if sweep.choices else " lr=0.1,0.01",
    )


def apptainer_script(sweep: SweepCommand, name: str, num_tasks: int, folder: str) -> str:
    words = shell_command(["trainmaster", *sweep.words(STORE)]) + ("" if sweep.choices else ' "$@"')
    command = f'apptainer exec --pwd {shell_command([folder])} --bind "$store:{STORE}" "$image" {words}'
    title = "Written by `trainmaster container`: each task of the array trains the next missing run of a sweep."
    setup = _APPTAINER.format(name=name, example="" if sweep.choices else " lr=0.1,0.01")
    return slurm_script(title, name, num_tasks, setup, command)


def _docker_text(text: str) -> str:
    """Quote a value for ENV, where an unescaped `$` would start a variable."""
    return json.dumps(text, ensure_ascii=False).replace("$", "\\$")


def _compose_text(text: str) -> str:
    """Quote a string for a compose file, where an unescaped `$` would start a variable."""
    return json.dumps(text, ensure_ascii=False).replace("$", "$$")
