#pragma once

#include <string>

#include "core/result.hpp"

namespace troupe::messages {

/// An Error in transit between actors. `code` is meaningful only when `failed`.
struct Failure {
  bool failed = false;
  core::Errc code = core::Errc::internal;
  std::string message;
  std::vector<core::Rank> missing = {};  ///< as in core::Error

  friend bool operator==(const Failure&, const Failure&) = default;
};

inline Failure failure_of(const core::Error& error) {
  return {true, error.code, error.message, error.missing};
}
inline Failure failure_of(const core::Result<void>& result) {
  return result ? Failure{} : failure_of(result.error());
}
inline core::Error error_of(const Failure& failure) {
  return {failure.code, failure.message, failure.missing};
}

}  // namespace troupe::messages
