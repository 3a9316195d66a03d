#!/usr/bin/env python3
"""Measures a checkpoint by transformers: perplexity of a text, use of the experts, sample texts.

    python tools/evaluate_demo.py --model models/demo --text models/demo/validation.txt

The perplexity is the one `convene perplexity` reports: the text is encoded without special tokens
and cut into windows of --window tokens that share nothing; each window is scored from its second
token on (a last window of one token is not scored); the result is exp(sum of the negative log
likelihoods / number of scored tokens).
"""

import argparse
import math
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed


@torch.no_grad()
def perplexity(model, ids: list[int], window: int) -> tuple[float, int, torch.Tensor]:
    """Returns the mean negative log likelihood, the tokens scored and the shares (layers, experts)."""
    total, scored, counts = 0.0, 0, None
    for start in range(0, len(ids), window):
        part = torch.tensor([ids[start : start + window]])
        if part.shape[1] < 2:
            break
        out = model(part, output_router_logits=True)
        logits = out.logits[0, :-1].float()
        total += torch.nn.functional.cross_entropy(logits, part[0, 1:], reduction="sum").item()
        scored += part.shape[1] - 1
        top_k = model.config.num_experts_per_tok
        chosen = torch.stack([r.topk(top_k, dim=-1).indices.flatten() for r in out.router_logits])
        new = torch.stack([c.bincount(minlength=model.config.num_experts) for c in chosen])
        counts = new if counts is None else counts + new
    return total / scored, scored, counts / counts.sum(-1, keepdim=True)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--text", required=True)
    p.add_argument("--window", type=int, default=512)
    p.add_argument("--prompt", action="append", default=[], help="generate from it; repeatable")
    p.add_argument("--tokens", type=int, default=120, help="to generate at most")
    p.add_argument("--threads", type=int, default=2)
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    text = Path(args.text).read_text(encoding="utf-8")
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    print(f"{len(text)} characters, {len(ids)} tokens, windows of {args.window}")
    for dtype in (torch.float32, torch.bfloat16):
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype)
        model.eval()
        loss, scored, shares = perplexity(model, ids, args.window)
        print(f"{dtype}: loss {loss:.4f}, perplexity {math.exp(loss):.3f}, {scored} tokens scored")
        if dtype == torch.float32:
            print("share of the routed tokens per expert, in percent:")
            for i, row in enumerate(shares):
                print(f"  layer {i}: " + " ".join(f"{100 * s:5.1f}" for s in row))
            exact = model
    for prompt in args.prompt:
        set_seed(1)
        inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        out = exact.generate(**inputs, max_new_tokens=args.tokens)
        print(f"\n--- {tokenizer.decode(out[0], skip_special_tokens=True)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
