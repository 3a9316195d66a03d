#!/usr/bin/env python3
"""Trains the small Mixture-of-Experts language model of models/demo on a folder of plain-text books.

    python -m pip install -r tools/requirements.txt
    python tools/train_demo.py --text BOOKS --out models/demo --work /tmp/demo-train --minutes 110

The learning rate follows the share of the time that has passed, so that it has decayed to zero at
the deadline whatever else the machine does; a pause (SIGSTOP, a closed lid) only makes the rest of
the schedule shorter. Every few minutes the state goes to --work (continue with --resume) and the
model, in Hugging Face form, to --out.
"""

import argparse
import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import repeat
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from demo import text
from demo.model import DemoModel, Dropout, Shape, export
from demo.muon import Muon

HELD_OUT = 0.025  # of each book, at its end
MEAN_PARAGRAPHS = 6.0  # between two end tokens
EXCERPT_CHARS = 8500  # per book, in validation.txt
# Tokens per window from each share of the schedule on: attention is a third of the work at 512.
WINDOWS = ((0.0, 256), (0.75, 512), (0.9, 1024))
CONTEXT = WINDOWS[-1][1]
CHAT_TEMPLATE = """\
{#- The model only continues stories: a user's turn becomes a line of speech, its answer follows. -#}
{%- for message in messages -%}
{%- if message.role == 'user' -%}
{{ '"' + message.content.strip() + '"\\n\\n' }}
{%- else -%}
{{ message.content.strip() + '\\n\\n' }}
{%- endif -%}
{%- endfor -%}
"""


