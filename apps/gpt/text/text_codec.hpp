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

/// How a model represents text as tokens: as bytes, or by its tokenizer.
class TextCodec {
 public:
  /// One token per byte.
  TextCodec() = default;
  /// With the tokenizer.json of a Hugging Face directory; as bytes if it has no tokenizer. `end_of_text`
  /// separates texts. Errc::not_found if it has one in another form only.
  static core::Result<TextCodec> open(const std::string& directory, std::optional<std::int32_t> end_of_text);
  TextCodec(Tokenizer tokenizer, std::optional<std::int32_t> end_of_text)
      : tokenizer_(std::move(tokenizer)), end_of_text_(end_of_text) {}

  /// For a model whose tokenizer cannot be read, and why: it encodes nothing, but token ids need no codec.
  TextCodec(core::Error unreadable, std::optional<std::int32_t> end_of_text)
      : end_of_text_(end_of_text), unreadable_(std::move(unreadable)) {}

  bool is_bytes() const { return !tokenizer_ && !unreadable_; }
  const std::optional<core::Error>& unreadable() const { return unreadable_; }
  std::optional<std::int32_t> end_of_text() const { return end_of_text_; }

  /// Adds nothing around the text, nor a blank before one that `continues` another.
  core::Result<std::vector<std::int32_t>> encode(std::string_view text, bool continues = false);
  /// Special tokens that a text begins with.
  std::vector<std::int32_t> beginning() const;
  /// Those that the tokenizer ends it with; and these with the one that separates texts.
  std::vector<std::int32_t> after() const;
  std::vector<std::int32_t> ending() const;
  /// The vocabulary's spelling of a token; empty if tokens are bytes.
  std::string_view name_of(std::int32_t token) const;
  /// The bytes of tokens that continue a text; special tokens are left out.
  std::string decode(std::span<const std::int32_t> tokens) const;

 private:
  std::optional<Tokenizer> tokenizer_;
  std::optional<std::int32_t> end_of_text_;
  std::optional<core::Error> unreadable_;
};

}  // namespace troupe::apps::gpt
