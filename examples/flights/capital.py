"""One question to the same weights in two programs, to show why a hash of the weights is not enough."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from snapline.contracts.engines.client import WorkerEngine
from snapline.contracts.engines.protocol import EngineSpec, Generation

# Near-ties of the base model. Which of them rounding tips depends on the processor.
COUNTRIES = ("France", "Finland", "Bulgaria", "Italy", "Colombia")
PROGRAMS = (EngineSpec("transformers", "float32"), EngineSpec("vllm", "bfloat16"))


def show_the_near_tie(model: Path, work: Path, console: Console) -> None:
    """Ask both programs, greedily, and show the first question and the first that they answer differently."""
    answers = [ask(program, model, work, console) for program in PROGRAMS]
    differ = [country for place, country in enumerate(COUNTRIES) if len({given[place].text for given in answers}) > 1]
    for country in dict.fromkeys([COUNTRIES[0], *differ[:1]]):
        console.print(f"\n{question(country)}")
        for program, given in zip(PROGRAMS, answers, strict=True):
            show(program, given[COUNTRIES.index(country)], console)
    tipped = "Rounding tips a near-tie, and a registry that records a hash of the weights misses it."
    console.print(
        f"\n{tipped if differ else 'No near-tie fell differently on this processor; how near they are still shows.'}"
    )


def question(country: str) -> str:
    return f"What is the capital of {country}?"


def ask(program: EngineSpec, model: Path, work: Path, console: Console) -> Sequence[Generation]:
    """Return a program's greedy answers to every question."""
    console.print(f"asking {program.engine} {program.dtype} ...", style="dim")
    with WorkerEngine(
        program,
        model,
        workdir=work,
        timeout_seconds=300,
        report=lambda _what: None,
        environment=dict(os.environ),
    ) as engine:
        chats = [[{"role": "user", "content": question(country)}] for country in COUNTRIES]
        prompts, _ = engine.tokenize(chats, [])
        return [engine.generate(prompt, max_tokens=16) for prompt in prompts]


def show(program: EngineSpec, answer: Generation, console: Console) -> None:
    (_, first, first_logit), (_, second, second_logit) = answer.first
    console.print(f"  {program.engine:<12} {program.dtype:<9} {answer.text.strip()!r}")
    console.print(f"  {'':<22} first token: {first!r} {first_logit:.3f} against {second!r} {second_logit:.3f}")
