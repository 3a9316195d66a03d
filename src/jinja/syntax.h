// The syntax tree of a template: expressions, statements, and where each variable lives.
// It is plain data: parser.h makes it, scopes.h places the variables, interpreter.h walks it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "jinja/value.h"

namespace convene::jinja {

struct Filter;
struct Test;
struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;
struct Statement;
using Block = std::vector<Statement>;

// Where a variable lives: a slot of the macro `hops` definitions further out (0: this one).
struct Place {
  int hops = -1;
  int slot = -1;
};

enum class UnaryOperator : uint8_t { kNot, kNegative, kPositive };
enum class BinaryOperator : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kAnd,
  kOr,
};
enum class Comparison : uint8_t {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

struct Constant {
  Value value;
};
struct Name {
  std::string name;
  Place place;
};
struct TupleLiteral {
  std::vector<ExpressionPtr> elements;
};
struct ListLiteral {
  std::vector<ExpressionPtr> elements;
};
struct DictLiteral {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};
struct Unary {
  UnaryOperator op;
  ExpressionPtr operand;
};
struct Binary {
  BinaryOperator op;
  ExpressionPtr left, right;
};
// first op operand op operand ...
struct CompareChain {
  ExpressionPtr first;
  std::vector<std::pair<Comparison, ExpressionPtr>> rest;
};
struct Concatenation {
  std::vector<ExpressionPtr> parts;
};
// `then if test else otherwise`, the last of which may be null.
struct Conditional {
  ExpressionPtr test, then, otherwise;
};
struct AttributeOf {
  ExpressionPtr object;
  std::string name;
};
struct ItemOf {
  ExpressionPtr object, key;
};
// object[start:stop:step], each of which may be null.
struct Slice {
  ExpressionPtr object, start, stop, step;
};
// What stands between the parentheses of a call; `*` and `**` may be null.
struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more_positional, more_named;
};
struct Call {
  ExpressionPtr callee;
  CallArguments arguments;
};
// input | name(arguments); the input is null where the filter is applied to a captured block.
struct ApplyFilter {
  ExpressionPtr input;
  std::string name;
  CallArguments arguments;
};
struct ApplyTest {
  ExpressionPtr input;
  std::string name;
  CallArguments arguments;
};

struct Expression {
  int line = 1;
  int depth = 1;  // of the tree below, itself included
  std::variant<Constant, Name, TupleLiteral, ListLiteral, DictLiteral, Unary, Binary, CompareChain,
               Concatenation, Conditional, AttributeOf, ItemOf, Slice, Call, ApplyFilter, ApplyTest>
      node;
};

// What `set` and `for` assign to: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  int line = 1;
  std::string name;
  std::string attribute;  // empty: not a namespace's attribute
  Place place;
  bool is_tuple = false;
  std::vector<Target> elements;
};

// What happens to a variable when the block that it belongs to is entered.
struct Load {
  enum class Action : uint8_t { kResolve, kCopy, kClear };
  Action action;
  int slot;
  std::string name;  // kResolve: looked up in the context
  Place source;      // kCopy: the variable of the same name outside
};
// Variables of a block with a scope of its own.
struct Scope {
  std::vector<Load> loads;
  std::vector<int> slots;  // of all its variables, cleared when it is left
};

struct OutputText {
  std::string text;
};
struct OutputExpressions {
  std::vector<ExpressionPtr> expressions;
};
struct If {
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  Block otherwise;
};
struct For {
  Target target;
  ExpressionPtr iterable;
  Block body, otherwise;
  Scope scope, otherwise_scope;
  int loop_slot = -1;  // of the variable `loop`; -1 where the body does not mention it
  // `for target in iterable if test`: the test sees variables of its own.
  ExpressionPtr test;
  Target test_target;
  Scope test_scope;
  int test_num_slots = 0;
};
struct Set {
  Target target;
  ExpressionPtr value;
};
struct SetBlock {
  Target target;
  ExpressionPtr filter;  // null: the text as it is
  Block body;
  Scope scope;
};
struct FilterBlock {
  ExpressionPtr filter;
  Block body;
  Scope scope;
};
struct With {
  std::vector<std::pair<Target, ExpressionPtr>> variables;
  Block body;
  Scope scope;
};
// A macro, or the nameless one that a call block passes as `caller`.
struct Macro {
  int line = 1;
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  Block body;
  Scope scope;
  int num_slots = 0;
  std::vector<int> parameter_slots;
  // -1 where the body does not mention them.
  int caller_slot = -1, kwargs_slot = -1, varargs_slot = -1;
};
struct DefineMacro {
  std::unique_ptr<Macro> macro;
  Place place;
};
struct CallBlock {
  ExpressionPtr call;  // null: the block is only rendered (transformers' generation tag)
  std::unique_ptr<Macro> body;
};
struct Break {};
struct Continue {};

struct Statement {
  int line = 1;
  std::variant<OutputText, OutputExpressions, If, For, Set, SetBlock, FilterBlock, With,
               DefineMacro, CallBlock, Break, Continue>
      node;
};

struct Template {
  Block body;
  // Names that it looks up in the context, somewhere and under some condition.
  std::set<std::string> context_names;
  Scope scope;
  int num_slots = 0;
};

}  // namespace convene::jinja
