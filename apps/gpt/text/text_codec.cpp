#include "apps/gpt/text/text_codec.hpp"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "actors/world/storage/posix.hpp"
#include "core/errors.hpp"
#include "core/interop/lfs_pointer.hpp"
#include "core/number.hpp"
#include "core/values/json_object.hpp"

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

/// The text of a file that need not be there.
Result<std::optional<std::string>> read_text(actors::Storage& storage, const char* name) {
  const auto size = storage.size(name);
  if (!size && size.error().code == Errc::not_found) return std::optional<std::string>{};
  if (!size) return tl::unexpected(size.error());
  if (*size > kMaxTokenizerBytes)
    return core::fail(Errc::corrupt, "{} has {} bytes, which is too many", name, *size);
  const auto bytes = TRY(storage.read(name, 0, *size));
  TRY(core::check_is_no_pointer(bytes, name));
  return std::optional(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

/// transformers adds the tokens that tokenizer_config.json has and tokenizer.json lacks.
Result<void> check_config(actors::Storage& storage, const Tokenizer& tokenizer) {
  const auto text = TRY(read_text(storage, "tokenizer_config.json"));
  if (!text) return {};
  const auto json = TRY(core::parse_json_object(*text, "tokenizer_config.json"));
  const auto added = json.find("added_tokens_decoder");
  if (added == json.end() || !added->is_object()) return {};
  for (const auto& [number, token] : added->items()) {
    const auto content = token.is_object() ? token.find("content") : token.end();
    if (content == token.end() || !content->is_string()) continue;
    const auto known = tokenizer.token_of(content->get<std::string>());
    if (known && std::to_string(*known) == number) continue;
    return core::fail(
        Errc::mismatch,
        "tokenizer_config.json adds the token {} as {}, and tokenizer.json {}; transformers makes "
        "one file of both: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR), in Python",
        core::quoted_excerpt(content->get<std::string>()), core::quoted_excerpt(number),
        known ? fmt::format("has it as {}", *known) : "lacks it");
  }
  return {};
}

}  // namespace

Result<TextCodec> TextCodec::open(const std::string& directory, std::optional<std::int32_t> end_of_text) {
  const auto storage = TRY(actors::PosixStorage::open(directory, actors::Links::to_blobs));
  const auto text = TRY(read_text(*storage, "tokenizer.json"));
  if (!text) {
    TRY(check_has_no_tokenizer(*storage, directory));
    return TextCodec();
  }
  auto tokenizer = TRY(Tokenizer::create(*text));
  TRY(check_config(*storage, tokenizer));
  return TextCodec(std::move(tokenizer), end_of_text);
}

Result<std::vector<std::int32_t>> TextCodec::encode(std::string_view text, bool continues) {
  if (unreadable_) return tl::unexpected(*unreadable_);
  if (tokenizer_) return tokenizer_->encode(text, continues);
  std::vector<std::int32_t> tokens;
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  return tokens;
}

std::vector<std::int32_t> TextCodec::beginning() const {
  if (!tokenizer_) return {};
  return {tokenizer_->before().begin(), tokenizer_->before().end()};
}

std::vector<std::int32_t> TextCodec::after() const {
  if (!tokenizer_) return {};
  return {tokenizer_->after().begin(), tokenizer_->after().end()};
}

std::vector<std::int32_t> TextCodec::ending() const {
  auto tokens = after();
  const bool is_there = !tokens.empty() && tokens.back() == end_of_text_;
  if (end_of_text_ && !is_there) tokens.push_back(*end_of_text_);
  return tokens;
}

std::string_view TextCodec::name_of(std::int32_t token) const {
  return tokenizer_ ? tokenizer_->name_of(token) : std::string_view{};
}

std::string TextCodec::decode(std::span<const std::int32_t> tokens) const {
  if (tokenizer_) return tokenizer_->decode(tokens, {.with_special = false, .continues = true});
  std::string text;
  for (const std::int32_t token : tokens) text.push_back(static_cast<char>(token));
  return text;
}

}  // namespace troupe::apps::gpt
