"""What a training runs on: Python, packages, torch, the machine. Whatever cannot be found out is left out, and nothing of it raises."""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import socket
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any, Final
from urllib.parse import urlsplit

import torch

from trainmaster.config.secret_fields import masked_value
from trainmaster.config.secrets import Mask, masked_argv

_VARIABLES: Final = re.compile(
    r"(OMP|MKL|KMP|GOMP|OPENBLAS|BLIS|VECLIB|NUMEXPR|CUDA|CUBLAS|CUDNN|NVIDIA_TF32|NCCL|HIP|ROCR|ROCM|MIOPEN|TORCH|PYTORCH|TORCHINDUCTOR)_\w+"
    r"|PYTHONHASHSEED|MALLOC_ARENA_MAX|LD_PRELOAD"
)
"""The variables that change numbers or their speed; no other is kept."""


def facts_of(environ: Mapping[str, str] = os.environ, argv: list[str] | None = None) -> dict[str, Any]:
    """All that is known of the surroundings, as plain values. The number of threads and the flags are those of this moment."""
    mask = Mask.of(None, environ, argv)
    words = getattr(sys, "orig_argv", sys.argv) if argv is None else argv
    parts: dict[str, Callable[[], Any]] = {
        "python": _python,
        "torch": _torch,
        "hardware": _hardware,
        "system": _system,
        "variables": lambda: {name: mask(masked_value(name, environ[name])) for name in sorted(environ) if _VARIABLES.fullmatch(name)},
        "argv": lambda: masked_argv([os.path.basename(words[0]), *words[1:]] if words else [], mask),
        "packages": lambda: dict(packages()),
    }
    return {name: value for name, find in parts.items() if (value := _found(find)) is not None}


def what_matters(facts: Mapping[str, Any]) -> dict[str, str]:
    """Those of the facts by which the numbers of a training may differ, each as a text."""
    python, built, machine = (facts.get(name) or {} for name in ("python", "torch", "hardware"))
    gpus = [str(each.get("name")) for each in machine.get("gpus") or []]
    found = {
        "python": python.get("version"),
        "torch": built.get("version"),
        "cuda": built.get("cuda"),
        "threads": built.get("threads"),
        "cpu": machine.get("cpu"),
        "gpus": ", ".join(gpus) or None,
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def _found(find: Callable[[], Any]) -> Any:
    """What `find` finds; None where that fails, whatever the reason: this is for the record only."""
    try:
        return find()
    except Exception:  # of a driver, a broken package, a system without /proc
        return None


def _each(**finds: Callable[[], Any]) -> dict[str, Any]:
    return {name: value for name, find in finds.items() if (value := _found(find)) is not None}


def _python() -> dict[str, Any]:
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "compiler": platform.python_compiler(),
        "executable": os.path.basename(sys.executable or ""),
    }


def _torch() -> dict[str, Any]:
    backends = torch.backends
    return _each(
        version=lambda: str(torch.__version__),
        git=lambda: torch.version.git_version,
        cuda=lambda: torch.version.cuda,
        hip=lambda: torch.version.hip,
        cudnn=backends.cudnn.version,
        threads=torch.get_num_threads,
        interop_threads=torch.get_num_interop_threads,
        is_deterministic=torch.are_deterministic_algorithms_enabled,
        cudnn_deterministic=lambda: backends.cudnn.deterministic,
        cudnn_benchmark=lambda: backends.cudnn.benchmark,
        matmul_precision=torch.get_float32_matmul_precision,
        allow_tf32=lambda: backends.cuda.matmul.allow_tf32 if torch.cuda.is_available() else None,
        default_dtype=lambda: str(torch.get_default_dtype()),
        build=lambda: _lines(torch.__config__.show()),
        parallel=lambda: _lines(torch.__config__.parallel_info()),
    )


def _lines(text: str) -> list[str]:
    """A text of several lines as a person can read it in JSON."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def _hardware() -> dict[str, Any]:
    return _each(
        cpu=_cpu,
        cores=os.cpu_count,
        usable_cores=lambda: len(os.sched_getaffinity(0)),
        cpu_quota=_cpu_quota,
        memory_gib=lambda: round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        memory_limit_gib=lambda: round(int(_read("/sys/fs/cgroup/memory.max")) / 2**30, 1),
        gpus=_gpus,
        gpu_driver=lambda: _read("/proc/driver/nvidia/version").splitlines()[0].strip(),
    )


def _cpu() -> str | None:
    for line in _found(lambda: _read("/proc/cpuinfo").splitlines()) or []:
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Hardware") and value.strip():
            return " ".join(value.split())
    return platform.processor() or platform.machine() or None


def _cpu_quota() -> float | None:
    """How many cores a container may use at once."""
    quota, period = _read("/sys/fs/cgroup/cpu.max").split()
    return None if quota == "max" else round(int(quota) / int(period), 2)


def _gpus() -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    found = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    return [
        {"name": each.name, "memory_gib": round(each.total_memory / 2**30, 1), "capability": f"{each.major}.{each.minor}"} for each in found
    ]


def _system() -> dict[str, Any]:
    return _each(platform=platform.platform, machine=platform.machine, libc=lambda: " ".join(platform.libc_ver()), host=socket.gethostname)


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


@functools.lru_cache(1)
def packages() -> dict[str, str]:
    """The version of each installed package, by name; of one that was installed from a repository or a folder, from where, too.

    What comes first on the path counts, as it does for an import. It is looked up once in a process.
    """
    found: dict[str, tuple[str, str]] = {}
    for each in metadata.distributions():
        name, version = _found(functools.partial(_named, each)) or ("", "")
        if name and name.lower() not in found:
            found[name.lower()] = name, f"{version}{_found(functools.partial(_origin, each)) or ''}"
    return dict(sorted(found.values(), key=lambda pair: pair[0].lower()))


def _named(distribution: metadata.Distribution) -> tuple[str, str]:
    about = distribution.metadata  # read once: each of `.name` and `.version` would read the file again
    return str(about["Name"] or ""), str(about["Version"] or "unknown")


def _origin(distribution: metadata.Distribution) -> str:
    """Where a package was installed from, if that is no index: ` (git+https://host/repo@commit)`, ` (editable, file:///src)`."""
    text = distribution.read_text("direct_url.json")
    if not text:
        return ""
    about = json.loads(text)
    url = without_credentials(str(about["url"]))
    if "vcs_info" in about:
        return f" ({about['vcs_info']['vcs']}+{url}@{about['vcs_info']['commit_id']})"
    return f" ({'editable, ' if about.get('dir_info', {}).get('editable') else ''}{url})"


def without_credentials(url: str) -> str:
    """An address without user and password.

    >>> without_credentials("https://me:secret@host/repo.git?token=abc")
    'https://host/repo.git'
    """
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
