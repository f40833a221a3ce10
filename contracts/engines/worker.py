"""The worker process: one engine with one model, answering requests in JSON lines on its standard streams.

It is run by path with whatever interpreter has the engine's libraries, so it needs nothing installed: it makes the
folder it lies in importable as `snapline` and imports only what its engine does. Whatever a library prints goes to
standard error, because the answers travel over a private copy of standard output. It ends when its parent does.

Requests: `{"do": "load" | "tokenize" | "score" | "sample" | "timed" | "generate" | "close", ...}`; closing
the input ends the worker. Answers: `{"progress": text}`, then one of `{"ok": value}` and
`{"error": class, "message": text, "hint": text}`.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from snapline.contracts.engines.protocol import LocalEngine

PARENT_POLL_SECONDS = 1.0


def main() -> None:
    """Serve requests until the input closes."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()
    _make_importable()
    server = Server(answers)
    while True:
        server.answer(json.loads(requests.get()))


def _read(requests: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        requests.put(line)
    _end()


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_SECONDS)
    _end()


def _end() -> None:
    """End at once, together with whatever processes the engine started."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _make_importable() -> None:
    """Make this source tree importable as `snapline`, and this folder's own file names not importable at all.

    Python puts a script's folder first on the path, where `transformers.py` and `vllm.py` would hide the libraries.
    """
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    namespace = types.ModuleType("snapline")
    namespace.__path__ = [str(here.parent.parent)]
    sys.modules["snapline"] = namespace


class Server:
    """Turns requests into calls of the engine."""

    def __init__(self, answers: TextIO) -> None:
        self._answers = answers
        self._engine: LocalEngine | None = None
        self._install = ""

    def answer(self, request: dict[str, Any]) -> None:
        """Answer one request, whatever happens inside it."""
        from snapline.lineage.errors import SnaplineError

        try:
            self._write({"ok": self._do(request)})
        except SnaplineError as error:
            self._write({"error": type(error).__name__, "message": error.message, "hint": error.hint})
        except ImportError as error:
            self._write({"error": "EngineUnavailableError", "message": str(error), "hint": self._install})
        except Exception as error:  # noqa: BLE001 - whatever a library raises, the parent has to hear of it
            traceback.print_exc()
            self._write({"error": "EngineFailedError", "message": f"{type(error).__name__}: {error}", "hint": ""})

    def _do(self, request: dict[str, Any]) -> Any:
        if request["do"] == "load":
            return self._load(request["spec"], Path(request["model"]))
        engine = self._engine
        if engine is None:
            raise RuntimeError("no engine is loaded")
        if request["do"] == "close":
            return engine.close()
        if request["do"] == "tokenize":
            return engine.tokenize(request["prompts"], request["answers"])
        if request["do"] == "generate":
            return dataclasses.asdict(engine.generate(request["prompt"], request["max_tokens"]))
        return self._measure(engine, request)

    def _measure(self, engine: LocalEngine, request: dict[str, Any]) -> list[Any]:
        """Score, sample or time; logits go to the request's file, and what they are of comes back."""
        from snapline.contracts.engines.protocol import Batching, Cache, ProbeItem, Sampling
        from snapline.contracts.engines.protocol import Path as ScoringPath

        items = [ProbeItem(id, tuple(prompt), tuple(answer)) for id, prompt, answer in request["items"]]
        batching = Batching(request["batching"])
        if request["do"] == "timed":
            return [dataclasses.asdict(timing) for timing in engine.timed(items, request["max_tokens"], batching)]
        cache = Cache(request["cache"])
        if request["do"] == "sample":
            sampled = engine.sample(items, Sampling(**request["sampling"]), batching, cache)
            ids = _save({id: answer.logits for id, answer in sampled.items()}, request["file"])
            return [(id, sampled[id].tokens) for id in ids]
        return _save(engine.score(items, ScoringPath(request["path"]), batching, cache), request["file"])

    def _load(self, spec: dict[str, Any], model: Path) -> dict[str, Any]:
        from snapline.contracts.engines.protocol import EngineSpec, module_name

        module = importlib.import_module(module_name(spec["engine"]))
        self._install = module.INSTALL
        self._engine = engine = module.load(EngineSpec(**spec), model, self._report)
        document: dict[str, Any] = engine.identity.as_document()
        return document

    def _report(self, message: str) -> None:
        self._write({"progress": message})

    def _write(self, message: dict[str, Any]) -> None:
        self._answers.write(json.dumps(message) + "\n")


def _save(logits: Mapping[str, torch.Tensor], file: str) -> list[str]:
    """Write logits to a file, each tensor named by its place, and return the prompts' ids in that order."""
    from safetensors.torch import save_file

    save_file({str(place): rows.contiguous() for place, rows in enumerate(logits.values())}, file)
    return list(logits)


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":
    # An engine that spreads over several processes starts them by importing this file again.
    _make_importable()
