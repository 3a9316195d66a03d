// The subcommands of convene, each in the file of its name. Their options and summaries are not
// here (commands.cc).
#pragma once

#include <memory>

#include "cli/command.h"

namespace convene::cli {

// One prompt, continued as the model would; the text streams to standard output.
std::unique_ptr<Command> MakeRun();

// A conversation in a terminal, or with one line of standard input per turn.
std::unique_ptr<Command> MakeChat();

// A file of OpenAI batch requests, many at a time, results appended as they finish; a rerun goes on
// where the last one stopped.
std::unique_ptr<Command> MakeBatch();

// Answers requests in the form of OpenAI's API over HTTP, many at a time, until it is asked to end.
std::unique_ptr<Command> MakeServe();

// Writes an encoder's hidden states of given inputs to a file.
std::unique_ptr<Command> MakeEncode();

// A model's tokenizer by itself. They load no weights.
std::unique_ptr<Command> MakeTokenize();
std::unique_ptr<Command> MakeDetokenize();

// What a model is, how big it is and what it would need here. Loads no weights.
std::unique_ptr<Command> MakeInspect();

// The model's raw output for given tokens, to compare with other engines. It needs no tokenizer.
std::unique_ptr<Command> MakeLogits();

// How well a model predicts a text, comparable with other engines: windows that do not overlap,
// each scored from its second token on.
std::unique_ptr<Command> MakePerplexity();

// What a format of weights, activations or KV cache changes in a model's answers, and what rounding
// does to its weights. Speed is bench's matter.
std::unique_ptr<Command> MakeCompare();

// How fast a model prefills and decodes here, beside what the machine could do.
std::unique_ptr<Command> MakeBench();

// The steps of a trace as figures, and one of them as a picture.
std::unique_ptr<Command> MakeReport();
std::unique_ptr<Command> MakeGantt();

// The best plan for a model, a workload and ranks that need not be there, and why it is.
std::unique_ptr<Command> MakePlan();

// What a given plan would take for a workload, on a machine that need not be there.
std::unique_ptr<Command> MakeSimulate();

// The hierarchical roofline of a model on the tiers of a machine's memory, and the policy with
// which it generates most there. Loads no weights.
std::unique_ptr<Command> MakeRoofline();

// This machine's peaks, printed and kept in the user's cache directory.
std::unique_ptr<Command> MakeMeasure();

// The profile of a machine that is not this one, from data sheets and tables of measured operators.
std::unique_ptr<Command> MakeImportProfile();

// A model directory with its weights packed in a format, ready to be mapped.
std::unique_ptr<Command> MakeQuantize();

// A checkpoint of a real model's shape with random weights, for performance work. The weights
// themselves are checkpoint/synthesize.h.
std::unique_ptr<Command> MakeSynth();

// Scripts that let a shell complete commands, options and their values, made from the commands'
// definitions.
std::unique_ptr<Command> MakeCompletion();

}  // namespace convene::cli
