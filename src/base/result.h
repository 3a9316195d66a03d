// Result<T>: a value, or an Error about the world (files, network, configuration, budgets).
// It is not for bugs: those are CHECK.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"

namespace convene {

// What an error is about, for callers that act on it: whether to try again, what to answer a
// client.
enum class ErrorKind : char {
  kInvalidArgument,    // what was given makes no sense or is not supported: give something else
  kNotFound,           // a file or a model is not there
  kResourceExhausted,  // memory, a disk or a limit of the system is too small
  kUnavailable,        // somebody else is not there: a rank, a writer, a library
  kDataLoss,           // what was stored is damaged, torn, or changed while it was read
  kInternal,           // nothing that was given is wrong, yet no result could be computed
};

// `message` gives the value met, the limit, and what to change; no trailing full stop. Most errors
// are about a file, a request or an option that somebody wrote and can change, so that is the kind
// of an error that names none.
struct Error {
  std::string message;
  ErrorKind kind = ErrorKind::kInvalidArgument;

  // The same with "place: " before its message.
  Error At(std::string_view place) const { return {fmt::format("{}: {}", place, message), kind}; }
};

// Errors of the other kinds.
inline Error NotFound(std::string message) { return {std::move(message), ErrorKind::kNotFound}; }
inline Error ResourceExhausted(std::string message) {
  return {std::move(message), ErrorKind::kResourceExhausted};
}
inline Error Unavailable(std::string message) {
  return {std::move(message), ErrorKind::kUnavailable};
}
inline Error DataLoss(std::string message) { return {std::move(message), ErrorKind::kDataLoss}; }
inline Error Internal(std::string message) { return {std::move(message), ErrorKind::kInternal}; }

// The kind of a system call's error.
ErrorKind KindOfErrno(int error_number);

// "WHAT: why", of a system call that has failed with this error.
Error SystemError(std::string_view what, int error_number);

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  // Precondition: ok().
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(value()); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // Precondition: !ok().
  const Error& error() const {
    CHECK(!ok());
    return std::get<1>(state_);
  }

 private:
  T& value() {
    CHECK(ok(), "value of a failed Result: {}", std::get<1>(state_).message);
    return std::get<0>(state_);
  }
  const T& value() const { return const_cast<Result*>(this)->value(); }

  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT

  bool ok() const { return !error_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const {
    CHECK(!ok());
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace convene
