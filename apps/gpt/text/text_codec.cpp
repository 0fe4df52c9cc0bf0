#include "apps/gpt/text/text_codec.hpp"

#include <array>

#include "actors/world/storage/posix.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::Result;

namespace {

constexpr std::uint64_t kMaxTokenizerBytes = std::uint64_t{256} << 20;

/// Tokenizers in forms that are not read here.
constexpr std::array kOtherForms{"tokenizer.model", "vocab.json", "merges.txt", "tekken.json"};

/// A model that has a tokenizer would learn nothing from bytes.
Result<void> check_has_no_tokenizer(actors::Storage& storage, const std::string& directory) {
  for (const char* name : kOtherForms) {
    const auto size = storage.size(name);
    if (!size && size.error().code == Errc::not_found) continue;
    return core::fail(Errc::not_found,
                      "{}: expected tokenizer.json, found {} without it; transformers writes one: "
                      "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR), in Python",
                      directory, name);
  }
  return {};
}

}  // namespace

Result<TextCodec> TextCodec::open(const std::string& directory, std::optional<std::int32_t> end_of_text) {
  const auto storage = TRY(actors::PosixStorage::open(directory, actors::Links::to_blobs));
  const auto size = storage->size("tokenizer.json");
  if (!size && size.error().code == Errc::not_found) {
    TRY(check_has_no_tokenizer(*storage, directory));
    return TextCodec();
  }
  if (!size) return tl::unexpected(size.error());
  if (*size > kMaxTokenizerBytes)
    return core::fail(Errc::corrupt, "tokenizer.json has {} bytes, which is too many", *size);
  const auto bytes = TRY(storage->read("tokenizer.json", 0, *size));
  return TextCodec(TRY(Tokenizer::create({reinterpret_cast<const char*>(bytes.data()), bytes.size()})),
                   end_of_text);
}

Result<std::vector<std::int32_t>> TextCodec::encode(std::string_view text, bool continues) {
  if (tokenizer_) return tokenizer_->encode(text, continues);
  std::vector<std::int32_t> tokens;
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  return tokens;
}

std::vector<std::int32_t> TextCodec::beginning() const {
  if (!tokenizer_) return {};
  return {tokenizer_->before().begin(), tokenizer_->before().end()};
}

std::vector<std::int32_t> TextCodec::ending() const {
  std::vector<std::int32_t> tokens;
  if (tokenizer_) tokens.assign(tokenizer_->after().begin(), tokenizer_->after().end());
  const bool is_there = !tokens.empty() && tokens.back() == end_of_text_;
  if (end_of_text_ && !is_there) tokens.push_back(*end_of_text_);
  return tokens;
}

std::string TextCodec::decode(std::span<const std::int32_t> tokens) const {
  if (tokenizer_) return tokenizer_->decode(tokens, {.with_special = false, .continues = true});
  std::string text;
  for (const std::int32_t token : tokens) text.push_back(static_cast<char>(token));
  return text;
}

}  // namespace troupe::apps::gpt
