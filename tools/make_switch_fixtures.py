#!/usr/bin/env python3
"""Makes the golden fixtures of encoder-decoders: small random checkpoints and what transformers computes from them.

    pip install -r tools/requirements.txt
    python tools/make_switch_fixtures.py --out tests/golden/models   # fixtures_encoder_decoder.py

Deterministic with the versions pinned in requirements.txt. Each fixture becomes a directory with

    config.json, model.safetensors         a checkpoint as published ones are (or shards and their index)
    fixture.json                           what it is, how tight float32 is, how far bfloat16 strays;
                                           expert_capacity: null if nothing is ever dropped
    input_N.tokens.npy                     (N) int32, the encoder's input of N tokens
    input_N.states.npy                     (N, d_model) float32, the encoder's output
    input_N.router_margin.npy              (N) float32, largest minus second largest router logit,
                                           minimum over the sparse encoder layers
    input_N.decoder_tokens.npy             (M) int32, the start token and random ones, fed in one call
    input_N.logits.npy                     (M, vocab) float32, the decoder's logits at each of them
    input_N.decoder_router_margin.npy      (M) float32, the same over the sparse decoder layers
    input_N.greedy.npy                     (32) int32, greedy continuation of the start token, decoded
                                           with a cache; end-of-sequence tokens are not special
    input_N.greedy_margin.npy              (32) float32, largest minus second largest logit of each step
    input_N.greedy_router_margin.npy       (32) float32, router margin of the token whose logits chose it
    input_N.dropped.npy                    if there is a capacity: (sparse encoder layers, N) int32, 1 where
    input_N.decoder_dropped.npy            the token found no place; (sparse decoder layers, M) int32

Results are those of the stored weights in float32 with eager attention. A token's states depend on all
tokens of the input, so inputs are drawn again as a whole where too many routers are nearly undecided.
"""

import argparse
import dataclasses
import os
import shutil
import tempfile

import numpy as np
import torch
import transformers
from transformers.modeling_outputs import MoEModelOutput

from fixture import header
from fixture_definitions import ENCODER_DECODERS
from make_fixtures import (
    CLEAR_MARGIN,
    GREEDY_STEPS,
    UNDECIDED_ROUTER,
    norms_and_softmax_in_float64,
    relative_error,
    save_array,
)
from random_checkpoint import build, config_json, load_model, write_json
from router_margins import routing

DECODER_TOKENS = {300: 140, 17: 23, 1: 1}  # by the length of the input
UNLIMITED = 1 << 30
CANDIDATES = {300: 6, 17: 40, 1: 90}  # inputs that compete for the clearest greedy continuation
REDRAWS = 40


@dataclasses.dataclass
class Stack:
    """What one pass of the encoder or the decoder gave, for one sequence."""

    out: torch.Tensor  # (tokens, d_model) states or (tokens, vocab) logits
    router_margins: torch.Tensor  # (tokens), minimum over the sparse layers
    router_logits: torch.Tensor  # (sparse layers, tokens, experts)
    dropped: torch.Tensor  # (sparse layers, tokens) bool
    cache: object = None


def set_capacity(model, fixture):
    for module in model.modules():
        if type(module).__name__ == "SwitchTransformersTop1Router":
            module.expert_capacity = (
                model.config.expert_capacity if fixture.drops else UNLIMITED
            )
            if next(model.parameters()).dtype == torch.float64:
                module.dtype = torch.float64
    return model


def watched(stack, call):
    """Calls `call` and returns its result and what the routers of `stack` did."""
    logits, dropped = [], []

    def record(module, inputs, output):
        mask, _, router_logits = output
        logits.append(router_logits[0].float())
        dropped.append(mask[0].sum(dim=-1) == 0)

    routers = [m for m in stack.modules() if type(m).__name__ == "SwitchTransformersTop1Router"]
    hooks = [router.register_forward_hook(record) for router in routers]
    try:
        result = call()
    finally:
        for hook in hooks:
            hook.remove()
    margins = torch.stack([routing(r, l, 1).margin for r, l in zip(routers, logits)]).amin(dim=0)
    return result, margins, torch.stack(logits), torch.stack(dropped)


@torch.no_grad()
def encode(model, tokens):
    result, *seen = watched(model.encoder, lambda: model.encoder(tokens[None]))
    return Stack(result.last_hidden_state[0], *seen)


@torch.no_grad()
def decode(model, states, tokens, cache=None, use_cache=False):
    """states (input, d_model); tokens (count). Pass the cache of the previous call to continue it."""
    result, *seen = watched(
        model.decoder,
        lambda: model(
            encoder_outputs=MoEModelOutput(last_hidden_state=states[None]),
            decoder_input_ids=tokens[None],
            past_key_values=cache,
            use_cache=use_cache,
        ),
    )
    return Stack(result.logits[0], *seen, result.past_key_values if use_cache else None)


