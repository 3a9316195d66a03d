#!/usr/bin/env python3
"""`convene serve` against a llama.cpp-style server with the same shape, in turn, in one run.

usage: serve_peers.py LLAMA_SERVER GGUF CHECKPOINT [options]

  LLAMA_SERVER  the peer's llama-server (llama.cpp, ik_llama.cpp), built for this machine
  GGUF          the model as the peer reads it (tools/random_gguf.py --tokenizer writes one of random weights)
  CHECKPOINT    the model as convene reads it (`convene synth` writes one; a tokenizer must be beside it)

Each round starts one server after the other and asks it with `convene bench --server`, which streams one
completion per client at the same time. Prints, for each number of clients, the median over the rounds of the
time to the first token and of the tokens per second while all clients stream, and the median of the rounds'
ratios. It asserts nothing: docs/results/serve.md has figures of a run.
"""

import argparse
import itertools
import json
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
PATIENCE_S = 300


class Server:
    """Runs `command` until the end of the block, in a folder of its own, so its paths must be absolute; its address
    must be http://127.0.0.1:PORT."""

    def __init__(self, command, port):
        self.url = f"http://127.0.0.1:{port}"
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.folder = tempfile.TemporaryDirectory()  # llama-server leaves a llama.log where it runs
        self.process = subprocess.Popen(command, cwd=self.folder.name, stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=self.log)

    def __enter__(self):
        try:
            self.wait_until_ready()
        except BaseException:  # Ctrl-C too: what fails here has no __exit__, and the server would stay
            self.__exit__()
            raise
        return self

    def wait_until_ready(self):
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                urllib.request.urlopen(self.url + "/health", timeout=5).read()
                return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                if self.process.poll() is not None:
                    self.fail(f"ended with status {self.process.returncode}")
                if time.monotonic() > end:
                    self.fail(f"is not ready after {PATIENCE_S} s")
                time.sleep(0.2)

    def fail(self, what):
        self.log.seek(0)
        sys.exit(f"{self.process.args[0]} {what}:\n{self.log.read()[-4000:]}")

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        self.folder.cleanup()


def absolute(path):
    return str(pathlib.Path(path).resolve())


def ask(args, url, seed):
    """{clients: (seconds to the first token, tokens per second)}, the medians of the clients."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "load.json"
        command = [args.convene, "bench", "--server", url, "--batch", args.clients, "--seed", str(seed),
                   "--prompt-tokens", str(args.prompt_tokens), "--gen-tokens", str(args.gen_tokens),
                   "--requests", str(args.requests), "--json", str(path), "--quiet"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        figures = {}
        for load in json.loads(path.read_text())["loads"]:
            if load["errors"]:
                sys.exit(f"{url}: {load['errors_by_message']}")
            rate = load["tokens_per_s_while_all_stream"]
            figures[load["clients"]] = (load["time_to_first_token_s"]["median"], rate)
        return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_server")
    parser.add_argument("gguf")
    parser.add_argument("checkpoint")
    parser.add_argument("--clients", default="1,8,32", help="numbers of clients (default: 1,8,32)")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--gen-tokens", type=int, default=64)
    parser.add_argument("--requests", type=int, default=1, help="of each client, one after the other")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--port", type=int, default=18700, help="the first one; each start takes the next")
    parser.add_argument("--convene", default=str(ROOT / "build/release/convene"))
    parser.add_argument("--convene-options", default="", help="further options of convene serve")
    parser.add_argument("--peer-options", default="", help="further options of the peer's server")
    parser.add_argument("--json", help="file for all figures")
    args = parser.parse_args()

    most = max(int(number) for number in args.clients.split(","))
    context = args.prompt_tokens * 2 + args.gen_tokens + 64
    commands = {
        "convene": [absolute(args.convene), "serve", absolute(args.checkpoint), "--threads", str(args.threads),
                    "--max-batch", str(most), *shlex.split(args.convene_options)],
        "peer": [absolute(args.llama_server), "-m", absolute(args.gguf), "-t", str(args.threads),
                 "-np", str(most), "-c", str(most * context), *shlex.split(args.peer_options)],
    }
    # The peer takes no port whose last connections the system still remembers.
    ports = itertools.count(args.port)
    rounds = []
    for number in range(args.rounds):
        names = list(commands) if number % 2 == 0 else list(reversed(commands))
        found = {}
        for name in names:
            port = next(ports)
            with Server([*commands[name], "--port", str(port)], port) as server:
                ask(args, server.url, seed=1000 + number)  # warms it up
                found[name] = ask(args, server.url, seed=number)
        rounds.append(found)
        print(f"round {number + 1}: {found}", file=sys.stderr)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(rounds, indent=2) + "\n")

    print("| clients | first token, convene | peer | ratio | tokens/s, convene | peer | ratio |")
    print("|---|---|---|---|---|---|---|")
    for clients in rounds[0]["convene"]:
        cells = [str(clients)]
        for figure, unit in ((0, 1e3), (1, 1)):
            values = {name: [found[name][clients][figure] for found in rounds] for name in commands}
            ratios = [one / other for one, other in zip(values["convene"], values["peer"])]
            cells += [f"{statistics.median(values[name]) * unit:.4g}" for name in commands]
            cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        print("| " + " | ".join(cells) + " |")
    print("\nFirst tokens in milliseconds; ratios are convene by peer, the median of the rounds (least to most).")


if __name__ == "__main__":
    main()
