#!/usr/bin/env python3
"""Predictions of disaggregated steps, and steps that are solved each: disaggregated_predictions.py [--out FILE.md]

Runs build/release/scenario_bench on four ranks (2 with attention, 2 with experts), each a process of one thread with half a core
(bench/limited_rank.sh, whose kernels are real and not slowed), over scripts/slow-link.sh, as root; or with --slow-down each with
real kernels that take so many times as long, without a limit of its cores (bench/slowed_device.h). Costs are measured first, by the
same ranks, and kept for this program alone; each point is predicted before its steps run. The steps with a shared expert are also
one trace of mixed lengths: those that are solved each are compared with the best pipeline that holds for all of them, which is
chosen by odd rounds; times and the ratio are those of the even ones, and what two runs of one plan differ by (the median over all
plans of |odd rounds / even rounds - 1|) is printed as the noise. Prints medians and writes all points as a Markdown table, as they
are done. It asserts nothing.

With --trace the steps are those of a trace's requests (a CSV as `convene plan --trace` reads it): --together sequences are with each of
the two ranks with attention, a step of prompts has at most the greatest of --tokens, each further token is one of a step of all sequences that are
together, and a step counts as one of the least of --tokens that is not below its own. Without, one step of each of --tokens.
"""

import argparse
import collections
import csv
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from planned_runs import check_rounds, even_rounds, odd_rounds, open_results
from prediction_table import SUMMARY_HEAD, errors_of, summary as table_row

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Two layers with experts as DeepSeek-V2-Lite has them, whose weights do not fit into caches, and a model whose weights do.
MODELS = {
    "small": (["--hidden", 512, "--heads", 8, "--layers", 4, "--experts", 16, "--top-k", 2, "--intermediate", 512], 512),
    "deepseek-v2-lite": (["--hidden", 2048, "--heads", 16, "--layers", 2, "--experts", 64, "--top-k", 6, "--intermediate", 1408], 2816),
}
LAYOUT = "attention=dp2,experts=ep2,disaggregate"
STATIC = [f"strategy=fine,micro_batches={r1},pipeline={r2}:tokens,order={order}"
          for r1, r2, order in ((1, 1, "asas"), (1, 2, "asas"), (2, 1, "asas"), (2, 2, "asas"), (2, 1, "aass"), (4, 1, "asas"),
                                (4, 1, "aass"))]
SOLVED = "strategy=fine,micro_batches=4,pipeline=4:tokens,online"
BASELINES = ["strategy=naive", "strategy=pppipe,micro_batches=2"]
ORDINARY = ["layout=attention=dp4+experts=ep4,base", "layout=attention=dp4+experts=ep4,pipeline=2:tokens",
            "layout=attention=dp4+experts=ep4,micro_batches=2"]


def run(options, has_shared, tokens, plans):
    model, shared = MODELS[options.model]
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        each = ["--each", 4] if options.each else []
        limited = [] if options.slow_down else [ROOT / "bench/limited_rank.sh", options.cores]
        slowed = ["--slow-down", options.slow_down, "--costs", pathlib.Path(os.environ["CONVENE_CACHE_DIR"]) / "slowed.json"] if options.slow_down else []
        command = [ROOT / "scripts/slow-link.sh", *each, options.link, "mpirun", "-n", 4, "--oversubscribe", "--bind-to", "none",
                   *limited, ROOT / "build/release/scenario_bench", *slowed, "--threads", 1, "--predict",
                   "--repeat", options.repeat, *model, "--shared", shared if has_shared else 0, "--sequence", 512, "--layout", LAYOUT,
                   "--tokens", ",".join(map(str, tokens)), "--json", file.name]
        for plan in plans:
            command += ["--plan", plan]
        subprocess.run([str(word) for word in command], check=True)
        return [point | {"shared": has_shared} for point in json.load(file)]


def errors(point):
    return errors_of(point["predicted"], point)


def error_of_replay(point):
    return point["replayed_s"] / point["median_s"] - 1


def summary(what, points):
    if not points:
        return
    others = statistics.median(abs(error_of_replay(point)) for point in points)
    print(table_row(what, [{**point, **errors(point)} for point in points]) + f" {100 * others:.1f} % |")


# Names of the columns, as src/planner/workload.cc has them.
TRACE_COLUMNS = (("num_prefill_tokens", "num_decode_tokens"), ("ContextTokens", "GeneratedTokens"))
ATTENTION_RANKS = 2


