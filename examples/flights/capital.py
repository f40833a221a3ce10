"""One question to the same weights in two programs, to show why a weights hash is not enough."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from rich.console import Console

from snapline.contracts.engines.client import WorkerEngine
from snapline.contracts.engines.protocol import EngineSpec

QUESTION = "What is the capital of France?"
PROGRAMS = (EngineSpec("transformers", "float32"), EngineSpec("vllm", "bfloat16"))


def show_the_near_tie(model: Path, work: Path, console: Console) -> None:
    """Ask both programs, greedily, and show what each answers and how near the tie was."""
    console.print(f"{model.name} is asked: {QUESTION}\n")
    work.mkdir(exist_ok=True)
    answers, prompt = set(), ()
    for program in PROGRAMS:
        with (
            tempfile.TemporaryDirectory(dir=work) as folder,
            WorkerEngine(
                program,
                model,
                workdir=Path(folder),
                timeout_seconds=300,
                report=lambda _what: None,
                environment=dict(os.environ),
            ) as engine,
        ):
            prompt = prompt or engine.tokenize([[{"role": "user", "content": QUESTION}]], [])[0][0]
            answer = engine.generate(prompt, max_tokens=16)
        answers.add(answer.text)
        (_, first, first_logit), (_, second, second_logit) = answer.first
        console.print(f"  {program.engine:<12} {program.dtype:<9} {answer.text.strip()!r}")
        console.print(f"  {'':<22} first token: {first!r} {first_logit:.3f} against {second!r} {second_logit:.3f}")
    if len(answers) == 1:
        console.print(
            "\nThe near-tie fell the same way on both here; the distance between the programs is still there."
        )
    else:
        console.print(
            "\nA near-tie, tipped by rounding. A registry that records only a hash of the weights misses this."
        )
