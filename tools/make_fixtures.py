#!/usr/bin/env python3
"""Makes the golden model fixtures: small random checkpoints and what transformers computes from them.

    pip install -r tools/requirements.txt
    python tools/make_fixtures.py --out tests/golden/models      # all of fixture_definitions.py
    python tools/make_fixtures.py --out /tmp/fixtures --only mixtral_plain --seed-offset 7 \
        --set hidden_size=44 --set head_dim=16 --prompts 1,40     # other seeds and shapes

Deterministic with the versions pinned in requirements.txt. Each fixture becomes a directory with

    config.json, model.safetensors     a checkpoint as published ones are (or shards and their index)
    fixture.json                       what it is, how tight float32 is, how far bfloat16 strays
    prompt_N.tokens.npy                (N) int32, the prompt of N tokens
    prompt_N.logits.npy                (N, vocab) float32, logits at every position
    prompt_N.router_margin.npy         (N) float32, k-th minus (k+1)-th router logit, minimum over
                                       the MoE layers (gates that do more: router_margins.py)
    prompt_N.router_margin_prob.npy    (N) float32, the same in softmax probabilities
    prompt_N.greedy.npy                (32) int32, greedy continuation, decoded with a cache;
                                       end-of-sequence tokens are not special
    prompt_N.greedy_margin.npy         (32) float32, largest minus second largest logit of each step
    prompt_N.greedy_router_margin.npy  (32) float32, router margin of the token whose logits chose it

Results are those of the stored weights in float32 with eager attention. Prompt tokens are random;
those at which some router is nearly undecided are drawn again, and of several such prompts the one
is kept whose greedy continuation is decided most clearly, so that an engine computing in bfloat16
can be compared at almost every position and step.
"""

import argparse
import contextlib
import copy
import dataclasses
import json
import os
import shutil
import tempfile
import unittest.mock

import numpy as np
import torch
import transformers

from fixture import header
from fixture_definitions import FIXTURES
from random_checkpoint import build, config_json, load_model, write_json
from router_margins import routing

GREEDY_STEPS = 32
# Router logits deviate by about 2; bfloat16 moves them by 0.01 to 0.1.
UNDECIDED_ROUTER = 0.1
DECIDED_GREEDY = 0.05  # wanted at every greedy step, where tokens cannot be drawn again
PROMPT_CANDIDATES = 128  # prompts that compete for the clearest greedy continuation
LONG_PROMPT_CANDIDATES = 16  # the same for prompts of more than 32 tokens
CLEAR_MARGIN = 3.0  # a greedy step is clear if its margin is this many times the error of bfloat16
DRAWS = 120  # rounds of drawing tokens again
SEEDS_TRIED = 1

# ------------------------------------------------------------------------------------------------------- running


@dataclasses.dataclass
class Run:
    """What a forward pass over `tokens` positions gave, (batch, tokens, ...), all float64 or float32."""

    logits: torch.Tensor
    router_logits: torch.Tensor  # (MoE layers, batch, tokens, experts)
    routings: list  # a Routing per MoE layer
    cache: object = None

    def router_margins(self):
        """(batch, tokens), in logits: the minimum over the layers."""
        return torch.stack([routing.margin for routing in self.routings]).amin(dim=0)

    def router_margins_of_scores(self):
        return torch.stack([routing.margin_of_scores for routing in self.routings]).amin(dim=0)


def fresh_rope(model):
    """Dynamic RoPE remembers the longest sequence it has seen; every prompt shall start without that memory."""
    base = model.base_model
    base.rotary_emb = type(base.rotary_emb)(base.config)


