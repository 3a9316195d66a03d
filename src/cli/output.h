// What commands write: standard output and result files, with every failure seen. Not for progress
// and messages to people, which base/message.h prints.
#pragma once

#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"
#include "cli/cli11_fwd.h"

namespace convene::cli {

// Writes `text` to standard output; buffered until FlushOutput unless it is a terminal.
// Error: it is closed or its disk is full.
Status WriteOutput(std::string_view text);
Status FlushOutput();

// Both: who reads standard output sees `text` at once.
Status ShowOutput(std::string_view text);

// Writes `json`, indented, to the file `path`, or to standard output where `path` is "-"; nothing
// where it is empty, since --json was not given.
Status WriteJson(const std::string& path, const nlohmann::ordered_json& json);

// The same of text as it is.
Status WriteText(const std::string& path, std::string_view text);

// Writes text for people to standard output at once, or to standard error where a path of
// `results` is "-" and standard output belongs to that result. Control characters, of a model's or
// a step's name, become '?'.
Status WriteReport(std::initializer_list<std::string_view> results, std::string_view text);

// The whole of the file `path`, or of standard input where `path` is "-".
Result<std::string> ReadText(const std::string& path);

// For options that name a file to be written: seen before the work, not after it, that its
// directory is missing or closed to us. Writes nothing. "-" passes. Options that name files and
// have no such check are taken to read them (usage_error.h).
CLI::Validator WritableFile();
inline constexpr const char* kWritableFile = "writable file";  // its name

// For options whose file cannot be standard output: `why`, where "-" is given.
CLI::Validator NoStandardOutput(const char* why);

// The same as WritableFile for options that name a directory to be written, which must not exist or
// be empty.
CLI::Validator NewDirectory();

// Declares --json FILE.
void AddJsonOption(CLI::App& app, std::string& path);

}  // namespace convene::cli
