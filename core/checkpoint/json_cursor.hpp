#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/boxes/box.hpp"

namespace troupe::core {

/// Reads JSON that has only one valid spelling, from beginning to end and without building a tree. The first
/// error is kept; from then on every call returns nothing, so only loops need to check is_good().
class JsonCursor {
 public:
  /// The text must outlive the cursor.
  explicit JsonCursor(std::string_view text) : text_(text) {}

  bool is_good() const { return complaint_.empty(); }
  /// The first error, and the byte position at which it was found.
  const std::string& complaint() const { return complaint_; }
  void complain(std::string_view what);

  /// The text must continue with these bytes.
  void expect(std::string_view bytes);
  /// Skips these bytes; returns whether they were there.
  bool skip(std::string_view bytes);
  void expect_end();

  std::uint64_t number(std::uint64_t most = UINT64_MAX);
  std::string string();
  /// 16 hexadecimal digits in quotes.
  std::uint64_t hash();
  /// At most kMaxAxes sizes up to 2^62.
  Shape sizes();
  /// The bytes of any value, whose contents are not examined.
  std::string_view value();

 private:
  std::string_view rest() const { return text_.substr(at_); }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string complaint_;
};

}  // namespace troupe::core
