// Names of CLI11's classes, for headers that only refer to them: CLI/CLI.hpp takes each source that
// it reaches 7 seconds of compiling. Who calls anything of them includes CLI/CLI.hpp itself.
#pragma once

namespace CLI {  // NOLINT(readability-identifier-naming): it is CLI11's

class App;
class Option;
class ParseError;
class Validator;

}  // namespace CLI
