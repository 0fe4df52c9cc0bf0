#pragma once

#include <string>
#include <tl/expected.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/ids.hpp"

namespace troupe::core {

/// Why an operation failed. Codes are for decisions (retry, restart, give up); the message is for people.
enum class Errc {
  invalid_argument,  ///< a flag, a configuration or a call that cannot be right
  not_found,         ///< a file, a name, a program
  already_exists,
  unavailable,  ///< this build or this machine does not have it
  io,           ///< the operating system refused a read, a write, a socket
  corrupt,      ///< bytes that do not parse or do not match their hash
  mismatch,     ///< ranks disagree (plan, layout, configuration)
  timeout,      ///< a deadline passed
  peer_lost,    ///< a rank died or its connection closed
  aborted,      ///< somebody asked to end this operation
  stale_epoch,  ///< the sender belongs to an older membership
  out_of_memory,
  numeric,  ///< NaN or Inf where none may be
  internal,
};

/// The name of a code as written in logs and JSON, for example "peer_lost".
const char* to_string(Errc code) noexcept;

/// A failure of the outside world. `message` says what was expected, what was found and what to do next.
struct Error {
  Errc code = Errc::internal;
  std::string message;
  std::vector<Rank> missing = {};  ///< those that gave no sign before a deadline, where that is known

  friend bool operator==(const Error&, const Error&) = default;
};

template <class T>
class [[nodiscard]] Result : public tl::expected<T, Error> {
 public:
  using tl::expected<T, Error>::expected;
};

/// The value of a result that has one; what TROUPE_TRY expands to.
template <class T>
T take_value(Result<T>&& result) {
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

}  // namespace troupe::core

/// `auto x = TROUPE_TRY(f());` takes the value out of a Result or returns its Error from the enclosing
/// function.
#define TROUPE_TRY(expression) TROUPE_TRY_AS(expression, __COUNTER__)
#define TROUPE_TRY_AS(expression, number) TROUPE_TRY_NAMED(expression, number)
#define TROUPE_TRY_NAMED(expression, number)                                                     \
  __extension__({                                                                                \
    auto troupe_result_##number = (expression);                                                  \
    if (!troupe_result_##number) {                                                               \
      return ::tl::unexpected<::troupe::core::Error>(std::move(troupe_result_##number).error()); \
    }                                                                                            \
    ::troupe::core::take_value(std::move(troupe_result_##number));                               \
  })
