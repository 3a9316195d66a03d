#!/usr/bin/env python3
"""The plan that convene chooses against plans that people would choose by hand: plan_floor.py MODEL --out FILE [options]

As root, two ranks of one core each. For each link of --links: costs are measured by the ranks (`convene measure`), then
the plan of every point is searched by these costs and written down, and only then does anything of MODEL run. A point is
a prompt's length, an answer's length, a number of sequences and the share of the tokens that prefer an eighth of the
experts, or as many as a token has. All plans of a point take turns in the same processes, there and back
(build/release/plan_turns_bench), and a time is that of the whole workload: all prompts, a step for each further token
at the length of half the answers, and moves of experts there and back where the plan has them. A round is one turn there and
back; a time of it is the mean of both.

The best plan by hand is chosen by odd rounds and the ratio to it taken in even ones; what two runs of one plan differ by (the
median over all plans of |odd rounds / even rounds - 1|) stands beside it as the noise. With --one-layout the plan that the search
finds without its pass "hybrid" runs, too, and a second table says what other divisions of the experts in decode gain over
the best plan that has one for both phases. Writes FILE.json with every run and FILE.md with every point, after each of them.
It asserts nothing.
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

from planned_runs import NOISE, even_rounds, machine, noise, odd_rounds, open_results, predicted_seconds, run, words, write_json

ROOT = pathlib.Path(__file__).resolve().parents[1]
# (prompt, generated, sequences, share of the tokens that prefer a few experts)
POINTS = [(64, 64, 1, 0.0), (64, 64, 8, 0.0), (64, 64, 32, 0.0), (512, 16, 1, 0.6), (512, 16, 8, 0.6), (2048, 1, 1, 0.0),
          (2048, 1, 4, 0.0), (64, 16, 8, 0.6)]
BY_HAND = {
    "tp2, tp2": {"layout": "attention=tp2,experts=tp2"},
    "dp2, ep2": {"layout": "attention=dp2,experts=ep2"},
    "dp2, ep2, 4 chunks": {"layout": "attention=dp2,experts=ep2", "pipeline": {"chunks": 4}},
    "dp2, ep2, 2 micro-batches": {"layout": "attention=dp2,experts=ep2", "pipeline": {"micro_batches": 2}},
    "dp2, tp2": {"layout": "attention=dp2,experts=tp2"},
    "tp2, ep2": {"layout": "attention=tp2,experts=ep2"},
    # Moving the experts over a slow link would take longer than all else of such a workload.
    "dp2, ep2, decode tp2, both in memory": {"layout": "attention=dp2,experts=ep2", "decode": {"experts": "tp2", "keep": "both"}},
}
TENSOR_PARALLEL = "tp2, tp2"
ONE_LAYOUT = "chosen without hybrid"


class Ranks:
    def __init__(self, options):
        self.options = options
        config = json.loads((pathlib.Path(options.model) / "config.json").read_text())
        num_experts = config["num_experts"] if "num_experts" in config else config["num_local_experts"]
        self.num_preferred = max(num_experts // 8, config["num_experts_per_tok"])

    def on_ranks(self, link, program, *command):
        prefix = [] if link == "fast" else [ROOT / "scripts/slow-link.sh", link]
        return words(*prefix, "mpirun", "-n", 2, "--oversubscribe", "--bind-to", "none", program, *command)

    def routing(self, skew):
        return ["--num-experts-skew", self.num_preferred, "--router-skew", skew] if skew else []

    def measure(self, link, folder, environment):
        profile = folder / f"{link}.json"
        run(self.on_ranks(link, self.options.convene, "measure", "--threads", 1, "--steps", self.options.weights, "--seconds", "0.1", "--out", profile),
            environment)
        # Where one is kept, a run does not measure the machine again, which takes longer than its steps.
        kept = pathlib.Path(environment["CONVENE_CACHE_DIR"]) / "profile.json"
        kept.parent.mkdir(exist_ok=True)
        shutil.copy(profile, kept)
        return profile

    def plan(self, link, profile, point, folder, environment, *without):
        prompt, generated, batch, skew = point
        path = folder / f"plan_{'_'.join(map(str, (link, *point, *without)))}.json"
        report = folder / "report.json"
        run(words(self.options.convene, "plan", self.options.model, "--profile", profile, "--ranks", 2,
                       "--threads", 1, "--prompt-tokens", prompt, "--gen-tokens", generated, "--batch", batch,
                       "--weights", self.options.weights, "--allow", "layout", "--out", path, "--json", report,
                       *self.routing(skew), *without), environment)
        answer = json.loads(report.read_text())
        return path, answer

    def by_hand(self, folder):
        """A plan's file of each."""
        paths = {}
        for name, plan in BY_HAND.items():
            paths[name] = folder / f"{name.replace(', ', '_').replace(' ', '_')}.json"
            whole = {"version": 1, "weights": self.options.weights, "threads": 1, **plan}
            paths[name].write_text(json.dumps(whole), encoding="utf-8")
        return paths

    def turns(self, link, plans, point, environment):
        """Seconds of the workload by plan and round."""
        prompt, generated, batch, skew = point
        with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
            given = [word for path in plans.values() for word in ("--plan", path)]
            run(self.on_ranks(link, self.options.turns, self.options.model, "-p", prompt, "-n", generated, "--batch", batch,
                              "--seconds", self.options.seconds, "--json", file.name, *self.routing(skew), *given), environment)
            report = json.load(file)
        seconds = {}
        for name, ran in zip(plans, report["plans"]):
            if ran["why_not"]:
                sys.exit(f"{name} did not run: {ran['why_not']}")
            each = ran["seconds"]
            seconds[name] = [(there + back) / 2 for there, back in zip(each[0::2], each[1::2])]
        return seconds


