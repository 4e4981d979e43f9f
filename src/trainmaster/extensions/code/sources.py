"""Which files are code, and which look like secrets, by their names."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


CODE: Final = _words(
    """
    py pyi pyx pxd ipynb c h cc hh cpp hpp cxx hxx inl cu cuh cl metal triton f f90 rs go java kt scala swift js mjs ts jsx tsx
    lua jl r rmd m sh bash zsh fish ps1 bat pl rb hs ml proto sql cmake mk nix bzl
    """
)
"""Endings of programs."""
SETTINGS: Final = _words(
    "yaml yml json jsonc json5 jsonnet libsonnet toml ini cfg conf gin hcl tf j2 jinja jinja2 tmpl md rst tex bib html css xml"
)
"""Endings of settings and texts that people write."""
NAMES: Final = _words(
    """
    makefile dockerfile containerfile justfile jenkinsfile procfile snakefile license readme cmakelists.txt meson.build pipfile manifest.in
    .gitignore .gitattributes .gitmodules .dockerignore .editorconfig .flake8 .pylintrc .python-version
    """
)
_TEXTS: Final = ("*requirements*.txt", "constraints*.txt", "*.lock", "dockerfile.*", "environment*.txt")

_SECRETS: Final = _words(
    """
    .env .env.* *.env .envrc *.pem *.key *.p12 *.pfx *.jks *.keystore *.kdbx *.ppk *.ovpn id_rsa* id_dsa* id_ecdsa* id_ed25519*
    credentials *credentials.* .netrc _netrc .npmrc .pypirc .pgpass .htpasswd .git-credentials .dockercfg .dockerconfigjson
    kubeconfig *.kubeconfig *secret* *password* *passwd* *api_key* *apikey* *access_token* *auth_token* *service_account* *service-account*
    """
)
_DOCUMENTS: Final = _words("md rst tex bib html css")
_NO_SECRETS: Final = ("*.example", "*.sample", "*.template", "*.dist", "*.pub")


def is_secret_name(path: str) -> bool:
    """Whether a file is one that people keep keys and passwords in.

    A program is none, whatever its name: without `secrets.py` nothing runs; nor is a page such as `docs/secrets.md`. What they hold is
    looked at all the same.

    >>> [is_secret_name(each) for each in ("lab/.env", "keys/id_rsa", "client_secret.json", "secrets.py", "secrets.md", ".env.example")]
    [True, True, True, False, False, False]
    """
    name = _name(path)
    if (_ending(name) in (CODE | _DOCUMENTS) and not name.startswith(".env")) or any(fnmatchcase(name, each) for each in _NO_SECRETS):
        return False
    return any(fnmatchcase(name, each) for each in _SECRETS)


def is_source_name(path: str) -> bool:
    """Whether a new file is code, or what code is run with: told by its ending, because a table or a log is text too.

    >>> [is_source_name(each) for each in ("model.py", "conf/base.YAML", "Makefile", "log.txt", "weights.pt", "data.csv")]
    [True, True, True, False, False, False]
    """
    name = _name(path)
    return _ending(name) in CODE or _ending(name) in SETTINGS or name in NAMES or any(fnmatchcase(name, each) for each in _TEXTS)


def is_script(start: bytes) -> bool:
    """Whether the first line says by which program the file is run."""
    return start.startswith(b"#!")


def has_ending(path: str) -> bool:
    return bool(_ending(_name(path)))


def _name(path: str) -> str:
    return path.rpartition("/")[2].lower()


def _ending(name: str) -> str:
    stem, dot, ending = name.rpartition(".")
    return ending if dot and stem else ""
