"""Tune the base model on chats rendered from the view's rows; a view's trainer, run by `snapline materialize`.

The last layers are tuned in float32, on the answers only, and everything is saved as bf16. The same rows, parameters,
seed and machine give the same bytes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import torch
from chats import Chat, render, sample
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

THREADS = 2  # the order of a sum depends on it
IGNORED = -100


def main() -> None:
    parameters = json.loads(os.environ["SNAPLINE_PARAMETERS"])
    steps, batch_size = int(parameters["steps"]), int(parameters["batch_size"])
    seed = int(os.environ["SNAPLINE_SEED"])
    base, output = os.environ["SNAPLINE_BASE_MODEL"], os.environ["SNAPLINE_OUTPUT"]
    torch.manual_seed(seed)
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)
    logging.disable_progress_bar()

    chats = training_chats(Path(os.environ["SNAPLINE_TRAINING_DATA"]), steps * batch_size, seed)
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    tuned = last_layers(model, int(parameters["layers"]))
    optimizer = torch.optim.AdamW(tuned, lr=float(parameters["learning_rate"]), weight_decay=0.0)
    for step in range(steps):
        batch = encode(tokenizer, chats[step * batch_size : (step + 1) * batch_size])
        loss = answer_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step + 1}/{steps} loss {loss.item():.3f}", flush=True)

    model.to(torch.bfloat16).save_pretrained(output)
    tokenizer.save_pretrained(output)


def training_chats(rows: Path, count: int, seed: int) -> list[Chat]:
    """Return chats about `count` flights of the view that arrived, sampled in seeded order."""
    flights = pq.read_table(rows)
    flights = flights.filter(flights["arr_delay"].is_valid()).sort_by("flight_id")
    places = {flight_id: place for place, flight_id in enumerate(flights["flight_id"].to_pylist())}
    chosen = [places[flight_id] for flight_id in sample(places, count, seed)]
    if len(chosen) < count:
        raise SystemExit(
            f"expected at least {count} flights that arrived, found {len(chosen)}: lower steps or batch_size"
        )
    return [render(row, seed) for row in flights.take(chosen).to_pylist()]


def last_layers(model: PreTrainedModel, count: int) -> list[torch.nn.Parameter]:
    """Freeze all but the last `count` layers, and return what is left to tune."""
    model.requires_grad_(False)
    layers = model.model.layers[-count:].requires_grad_(True)
    return list(layers.parameters())


def encode(tokenizer: PreTrainedTokenizerBase, chats: list[Chat]) -> dict[str, torch.Tensor]:
    """Return one right-padded batch; `labels` is IGNORED outside the answers and their end."""
    prompts, answers = [], []
    for question, answer in chats:
        messages = [{"role": "user", "content": question}]
        prompts.append(tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"])
        answers.append([*tokenizer(answer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id])
    width = max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
    rows: dict[str, list[list[int]]] = {"input_ids": [], "attention_mask": [], "labels": []}
    for prompt, answer in zip(prompts, answers, strict=True):
        length, padding = len(prompt) + len(answer), width - len(prompt) - len(answer)
        rows["input_ids"].append(prompt + answer + [tokenizer.eos_token_id] * padding)
        rows["attention_mask"].append([1] * length + [0] * padding)
        rows["labels"].append([IGNORED] * len(prompt) + answer + [IGNORED] * padding)
    return {name: torch.tensor(values) for name, values in rows.items()}


def answer_loss(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the mean cross entropy of the answers' tokens; the rest of the vocabulary projection is never computed."""
    labels = batch.pop("labels")[:, 1:]
    hidden = model.model(**batch, use_cache=False).last_hidden_state[:, :-1]
    scored = labels != IGNORED
    return cross_entropy(model.lm_head(hidden[scored]), labels[scored])


if __name__ == "__main__":
    main()