class Windows:
    """Windows of consecutive tokens; each epoch starts at another offset, in another order."""

    def __init__(self, ids: np.ndarray):
        self.ids = torch.from_numpy(ids)
        self.key, self.starts = None, None

    def batch(self, tokens_seen: int, count: int, length: int) -> torch.Tensor:
        """The `count` windows (count, length + 1) that follow after `tokens_seen` tokens."""
        per_epoch = (len(self.ids) - 1) // length - 1
        rows = []
        for i in range(count):
            epoch, row = divmod(tokens_seen // length + i, per_epoch)
            if self.key != (epoch, length):
                rng = np.random.default_rng((1, epoch, length))
                self.starts = rng.permutation(per_epoch) * length + rng.integers(length)
                self.key = (epoch, length)
            start = int(self.starts[row])
            rows.append(self.ids[start : start + length + 1])
        return torch.stack(rows)


class Schedule:
    """Progress from 0 to 1 at the deadline; time in which the process stood still is not counted."""

    def __init__(self, minutes: float, progress: float):
        self.last = time.monotonic()
        self.deadline = self.last + 60 * minutes
        self.progress = progress
        self.active_seconds = 0.0
        self.typical = None

    def advance(self) -> None:
        now = time.monotonic()
        wall, self.last = now - self.last, now
        active = wall if self.typical is None else min(wall, 4 * self.typical)
        self.typical = active if self.typical is None else 0.9 * self.typical + 0.1 * active
        self.active_seconds += active
        left = max(self.deadline - now, 0.0)
        self.progress += (1 - self.progress) * active / (active + left)
        if left == 0:
            self.progress = 1.0

    def rate(self) -> float:
        """Warm-up, a plateau, then straight to zero."""
        return min(1.0, self.progress / 0.01, (1 - self.progress) / 0.7)


@torch.no_grad()
def evaluate(model: DemoModel, ids: np.ndarray, length: int, dtype: torch.dtype) -> float:
    """Mean loss over the tokens of `ids` in windows of `length`, from each one's second token on."""
    model.eval()
    total, count = 0.0, 0
    for start in range(0, len(ids) - length, length * 8):
        rows = [ids[a : a + length] for a in range(start, start + 8 * length, length)]
        batch = torch.from_numpy(np.stack([r for r in rows if len(r) == length]))
        states, _, _ = model(batch[:, :-1], dtype)
        targets = batch[:, 1:].flatten()
        total += model.token_loss(states, targets).item() * len(targets)
        count += len(targets)
    model.train()
    return total / count


def prepare(args: argparse.Namespace):
    """Reads the books; trains the tokenizer unless --work has one; writes what --out needs of it."""
    train, validation = text.split_books(Path(args.text), HELD_OUT)
    cached = Path(args.work) / "tokenizer.json"
    if cached.exists():
        tokenizer = Tokenizer.from_file(str(cached))
    else:
        tokenizer = text.train_tokenizer(train, Shape.vocab)
        tokenizer.save(str(cached))
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    special = {
        str(tokenizer.token_to_id(t)): {
            "content": t,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for t in (text.END_OF_TEXT, text.PAD)
    }
    config = {
        "added_tokens_decoder": special,
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": text.END_OF_TEXT,
        "model_max_length": CONTEXT,
        "pad_token": text.PAD,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (out / "validation.txt").write_text(text.excerpt(validation, EXCERPT_CHARS), encoding="utf-8")
    ids = [text.encode_passages(b, tokenizer, MEAN_PARAGRAPHS) for b in (train, validation)]
    return tokenizer, ids[0], ids[1]


def log(args: argparse.Namespace, message: str) -> None:
    line = f"{datetime.now():%H:%M:%S} {message}"
    print(line, flush=True)
    with open(Path(args.work) / "train.log", "a", encoding="utf-8") as f:
        f.write(line + "\n")


def save(args: argparse.Namespace, model: DemoModel, optimizer: Muon, record: dict) -> None:
    path = Path(args.work) / "state.pt"
    state = {"model": model.state_dict(), "optimizer": optimizer.state(), "record": record}
    torch.save(state, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)
    end, pad = 0, 1  # the order in which text.train_tokenizer adds them
    export(model, Path(args.out), CONTEXT, end, pad)


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--text", required=True, help="folder of *.txt books")
    p.add_argument("--out", required=True, help="where the Hugging Face checkpoint goes")
    p.add_argument("--work", required=True, help="where state.pt and train.log go")
    p.add_argument("--minutes", type=float, default=110, help="from now to the end of the training")
    p.add_argument("--resume", action="store_true", help="continue from --work")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--batch-tokens", type=int, default=6144, help="per step")
    p.add_argument("--micro-batch-tokens", type=int, default=1536, help="computed at once")
    p.add_argument("--lr", type=float, default=5e-3, help="of Muon")
    p.add_argument("--adam-lr", type=float, default=3e-3, help="of embeddings, norms and routers")
    p.add_argument("--decay", type=float, default=0.2, help="weight decay of the matrices")
    p.add_argument("--dropout", type=float, default=0.0)
    p.add_argument("--balance", type=float, default=0.02, help="weight of the load-balancing loss")
    p.add_argument("--save-minutes", type=float, default=5)
    p.add_argument("--log-seconds", type=float, default=30)
    p.add_argument("--float32", action="store_true", help="for processors without bf16")
    return p.parse_args()


def main() -> int:
    args = parse()
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    dtype = torch.float32 if args.float32 else torch.bfloat16
    Path(args.work).mkdir(parents=True, exist_ok=True)
    _, train_ids, validation_ids = prepare(args)
    windows = Windows(train_ids)
    model = DemoModel(Shape())
    optimizer = Muon(model, args.lr, args.adam_lr, args.decay)
    record = {"step": 0, "tokens": 0, "progress": 0.0, "seconds": 0.0}
    if args.resume:
        state = torch.load(Path(args.work) / "state.pt")
        model.load_state_dict(state["model"])
        optimizer.load(state["optimizer"])
        record = state["record"]
    parameters = list(model.parameters())
    log(args, f"{sum(p.numel() for p in parameters)} parameters, {len(train_ids)} training tokens, from {record}")

    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    schedule = Schedule(args.minutes, record["progress"])
    dropout = Dropout(args.dropout, dtype)

    def gradients(part: torch.Tensor, count: int):
        torch.set_num_threads(1)
        states, (balance, router_z), share = model(part[:, :-1], dtype, dropout)
        loss = model.token_loss(states, part[:, 1:].flatten())
        total = loss + args.balance * balance + 1e-3 * router_z
        grads = torch.autograd.grad(total * (len(part) / count), parameters)
        return loss.item(), share, grads

    # One micro-batch per thread: two busy threads need not wait for each other at every operator,
    # which on a shared machine is most of the time.
    pool = ThreadPoolExecutor(args.threads)
    seconds_before = record["seconds"]
    saved = logged = time.monotonic()
    smooth = None
    while schedule.progress < 1 and not stop:
        length = [w for start, w in WINDOWS if schedule.progress >= start][-1]
        count, micro = args.batch_tokens // length, max(1, args.micro_batch_tokens // length)
        batch = windows.batch(record["tokens"], count, length)
        losses, shares = [], []
        for loss, share, grads in pool.map(gradients, batch.split(micro), repeat(count)):
            losses.append(loss)
            shares.append(share)
            for p, g in zip(parameters, grads):
                p.grad = g if p.grad is None else p.grad.add_(g)
        smooth = 0.95 * smooth + 0.05 * np.mean(losses) if smooth else np.mean(losses)
        share = torch.stack(shares).mean(0)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(schedule.rate())
        model.zero_grad(set_to_none=True)
        schedule.advance()
        record["step"] += 1
        record["tokens"] += count * length
        record["progress"] = schedule.progress
        record["seconds"] = seconds_before + schedule.active_seconds
        if time.monotonic() - logged > args.log_seconds:
            logged = time.monotonic()
            log(
                args,
                f"step {record['step']} tokens {record['tokens']} "
                f"epoch {record['tokens'] / len(train_ids):.2f} loss {smooth:.3f} "
                f"progress {schedule.progress:.3f} rate {schedule.rate():.3f} "
                f"share {share.min():.3f}..{share.max():.3f} "
                f"{count * length / schedule.typical:.0f} tokens/s "
                f"{record['tokens'] / time.process_time():.0f} per processor second",
            )
        if time.monotonic() - saved > 60 * args.save_minutes:
            saved = time.monotonic()
            save(args, model, optimizer, record)
            log(args, f"saved; validation loss {evaluate(model, validation_ids, 512, dtype):.4f}")
    save(args, model, optimizer, record)
    log(args, f"end of {record}")
    log(args, f"validation loss {evaluate(model, validation_ids, 512, dtype):.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
