#include "cli/commands.h"

namespace convene::cli {
namespace {

constexpr CommandEntry kCommands[] = {
    {"run", "Continue a prompt", "convene run models/demo --prompt 'The old house' --seed 7",
     MakeRun},
    {"chat", "Talk with a model, turn by turn", "convene chat models/demo --system 'Be brief.'",
     MakeChat},
    {"batch", "Answer a file of OpenAI batch requests, many at a time",
     "convene batch models/demo --input requests.jsonl --output results.jsonl", MakeBatch},
    {"serve", "Answer requests over HTTP, in the form of OpenAI's API",
     "convene serve models/demo --port 8080", MakeServe},
    {"encode", "Write an encoder's hidden states of given texts to a file",
     "convene encode MODEL --text 'A text to embed.' --out states.npy", MakeEncode},
    {"tokenize", "Turn text into token ids",
     "convene tokenize models/demo --text 'Call me Ishmael.' --pieces", MakeTokenize},
    {"detokenize", "Turn token ids into text", "convene detokenize models/demo --ids '312 45 9'",
     MakeDetokenize},
    {"inspect", "Show what a model is, how big, and what it needs here",
     "convene inspect models/demo --context 8192 --weights f32", MakeInspect},
    {"logits", "Write the logits of given tokens to a file",
     "convene logits models/demo --tokens ids.txt --out logits.npy", MakeLogits},
    {"perplexity", "Measure how well a model predicts a text",
     "convene perplexity models/demo --text models/demo/validation.txt", MakePerplexity},
    {"compare", "Measure what int8, int4 and other formats change in a model's answers",
     "convene compare models/demo --text models/demo/validation.txt --formats int8,int4:64",
     MakeCompare},
    {"bench", "Time prefill and decode, and compare with the machine's peaks",
     "convene bench models/demo --batch 1,8 --json bench.json", MakeBench},
    {"report", "Show where the time of traced steps went, measured and predicted",
     "convene report trace.json --json report.json", MakeReport},
    {"gantt", "Draw a traced step: lanes as rows, predicted above measured",
     "convene gantt trace.json --out step.svg --layers 0-1", MakeGantt},
    {"plan", "Find the best way to run a model on ranks, and say why it is",
     "convene plan models/demo --ranks 2 --prompt-tokens 512 --gen-tokens 64 --batch 8", MakePlan},
    {"simulate", "Price a plan for a workload on a profile or preset, without ranks or weights",
     "convene simulate plan.json --profile a100-nvlink --prompt-tokens 512 --gen-tokens 64",
     MakeSimulate},
    {"roofline", "Show what holds a model back that lies in two tiers of memory, and how to run it",
     "convene roofline config.json --profile l4-gcp --micro-batch 128 --svg roofline.svg",
     MakeRoofline},
    {"measure", "Measure this machine's peaks and keep them", "convene measure --seconds 0.5",
     MakeMeasure},
    {"import-profile", "Make the profile of a machine from data sheets and measured tables",
     "convene import-profile --preset a100-nvlink a100_gemm_perf.csv.gz --out a100.json",
     MakeImportProfile},
    {"quantize", "Pack a model's weights in a format, ahead of running it",
     "convene quantize models/demo --weights int4 --out /tmp/demo-int4", MakeQuantize},
    {"synth", "Write a random-weight checkpoint of a real model's shape",
     "convene synth config.json --layers 4 --out /tmp/model --seed 1", MakeSynth},
    {"completion", "Print a script that lets a shell complete convene's commands and options",
     "source <(convene completion bash)", MakeCompletion},
};

}  // namespace

std::span<const CommandEntry> Commands() { return kCommands; }

}  // namespace convene::cli
