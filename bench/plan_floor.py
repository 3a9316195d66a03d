#!/usr/bin/env python3
"""The plan that convene chooses against plans that people would choose by hand: plan_floor.py MODEL --out FILE [options]

As root, two ranks of one core each. For each link of --links: costs are measured by the ranks (`convene measure`), then
the plan of every point is searched by these costs and written down, and only then does anything of MODEL run. A point is
a prompt's length, an answer's length, a number of sequences and the share of the tokens that prefer an eighth of the
experts, or as many as a token has. Plans take turns, in the other order each round, each in processes of its own
(`convene bench`), and a time is that of the whole workload: all prompts, all generated tokens, and moves of experts
there and back where the plan has them.

The best plan by hand is chosen by odd rounds and the ratio to it taken in even ones; what two runs of that same plan differ
by (its odd rounds over its even ones) stands beside it as the noise. Writes FILE.json with every run and FILE.md with
every point. It asserts nothing.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

from planned_runs import even_rounds, machine, noise, odd_rounds, predicted_seconds, run, words, workload_seconds

ROOT = pathlib.Path(__file__).resolve().parents[1]
# (prompt, generated, sequences, share of the tokens that prefer a few experts)
POINTS = [(64, 64, 1, 0.0), (64, 64, 8, 0.0), (64, 64, 32, 0.0), (512, 16, 1, 0.6), (512, 16, 8, 0.6), (2048, 1, 1, 0.0),
          (2048, 1, 4, 0.0), (64, 16, 8, 0.6)]
BY_HAND = {
    "tp2, tp2": ["--layout", "attention=tp2,experts=tp2"],
    "dp2, ep2": ["--layout", "attention=dp2,experts=ep2"],
    "dp2, ep2, 4 chunks": ["--layout", "attention=dp2,experts=ep2", "--pipeline", "4"],
    "dp2, ep2, 2 micro-batches": ["--layout", "attention=dp2,experts=ep2", "--micro-batches", "2"],
    "dp2, tp2": ["--layout", "attention=dp2,experts=tp2"],
    "tp2, ep2": ["--layout", "attention=tp2,experts=ep2"],
    "dp2, ep2, decode tp2": ["--layout", "attention=dp2,experts=ep2", "--decode-experts", "tp2"],
}
TENSOR_PARALLEL = "tp2, tp2"


class Ranks:
    def __init__(self, options):
        self.options = options
        config = json.loads((pathlib.Path(options.model) / "config.json").read_text())
        self.num_preferred = max(config["num_experts"] // 8, config["num_experts_per_tok"])

    def on_ranks(self, link, *command):
        prefix = [] if link == "fast" else [ROOT / "scripts/slow-link.sh", link]
        return words(*prefix, "mpirun", "-n", 2, "--oversubscribe", "--bind-to", "none", self.options.convene, *command)

    def routing(self, skew):
        return ["--num-experts-skew", self.num_preferred, "--router-skew", skew] if skew else []

    def measure(self, link, folder, environment):
        profile = folder / f"{link}.json"
        run(self.on_ranks(link, "measure", "--steps", self.options.weights, "--seconds", "0.1", "--out", profile),
                 environment)
        # Where one is kept, a run does not measure the machine again, which takes longer than its steps.
        kept = pathlib.Path(environment["CONVENE_CACHE_DIR"]) / "profile.json"
        kept.parent.mkdir(exist_ok=True)
        shutil.copy(profile, kept)
        return profile

    def plan(self, link, profile, point, folder, environment):
        prompt, generated, batch, skew = point
        path = folder / f"plan_{link}_{'_'.join(map(str, point))}.json"
        report = folder / "report.json"
        run(words(self.options.convene, "plan", self.options.model, "--profile", profile, "--ranks", 2,
                       "--threads", 1, "--prompt-tokens", prompt, "--gen-tokens", generated, "--batch", batch,
                       "--weights", self.options.weights, "--allow", "layout", "--out", path, "--json", report,
                       *self.routing(skew)), environment)
        answer = json.loads(report.read_text())
        return path, answer

    def bench(self, link, plan, prompt, generated, batches, skew, environment):
        """Seconds of the workload by number of sequences."""
        with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
            run(self.on_ranks(link, "bench", self.options.model, "-p", prompt, "-n", generated, "--batch",
                                   ",".join(map(str, batches)), "--repeat", self.options.repeat, "--no-peaks", "--threads", 1, "--json", file.name,
                                   "--weights", self.options.weights, *self.routing(skew), *plan), environment)
            report = json.load(file)
        return workload_seconds(report, prompt, generated)


def points_of(text):
    """Of --points: PROMPT:GENERATED:SEQUENCES:SHARE, with commas between."""
    points = []
    for each in text.split(","):
        prompt, generated, batch, skew = each.split(":")
        points.append((int(prompt), int(generated), int(batch), float(skew)))
    return points


def groups(points):
    """Points of the same lengths and routing, which one process runs by hand."""
    by_shape = {}
    for prompt, generated, batch, skew in points:
        by_shape.setdefault((prompt, generated, skew), []).append(batch)
    return by_shape


def measure_link(ranks, link, folder, options):
    environment = dict(os.environ, CONVENE_CACHE_DIR=str(folder / "cache"))
    profile = ranks.measure(link, folder, environment)
    plans = {point: ranks.plan(link, profile, point, folder, environment) for point in options.points}
    runs = {point: {} for point in options.points}
    # What is compared runs within a minute or two: the machine's speed wanders.
    turns = []
    for shape, batches in groups(options.points).items():
        prompt, generated, skew = shape
        turns += [(shape, name) for name in BY_HAND] + [((prompt, generated, batch, skew), None) for batch in batches]
    for number in range(options.rounds):
        for what, name in turns[::1 if number % 2 == 0 else -1]:
            if name is None:
                prompt, generated, batch, skew = what
                plan = ["--plan", plans[what][0]]
                # As warm as by hand: what comes before it in a process there comes before it here.
                before = [other for other in groups(options.points)[(prompt, generated, skew)] if other <= batch]
                found = ranks.bench(link, plan, prompt, generated, before, skew, environment)
                runs[what].setdefault("planned", []).append(found[batch])
                continue
            prompt, generated, skew = what
            found = ranks.bench(link, [*BY_HAND[name], "--no-plan"], prompt, generated, groups(options.points)[what], skew, environment)
            for batch, seconds in found.items():
                runs[(prompt, generated, batch, skew)].setdefault(name, []).append(seconds)
        print(f"{link}: round {number + 1} of {options.rounds}", file=sys.stderr)
    return [{"link": link, "point": point, "plan": json.loads(plans[point][0].read_text()),
             "predicted_s": predicted_seconds(plans[point][1]["predicted"], point[2], point[1]),
             "seconds": runs[point]} for point in options.points]


def describe(plan):
    text = plan["layout"].replace("attention=", "").replace("experts=", "").replace(",", ", ")
    pipeline = plan["pipeline"]
    if pipeline["chunks"] != 1:
        text += f", {pipeline['chunks']} chunks of {pipeline['cut']}"
    if pipeline["micro_batches"] != 1:
        text += f", {pipeline['micro_batches']} micro-batches"
    if plan.get("step_tokens", 0) not in (0, 512):
        text += f", steps of {plan['step_tokens']}"
    if "decode" in plan:
        text += f", decode {plan['decode']['experts']}" + (", both in memory" if plan["decode"]["keep"] == "both" else "")
    return text


def compare(entry):
    odd = {name: odd_rounds(seconds) for name, seconds in entry["seconds"].items()}
    even = {name: even_rounds(seconds) for name, seconds in entry["seconds"].items()}
    best = min(BY_HAND, key=odd.get)
    all_rounds = {name: statistics.median(seconds) for name, seconds in entry["seconds"].items()}
    least = min(all_rounds[name] for name in BY_HAND)
    return {"best": best, "best_s": even[best], "planned_s": even["planned"], "over_best": even["planned"] / even[best] - 1,
            "noise": noise(entry["seconds"][best]), "over_tensor": even["planned"] / even[TENSOR_PARALLEL] - 1,
            "over_least": all_rounds["planned"] / least - 1}


def markdown(options, entries):
    rows = [compare(entry) for entry in entries]
    over = sorted(row["over_best"] for row in rows)
    noise = sorted(abs(row["noise"]) for row in rows)
    gains = [1 / (1 + row["over_tensor"]) for row in rows]
    percent = lambda value: f"{100 * value:+.1f} %"
    text = f"""# Plans that were chosen against plans by hand

