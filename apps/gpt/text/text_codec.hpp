#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/gpt/text/tokenizer.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// How a model writes text as tokens: as bytes, or as its tokenizer says.
class TextCodec {
 public:
  /// One token per byte.
  TextCodec() = default;
  /// With the tokenizer.json of a directory of Hugging Face; bytes where it has none. `end_of_text` stands
  /// between texts.
  static core::Result<TextCodec> open(const std::string& directory, std::optional<std::int32_t> end_of_text);
  TextCodec(Tokenizer tokenizer, std::optional<std::int32_t> end_of_text)
      : tokenizer_(std::move(tokenizer)), end_of_text_(end_of_text) {}

  bool is_bytes() const { return !tokenizer_; }
  std::optional<std::int32_t> end_of_text() const { return end_of_text_; }

  /// Without anything around the text.
  core::Result<std::vector<std::int32_t>> encode(std::string_view text);
  /// Special tokens that a text begins with.
  std::vector<std::int32_t> beginning() const;
  /// Bytes; special tokens are left out.
  std::string decode(std::span<const std::int32_t> tokens) const;

 private:
  std::optional<Tokenizer> tokenizer_;
  std::optional<std::int32_t> end_of_text_;
};

}  // namespace troupe::apps::gpt
