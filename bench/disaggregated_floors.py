#!/usr/bin/env python3
"""Fine-grained disaggregated experts against PPPipe and naive: disaggregated_floors.py --out FILE [options]

Runs build/release/scenario_bench on 3 ranks (1 with attention, 2 with experts) and on 4 (2 and 2), each a process of one
thread, over scripts/slow-link.sh (as root): prompt length x batch x link x with and without a shared expert. The plans of a
point take turns, in the other order after every second round. The best of each strategy is chosen by odd rounds; times and
ratios are medians over the even ones, and what two runs of one plan differ by (the median over all plans of a point of |odd
rounds / even rounds - 1|) stands beside them as the noise. Operators are computed by the real kernels and then wait for
(SLOW_DOWN - 1) times as long, so that a machine with two cores carries all ranks; exchanges are not slowed. Writes FILE.json
with every plan of every point, as the points are done, and FILE.md with the best of each strategy. It asserts nothing.
"""

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from planned_runs import NOISE, check_rounds, even_rounds, noise, odd_rounds, open_results, write_json

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODEL = {"--hidden": 512, "--heads": 8, "--layers": 4, "--experts": 16, "--top-k": 2, "--intermediate": 512}
SHARED = 512
COUNTS = (2, 3, 4, 6)  # micro-batches
LAYOUTS = {3: "attention=dp1+experts=ep2+disaggregate", 4: "attention=dp2+experts=ep2+disaggregate"}


def plans(has_shared):
    """Of the first one the other plans' speed-ups are; names as scenario_bench wants them."""
    names = ["strategy=naive"]
    names += [f"strategy=pppipe,micro_batches={count}" for count in COUNTS]
    orders = ("asas", "aass") if has_shared else ("asas",)
    for count, chunks, order in itertools.product(COUNTS, (1, 2), orders):
        names.append(f"strategy=fine,micro_batches={count},pipeline={chunks}:tokens,order={order}")
    return names