@dataclasses.dataclass
class Greedy:
    tokens: torch.Tensor
    logits: torch.Tensor
    router_margins: torch.Tensor

    def margins(self):
        top = self.logits.topk(2, dim=-1).values
        return top[..., 0] - top[..., 1]


def greedy(model, states, forced=None):
    token, cache = model.config.decoder_start_token_id, None
    tokens, logits, margins = [], [], []
    for step in range(GREEDY_STEPS):
        run = decode(model, states, torch.tensor([token]), cache, use_cache=True)
        cache = run.cache
        logits.append(run.out[-1].float())
        margins.append(run.router_margins[-1])
        token = int(logits[-1].argmax() if forced is None else forced[step])
        tokens.append(token)
    return Greedy(torch.tensor(tokens), torch.stack(logits), torch.stack(margins))


def draw(model, rng, length):
    """A random input, tokens drawn again while too many routers are nearly undecided."""
    vocab = model.config.vocab_size
    best = tokens = torch.from_numpy(rng.integers(2, vocab, length))
    fewest = length + 1
    for _ in range(REDRAWS):
        undecided = encode(model, tokens).router_margins < UNDECIDED_ROUTER
        if int(undecided.sum()) < fewest:
            best, fewest = tokens.clone(), int(undecided.sum())
        if fewest == 0:
            break
        tokens = tokens.clone()
        tokens[undecided] = torch.from_numpy(rng.integers(2, vocab, int(undecided.sum())))
    return best


def draw_decoder(model, rng, states, count):
    """The start token and random ones; of a token at which a router is nearly undecided another is drawn."""
    vocab = model.config.vocab_size
    tokens = torch.from_numpy(rng.integers(2, vocab, count))
    tokens[0] = model.config.decoder_start_token_id
    for _ in range(3 * REDRAWS):
        undecided = decode(model, states, tokens).router_margins < UNDECIDED_ROUTER
        undecided[0] = False
        undecided &= undecided.cumsum(dim=0) <= 8
        if not undecided.any():
            break
        tokens[undecided] = torch.from_numpy(rng.integers(2, vocab, int(undecided.sum())))
    return tokens


@dataclasses.dataclass
class Input:
    tokens: torch.Tensor
    decoder_tokens: torch.Tensor
    greedy: Greedy
    bf16_error: float
    clear: float  # 1 if bfloat16 threatens no greedy step


def choose_input(model, low_precision, seed, length):
    """Of several drawn inputs, the one whose greedy continuation bfloat16 threatens least."""
    rng = np.random.default_rng([seed, length])
    best = None
    for _ in range(CANDIDATES[length]):
        tokens = draw(model, rng, length)
        states = encode(model, tokens).out
        exact = greedy(model, states)
        rounded = greedy(low_precision, encode(low_precision, tokens).out, forced=exact.tokens)
        error = float((rounded.logits - exact.logits).abs().max())
        clear = min(1.0, float(exact.margins().min()) / (CLEAR_MARGIN * error))
        if best is None or clear > best.clear:
            best = Input(tokens, None, exact, error, clear)
        if clear == 1.0:
            break
    best.decoder_tokens = draw_decoder(
        model, rng, encode(model, best.tokens).out, DECODER_TOKENS[length]
    )
    return best


def padded_error(model, inputs, expected):
    """Relative error of the logits of a batch padded on the right against each alone."""
    longest = max(len(i.tokens) for i in inputs)
    most = max(len(i.decoder_tokens) for i in inputs)
    tokens = torch.zeros(len(inputs), longest, dtype=torch.int64)
    decoder = torch.zeros(len(inputs), most, dtype=torch.int64)
    mask = torch.zeros_like(tokens)
    for row, one in enumerate(inputs):
        tokens[row, : len(one.tokens)] = one.tokens
        mask[row, : len(one.tokens)] = 1
        decoder[row, : len(one.decoder_tokens)] = one.decoder_tokens
    with torch.no_grad():
        out = model(input_ids=tokens, attention_mask=mask, decoder_input_ids=decoder)
    return max(
        relative_error(out.logits[row, : len(one.decoder_tokens)], logits)
        for row, (one, logits) in enumerate(zip(inputs, expected))
    )


def bite(directory, fixture, changes, one, logits):
    """Relative change of the logits if config.json had `changes`."""
    with tempfile.TemporaryDirectory() as other:
        for file in os.listdir(directory):
            if file.startswith("model"):
                shutil.copy(os.path.join(directory, file), other)
        write_json(os.path.join(other, "config.json"), {**config_json(fixture), **changes})
        model = set_capacity(load_model(other, torch.float32), fixture)
        states = encode(model, one.tokens).out
        return relative_error(decode(model, states, one.decoder_tokens).out, logits)


