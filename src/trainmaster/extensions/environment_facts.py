"""Collects information about the environment: Python, packages, torch and the machine.

Information that cannot be determined is left out. No function in this module raises an error.
"""

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

import torch

from trainmaster.config.masking import Mask, masked_argv
from trainmaster.config.secret_patterns import masked_value
from trainmaster.extensions.code.repository import without_credentials

_VARIABLES: Final = re.compile(
    r"(OMP|MKL|KMP|GOMP|OPENBLAS|BLIS|VECLIB|NUMEXPR|CUDA|CUBLAS|CUDNN|NVIDIA_TF32|NCCL|HIP|ROCR|ROCM|MIOPEN|TORCH|PYTORCH|TORCHINDUCTOR)_\w+"
    r"|PYTHONHASHSEED|MALLOC_ARENA_MAX|LD_PRELOAD"
)
"""Matches the environment variables that affect results or speed. Other variables are not recorded."""


def collect_facts(environ: Mapping[str, str] = os.environ, argv: list[str] | None = None) -> dict[str, Any]:
    """Return information about the environment as plain values, without secrets."""
    mask = Mask.of((), environ, argv)
    words = sys.orig_argv if argv is None else argv
    return _collect(
        python=lambda: {"version": platform.python_version(), "executable": os.path.basename(sys.executable or "")},
        torch=_torch_facts,
        hardware=_hardware_facts,
        system=lambda: _collect(platform=platform.platform, host=socket.gethostname),
        variables=lambda: {name: mask(masked_value(name, environ[name])) for name in sorted(environ) if _VARIABLES.fullmatch(name)},
        argv=lambda: masked_argv([os.path.basename(words[0]), *words[1:]] if words else [], mask),
        packages=lambda: dict(list_packages()),
    )


def relevant_facts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the entries of `facts` that may change training results, as text."""
    python, build, hardware = (facts.get(name) or {} for name in ("python", "torch", "hardware"))
    relevant = {
        "python": python.get("version"),
        "torch": build.get("version"),
        "cuda": build.get("cuda"),
        "threads": build.get("threads"),
        "cpu": hardware.get("cpu"),
        "gpus": ", ".join(str(each.get("name")) for each in hardware.get("gpus") or []) or None,
    }
    return {name: str(value) for name, value in relevant.items() if value is not None}


def _try(function: Callable[[], Any]) -> Any:
    """Return the result of `function`, or None if it raises an error. A missing entry must not stop training."""
    try:
        return function()
    except Exception:  # for example, a driver error, a broken package, or no /proc
        return None


def _collect(**functions: Callable[[], Any]) -> dict[str, Any]:
    return {name: value for name, function in functions.items() if (value := _try(function)) is not None}


def _torch_facts() -> dict[str, Any]:
    return _collect(
        version=lambda: str(torch.__version__),
        cuda=lambda: torch.version.cuda,
        cudnn=torch.backends.cudnn.version,
        threads=torch.get_num_threads,
        is_deterministic=torch.are_deterministic_algorithms_enabled,
        cudnn_benchmark=lambda: torch.backends.cudnn.benchmark,
        matmul_precision=torch.get_float32_matmul_precision,
        build=lambda: [line.strip() for line in torch.__config__.show().splitlines() if line.strip()],
    )


def _hardware_facts() -> dict[str, Any]:
    return _collect(
        cpu=_cpu_name,
        cores=os.cpu_count,
        usable_cores=lambda: len(os.sched_getaffinity(0)),
        memory_gib=lambda: round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        gpus=_gpus,
    )


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            match = re.search(r"^(?:model name|Hardware)\s*:(.+)$", file.read(), re.MULTILINE)
    except OSError:  # not Linux
        match = None
    return " ".join(match[1].split()) if match else platform.processor() or platform.machine()


def _gpus() -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    return [
        {"name": each.name, "memory_gib": round(each.total_memory / 2**30, 1), "capability": f"{each.major}.{each.minor}"} for each in gpus
    ]


@functools.lru_cache(1)
def list_packages() -> dict[str, str]:
    """Return the versions of all installed packages. If a package is not from a package index, its source is appended to the version.

    If a package is installed more than once, the first copy on `sys.path` is listed, because imports use that copy.
    """
    packages: dict[str, tuple[str, str]] = {}
    for each in metadata.distributions():
        about = _try(lambda each=each: each.metadata)  # type: ignore[misc]  # read once: `.name` and `.version` would each read the file
        name = str(about["Name"] or "") if about is not None else ""
        if name and name.lower() not in packages:
            source = _try(functools.partial(_source_of, each)) or ""
            packages[name.lower()] = name, f"{about['Version'] or 'unknown'}{source}"
    return dict(sorted(packages.values(), key=lambda pair: pair[0].lower()))


def _source_of(distribution: metadata.Distribution) -> str:
    """Return the source of a package, such as ` (git+https://host/repo@commit)`, or an empty string if it is from a package index."""
    text = distribution.read_text("direct_url.json")
    if not text:
        return ""
    about = json.loads(text)
    url = without_credentials(str(about["url"]))
    if "vcs_info" in about:
        return f" ({about['vcs_info']['vcs']}+{url}@{about['vcs_info']['commit_id']})"
    return f" ({'editable, ' if about.get('dir_info', {}).get('editable') else ''}{url})"