def read_trace(path):
    """(prompt, generated) of each request."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        for names in TRACE_COLUMNS:
            if set(names) <= set(rows.fieldnames or ()):
                return [(int(row[names[0]]), int(row[names[1]])) for row in rows]
    sys.exit(f"{path} has none of these pairs of columns: {TRACE_COLUMNS}")


def steps_of(requests, together, tokens):
    """How many steps of each of `tokens` both ranks with attention compute, on average, for all requests."""
    def counted_as(rows):
        return min((each for each in tokens if each >= rows), default=max(tokens))

    steps = collections.Counter()
    for prompt, generated in requests:
        whole, rest = divmod(prompt, max(tokens))
        steps[max(tokens)] += whole / ATTENTION_RANKS
        if rest:
            steps[counted_as(rest)] += 1 / ATTENTION_RANKS
        steps[counted_as(together)] += max(0, generated - 1) / (ATTENTION_RANKS * together)
    return steps


def compare_trace(what, points, steps):
    """Each plan over all lengths, as many steps of each as `steps` says."""
    odd, even = collections.Counter(), collections.Counter()
    for point in points:
        plan = point["plan"].split(" (")[0]
        count = steps[point["tokens_per_rank"]]
        odd[plan] += count * odd_rounds(point["seconds"])
        even[plan] += count * even_rounds(point["seconds"])
    static = min((plan for plan in odd if plan != SOLVED), key=odd.get)
    noise = statistics.median(abs(odd[plan] / even[plan] - 1) for plan in odd)
    print(f"{what}: solved each {even[SOLVED]:.3f} s, best static {even[static]:.3f} s ({static}): "
          f"{even[static] / even[SOLVED]:.3f} x; noise (the median over all plans of |odd rounds / even rounds - 1|) {100 * noise:.1f} %")


def markdown(points):
    text = ("| shared | tokens/rank | plan | rounds, ms | measured, ms | predicted, ms | error | after drift | error from other rounds |\n"
            "|---|---:|---|---|---:|---:|---:|---:|---:|\n")
    for point in points:
        rounds = " ".join(f"{1e3 * value:.1f}" for value in point["seconds"])
        text += (f"| {'yes' if point['shared'] else 'no'} | {point['tokens_per_rank']} | `{point['plan']}` | {rounds} | "
                 f"{1e3 * point['median_s']:.1f} | {1e3 * point['predicted']['predicted_s']:.1f} | {100 * errors(point)['raw']:+.1f} % | {100 * errors(point)['drift']:+.1f} % | "
                 f"{100 * error_of_replay(point):+.1f} % |\n")
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="Markdown table of all points")
    parser.add_argument("--link", default="200mbit")
    parser.add_argument("--model", choices=MODELS, default="small", help="which invented model")
    parser.add_argument("--each", action="store_true", help="each rank has a link of its own to a switch (scripts/slow-link.sh)")
    parser.add_argument("--cores", default="0.5", help="as bench/limited_rank.sh wants them")
    parser.add_argument("--slow-down", type=float, help="real kernels that take so many times as long, in place of --cores")
    parser.add_argument("--tokens", type=lambda text: [int(word) for word in text.split(",")], default=[16, 64, 256, 512])
    parser.add_argument("--repeat", type=int, default=4,
                        help="rounds, at least 2; of a multiple of 4 odd and even ones have both orders as often")
    parser.add_argument("--trace", action="append", default=[], metavar="CSV", help="requests, of which the steps are; several are compared one by one")
    parser.add_argument("--together", type=int, default=16, help="sequences with each rank with attention")
    options = parser.parse_args()
    check_rounds(parser, "--repeat", options.repeat)
    steps = {"a step of each length": {tokens: 1 for tokens in options.tokens}}
    for path in options.trace:
        requests = read_trace(path)
        steps[f"{pathlib.Path(path).name}, {len(requests)} requests"] = steps_of(requests, options.together, options.tokens)
    if options.out:
        open_results(options.out)
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    with tempfile.TemporaryDirectory() as kept:
        # Costs that were kept before may be another day's, or of ranks with other shares.
        os.environ["CONVENE_CACHE_DIR"] = kept
        done = []

        def run_and_write(*what):
            points = run(options, *what)
            done.extend(points)
            if options.out:
                pathlib.Path(options.out).write_text(markdown(done), encoding="utf-8")
            return points

        trace = run_and_write(True, options.tokens, STATIC + [SOLVED])
        others = run_and_write(False, options.tokens, BASELINES + STATIC[2:4])
        ordinary = run_and_write(True, options.tokens[-2:-1], ORDINARY)
    head, line = SUMMARY_HEAD
    print(f"{head} from other rounds: median |\n{line}---|")
    summary("disaggregated", trace + others)
    for tokens, group in itertools.groupby(sorted(trace + others, key=lambda p: p["tokens_per_rank"]), lambda p: p["tokens_per_rank"]):
        summary(f"  of {tokens} tokens", list(group))
    summary("attention=dp4,experts=ep4", ordinary)
    for what, counts in steps.items():
        compare_trace(what, trace, counts)


if __name__ == "__main__":
    main()