def record(directory, fixture, seed, model, low_precision, inputs):
    exact_model = set_capacity(load_model(directory, torch.float64), fixture)
    expected, reports, used = [], [], 0
    for one in inputs:
        encoder = encode(model, one.tokens)
        decoder = decode(model, encoder.out, one.decoder_tokens)
        rounded_encoder = encode(low_precision, one.tokens)
        rounded = decode(low_precision, rounded_encoder.out, one.decoder_tokens)
        with norms_and_softmax_in_float64():
            exact_encoder = encode(exact_model, one.tokens)
            exact = decode(exact_model, exact_encoder.out, one.decoder_tokens)
        expected.append(decoder.out)
        prefix = f"input_{len(one.tokens)}."
        save_array(directory, prefix + "tokens.npy", one.tokens, "<i4")
        save_array(directory, prefix + "states.npy", encoder.out, "<f4")
        save_array(directory, prefix + "router_margin.npy", encoder.router_margins, "<f4")
        save_array(directory, prefix + "decoder_tokens.npy", one.decoder_tokens, "<i4")
        save_array(directory, prefix + "logits.npy", decoder.out, "<f4")
        save_array(directory, prefix + "decoder_router_margin.npy", decoder.router_margins, "<f4")
        save_array(directory, prefix + "greedy.npy", one.greedy.tokens, "<i4")
        save_array(directory, prefix + "greedy_margin.npy", one.greedy.margins(), "<f4")
        save_array(
            directory, prefix + "greedy_router_margin.npy", one.greedy.router_margins, "<f4"
        )
        if fixture.drops:
            save_array(directory, prefix + "dropped.npy", encoder.dropped, "<i4")
            save_array(directory, prefix + "decoder_dropped.npy", decoder.dropped, "<i4")
        else:
            assert not encoder.dropped.any() and not decoder.dropped.any()
        counts = [
            logits.argmax(dim=-1).bincount(minlength=logits.shape[-1])
            for stack in (encoder, decoder)
            for logits in stack.router_logits
        ]
        used = int(torch.stack(counts).min())
        row_error = (rounded.out.float() - decoder.out).norm(dim=-1) / decoder.out.norm(dim=-1)
        reports.append(
            {
                "tokens": len(one.tokens),
                "decoder_tokens": len(one.decoder_tokens),
                "float32_vs_float64_relative_error": relative_error(decoder.out, exact.out),
                "float32_vs_float64_relative_error_states": relative_error(
                    encoder.out, exact_encoder.out
                ),
                "bf16_relative_error": relative_error(rounded.out, decoder.out),
                "bf16_relative_error_worst_position": float(row_error.max()),
                "bf16_relative_error_states": relative_error(rounded_encoder.out, encoder.out),
                "positions_undecided": int((encoder.router_margins < UNDECIDED_ROUTER).sum()),
                "decoder_positions_undecided": int(
                    (decoder.router_margins < UNDECIDED_ROUTER).sum()
                ),
                "min_router_margin": float(encoder.router_margins.min()),
                "min_greedy_margin": float(one.greedy.margins().min()),
                "min_greedy_router_margin": float(one.greedy.router_margins.min()),
                "bf16_max_logit_error_greedy": one.bf16_error,
                "dropped": int(encoder.dropped.sum()),
                "decoder_dropped": int(decoder.dropped.sum()),
            }
        )
    padded = padded_error(model, inputs, expected)
    assert padded <= 1e-5, f"padding changes the logits by {padded}"
    longest = max(range(len(inputs)), key=lambda i: len(inputs[i].tokens))
    bites = {
        name: bite(directory, fixture, changes, inputs[longest], expected[longest])
        for name, changes in fixture.bites.items()
    }
    assert all(value > 1e-3 for value in bites.values()), bites
    return {
        **header(fixture, seed),
        "expert_capacity": model.config.expert_capacity if fixture.drops else None,
        "logits_standard_deviation": float(expected[longest].std()),
        "least_used_expert_tokens": used,
        "relative_change_if": bites,
        "padded_relative_error": padded,
        "inputs": reports,
    }


def make(out, fixture, lengths, seed):
    os.makedirs(out, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".") as scratch:
        directory = os.path.join(scratch, fixture.name)
        model, low_precision = (set_capacity(m, fixture) for m in build(directory, fixture, seed))
        inputs = [choose_input(model, low_precision, seed, length) for length in lengths]
        report = record(directory, fixture, seed, model, low_precision, inputs)
        write_json(os.path.join(directory, "fixture.json"), report)
        clear = min(one.clear for one in inputs)
        print(f"{fixture.name}: seed {seed}, logits {clear:.0%} clear", flush=True)
        shutil.rmtree(os.path.join(out, fixture.name), ignore_errors=True)
        shutil.move(directory, out)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, help="folder that gets one folder per fixture")
    parser.add_argument("--only", action="append", help="name of a fixture (repeatable)")
    parser.add_argument("--seed-offset", type=int, default=0, help="added to every fixture's seed")
    args = parser.parse_args()
    torch.set_num_threads(1)  # also fixes the order of additions
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for fixture in ENCODER_DECODERS:
        if not args.only or fixture.name in args.only:
            make(args.out, fixture, [1, 17, 300], fixture.seed + args.seed_offset)


if __name__ == "__main__":
    main()
