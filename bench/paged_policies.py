#!/usr/bin/env python3
"""What convene batch chooses for a model larger than memory, against policies by hand: paged_policies.py MODEL --out FILE

MODEL is packed (`convene quantize`) and larger than --memory-budget. All policies answer the same requests, prompts of random
tokens of mixed lengths, under that budget: the one that `convene batch` chooses by itself, and every number of requests that
run together of --together with all keys and values in memory (as many requests as have room wait their turn) and with keys
and values on the disk. Policies take turns, in the other order after every second round, so that odd and even rounds have
both orders, each in a process of its own. Those that memory has no room for are said to have none. The texts of all have to
be the same.

The best policy by hand is chosen by odd rounds, and what is chosen compared with it in even ones; what two runs of one policy
differ by (the median over all policies of |odd rounds / even rounds - 1|) stands beside it as the noise. Writes FILE.json,
after each run, and FILE.md. It asserts nothing of times.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

from planned_runs import check_rounds, even_rounds, in_turn, machine, noise, odd_rounds, open_results, words, write_json

ROOT = pathlib.Path(__file__).resolve().parents[1]
CHOSEN = "chosen"


def policies(options):
    """Words of the command line by name."""
    found = {CHOSEN: []}
    for together in options.together:
        found[f"{together}, keys and values in memory"] = ["--max-batch", together, "--spill-dir", "none"]
        found[f"{together}, on the disk if need be"] = ["--max-batch", together]
    return found


def write_requests(options, path):
    vocabulary = json.loads((pathlib.Path(options.model) / "config.json").read_text())["vocab_size"]
    chance = random.Random(1)
    low, high = options.prompt
    with open(path, "w", encoding="utf-8") as file:
        for number in range(options.requests):
            prompt = [chance.randrange(vocabulary) for _ in range(chance.randint(low, high))]
            body = {"model": "m", "prompt": prompt, "max_tokens": options.gen, "temperature": 0, "ignore_eos": True}
            file.write(json.dumps({"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}) + "\n")


def answers(path):
    """Texts by request."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        answer = json.loads(line)
        found[answer["custom_id"]] = answer["response"]["body"]["choices"][0]["text"]
    return found


def run_policy(options, policy, requests, folder):
    """Its figures and texts; nothing where memory has no room for it."""
    output = folder / "answers.jsonl"
    report = folder / "figures.json"
    output.unlink(missing_ok=True)
    done = subprocess.run(words(options.convene, "batch", options.model, "--input", requests, "--output", output, "--json", report,
                                "--memory-budget", options.memory_budget, "--no-plan", *policy), stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        return json.loads(report.read_text()), answers(output)
    if "the least budget is --memory-budget" in done.stderr or "not enough memory" in done.stderr:
        return None
    sys.exit(f"{policy}: status {done.returncode}: {done.stderr[-2000:]}")


def measure(options):
    runs = {}
    texts = None
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        requests = folder / "requests.jsonl"
        write_requests(options, requests)
        turns = list(policies(options).items())
        for number in range(options.rounds):
            for policy, arguments in in_turn(turns, number):
                if runs.get(policy, [0]) is None:
                    continue
                found = run_policy(options, arguments, requests, folder)
                if found is None:
                    runs[policy] = None
                    continue
                figures, told = found
                texts = texts or told
                if told != texts:
                    sys.exit(f"{policy} gave other texts")
                runs.setdefault(policy, []).append(figures)
                print(f"round {number + 1}: {policy}: {figures['seconds']:.1f} s", file=sys.stderr)
                write_json(options.out + ".json", runs)
    return runs


def markdown(options, runs):
    ran = {policy: figures for policy, figures in runs.items() if figures}
    seconds = {policy: [each["seconds"] for each in figures] for policy, figures in ran.items()}
    by_hand = [policy for policy in ran if policy != CHOSEN]
    if CHOSEN not in ran or not by_hand:
        sys.exit("memory has room for no policy: raise --memory-budget")
    best = min(by_hand, key=lambda policy: odd_rounds(seconds[policy]))
    even = {policy: even_rounds(each) for policy, each in seconds.items()}
    least = min(statistics.median(seconds[policy]) for policy in by_hand)
    percent = lambda value: f"{100 * value:+.1f} %"
    text = f"""{machine()}, {time.strftime('%Y-%m-%d')}; `bench/paged_policies.py {options.line}`: {options.requests} prompts of {options.prompt[0]} to {options.prompt[1]} tokens, {options.gen} generated, {options.memory_budget}, {options.rounds} rounds in turn; the same texts in all.

The chosen policy against the best by hand ({best}): {percent(even[CHOSEN] / even[best] - 1)} (noise {100 * noise(seconds.values()):.1f} %: the median over all policies of |odd rounds / even rounds - 1|); against the least median of all: {percent(statistics.median(seconds[CHOSEN]) / least - 1)}.

| policy | together | experts in memory | seconds, each round | median | pages read, GB | keys and values read and written, GB | peak memory, GB |
|---|---:|---:|---|---:|---:|---:|---:|
"""
    for policy, figures in runs.items():
        if figures is None:
            text += f"| {policy} | | | no room | | | | |\n"
            continue
        last = figures[-1]
        paged = last["paged"] or {}
        spilled = last["spilled"] or {}
        spilled_bytes = spilled.get("read_bytes", 0) + spilled.get("written_bytes", 0)
        text += (f"| {policy} | {last['max_batch']} | {paged.get('buffers', '')} | "
                 f"{' '.join(f'{each:.1f}' for each in seconds[policy])} | {statistics.median(seconds[policy]):.1f} | "
                 f"{paged.get('read_bytes', 0) / 1e9:.1f} | {spilled_bytes / 1e9:.1f} | {last['peak_resident_bytes'] / 1e9:.2f} |\n")
    return text


def lengths(text):
    low, high = map(int, text.split("-"))
    return low, high


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--out", required=True, help="FILE.json and FILE.md are written")
    parser.add_argument("--memory-budget", required=True)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--prompt", type=lengths, default=(64, 128), help="tokens of a prompt, LEAST-MOST")
    parser.add_argument("--gen", type=int, default=16)
    parser.add_argument("--together", type=lambda text: [int(each) for each in text.split(",")], default=[32, 64, 128, 256])
    parser.add_argument("--rounds", type=int, default=4,
                        help="at least 2; of a multiple of 4 odd and even ones have both orders as often")
    parser.add_argument("--convene", default=str(ROOT / "build/release/convene"))
    options = parser.parse_args()
    check_rounds(parser, "--rounds", options.rounds)
    open_results(options.out + ".json", options.out + ".md")
    options.line = " ".join(sys.argv[1:]).replace(options.model, "MODEL")
    runs = measure(options)
    pathlib.Path(options.out + ".md").write_text(markdown(options, runs), encoding="utf-8")


if __name__ == "__main__":
    main()
