#!/usr/bin/env python3
"""First tokens of short prompts while `convene serve` reads a long one: serve_long_prompt.py CHECKPOINT [options]

  CHECKPOINT    a model with a tokenizer (`convene synth` writes one of random weights)

Each round sends a long prompt alone, whose reports of progress (`return_progress`) tell how long each step took; then
another long prompt, and after a third of that time one of eight tokens. A client that generates all the time tells
the gaps between tokens. The prompts are numbers drawn anew, so that no prefix cache helps. It asserts nothing:
docs/results/serve.md has figures of a run.
"""

import argparse
import http.client
import json
import random
import statistics
import threading
import time

from serve_peers import ROOT, Server, absolute


def stream(port, tokens, num_generated, started=None):
    """Times since the request at which events with tokens came, and those of reports of progress."""
    body = {"prompt": tokens, "max_tokens": num_generated, "ignore_eos": True, "stream": True,
            "return_progress": True, "temperature": 0}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    start = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"the server answered {response.status}: {response.read()[:300]}")
    events, reports = [], []
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        (reports if "prompt_progress" in event else events).append(time.monotonic() - start)
        if started and events:
            started.set()
    return events, reports


def longest(times):
    return max(b - a for a, b in zip(times, times[1:]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--prompt-tokens", type=int, default=4000)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=50000, help="ids of prompts are below this")
    parser.add_argument("--port", type=int, default=18900)
    parser.add_argument("--convene", default=str(ROOT / "build/release/convene"))
    args = parser.parse_args()

    def prompt(count):
        return [random.randrange(1, args.vocabulary) for _ in range(count)]

    command = [absolute(args.convene), "serve", absolute(args.checkpoint), "--port", str(args.port), "--chunk",
               str(args.chunk)]
    print("round | long prompt alone s | longest step of it ms | first token of the short one ms | by that step | "
          "gaps of a client that generates, ms: median, p99, longest")
    with Server(command, args.port):
        stream(args.port, prompt(200), 4)
        for number in range(1, args.rounds + 1):
            alone, reports = stream(args.port, prompt(args.prompt_tokens), 1)
            step = longest([0.0, *reports, alone[0]])
            generating, found = threading.Event(), {}
            other = threading.Thread(
                target=lambda: found.update(other=stream(args.port, prompt(8), 96, generating)[0]))
            other.start()
            generating.wait(60)
            reading = threading.Thread(target=stream, args=(args.port, prompt(args.prompt_tokens), 1))
            reading.start()
            time.sleep(alone[0] / 3)
            first = stream(args.port, prompt(8), 1)[0][0]
            reading.join()
            other.join()
            gaps = sorted(b - a for a, b in zip(found["other"], found["other"][1:]))
            p99 = gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))]
            print(f"{number} | {alone[0]:.2f} | {1000 * step:.0f} | {1000 * first:.0f} | {first / step:.2f} | "
                  f"{1000 * statistics.median(gaps):.0f}, {1000 * p99:.0f}, {1000 * gaps[-1]:.0f}", flush=True)


if __name__ == "__main__":
    main()
