"""The terminal shows no escape sequences from names, values and errors; readers work while another process writes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import warm

from trainmaster.store import Store

Call = Callable[..., Any]
EVIL = "\x1b]0;owned\x07\x1b[2J\x1b]8;;http://x\x1b\\link \u202e\u2066\r\n\x9b31m\x00\u2028\ud800"
SAFE = EVIL.replace("\ud800", "")  # a config cannot contain a lone surrogate


def is_harmless(text: str) -> bool:
    return all(each.isprintable() or each == "\n" for each in text)


def test_text_from_a_store_is_escaped_on_the_terminal(call: Call, make: Any, store: Store) -> None:
    """Covers fault S12."""
    one = make.run(
        {f"key {SAFE}": SAFE, "lr": 1}, [{f"loss {SAFE}": 1.0}, {f"loss {SAFE}": 2.0}], outcome="failed", error=f"boom {SAFE}", log=SAFE
    )
    other = make.run({"lr": 2}, outcome=f"odd {SAFE}", status={"best": {"metric": SAFE, "value": SAFE, "step": SAFE, "checkpoint": SAFE}})
    store.files.create(f"stats/{one[:2]}/{one}/attempt-0001/{SAFE.replace('/', '').replace(chr(0), '')}", b"")
    store.files.create(f"configs/{one[:2]}/x\x1b[2J", b"")
    for args in (
        ["ls"],
        ["ls", "--where", f"'{SAFE}'=3"],
        ["ls", "--where", "('\x1b[2J'=3"],
        ["ls", "--sort", SAFE],
        ["ls", "--state", SAFE],
        ["ls", f"--{SAFE}"],
        [SAFE],
        ["ls", "--store", SAFE.replace("\0", "")],
        ["ls", "--store", SAFE],
        ["show", one],
        ["show", other],
        ["show", SAFE],
        ["diff", one, other],
        ["logs", one],
        ["tag", one, SAFE],
        ["verify"],
        ["export", f"/nowhere/{SAFE}".replace("\0", "")],
        ["import", SAFE.replace("\0", "")],
        ["rm", one, "--dry-run"],
        ["doctor", "--store", SAFE],
    ):
        found = call(*args)
        assert is_harmless(found.out), args
        assert is_harmless(found.err), args
        assert "Traceback" not in found.err


def test_json_is_ascii_and_keeps_names_exactly(call: Call, make: Any) -> None:
    key = make.run({f"key {SAFE}".replace(".", ""): SAFE}, [{SAFE: 1.0}])
    for args in (["ls"], ["show", key], ["diff", key, key], ["verify"]):
        out = call(*args, "--json").out
        assert out.isascii()
        assert "\x1b" not in out
    assert json.loads(call("show", key, "--json").out)["metrics"] == {SAFE: 1.0}


WRITER = """
import sys, time
from trainmaster.store import Store
store = Store(sys.argv[1])
key = store.configs.add({"busy": True})
with store.attempt(key, "process") as attempt:
    attempt.start(None)
    print(key, flush=True)
    for step in range(80):
        attempt.log.append({"epoch": step, "time": 0.0, "eval": {"loss": float(step)}})
        attempt.save(step, {"step": step}, {"epoch": step, "toc": time.time()}, {"loss": step}, keep=2)
        if step % 20 == 19:
            sys.stdin.readline()  # waits until the reader has looked again
    attempt.release("finished")
"""


def test_a_reader_during_writes_sees_no_error_and_only_newer_values(call: Call, store: Store) -> None:
    """Covers fault L13."""
    with warm.Popen([sys.executable, "-c", WRITER, str(store.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        key = writer.stdout.readline().strip()
        epochs, states = [-1], ["running"]
        while states[-1] == "running":
            run = json.loads(call("show", key, "--json").out)
            epochs.append(-1 if run["epoch"] is None else run["epoch"])
            states.append(run["state"])
            assert json.loads(call("ls", "--json").out)[0]["state"] in ("running", "finished")
            assert len(run["history"].get("loss", [])) >= epochs[-1]
            with contextlib.suppress(BrokenPipeError):  # the writer has finished
                os.write(writer.stdin.fileno(), b"\n")  # unbuffered, because a buffer would be written again at exit
    assert epochs == sorted(epochs)
    assert states[-1] == "finished"
    assert epochs[-1] == 79
    assert len({*epochs}) > 3
