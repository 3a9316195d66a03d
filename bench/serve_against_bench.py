#!/usr/bin/env python3
"""`convene serve` against `convene bench` of the same model, both at once, each stopped while the other runs.

usage: serve_against_bench.py CHECKPOINT [options]

  CHECKPOINT    a model with a tokenizer (`convene synth` writes one of random weights)

A shared machine changes its speed by a third within seconds, so runs one after the other compare the machine with
itself. Here `convene bench CHECKPOINT --batch N` and a server with N streaming clients start together, and from then
on each has the machine for a slice of time while SIGSTOP holds the other. Both then take about twice as long, by
their own clocks, and meet the same machine: the ratio of their rates is that of their work. It is the server's tokens
per second while all clients stream by bench's decode, drawing of tokens, HTTP and clients included. It asserts
nothing: docs/results/serve.md has figures of a run.
"""

import argparse
import json
import pathlib
import signal
import statistics
import subprocess
import tempfile
import time

from serve_peers import ROOT, Server, absolute

LEAST_SLICES = 20  # so that what is lost of a slice at the ends is a few percent at most


def run_round(args, server):
    """Tokens per second of bench and of the server, each with half of the time."""
    with tempfile.TemporaryDirectory() as folder:
        alone_path, load_path = (pathlib.Path(folder) / name for name in ("alone.json", "load.json"))
        shape = ["--batch", str(args.clients), "--prompt-tokens", str(args.prompt_tokens), "--gen-tokens",
                 str(args.gen_tokens), "--quiet"]
        alone = subprocess.Popen([args.convene, "bench", args.checkpoint, *shape, "--repeat", "1",
                                  "--json", str(alone_path)], stdout=subprocess.DEVNULL)
        load = subprocess.Popen([args.convene, "bench", "--server", server.url, *shape, "--json", str(load_path)],
                                stdout=subprocess.DEVNULL)
        runs = [alone, server.process]
        try:
            while alone.poll() is None or load.poll() is None:
                runs[1].send_signal(signal.SIGSTOP)
                runs[0].send_signal(signal.SIGCONT)
                time.sleep(args.slice)
                runs.reverse()
        finally:
            server.process.send_signal(signal.SIGCONT)
            for process in (alone, load):
                if process.poll() is None:
                    process.kill()
        for process in (alone, load):
            if process.wait() != 0:
                raise SystemExit(f"{process.args} failed")
        decode = json.loads(alone_path.read_text())["decode"][0]["tokens_per_s"]
        figures = json.loads(load_path.read_text())["loads"][0]
        if figures["all_stream_s"] < LEAST_SLICES * args.slice:
            raise SystemExit(f"all clients streamed for {figures['all_stream_s']:.1f} s only, which is less than "
                             f"{LEAST_SLICES} slices; raise --gen-tokens or lower --slice")
        return 2 * decode, 2 * figures["tokens_per_s_while_all_stream"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=96)
    parser.add_argument("--gen-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slice", type=float, default=0.5, help="seconds that each has at a time")
    parser.add_argument("--port", type=int, default=18800, help="the first one; each start takes the next")
    parser.add_argument("--convene", default=str(ROOT / "build/release/convene"))
    args = parser.parse_args()

    ratios = []
    for number in range(args.rounds):
        port = args.port + number
        command = [absolute(args.convene), "serve", absolute(args.checkpoint), "--port", str(port), "--max-batch",
                   str(args.clients)]
        with Server(command, port) as server:
            alone, streamed = run_round(args, server)
        ratios.append(streamed / alone)
        print(f"round {number + 1}: bench {alone:.1f} tokens/s, server {streamed:.1f}, ratio {ratios[-1]:.3f}",
              flush=True)
    print(f"median ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