@torch.no_grad()
def forward(model, tokens, cache=None, use_cache=False, **kwargs):
    """tokens (batch, tokens) int64. Pass the cache of the previous run to continue it."""
    if cache is None:
        fresh_rope(model)
    routers = [m for m in model.modules() if type(m).__name__.endswith("Router")]
    k = experts_per_token(model.config)
    seen, routings = [], []

    def record(module, inputs, output):
        logits = output[0] if isinstance(output, tuple) else output
        seen.append(logits.reshape(*tokens.shape, -1))
        routings.append(routing(module, seen[-1].float(), k))

    hooks = [router.register_forward_hook(record) for router in routers]
    try:
        out = model(tokens, past_key_values=cache, use_cache=use_cache, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    assert len(seen) == len(routers) > 0
    return Run(out.logits, torch.stack(seen), routings, out.past_key_values if use_cache else None)


def experts_per_token(config):
    return (
        config.ffn_config.moe_top_k if config.model_type == "dbrx" else config.num_experts_per_tok
    )


@dataclasses.dataclass
class Greedy:
    """Greedy continuations, (batch, steps, ...); the logits at step t are those that chose token t."""

    tokens: torch.Tensor
    logits: torch.Tensor
    router_margins: torch.Tensor  # (batch, steps)

    def margins(self):
        top = self.logits.topk(2, dim=-1).values
        return top[..., 0] - top[..., 1]


def greedy(model, prompts, steps, forced=None):
    """Continues prompts (batch, tokens) step by step with a cache, or along the tokens `forced` (batch, steps)."""
    run = forward(model, prompts, use_cache=True)
    tokens, logits, router_margins = [], [], []
    for step in range(steps):
        logits.append(run.logits[:, -1].float())
        router_margins.append(run.router_margins()[:, -1])
        chosen = logits[-1].argmax(dim=-1) if forced is None else forced[:, step]
        tokens.append(chosen)
        if step + 1 < steps:
            run = forward(model, chosen[:, None], cache=run.cache, use_cache=True)
    return Greedy(torch.stack(tokens, 1), torch.stack(logits, 1), torch.stack(router_margins, 1))


@contextlib.contextmanager
def norms_and_softmax_in_float64():
    """transformers casts to torch.float32 there whatever the model's dtype.

    RoPE tables stay float32, as specified.
    """
    with unittest.mock.patch.object(torch, "float32", torch.float64):
        yield


# ------------------------------------------------------------------------------------------------------- prompts


def draw_prompts(model, rng, count, length):
    """Random prompts (count, length), those of more than 32 tokens alike but for the last eight."""
    vocab = model.config.vocab_size
    if length == 1:
        return torch.from_numpy(rng.permutation(vocab))[:, None]
    if length <= 32:
        return decide_routers(
            model, rng, torch.from_numpy(rng.integers(0, vocab, (count, length)))
        )
    one = decide_routers(model, rng, torch.from_numpy(rng.integers(0, vocab, (1, length))))
    prompts = one.repeat(count, 1)
    prompts[:, -8:] = torch.from_numpy(rng.integers(0, vocab, (count, 8)))
    return decide_routers(model, rng, prompts)


def decide_routers(model, rng, prompts):
    """Draws tokens again at which a router is nearly undecided, in place.

    The first few of each prompt at a time: what precedes them keeps its margins, what follows may
    change.
    """
    for _ in range(DRAWS):
        undecided = forward(model, prompts).router_margins() < UNDECIDED_ROUTER
        undecided &= undecided.cumsum(dim=1) <= 12
        if not undecided.any():
            break
        prompts[undecided] = torch.from_numpy(
            rng.integers(0, model.config.vocab_size, int(undecided.sum()))
        )
    return prompts


@dataclasses.dataclass
class Prompt:
    tokens: torch.Tensor  # (length)
    greedy: Greedy  # batch of one
    bf16_error: float  # maximum over the logits of the greedy steps
    clarity: (
        tuple  # of the steps' logits (one: all clear), then of their routers (one: all decided)
    )


def choose_prompt(model, low_precision, rng, length):
    """Of several drawn prompts, the one whose greedy continuation bfloat16 threatens least."""
    count = PROMPT_CANDIDATES if length <= 32 else LONG_PROMPT_CANDIDATES
    prompts = draw_prompts(model, rng, count, length)
    exact = greedy(model, prompts, GREEDY_STEPS)
    rounded = greedy(low_precision, prompts, GREEDY_STEPS, forced=exact.tokens)
    error = (rounded.logits - exact.logits).abs().amax(dim=(1, 2))
    clear = (exact.margins().amin(dim=1) / (CLEAR_MARGIN * error)).clamp(max=1)
    decided = (exact.router_margins.amin(dim=1) / DECIDED_GREEDY).clamp(max=1)
    clarity = list(zip(clear.tolist(), decided.tolist()))
    best = max(range(len(clarity)), key=clarity.__getitem__)
    # Once more on its own: batched matrix products may differ in the last bit.
    alone = greedy(model, prompts[best : best + 1], GREEDY_STEPS)
    assert alone.tokens[0].tolist() == exact.tokens[best].tolist()
    return Prompt(prompts[best], alone, float(error[best]), clarity[best])


# ------------------------------------------------------------------------------------------------ checks on the results


def relative_error(actual, expected):
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


def padded_error(model, prompts, runs):
    """Relative error of a left-padded batch of all prompts against each alone, per prompt."""
    longest = max(len(prompt) for prompt in prompts)
    tokens = torch.zeros(len(prompts), longest, dtype=torch.int64)
    mask = torch.zeros_like(tokens)
    for row, prompt in enumerate(prompts):
        tokens[row, longest - len(prompt) :] = prompt
        mask[row, longest - len(prompt) :] = 1
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    out = forward(model, tokens, attention_mask=mask, position_ids=positions)
    return [
        relative_error(out.logits[row, -len(prompt) :], run.logits[0])
        for row, (prompt, run) in enumerate(zip(prompts, runs))
    ]


def clipped_share(model, tokens):
    """Share of the values of q, k and v that clip_qkv clips, or None if there is none."""
    config = model.config
    limit = (
        config.attn_config.clip_qkv
        if config.model_type == "dbrx"
        else getattr(config, "clip_qkv", None)
    )
    if limit is None:
        return None
    clipped, total = 0, 0

    def count(module, inputs, output):
        nonlocal clipped, total
        clipped += int((output.abs() > limit).sum())
        total += output.numel()

    names = ("Wqkv",) if config.model_type == "dbrx" else ("q_norm", "k_norm", "v_proj")
    hooks = [
        m.register_forward_hook(count)
        for n, m in model.named_modules()
        if n.split(".")[-1] in names
    ]
    forward(model, tokens)
    for hook in hooks:
        hook.remove()
    return clipped / total


def bite(directory, fixture, changes, tokens, logits):
    """Relative change of the logits if config.json had `changes`."""
    with tempfile.TemporaryDirectory() as other:
        for file in os.listdir(directory):
            if file.startswith("model"):
                shutil.copy(os.path.join(directory, file), other)
        write_json(os.path.join(other, "config.json"), {**config_json(fixture), **changes})
        return relative_error(forward(load_model(other, torch.float32), tokens).logits, logits)


class Unsuitable(Exception):
    """This seed gives a fixture that tests too little."""


def require(condition, message):
    if not condition:
        raise Unsuitable(message)


# ------------------------------------------------------------------------------------------------------------- main


def save_array(directory, name, tensor, dtype):
    np.save(os.path.join(directory, name), np.ascontiguousarray(tensor.numpy().astype(dtype)))


def make(out, fixture, seed, lengths, tries):
    """Tries seeds until all greedy steps are clear; the best becomes OUT/NAME, complete or not at all."""
    os.makedirs(out, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".") as scratch:
        directory = os.path.join(scratch, fixture.name)
        search(directory, fixture, seed, lengths, tries)
        shutil.rmtree(os.path.join(out, fixture.name), ignore_errors=True)
        shutil.move(directory, out)


def search(directory, fixture, seed, lengths, tries):
    best = None
    for attempt in range(seed, seed + tries):
        model, low_precision = build(directory, fixture, attempt)
        prompts = [
            choose_prompt(model, low_precision, np.random.default_rng([attempt, length]), length)
            for length in lengths
        ]
        clarity = tuple(min(values) for values in zip(*(prompt.clarity for prompt in prompts)))
        print(
            f"{fixture.name}: seed {attempt}, logits {clarity[0]:.0%} clear, routers {clarity[1]:.0%} decided",
            flush=True,
        )
        if best is not None and clarity <= best[0]:
            continue
        try:
            best = (
                clarity,
                attempt,
                prompts,
                record(directory, fixture, attempt, model, low_precision, prompts),
            )
        except Unsuitable as reason:
            print(f"{fixture.name}: seed {attempt} does not do: {reason}", flush=True)
            continue
        if clarity[0] >= 1:
            break
    if best is None:
        raise SystemExit(
            f"error: {fixture.name}: none of {tries} seeds does; try others (--seed-offset) or other gains"
        )
    _, chosen, prompts, report = best
    if chosen != attempt:
        model, low_precision = build(directory, fixture, chosen)
        record(directory, fixture, chosen, model, low_precision, prompts)
    write_json(os.path.join(directory, "fixture.json"), report)


def record(directory, fixture, seed, model, low_precision, prompts):
    """Computes, checks and saves the expected outputs; returns what fixture.json says."""
    exact_model = load_model(directory, torch.float64)
    runs, report = [], []
    for prompt in prompts:
        tokens = prompt.tokens[None]
        run = forward(model, tokens)
        rounded = forward(low_precision, tokens)
        with norms_and_softmax_in_float64():
            exact = forward(exact_model, tokens)
        runs.append(run)
        margins = run.router_margins()[0]
        probabilities = run.router_margins_of_scores()[0]
        greedy_margins = prompt.greedy.margins()[0]
        greedy_router_margins = prompt.greedy.router_margins[0]
        prefix = f"prompt_{len(prompt.tokens)}."
        save_array(directory, prefix + "tokens.npy", prompt.tokens, "<i4")
        save_array(directory, prefix + "logits.npy", run.logits[0], "<f4")
        save_array(directory, prefix + "router_margin.npy", margins, "<f4")
        save_array(directory, prefix + "router_margin_prob.npy", probabilities, "<f4")
        save_array(directory, prefix + "greedy.npy", prompt.greedy.tokens[0], "<i4")
        save_array(directory, prefix + "greedy_margin.npy", greedy_margins, "<f4")
        save_array(directory, prefix + "greedy_router_margin.npy", greedy_router_margins, "<f4")
        error = (rounded.logits.float() - run.logits)[0]
        row_error = error.norm(dim=-1) / run.logits[0].norm(dim=-1)
        router_error = (rounded.router_logits.float() - run.router_logits).abs()
        report.append(
            {
                "tokens": len(prompt.tokens),
                "float32_vs_float64_relative_error": relative_error(run.logits, exact.logits),
                "bf16_relative_error": relative_error(rounded.logits, run.logits),
                "bf16_relative_error_worst_position": float(row_error.max()),
                "bf16_max_logit_error": float(error.abs().max()),
                "bf16_max_router_logit_error": float(router_error.max()),
                "positions_undecided": int((margins < UNDECIDED_ROUTER).sum()),
                "min_router_margin": float(margins.min()),
                "min_greedy_margin": float(greedy_margins.min()),
                "min_greedy_router_margin": float(greedy_router_margins.min()),
                "bf16_max_logit_error_greedy": prompt.bf16_error,
            }
        )

    longest = max(range(len(prompts)), key=lambda i: len(prompts[i].tokens))
    tokens, run = prompts[longest].tokens[None], runs[longest]
    padded = padded_error(model, [prompt.tokens for prompt in prompts], runs)
    dynamic = model.config.rope_parameters["rope_type"] == "dynamic"
    for index, error in enumerate(padded):
        require(
            error <= 1e-5 or (dynamic and index != longest),
            f"padding changes the logits by {error}",
        )
    used = torch.stack(
        [
            routing.chosen.flatten().bincount(minlength=logits.shape[-1])
            for routing, logits in zip(run.routings, run.router_logits)
        ]
    )
    require(len(prompts[longest].tokens) < 300 or int(used.min()) > 0, "an expert is never used")
    undecided = sum(p["positions_undecided"] for p in report) / sum(p["tokens"] for p in report)
    require(undecided <= 0.05, f"a router is nearly undecided at {undecided:.0%} of the positions")
    deviation = float(run.logits.std())
    require(0.8 <= deviation <= 3.5, f"the logits' deviation is {deviation:.2f}")
    bites = {
        name: bite(directory, fixture, changes, tokens, run.logits)
        for name, changes in fixture.bites.items()
    }
    require(
        all(value > 1e-3 for value in bites.values()),
        f"something awkward hardly changes the logits: {bites}",
    )
    clipped = clipped_share(model, tokens)
    return {
        **header(fixture, seed),
        "logits_standard_deviation": deviation,
        "least_used_expert_tokens": int(used.min()),
        "clipped_share": clipped,
        "relative_change_if": bites,
        "padded_relative_error": {f"prompt_{len(p.tokens)}": e for p, e in zip(prompts, padded)},
        "prompts": report,
    }


def with_overrides(fixture, assignments):
    """Applies --set key=json, where key may name a field of a sub-dictionary (attn_config.clip_qkv=2)."""
    config = copy.deepcopy(fixture.config)
    for assignment in assignments:
        key, value = assignment.split("=", 1)
        *path, last = key.split(".")
        target = config
        for part in path:
            target = target.setdefault(part, {})
        target[last] = json.loads(value)
    return dataclasses.replace(fixture, config=config, bites={} if assignments else fixture.bites)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, help="folder that gets one folder per fixture")
    parser.add_argument(
        "--only", action="append", help="name of a fixture (repeatable; default: all)"
    )
    parser.add_argument("--seed-offset", type=int, default=0, help="added to every fixture's seed")
    parser.add_argument(
        "--tries", type=int, default=SEEDS_TRIED, help="seeds tried; the clearest is kept"
    )
    parser.add_argument("--prompts", default="1,17,300", help="prompt lengths")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=JSON",
        help="change a field of config.json",
    )
    args = parser.parse_args()
    names = [fixture.name for fixture in FIXTURES]
    for name in args.only or []:
        if name not in names:
            parser.error(f"no fixture {name}; there are {', '.join(names)}")
    torch.set_num_threads(1)  # also fixes the order of additions
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    lengths = [int(length) for length in args.prompts.split(",")]
    for fixture in FIXTURES:
        if not args.only or fixture.name in args.only:
            changed = with_overrides(fixture, args.set)
            make(args.out, changed, fixture.seed + args.seed_offset, lengths, args.tries)


if __name__ == "__main__":
    main()