def points_of(text):
    """Of --points: PROMPT:GENERATED:SEQUENCES:SHARE, with commas between."""
    points = []
    for each in text.split(","):
        prompt, generated, batch, skew = each.split(":")
        points.append((int(prompt), int(generated), int(batch), float(skew)))
    return points


def measure_link(ranks, link, folder, options, save):
    """Entries of a link; `save` is given those so far after each point."""
    environment = dict(os.environ, CONVENE_CACHE_DIR=str(folder / "cache"))
    profile = ranks.measure(link, folder, environment)
    plans = {point: ranks.plan(link, profile, point, folder, environment) for point in options.points}
    others = {point: {} for point in options.points}
    if options.one_layout:
        for point in options.points:
            others[point][ONE_LAYOUT], _ = ranks.plan(link, profile, point, folder, environment, "--without", "hybrid")
    by_hand = ranks.by_hand(folder)
    entries = []
    for point in options.points:
        path, answer = plans[point]
        seconds = ranks.turns(link, {**by_hand, **others[point], "planned": path}, point, environment)
        entries.append({"link": link, "point": point, "plan": json.loads(path.read_text()),
                        "others": {name: json.loads(other.read_text()) for name, other in others[point].items()},
                        "predicted_s": predicted_seconds(answer["predicted"], point[2], point[1]), "seconds": seconds})
        rounds = len(seconds["planned"])
        if rounds < 2:
            sys.exit(f"{link}, {point}: one round in {options.seconds} s is too few, since odd ones choose and even ones rate; "
                     "raise --seconds")
        print(f"{link}: {point}, {rounds} rounds", file=sys.stderr)
        save(entries)
    return entries


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
            "noise": noise(entry["seconds"].values()), "over_tensor": even["planned"] / even[TENSOR_PARALLEL] - 1,
            "over_least": all_rounds["planned"] / least - 1}


def one_layout(entry):
    """The best plan of one layout, chosen by odd rounds, and its seconds over those of the chosen plan: of even rounds, and
    the median over all rounds of both in the same round, which counts for less what the machine does meanwhile."""
    names = [name for name, plan in BY_HAND.items() if "decode" not in plan] + [ONE_LAYOUT]
    best = min(names, key=lambda name: odd_rounds(entry["seconds"][name]))
    of_best, planned = entry["seconds"][best], entry["seconds"]["planned"]
    in_same = statistics.median(other / own for other, own in zip(of_best, planned))
    return best, even_rounds(of_best), even_rounds(planned), in_same


