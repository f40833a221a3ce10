"""An engine in a worker process of its own, with a time limit and a log."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, NoReturn, Self

from snapline.contracts.engines import worker
from snapline.contracts.engines.protocol import (
    Batching,
    Cache,
    EngineIdentity,
    EngineSpec,
    Generation,
    Path,
    ProbeItem,
    Prompt,
    Report,
    Sampled,
    Sampling,
    Timing,
    TokenLists,
    module_name,
)
from snapline.contracts.errors import EngineFailedError, EngineUnavailableError
from snapline.lineage.errors import DefinitionError, SnaplineError

if TYPE_CHECKING:
    import torch

CLOSE_SECONDS = 30.0
LOG_TAIL_LINES = 12
_ERRORS: dict[str, type[SnaplineError]] = {
    error.__name__: error for error in (DefinitionError, EngineUnavailableError, EngineFailedError)
}


class WorkerEngine:
    """A `LocalEngine` that runs in its own process and dies with this one.

    Args:
        spec: What to start, and with which interpreter.
        model: The folder of the weights, configuration and tokenizer.
        workdir: A folder for the log and for logits on their way here; made when missing.
        timeout_seconds: How long the worker may be silent before it is killed.
        report: Told what the worker is doing.
        environment: The worker's environment; it adds to and overrides what the engine asks for, and the
            specification's thread count overrides both.

    Raises:
        EngineUnavailableError: The interpreter, the engine's libraries or its device are not there.
        EngineFailedError: The worker died, fell silent or answered nonsense; the message ends with its log.
    """

    def __init__(
        self,
        spec: EngineSpec,
        model: FilePath,
        *,
        workdir: FilePath,
        timeout_seconds: float,
        report: Report,
        environment: Mapping[str, str],
    ) -> None:
        self._spec, self._report, self._timeout = spec, report, timeout_seconds
        workdir.mkdir(parents=True, exist_ok=True)
        self._workdir, self._idle = workdir, False
        self._log = workdir / f"{spec.engine}.log"
        self._process = self._start(environment)
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            identity = self._ask({"do": "load", "spec": dataclasses.asdict(spec), "model": str(model.absolute())})
            self._identity = EngineIdentity(**identity)
            self._idle = True
        except BaseException:
            self.close()
            raise

    @property
    def identity(self) -> EngineIdentity:
        """What really runs, as the engine reported it after start."""
        return self._identity

    def score(
        self, items: Sequence[ProbeItem], path: Path, batching: Batching, cache: Cache = Cache.COLD
    ) -> Mapping[str, torch.Tensor]:
        """Return raw logits by prompt id; see `Engine.score`. They are mapped from a file, not held in memory."""
        request = {"do": "score", "items": _plain(items), "path": path, "batching": batching, "cache": cache}
        scored, logits = self._ask_for_logits(request)
        return dict(zip(scored, logits, strict=True))

    def sample(
        self, items: Sequence[ProbeItem], sampling: Sampling, batching: Batching, cache: Cache = Cache.COLD
    ) -> Mapping[str, Sampled]:
        """Return the answers the engine draws; see `Engine.sample`. Their logits are mapped from a file."""
        asked = {"sampling": dataclasses.asdict(sampling), "batching": batching, "cache": cache}
        sampled, logits = self._ask_for_logits({"do": "sample", "items": _plain(items), **asked})
        return {id: Sampled(tuple(tokens), rows) for (id, tokens), rows in zip(sampled, logits, strict=True)}

    def timed(self, items: Sequence[ProbeItem], max_tokens: int, batching: Batching) -> Sequence[Timing]:
        """Return how long greedy answers took inside the worker; see `Engine.timed`."""
        request = {"do": "timed", "items": _plain(items), "max_tokens": max_tokens, "batching": batching}
        return [Timing(**{**timing, "prompts": tuple(timing["prompts"])}) for timing in self._ask(request)]

    def _ask_for_logits(self, request: Mapping[str, Any]) -> tuple[Sequence[Any], list[torch.Tensor]]:
        """Return the worker's answer, a list, and one tensor for each of its entries."""
        from safetensors.torch import load_file

        file = self._workdir / f"{self._process.pid}.safetensors"
        try:
            found = self._ask({**request, "file": str(file)})
            logits = load_file(file)
        finally:
            file.unlink(missing_ok=True)
        return found, [logits[str(place)] for place in range(len(found))]

    def tokenize(self, prompts: Sequence[Prompt], answers: Sequence[str]) -> tuple[TokenLists, TokenLists]:
        """Return the token ids of prompts and answers; see `LocalEngine.tokenize`."""
        encoded = self._ask({"do": "tokenize", "prompts": list(prompts), "answers": list(answers)})
        in_order = ([tuple(tokens) for tokens in part] for part in encoded)
        return next(in_order), next(in_order)

    def generate(self, prompt: Sequence[int], max_tokens: int) -> Generation:
        """Return the greedy answer to a prompt; see `LocalEngine.generate`."""
        found = self._ask({"do": "generate", "prompt": list(prompt), "max_tokens": max_tokens})
        first = tuple((token, text, logit) for token, text, logit in found["first"])
        return Generation(tokens=tuple(found["tokens"]), text=found["text"], first=first)

    def close(self) -> None:
        """End the worker and everything it started; calling it twice is fine.

        An engine of several processes shares memory between them that outlives them: an idle one may free it first.
        """
        if self._idle and self._spec.tensor_parallel > 1:
            self._idle, self._timeout = False, CLOSE_SECONDS
            with contextlib.suppress(EngineFailedError):
                self._ask({"do": "close"})
        self._idle = False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, environment: Mapping[str, str]) -> subprocess.Popen[str]:
        interpreter = self._spec.interpreter or sys.executable
        threads = {"OMP_NUM_THREADS": str(self._spec.threads)} if self._spec.threads else {}
        try:
            module = importlib.import_module(module_name(self._spec.engine))
        except ImportError as error:
            raise EngineUnavailableError(
                f"no engine {self._spec.engine!r}: {error}",
                hint="Name an engine of snapline.contracts.engines, or a dotted module that is one.",
            ) from error
        try:
            with self._log.open("w", encoding="utf-8") as log:
                return subprocess.Popen(
                    [interpreter, str(FilePath(worker.__file__).resolve())],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env={**module.ENVIRONMENT, **environment, **threads},
                    start_new_session=True,
                )
        except OSError as error:
            raise EngineUnavailableError(
                f"cannot start {interpreter}: {error.strerror}",
                hint="Set `interpreter` to a Python that has the engine.",
            ) from error

    def _listen(self) -> None:
        """Queue the worker's lines; an empty one says that it closed its output."""
        stream: IO[str] = self._process.stdout  # type: ignore[assignment]
        with contextlib.suppress(ValueError):
            for line in stream:
                self._lines.put(line)
        self._lines.put("")

    def _ask(self, request: Mapping[str, Any]) -> Any:
        """Return the worker's answer; until it came, or if the wait was interrupted, the worker is not idle."""
        idle, self._idle = self._idle, False
        stream: IO[str] = self._process.stdin  # type: ignore[assignment]
        try:
            stream.write(json.dumps(request) + "\n")
            stream.flush()
        except (BrokenPipeError, ValueError):
            self._fail(f"was asked to {request['do']} after it ended")
        while "progress" in (answer := self._next_answer(request["do"])):
            self._report(answer["progress"])
        self._idle = idle
        if "error" in answer:
            error = _ERRORS.get(answer["error"], EngineFailedError)
            raise error(f"{self._spec.engine}: {answer['message']}", hint=answer["hint"] or f"Read {self._log}.")
        return answer["ok"]

    def _next_answer(self, doing: str) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=self._timeout)
        except queue.Empty:
            self._fail(f"was silent for {self._timeout:g} s while asked to {doing}")
        if not line:
            self._fail(f"ended while asked to {doing}")
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or not answer.keys() & {"ok", "error", "progress"}:
            self._fail(f"answered {line[:80]!r} when asked to {doing}")
        return answer

    def _fail(self, what: str) -> NoReturn:
        self.close()
        tail = "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:])
        status = self._process.returncode
        raise EngineFailedError(
            f"the {self._spec.engine} worker {what} (exit status {status}); its log ends:\n{tail or '(empty)'}",
            hint=f"Read {self._log}; raise the time limit if it was only slow.",
        )


def _plain(items: Sequence[ProbeItem]) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    return [(item.id, item.prompt, item.answer) for item in items]
