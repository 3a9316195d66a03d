#!/usr/bin/env python3
"""Roles that convene chooses for unlike ranks against layouts that treat them alike: unlike_ranks.py MODEL --out FILE [options]

As root. Ranks are processes of one thread whose control groups give them shares of a core (bench/limited_rank.sh): --shares
0.2,0.8,0.8 makes one with a quarter of the others'. The ranks measure what steps cost on each of them (`convene measure`),
a plan is searched by these costs for each workload of --workloads and written down, and then plans take turns, each in
processes of its own (`convene bench`). A time is that of the whole workload, prompts and generated tokens. The best layout of
alike ranks is chosen by odd rounds; times are medians of the even ones, and ratios medians of those of each even round. What
two runs of one plan differ by (the median over all plans of |odd rounds / even rounds - 1|) stands beside them as the noise.
Plans take turns in the other order after every second round, so that odd and even rounds have both orders. Writes
FILE_profile.json, FILE.json with every run, after each round, and FILE.md. It asserts nothing.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

from planned_runs import (NOISE, check_rounds, even_rounds, in_turn, machine, noise, odd_rounds, open_results, predicted_seconds, run,
                          words, workload_seconds, write_json)

ROOT = pathlib.Path(__file__).resolve().parents[1]


class Ranks:
    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.count = len(options.shares.split(","))
        self.environment = dict(os.environ, CONVENE_CACHE_DIR=str(folder / "cache"), OMPI_ALLOW_RUN_AS_ROOT="1",
                                OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")

    def start(self, *command):
        run(words("mpirun", "-n", self.count, "--oversubscribe", "--bind-to", "none", ROOT / "bench/limited_rank.sh",
                  self.options.shares, self.options.convene, *command), self.environment)

    def measure(self):
        profile = self.folder / "profile.json"
        self.start("measure", "--threads", 1, "--steps", self.options.weights, "--seconds", "0.1", "--out", profile)
        return profile

    def plan(self, profile, prompt, generated, batch):
        path = self.folder / f"plan_{prompt}_{generated}_{batch}.json"
        report = self.folder / "report.json"
        run(words(self.options.convene, "plan", self.options.model, "--profile", profile, "--ranks", self.count,
                  "--threads", 1, "--prompt-tokens", prompt, "--gen-tokens", generated, "--batch", batch, "--weights",
                  self.options.weights, "--allow", "layout", "--memory-per-rank", 6, "--out", path, "--json", report),
            self.environment)
        return path, json.loads(report.read_text())

    def bench(self, plan, prompt, generated, batch):
        path = self.folder / "bench.json"
        self.start("bench", self.options.model, "-p", prompt, "-n", generated, "--batch", batch, "--repeat", 1, "--threads",
                   1, "--weights", self.options.weights, "--json", path, *plan)
        return workload_seconds(json.loads(path.read_text()), prompt, generated)[batch]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--out", required=True)
    parser.add_argument("--shares", default="0.2,0.8,0.8")
    parser.add_argument("--workloads", default="256/16/12,64/32/24,512/1/6", help="prompt/generated/sequences, ...")
    parser.add_argument("--alike", default="attention=dp3,experts=ep3 attention=dp3,experts=tp3",
                        help="layouts that treat ranks alike, separated by blanks")
    parser.add_argument("--profile", help="costs that these ranks measured before (default: they do it now)")
    parser.add_argument("--rounds", type=int, default=4, help="at least 2; of a multiple of 4 odd and even ones have both orders as often")
    parser.add_argument("--weights", default="int8")
    parser.add_argument("--convene", default=str(ROOT / "build/release/convene"))
    options = parser.parse_args()
    check_rounds(parser, "--rounds", options.rounds)
    open_results(options.out + "_profile.json", options.out + ".json", options.out + ".md")
    line = " ".join(sys.argv[1:]).replace(options.model, "MODEL")
    entries = []
    with tempfile.TemporaryDirectory() as name:
        ranks = Ranks(options, pathlib.Path(name))
        profile = pathlib.Path(options.profile or ranks.measure())
        pathlib.Path(options.out + "_profile.json").write_text(profile.read_text(), encoding="utf-8")
        for workload in options.workloads.split(","):
            prompt, generated, batch = map(int, workload.split("/"))
            path, answer = ranks.plan(profile, prompt, generated, batch)
            entry = {"workload": [prompt, generated, batch], "plan": json.loads(path.read_text()), "name": answer["name"],
                     "predicted_s": predicted_seconds(answer["predicted"], batch, generated), "seconds": {}}
            plans = {"planned": ["--plan", path]} | {layout: ["--layout", layout, "--no-plan"] for layout in options.alike.split()}
            entries.append(entry)
            for number in range(options.rounds):
                for key in in_turn(plans, number):
                    entry["seconds"].setdefault(key, []).append(ranks.bench(plans[key], prompt, generated, batch))
                write_json(options.out + ".json", entries)
            print(json.dumps(entry["name"]), {key: statistics.median(each) for key, each in entry["seconds"].items()},
                  file=sys.stderr)
    text = f"""{machine()}, {time.strftime("%Y-%m-%d")}: `bench/unlike_ranks.py {line}`

The best layout of alike ranks is chosen by odd rounds of {options.rounds}; seconds are medians of the even ones. Noise: {NOISE}.

| prompt, generated, sequences | planned | predicted s | measured s | best layout of alike ranks | s | its time by the planned one's | noise |
|---|---|---:|---:|---|---:|---:|---:|
"""
    for entry in entries:
        seconds = entry["seconds"]
        alike = min((key for key in seconds if key != "planned"), key=lambda key: odd_rounds(seconds[key]))
        ratio = statistics.median(a / b for a, b in zip(seconds[alike][1::2], seconds["planned"][1::2]))
        text += (f"| {', '.join(map(str, entry['workload']))} | {entry['name']} | {entry['predicted_s']:.2f} | "
                 f"{even_rounds(seconds['planned']):.2f} | {alike} | {even_rounds(seconds[alike]):.2f} | {ratio:.2f} | "
                 f"{100 * noise(seconds.values()):.1f} % |\n")
    pathlib.Path(options.out + ".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
