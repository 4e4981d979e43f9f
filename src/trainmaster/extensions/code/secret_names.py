"""Recognizes files that contain secrets, by their names."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CODE_AND_DOCS: Final = _words(
    """
    py pyi pyx pxd ipynb c h cc hh cpp hpp cxx hxx inl cu cuh cl metal triton f f90 rs go java kt scala swift js mjs ts jsx tsx
    lua jl r rmd m sh bash zsh fish ps1 bat pl rb hs ml proto sql cmake mk nix bzl md rst tex bib html css
    """
)
"""File name extensions of source code and documents. A file such as `secrets.py` is kept despite its name, because the program needs it.

The contents of these files are still checked.
"""
SECRET_FILES: Final = _words(
    """
    .env .env.* *.env .envrc *.pem *.key *.p12 *.pfx *.jks *.keystore *.kdbx *.ppk *.ovpn id_rsa* id_dsa* id_ecdsa* id_ed25519*
    .netrc _netrc .npmrc .pypirc .pgpass .htpasswd .git-credentials .dockercfg .dockerconfigjson *.kubeconfig
    """
)
"""Patterns for the names of files that contain only keys and passwords."""
_SECRETS: Final = SECRET_FILES | _words(
    """
    credentials *credentials.* kubeconfig *secret* *password* *passwd* *api_key* *apikey* *access_token* *auth_token*
    *service_account* *service-account*
    """
)
NOT_SECRETS: Final = ("*.example", "*.sample", "*.template", "*.dist", "*.pub")


def is_secret_name(path: str) -> bool:
    """Return whether files with this name usually contain keys or passwords.

    >>> [is_secret_name(each) for each in ("lab/.env", "keys/id_rsa", "client_secret.json", "secrets.py", "secrets.md", ".env.example")]
    [True, True, True, False, False, False]
    """
    name = path.rpartition("/")[2].lower()
    stem, _, ending = name.rpartition(".")
    if stem and ending in _CODE_AND_DOCS and not name.startswith(".env"):
        return False
    return any(fnmatchcase(name, each) for each in _SECRETS) and not any(fnmatchcase(name, each) for each in NOT_SECRETS)
