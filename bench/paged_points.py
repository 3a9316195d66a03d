#!/usr/bin/env python3
"""What plans of a model larger than memory are predicted to take, and what they take: paged_points.py MODEL... --out FILE

For each MODEL (packed by `convene quantize`), budget of memory and number of sequences: the costs of steps and the rate of
the disk are measured first (`convene measure`, on models of other shapes), then the plan of every point is searched by
them and written down with its prediction, and only then does anything of MODEL run (`convene bench --plan`, in turn and in
the other order each round). A time is that of all prompts and all generated tokens. A disk that others use has another rate
from minute to minute, so it is measured again before each run, and the same plan priced at that rate (`convene simulate`) is
the prediction after drift. Writes FILE_predicted.json before the first run, with plans and predictions, then FILE.json
after each run and FILE.md with every point. It asserts nothing.
"""

import argparse
import hashlib
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

from planned_runs import machine, open_results, predicted_seconds, run, words, workload_seconds, write_json

ROOT = pathlib.Path(__file__).resolve().parents[1]


def format_of(model):
    return json.loads((pathlib.Path(model) / "convene.json").read_text())["weights"]


def search(options, profile, point, folder, environment):
    """The plan's file and its predicted seconds."""
    plan = folder / "searched_plan.json"
    report = folder / "searched.json"
    run(words(options.convene, "plan", point["model"], "--profile", profile, "--ranks", 1, "--memory-budget", point["budget"],
              "--batch", point["batch"], "--prompt-tokens", options.prompt, "--gen-tokens", options.gen, "--weights",
              point["format"], "--out", plan, "--json", report), environment)
    predicted = json.loads(report.read_text())["predicted"]
    return json.loads(plan.read_text()), predicted_seconds(predicted, point["batch"], options.gen)


def price(options, plan, profile, point, folder, environment):
    """Predicted seconds of a plan as it is: no search, which by other costs might find another one."""
    report = folder / "priced.json"
    run(words(options.convene, "simulate", plan, "--model", point["model"], "--profile", profile, "--memory-budget", point["budget"],
              "--json", report), environment)
    return predicted_seconds(json.loads(report.read_text())["predicted"], point["batch"], options.gen)


def disk_rate(options, model, folder, environment):
    now = folder / "now.json"
    run(words(options.convene, "measure", "--steps", "none", "--seconds", 0.2, "--disk", model, "--out", now), environment)
    return json.loads(now.read_text())["machine"]["disk_gbps"]


def measure(options, profile, point, folder, environment):
    rate = disk_rate(options, point["model"], folder, environment)
    at_rate = json.loads(profile.read_text())
    at_rate["machine"]["disk_gbps"] = rate
    drifted = folder / "drifted.json"
    drifted.write_text(json.dumps(at_rate))
    plan = folder / "plan.json"
    plan.write_text(json.dumps(point["plan"]))
    predicted = price(options, plan, drifted, point, folder, environment)
    report = folder / "measured.json"
    run(words(options.convene, "bench", point["model"], "--plan", plan, "--memory-budget", point["budget"], "--batch", point["batch"],
              "--prompt-tokens", options.prompt, "--gen-tokens", options.gen, "--repeat", 1, "--json", report), environment)
    measured = json.loads(report.read_text())
    seconds = workload_seconds(measured, options.prompt, options.gen)[point["batch"]]
    point["runs"].append({"disk_gbps": rate, "predicted_after_drift": predicted, "seconds": seconds})


def errors(point):
    """Raw, and after drift."""
    runs = point["runs"]
    return (point["predicted"] / statistics.median(run["seconds"] for run in runs) - 1,
            statistics.median(run["predicted_after_drift"] / run["seconds"] for run in runs) - 1)


def markdown(options, points, profile_hash, rate):
    raw, drifted = zip(*(map(abs, errors(point)) for point in points))
    lines = [f"{machine()}, {time.strftime('%Y-%m-%d')}, profile {profile_hash[:12]} with a disk of {rate:.2f} GB/s; {options.rounds} rounds. "
             f"Prompts of {options.prompt} tokens, {options.gen} generated. Made by `bench/paged_points.py {options.line}`.", "",
             f"Over {len(points)} points, raw: median error {100 * statistics.median(raw):.1f} %, most {100 * max(raw):.1f} %; at the disk's "
             f"rate before each run: {100 * statistics.median(drifted):.1f} % and {100 * max(drifted):.1f} %.", "",
             "| weights | budget | sequences | experts in memory | predicted, s | measured, s | raw error | disk, GB/s | predicted at that rate, s | error |",
             "|---|---|---:|---:|---:|---|---:|---|---|---:|"]
    for point in points:
        def each(key, runs=point["runs"]):
            return " ".join(f"{run[key]:.2f}" for run in runs)
        first, second = errors(point)
        lines.append(f"| {point['format']} | {point['budget']} | {point['batch']} | {point['plan'].get('experts_in_memory', 'all')} | "
                     f"{point['predicted']:.2f} | {each('seconds')} | {100 * first:+.1f} % | {each('disk_gbps')} | "
                     f"{each('predicted_after_drift')} | {100 * second:+.1f} % |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--out", required=True)
    parser.add_argument("--convene", default=str(ROOT / "build/release/convene"))
    parser.add_argument("--budgets", default="2.94GB,4GB", help="of each model")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--gen", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", help="of convene measure, in place of measuring now")
    options = parser.parse_args()
    open_results(options.out + "_predicted.json", options.out + ".json", options.out + ".md")
    options.line = " ".join(sys.argv[1:])
    formats = sorted({format_of(model) for model in options.models})
    points = []
    for model in options.models:
        for budget in options.budgets.split(","):
            for batch in options.batches.split(","):
                points.append({"number": len(points), "model": model, "format": format_of(model), "budget": budget, "batch": int(batch),
                               "runs": []})
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        environment = os.environ | {"CONVENE_CACHE_DIR": name}
        profile = pathlib.Path(options.profile or folder / "profile.json")
        if not options.profile:
            run(words(options.convene, "measure", "--steps", ",".join(formats), "--disk", options.models[0], "--out", profile),
                environment)
        profile_hash = hashlib.sha256(profile.read_bytes()).hexdigest()
        rate = json.loads(profile.read_text())["machine"]["disk_gbps"]
        for point in points:
            point["plan"], point["predicted"] = search(options, profile, point, folder, environment)
        foreseen = [{key: value for key, value in point.items() if key != "runs"} for point in points]
        write_json(options.out + "_predicted.json", {"profile": profile_hash, "points": foreseen})
        for turn in range(options.rounds):
            for point in points if turn % 2 == 0 else reversed(points):
                measure(options, profile, point, folder, environment)
                write_json(options.out + ".json", points)
                last = point["runs"][-1]
                print(point["format"], point["budget"], point["batch"], f"predicted {point['predicted']:.2f} s, at {last['disk_gbps']:.2f} GB/s",
                      f"{last['predicted_after_drift']:.2f} s, measured {last['seconds']:.2f} s", flush=True)
    pathlib.Path(options.out + ".md").write_text(markdown(options, points, profile_hash, rate))
    return 0


if __name__ == "__main__":
    sys.exit(main())
