#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "apps/gpt/text/json_members.hpp"
#include "apps/gpt/text/text_steps_json.hpp"
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
using Members = JsonMembers;

constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;

Result<std::int32_t> token_number(const Json& json) {
  if (!json.is_number_integer() || json < 0 || json >= kMostTokens)
    return fail(Errc::corrupt, "tokenizer.json: expected the number of a token, found {}",
                Members::excerpt(json));
  return json.get<std::int32_t>();
}

/// tokenizers gives added tokens their numbers itself: those of the vocabulary, or the next ones.
class AddedNumbers {
 public:
  explicit AddedNumbers(const BytePairs::Description& pairs)
      : numbers_(pairs.vocabulary.begin(), pairs.vocabulary.end()),
        next_(static_cast<std::int32_t>(pairs.vocabulary.size())) {}

  Result<void> check(const AddedToken& token) {
    if (!seen_.insert(token.text).second)
      return fail(Errc::corrupt, "tokenizer.json: {} is an added token twice",
                  core::quoted_excerpt(token.text));
    const auto known = numbers_.find(token.text);
    const std::int32_t number = known == numbers_.end() ? next_ : known->second;
    if (number != token.token)
      return fail(
          Errc::corrupt,
          "tokenizer.json: the added token {} has the number {}, and would get {}: that of the vocabulary, "
          "or the next; give it this number",
          core::quoted_excerpt(token.text), token.token, number);
    next_ = std::max(next_, number + 1);
    return {};
  }

 private:
  std::unordered_map<std::string, std::int32_t> numbers_;
  std::unordered_set<std::string> seen_;
  std::int32_t next_;
};

/// After the model.
Result<void> read_added(const Members& root, TokenizerParts& parts) {
  if (root.find("added_tokens") == nullptr) return {};
  AddedNumbers numbers(parts.pairs);
  for (const Json& one : *TRY(root.list("added_tokens"))) {
    const Members added(one, "added_tokens");
    AddedToken token;
    token.token = TRY(token_number(added.inner("id")));
    token.text = TRY(added.text("content"));
    token.is_special = TRY(added.flag("special"));
    token.is_normalised = TRY(added.flag("normalized"));
    token.is_single_word = TRY(added.flag("single_word"));
    token.takes_blanks_before = TRY(added.flag("lstrip"));
    token.takes_blanks_after = TRY(added.flag("rstrip"));
    if (token.text.empty()) continue;  // as tokenizers does
    TRY(numbers.check(token));
    parts.added.push_back(std::move(token));
  }
  return {};
}

/// Special tokens before and after one text, around those that are there already.
Result<void> read_template(const Members& part, TokenizerParts& parts) {
  const Json* specials = part.find("special_tokens");
  std::vector<std::int32_t> before, after;
  bool was_text = false;
  for (const Json& one : *TRY(part.list("single"))) {
    const Members piece(one, "post_processor.single");
    if (piece.find("Sequence") != nullptr) {
      const Members text(piece.inner("Sequence"), "post_processor.single.Sequence");
      if (was_text || TRY(text.text("id")) != "A")
        return fail(Errc::unavailable,
                    "tokenizer.json: expected the sequence A once in post_processor.single");
      was_text = true;
      continue;
    }
    const Members name(piece.inner("SpecialToken"), "post_processor.single.SpecialToken");
    const auto id = TRY(name.text("id"));
    if (specials == nullptr || !specials->is_object() || !specials->contains(id))
      return fail(Errc::corrupt, "tokenizer.json: post_processor.special_tokens lacks {}",
                  core::quoted_excerpt(id));
    for (const Json& number : *TRY(Members((*specials)[id], "post_processor.special_tokens").list("ids")))
      (was_text ? after : before).push_back(TRY(token_number(number)));
  }
  if (!was_text)
    return fail(Errc::unavailable, "tokenizer.json: expected the sequence A once in post_processor.single");
  parts.before.insert(parts.before.begin(), before.begin(), before.end());
  parts.after.insert(parts.after.end(), after.begin(), after.end());
  return {};
}

Result<void> read_post_processor(const Json& json, TokenizerParts& parts) {
  return each_part(json, "post_processor", "processors",
                   [&](const Members& part, const std::string& kind) -> Result<void> {
                     // It only says where tokens are; tokenizers would take one with "single" for a template.
                     if (kind == "ByteLevel") return part.must_be_nothing("single");
                     if (kind == "TemplateProcessing") return read_template(part, parts);
                     return part.unknown_kind(kind, "ByteLevel or TemplateProcessing");
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
  return fail(
      Errc::corrupt,
      "tokenizer.json: expected two tokens to merge, as a list, or in a text with one blank between them, "
      "found {}",
      Members::excerpt(json));
}

Result<void> read_model(const Json& json, TokenizerParts& parts) {
  const Members model(json, "model");
  if (const Json* kind = model.find("type"); kind != nullptr && *kind != "BPE")
    return model.unknown_kind(TRY(model.text("type")), "BPE, of bytes or with U+2581 for blanks");
  if (model.find("dropout") != nullptr && model.inner("dropout") != 0.0)
    return model.refuse_value("dropout", "tokens would differ from time to time; make it null");
  for (const char* refused : {"continuing_subword_prefix", "end_of_word_suffix"})
    TRY(model.must_be_nothing(refused));
  auto& pairs = parts.pairs;
  pairs.ignore_merges = TRY(model.flag("ignore_merges", false));
  pairs.falls_back = TRY(model.flag("byte_fallback", false));
  pairs.fuses_unknown = TRY(model.flag("fuse_unk", false));
  if (model.find("unk_token") != nullptr) pairs.unknown = TRY(model.text("unk_token"));
  const Json* vocabulary = model.find("vocab");
  if (vocabulary == nullptr || !vocabulary->is_object())
    return fail(Errc::corrupt, "tokenizer.json: expected an object as model.vocab");
  for (const auto& [text, number] : vocabulary->items())
    pairs.vocabulary.emplace_back(text, TRY(token_number(number)));
  for (const Json& merge : *TRY(model.list("merges"))) {
    const bool is_comment = merge.is_string() && merge.get_ref<const std::string&>().starts_with("#version");
    if (!is_comment) pairs.merges.push_back(TRY(read_merge(merge)));
  }
  return {};
}

}  // namespace

Result<TokenizerParts> read_tokenizer_json(std::string_view text) {
  const Json json = TRY(core::parse_json_object(text, "tokenizer.json"));
  const Members root(json, "");
  if (const auto version = TRY(root.text("version", "1.0")); version != "1.0")
    return fail(Errc::unavailable, "tokenizer.json: expected the version 1.0, found {}",
                core::quoted_excerpt(version));
  const Json* model = root.find("model");
  if (model == nullptr) return fail(Errc::corrupt, "tokenizer.json: expected an object as model");
  TokenizerParts parts;
  TRY(read_model(*model, parts));
  TRY(read_added(root, parts));
  if (const Json* part = root.find("normalizer")) TRY(read_normalizer(*part, parts));
  if (const Json* part = root.find("pre_tokenizer")) TRY(read_pre_tokenizer(*part, parts));
  if (const Json* part = root.find("post_processor")) TRY(read_post_processor(*part, parts));
  if (const Json* part = root.find("decoder")) TRY(read_decoder(*part, parts));
  return parts;
}

}  // namespace troupe::apps::gpt