def one_layout_table(entries):
    text = """
What other divisions of the experts in decode gain: the best plan of one layout (of those by hand and of the search without its pass "hybrid"; by odd rounds) over the chosen plan, in even rounds, and in the same rounds (the median of all).

| link | prompt | generated | sequences | skew | chosen | measured s | chosen without hybrid | best of one layout | seconds | over the chosen plan | in the same rounds |
|---|---:|---:|---:|---:|---|---:|---|---|---:|---:|---:|
"""
    for entry in entries:
        prompt, generated, batch, skew = entry["point"]
        best, of_best, planned, in_same = one_layout(entry)
        text += (f"| {entry['link']} | {prompt} | {generated} | {batch} | {skew} | {describe(entry['plan'])} | {planned:.3f} | "
                 f"{describe(entry['others'][ONE_LAYOUT])} | {best} | {of_best:.3f} | {of_best / planned:.3f} x | {in_same:.3f} x |\n")
    return text


def markdown(options, entries):
    rows = [compare(entry) for entry in entries]
    over = sorted(row["over_best"] for row in rows)
    noises = sorted(row["noise"] for row in rows)
    gains = [1 / (1 + row["over_tensor"]) for row in rows]
    percent = lambda value: f"{100 * value:+.1f} %"
    plain = lambda value: f"{100 * value:.1f} %"
    text = f"""# Plans that were chosen against plans by hand

{machine()}, {time.strftime("%Y-%m-%d")}; `bench/plan_floor.py {options.line}`, two ranks of one core each, {options.weights}, as many rounds as fit into {options.seconds:g} s at each point (at most ten).

Over the best plan by hand: median {percent(statistics.median(over))}, worst {percent(over[-1])}; noise ({NOISE}): median {plain(statistics.median(noises))}, worst {plain(noises[-1])}.
Over tensor parallelism: worst {percent(max(row["over_tensor"] for row in rows))}, greatest gain {max(gains):.2f} x.
Over the least of the medians of all rounds, which favours plans by hand: median {percent(statistics.median(row["over_least"] for row in rows))}, worst {percent(max(row["over_least"] for row in rows))}.

| link | prompt | generated | sequences | skew | chosen | predicted s | measured s | rounds | best by hand | seconds | over it | noise | over tensor parallelism | over the least median |
|---|---:|---:|---:|---:|---|---:|---:|---:|---|---:|---:|---:|---:|---:|
"""
    for entry, row in zip(entries, rows):
        prompt, generated, batch, skew = entry["point"]
        text += (f"| {entry['link']} | {prompt} | {generated} | {batch} | {skew} | {describe(entry['plan'])} | "
                 f"{entry['predicted_s']:.3f} | {row['planned_s']:.3f} | {len(entry['seconds']['planned'])} | "
                 f"{row['best']} | {row['best_s']:.3f} | {percent(row['over_best'])} | {plain(row['noise'])} | "
                 f"{percent(row['over_tensor'])} | {percent(row['over_least'])} |\n")
    return text + (one_layout_table(entries) if options.one_layout else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a checkpoint whose config has num_experts, or num_local_experts, and num_experts_per_tok")
    parser.add_argument("--out", required=True, help="FILE.json and FILE.md are written")
    parser.add_argument("--links", default="fast,4gbit,1gbit")
    parser.add_argument("--points", type=points_of, default=POINTS,
                        help="PROMPT:GENERATED:SEQUENCES:SHARE of each, with commas between, in place of the eight")
    parser.add_argument("--one-layout", action="store_true", help="compare with the best plan that divides the experts alike in both phases")
    parser.add_argument("--seconds", type=float, default=30, help="that runs of a point may take, all plans together (30)")
    parser.add_argument("--weights", default="int8")
    parser.add_argument("--convene", default=str(ROOT / "build/release/convene"))
    parser.add_argument("--turns", default=str(ROOT / "build/release/plan_turns_bench"))
    options = parser.parse_args()
    open_results(options.out + ".json", options.out + ".md")
    options.line = " ".join(sys.argv[1:]).replace(options.model, "MODEL")
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    entries = []

    def save(so_far):
        write_json(options.out + ".json", entries + so_far)
        pathlib.Path(options.out + ".md").write_text(markdown(options, entries + so_far), encoding="utf-8")

    with tempfile.TemporaryDirectory() as folder:
        for link in options.links.split(","):
            entries += measure_link(Ranks(options), link, pathlib.Path(folder), options, save)


if __name__ == "__main__":
    main()
