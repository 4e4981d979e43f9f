"""The dashboard: a local web page for a store, and the same data as JSON for programs."""

from __future__ import annotations
