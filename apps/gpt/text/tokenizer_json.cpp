#include <nlohmann/json.hpp>
#include <utility>

#include "apps/gpt/text/tokenizer.hpp"
#include "core/errors.hpp"
#include "core/models/config_reader.hpp"
#include "core/number.hpp"

namespace troupe::apps::gpt {

namespace {

using core::Errc;
using core::fail;
using core::Result;
using Json = nlohmann::json;

constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;

/// How GPT-2 splits text into words, which is built into the pre-tokenizer ByteLevel.
constexpr std::string_view kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Members that exist and have the requested type; the first that does not is an error.
class Members {
 public:
  Members(const Json& json, std::string path) : json_(json), path_(std::move(path)) {}

  /// Null if it is missing or null.
  const Json* find(const char* name) const {
    if (!json_.is_object()) return nullptr;
    const auto found = json_.find(name);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  /// Without members if it is missing.
  const Json& inner(const char* name) const {
    static const Json kNothing;
    const Json* found = find(name);
    return found != nullptr ? *found : kNothing;
  }
  bool flag(const char* name, bool fallback) const {
    const Json* found = find(name);
    return found != nullptr && found->is_boolean() ? found->get<bool>() : fallback;
  }
  Result<std::string> text(const char* name) const {
    const Json* found = find(name);
    if (found == nullptr || !found->is_string())
      return fail(Errc::corrupt, "tokenizer.json: expected text as {}.{}", path_, name);
    return found->get<std::string>();
  }
  Result<const Json*> list(const char* name) const {
    const Json* found = find(name);
    if (found == nullptr || !found->is_array())
      return fail(Errc::corrupt, "tokenizer.json: expected a list as {}.{}", path_, name);
    return found;
  }
  /// Null, false, 0 and "" all count as nothing.
  Result<void> must_be_nothing(const char* name) const {
    const Json* found = find(name);
    if (found == nullptr || *found == false || *found == 0 || *found == "") return {};
    return fail(Errc::unavailable, "tokenizer.json: {}.{} is {}, which is not taken; only none is", path_,
                name, core::quoted_excerpt(found->dump(-1, ' ', true, Json::error_handler_t::replace)));
  }
  const std::string& path() const { return path_; }

 private:
  const Json& json_;
  std::string path_;
};

tl::unexpected<core::Error> unknown_kind(const Members& part, const std::string& kind, const char* known) {
  return fail(Errc::unavailable, "tokenizer.json: the {} {} is not known; expected {}", part.path(),
              core::quoted_excerpt(kind), known);
}

Result<std::int32_t> token_number(const Json& json) {
  if (!json.is_number_integer() || json < 0 || json >= kMostTokens)
    return fail(Errc::corrupt, "tokenizer.json: expected the number of a token, found {}",
                core::quoted_excerpt(json.dump(-1, ' ', true, Json::error_handler_t::replace)));
  return json.get<std::int32_t>();
}

/// Calls read() with each part of a "Sequence", or with the part itself.
template <class Read>
Result<void> each_part(const Json& json, const char* path, const char* members, const Read& read) {
  const Members part(json, path);
  const auto kind = TRY(part.text("type"));
  if (kind != "Sequence") return read(part, kind);
  for (const Json& one : *TRY(part.list(members))) {
    const Members inner(one, path);
    TRY(read(inner, TRY(inner.text("type"))));
  }
  return {};
}

Result<void> read_added(const Json& root, TokenizerParts& parts) {
  const Members members(root, "");
  if (members.find("added_tokens") == nullptr) return {};
  for (const Json& one : *TRY(members.list("added_tokens"))) {
    const Members added(one, "added_tokens");
    for (const char* refused : {"single_word", "lstrip", "rstrip"}) TRY(added.must_be_nothing(refused));
    auto text = TRY(added.text("content"));
    AddedToken token{.token = TRY(token_number(added.inner("id"))),
                     .text = std::move(text),
                     .is_special = added.flag("special", false),
                     .is_normalised = added.flag("normalized", false)};
    parts.added.push_back(std::move(token));
  }
  return {};
}

Result<void> read_normalizer(const Json& json, TokenizerParts& parts) {
  return each_part(json, "normalizer", "normalizers",
                   [&](const Members& part, const std::string& kind) -> Result<void> {
                     auto form = NormalForm::named(kind);
                     if (!form) return unknown_kind(part, kind, "NFC, NFD, NFKC or NFKD");
                     parts.normal_forms.push_back(*form);
                     return {};
                   });
}

Result<WordSplit> read_split(const Members& part) {
  const auto behavior = TRY(part.text("behavior"));
  if (behavior != "Isolated" && behavior != "Removed")
    return fail(Errc::unavailable, "tokenizer.json: a Split that is {}; expected Isolated or Removed",
                core::quoted_excerpt(behavior));
  // What is not a match is also kept as it is, so inverting changes nothing unless something is removed.
  if (behavior == "Removed") TRY(part.must_be_nothing("invert"));
  const Members either(part.inner("pattern"), "pre_tokenizer.pattern");
  WordSplit split{.drops_matches = behavior == "Removed"};
  if (either.find("String") != nullptr) {
    split.pattern = TRY(Pattern::literal(TRY(either.text("String"))));
  } else {
    split.pattern = TRY(Pattern::compile(TRY(either.text("Regex"))));
  }
  return split;
}

Result<void> read_pre_tokenizer(const Json& json, TokenizerParts& parts) {
  bool makes_bytes = false;
  TRY(each_part(
      json, "pre_tokenizer", "pretokenizers",
      [&](const Members& part, const std::string& kind) -> Result<void> {
        if (makes_bytes)
          return fail(Errc::unavailable, "tokenizer.json: expected nothing after ByteLevel, found {}",
                      core::quoted_excerpt(kind));
        if (kind == "Split") {
          parts.splits.push_back(TRY(read_split(part)));
        } else if (kind == "Digits") {
          const bool single = part.flag("individual_digits", false);
          parts.splits.push_back({.pattern = TRY(Pattern::compile(single ? R"(\p{N})" : R"(\p{N}+)"))});
        } else if (kind == "ByteLevel") {
          makes_bytes = true;
          WordSplit split{.adds_prefix_space = part.flag("add_prefix_space", true)};
          if (part.flag("use_regex", true)) split.pattern = TRY(Pattern::compile(kGpt2Words));
          parts.splits.push_back(std::move(split));
        } else {
          return unknown_kind(part, kind, "Split, Digits or ByteLevel");
        }
        return {};
      }));
  if (makes_bytes) return {};
  return fail(Errc::unavailable,
              "tokenizer.json: its pre_tokenizer has no ByteLevel; expected byte-level BPE");
}

/// Special tokens before and after one text.
Result<void> read_template(const Members& part, TokenizerParts& parts) {
  const Json* specials = part.find("special_tokens");
  bool was_text = false;
  for (const Json& one : *TRY(part.list("single"))) {
    const Members piece(one, "post_processor.single");
    if (piece.find("Sequence") != nullptr) {
      was_text = true;
      continue;
    }
    const Members name(piece.inner("SpecialToken"), "post_processor.single.SpecialToken");
    const auto id = TRY(name.text("id"));
    if (specials == nullptr || !specials->is_object() || !specials->contains(id))
      return fail(Errc::corrupt, "tokenizer.json: post_processor.special_tokens lacks {}",
                  core::quoted_excerpt(id));
    for (const Json& number : *TRY(Members((*specials)[id], "post_processor.special_tokens").list("ids")))
      (was_text ? parts.after : parts.before).push_back(TRY(token_number(number)));
  }
  return {};
}

Result<void> read_post_processor(const Json& json, TokenizerParts& parts) {
  return each_part(json, "post_processor", "processors",
                   [&](const Members& part, const std::string& kind) -> Result<void> {
                     if (kind == "ByteLevel") return {};  // only says where tokens are in the text
                     if (kind == "TemplateProcessing") return read_template(part, parts);
                     return unknown_kind(part, kind, "ByteLevel or TemplateProcessing");
                   });
}

Result<std::pair<std::string, std::string>> read_merge(const Json& json) {
  if (json.is_array() && json.size() == 2 && json[0].is_string() && json[1].is_string())
    return std::pair(json[0].get<std::string>(), json[1].get<std::string>());
  if (json.is_string()) {
    const auto& text = json.get_ref<const std::string&>();
    const auto blank = text.find(' ');
    if (blank != std::string::npos && text.find(' ', blank + 1) == std::string::npos)
      return std::pair(text.substr(0, blank), text.substr(blank + 1));
  }
  return fail(Errc::corrupt, "tokenizer.json: expected two tokens to merge, found {}",
              core::quoted_excerpt(json.dump(-1, ' ', true, Json::error_handler_t::replace)));
}

Result<void> read_model(const Json& json, TokenizerParts& parts) {
  const Members model(json, "model");
  if (const Json* kind = model.find("type"); kind != nullptr && *kind != "BPE")
    return unknown_kind(model, TRY(model.text("type")), "byte-level BPE");
  for (const char* refused :
       {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "fuse_unk"})
    TRY(model.must_be_nothing(refused));
  parts.pairs.ignore_merges = model.flag("ignore_merges", false);
  const Json* vocabulary = model.find("vocab");
  if (vocabulary == nullptr || !vocabulary->is_object())
    return fail(Errc::corrupt, "tokenizer.json: expected an object as model.vocab");
  for (const auto& [letters, number] : vocabulary->items())
    parts.pairs.vocabulary.emplace_back(letters, TRY(token_number(number)));
  for (const Json& merge : *TRY(model.list("merges"))) parts.pairs.merges.push_back(TRY(read_merge(merge)));
  return {};
}

}  // namespace

Result<TokenizerParts> read_tokenizer_json(std::string_view text) {
  const Json json = TRY(core::parse_json_object(text, "tokenizer.json"));
  const Members root(json, "");
  TokenizerParts parts;
  TRY(read_added(json, parts));
  if (const Json* part = root.find("normalizer")) TRY(read_normalizer(*part, parts));
  TRY(read_pre_tokenizer(root.inner("pre_tokenizer"), parts));
  if (const Json* part = root.find("post_processor")) TRY(read_post_processor(*part, parts));
  if (const Json* part = root.find("decoder")) {
    const Members decoder(*part, "decoder");
    const auto kind = TRY(decoder.text("type"));
    if (kind != "ByteLevel") return unknown_kind(decoder, kind, "ByteLevel");
  }
  const Json* model = root.find("model");
  if (model == nullptr) return fail(Errc::corrupt, "tokenizer.json: expected an object as model");
  TRY(read_model(*model, parts));
  return parts;
}

}  // namespace troupe::apps::gpt
