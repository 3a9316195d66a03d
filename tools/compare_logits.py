#!/usr/bin/env python3
"""Compares logits computed by convene with those of a fixture.

    convene logits FIXTURE --tokens FIXTURE/prompt_300.tokens.npy --out logits.npy --weights f32
    python tools/compare_logits.py FIXTURE logits.npy [--min-router-margin 0.1]

The prompt is the one with as many tokens as the file has rows. Prints relative errors (Euclidean
norms) over all compared positions and of the worst one, the largest difference, and how often the
most likely token is the same.
"""

import argparse
import os

import numpy as np


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("fixture", help="folder made by make_fixtures.py")
    parser.add_argument("logits", help=".npy, float32 (positions, vocabulary)")
    parser.add_argument(
        "--min-router-margin",
        type=float,
        default=0.0,
        help="leave out positions whose routers are decided by less (for bf16)",
    )
    args = parser.parse_args()

    actual = np.load(args.logits).astype(np.float64)
    prefix = os.path.join(args.fixture, f"prompt_{len(actual)}.")
    expected = np.load(prefix + "logits.npy").astype(np.float64)
    if actual.shape != expected.shape:
        raise SystemExit(
            f"error: {args.logits} has shape {actual.shape}, the fixture {expected.shape}"
        )
    kept = np.load(prefix + "router_margin.npy") >= args.min_router_margin
    if not kept.any():
        raise SystemExit(f"error: no position has a router margin of {args.min_router_margin}")
    actual, expected = actual[kept], expected[kept]

    per_position = np.linalg.norm(actual - expected, axis=1) / np.linalg.norm(expected, axis=1)
    print(f"positions compared     {kept.sum()} of {len(kept)}")
    print(
        f"relative error         {np.linalg.norm(actual - expected) / np.linalg.norm(expected):.3e}"
    )
    print(
        f"  at the worst of them {per_position.max():.3e} (position {np.flatnonzero(kept)[per_position.argmax()]})"
    )
    print(f"largest difference     {np.abs(actual - expected).max():.3e}")
    print(f"same most likely token {(actual.argmax(1) == expected.argmax(1)).mean():.1%}")


if __name__ == "__main__":
    main()