def run(options, num_ranks, link, has_shared, prompt):
    """All batches of a point, one after the other: what scenario_bench writes."""
    tokens = [prompt * batch for batch in options.batches]
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        network = ["--each", num_ranks, link] if options.each else [link]
        command = [ROOT / "scripts/slow-link.sh", *network, "mpirun", "-n", num_ranks, "--oversubscribe", "--bind-to", "none",
                   ROOT / "build/release/scenario_bench", "--threads", 1, "--slow-down", options.slow_down,
                   "--repeat", options.repeat, "--sequence", prompt, "--tokens", ",".join(map(str, tokens)),
                   "--layout", LAYOUTS[num_ranks].replace("+", ","), "--json", file.name]
        command += [word for option in MODEL.items() for word in option]
        if has_shared:
            command += ["--shared", SHARED]
        for plan in plans(has_shared):
            command += ["--plan", plan]
        subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
        points = json.load(file)
    for point in points:
        point |= {"ranks": num_ranks, "link": link, "shared": has_shared, "prompt": prompt,
                  "batch": point["tokens_per_rank"] // prompt}
    return points


def strategy_of(point):
    return point["plan"].split(",")[0].removeprefix("strategy=")


def short(plan):
    words = dict(word.split("=") for word in plan.split(","))
    text = f"r1 = {words['micro_batches']}"
    if words["strategy"] == "fine":
        text += f", r2 = {words['pipeline'].split(':')[0]}, {words['order'].upper()}"
    return text


def against(better, worse):
    """Of each even round, and then the median: the machine's speed changes between rounds."""
    return statistics.median(b / a for a, b in zip(better["seconds"][1::2], worse["seconds"][1::2]))


def exchange_share(naive):
    """Of the naive step, in which nothing overlaps: exchanges over what ranks compute."""
    seconds = {kind: section["mean_s"] for kind, section in naive["sections"].items()}
    moved = sum(seconds.get(kind, 0) for kind in ("counts", "dispatch", "combine"))
    computed = sum(value for kind, value in seconds.items()
                   if kind not in ("counts", "dispatch", "combine", "gather_rows"))
    return moved / computed if computed else 0


def summary(points):
    """By point, the best of each strategy by its odd rounds."""
    rows = []
    for key, group in itertools.groupby(points, lambda p: (p["ranks"], p["link"], p["shared"], p["prompt"], p["batch"])):
        group = list(group)
        best = {}
        for point in group:
            name = strategy_of(point)
            if name not in best or odd_rounds(point["seconds"]) < odd_rounds(best[name]["seconds"]):
                best[name] = point
        fine, pppipe, naive = (best[name] for name in ("fine", "pppipe", "naive"))
        rows.append({"key": key, "fine": fine, "pppipe": pppipe, "naive": naive, "exchanges": exchange_share(naive),
                     "over_pppipe": against(fine, pppipe), "over_naive": against(fine, naive),
                     "noise": noise([point["seconds"] for point in group]),
                     "simulated_error": fine["replayed_s"] / fine["median_s"] - 1})
    return rows


def milliseconds(point):
    return f"{1e3 * even_rounds(point['seconds']):.1f}"


def markdown(options, rows, num_steps):
    over_pppipe = [row["over_pppipe"] for row in rows]
    over_naive = [row["over_naive"] for row in rows]
    errors = [abs(row["simulated_error"]) for row in rows]
    noises = [row["noise"] for row in rows]
    cpu = next(line.split(": ")[1] for line in open("/proc/cpuinfo", encoding="utf-8") if line.startswith("model name"))
    floor = sum(value >= 1 for value in over_pppipe)
    text = f"""# Disaggregated experts: measured

{cpu.strip()}, {os.cpu_count()} cores, {time.strftime("%Y-%m-%d")}; {num_steps} steps. Made by `bench/disaggregated_floors.py {options.line}`. Each rank is
a process with one thread. **Operators are computed by the real kernels and slowed**: each then waits for {options.slow_down - 1:g} times the
processor time that it took, since {os.cpu_count()} cores carry 3 or 4 ranks (`scenario_bench --slow-down`). Exchanges are not slowed; they go over
{"links of `scripts/slow-link.sh --each`, one of each rank, which carry the rate in both directions at once" if options.each
 else "the loopback of `scripts/slow-link.sh`, whose rate all ranks share"}, in bf16. The model is invented: {MODEL['--layers']} layers, hidden size {MODEL['--hidden']},
{MODEL['--experts']} experts of {MODEL['--intermediate']}, top {MODEL['--top-k']}, with or without a shared expert of {SHARED}; every attention rank has the batch of prompts.

Plans of a point took turns in {options.repeat} rounds. "Best" is the least median over odd rounds of the plans tried: PPPipe with r1 = 2, 3, 4 and 6; fine with
the same r1, r2 = 1 and 2, and both orders where there is a shared expert. Times are medians over even rounds, ratios medians of those of each even round. Noise: {NOISE}.
Exchanges ÷ computation: of the naive step, by kind the mean over ranks. Simulated: the fine step from
the times that its tasks took in other rounds.

Fine against the best PPPipe: median {statistics.median(over_pppipe):.3f}, least {min(over_pppipe):.3f}, most {max(over_pppipe):.3f}; at least 1 at {floor} of {len(rows)} points.
Against naive: median {statistics.median(over_naive):.3f}, least {min(over_naive):.3f}, most {max(over_naive):.3f}. Noise: median {100 * statistics.median(noises):.1f} %, most {100 * max(noises):.1f} %. Simulated: median error {100 * statistics.median(errors):.1f} %.

| ranks | link | shared | prompt x batch | exchanges ÷ computation | naive, ms | best PPPipe, ms | best fine, ms | PPPipe ÷ fine | naive ÷ fine | noise | simulated |
|---|---|---|---|---:|---:|---|---|---:|---:|---|---:|
"""
    for row in rows:
        num_ranks, link, has_shared, prompt, batch = row["key"]
        text += (f"| {num_ranks} | {link} | {'yes' if has_shared else 'no'} | {prompt} x {batch} | {row['exchanges']:.2f} | "
                 f"{milliseconds(row['naive'])} | {milliseconds(row['pppipe'])} ({short(row['pppipe']['plan'])}) | "
                 f"{milliseconds(row['fine'])} ({short(row['fine']['plan'])}) | {row['over_pppipe']:.3f} | "
                 f"{row['over_naive']:.3f} | {100 * row['noise']:.1f} % | "
                 f"{100 * row['simulated_error']:+.1f} % |\n")
    return text


def numbers(text):
    return [int(word) for word in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="FILE.json and FILE.md are written")
    parser.add_argument("--ranks", type=numbers, default=[3, 4])
    parser.add_argument("--links", type=lambda text: text.split(","), default=["200mbit", "800mbit"])
    parser.add_argument("--prompts", type=numbers, default=[256, 512, 2048])
    parser.add_argument("--batches", type=numbers, default=[1, 2])
    parser.add_argument("--repeat", type=int, default=8,
                        help="rounds, at least 2; of a multiple of 4 odd and even ones have both orders as often")
    parser.add_argument("--each", action="store_true", help="every rank has a link of its own, with both directions at once")
    parser.add_argument("--slow-down", type=float, default=4)
    options = parser.parse_args()
    check_rounds(parser, "--repeat", options.repeat)
    open_results(options.out + ".json", options.out + ".md")
    options.line = " ".join(sys.argv[1:])
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    points = []
    for num_ranks, link, has_shared, prompt in itertools.product(options.ranks, options.links, (True, False), options.prompts):
        points += run(options, num_ranks, link, has_shared, prompt)
        write_json(options.out + ".json", points)
        for row in summary(points)[-len(options.batches):]:
            print(row["key"], f"fine is {row['over_pppipe']:.3f} x PPPipe and {row['over_naive']:.3f} x naive", flush=True)
    steps = options.repeat * len(points)
    pathlib.Path(options.out + ".md").write_text(markdown(options, summary(points), steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