{machine()}, {time.strftime("%Y-%m-%d")}; `bench/plan_floor.py {options.line}`, two ranks of one core each, {options.weights}, {options.rounds} rounds of {options.repeat} repetitions.

Over the best plan by hand: median {percent(statistics.median(over))}, worst {percent(over[-1])}; noise of one plan: median {percent(statistics.median(noise))}, worst {percent(noise[-1])}.
Over tensor parallelism: worst {percent(max(row["over_tensor"] for row in rows))}, greatest gain {max(gains):.2f} x.
Over the least of the medians of all rounds, which favours plans by hand: median {percent(statistics.median(row["over_least"] for row in rows))}, worst {percent(max(row["over_least"] for row in rows))}.

| link | prompt | generated | sequences | skew | chosen | predicted s | measured s | best by hand | seconds | over it | noise | over tensor parallelism | over the least median |
|---|---:|---:|---:|---:|---|---:|---:|---|---:|---:|---:|---:|---:|
"""
    for entry, row in zip(entries, rows):
        prompt, generated, batch, skew = entry["point"]
        text += (f"| {entry['link']} | {prompt} | {generated} | {batch} | {skew} | {describe(entry['plan'])} | "
                 f"{entry['predicted_s']:.3f} | {row['planned_s']:.3f} | "
                 f"{row['best']} | {row['best_s']:.3f} | {percent(row['over_best'])} | {percent(row['noise'])} | "
                 f"{percent(row['over_tensor'])} | {percent(row['over_least'])} |\n")
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a checkpoint whose config has num_experts and num_experts_per_tok")
    parser.add_argument("--out", required=True, help="FILE.json and FILE.md are written")
    parser.add_argument("--links", default="fast,4gbit,1gbit")
    parser.add_argument("--points", type=points_of, default=POINTS,
                        help="PROMPT:GENERATED:SEQUENCES:SHARE of each, with commas between, in place of the eight")
    parser.add_argument("--rounds", type=int, default=4, help="an even number")
    parser.add_argument("--repeat", type=int, default=3, help="repetitions in each process, of which the median counts")
    parser.add_argument("--weights", default="int8")
    parser.add_argument("--convene", default=str(ROOT / "build/release/convene"))
    options = parser.parse_args()
    options.line = " ".join(sys.argv[1:]).replace(options.model, "MODEL")
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    entries = []
    with tempfile.TemporaryDirectory() as folder:
        for link in options.links.split(","):
            entries += measure_link(Ranks(options), link, pathlib.Path(folder), options)
            pathlib.Path(options.out + ".json").write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
            pathlib.Path(options.out + ".md").write_text(markdown(options, entries), encoding="utf-8")


if __name__ == "__main__":
    main()
