#include "apps/gpt/text/text_steps_json.hpp"

#include <array>
#include <utility>

#include "apps/gpt/text/json_members.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

namespace {

using core::Errc;
using core::fail;
using core::Result;
using Members = JsonMembers;

/// How GPT-2 splits text into words, which is built into the pre-tokenizer ByteLevel.
constexpr std::string_view kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr std::size_t kMostSteps = 64;

Result<void> check_count(std::size_t steps, const char* what) {
  if (steps <= kMostSteps) return {};
  return fail(Errc::unavailable, "tokenizer.json: its {} has more than {} steps", what, kMostSteps);
}

/// "pattern": a text, or a regular expression.
Result<Pattern> read_pattern(const Members& part) {
  const Members either(part.inner("pattern"), part.path() + ".pattern");
  if (either.find("String") != nullptr) return Pattern::literal(TRY(either.text("String")));
  return Pattern::compile(TRY(either.text("Regex")));
}

Result<SplitAtPattern> read_split(const Members& part) {
  using Matches = SplitAtPattern::Matches;
  static constexpr std::array<std::pair<std::string_view, Matches>, 5> kBehaviors{
      {{"Isolated", Matches::isolated},
       {"Removed", Matches::removed},
       {"Contiguous", Matches::contiguous},
       {"MergedWithPrevious", Matches::with_previous},
       {"MergedWithNext", Matches::with_next}}};
  const auto behavior = TRY(part.text("behavior"));
  for (const auto& [name, matches] : kBehaviors) {
    if (behavior != name) continue;
    const bool is_inverted = TRY(part.flag("invert", false));
    return SplitAtPattern{TRY(read_pattern(part)), matches, is_inverted};
  }
  return fail(
      Errc::unavailable,
      "tokenizer.json: expected Isolated, Removed, Contiguous, MergedWithPrevious or MergedWithNext as "
      "pre_tokenizer.behavior, found {}",
      core::quoted_excerpt(behavior));
}

Result<VisibleBlanks> read_metaspace(const Members& part) {
  VisibleBlanks blanks;
  const auto blank = TRY(part.text("replacement"));
  if (TRY(utf32_of(blank)).size() != 1)
    return fail(Errc::corrupt, "tokenizer.json: expected one character as {}.replacement, found {}",
                part.path(), core::quoted_excerpt(blank));
  blanks.blank = TRY(utf16_of(blank));
  const auto scheme = TRY(part.text("prepend_scheme", "always"));
  if (scheme != "always" && scheme != "first" && scheme != "never")
    return fail(Errc::corrupt,
                "tokenizer.json: expected always, first or never as {}.prepend_scheme, found {}", part.path(),
                core::quoted_excerpt(scheme));
  if (scheme == "first") blanks.prepends = VisibleBlanks::Prepends::first;
  if (scheme == "never") blanks.prepends = VisibleBlanks::Prepends::never;
  if (!TRY(part.flag("add_prefix_space", true)) && scheme != "never")
    return fail(
        Errc::corrupt,
        "tokenizer.json: {}.add_prefix_space is false, and its prepend_scheme is {}; they exclude each other",
        part.path(), scheme);
  blanks.splits = TRY(part.flag("split", true));
  return blanks;
}

Result<void> read_byte_level(const Members& part, TokenizerParts& parts) {
  parts.pairs.is_of_bytes = true;
  if (TRY(part.flag("add_prefix_space", true))) parts.splits.emplace_back(BlankBefore{});
  if (TRY(part.flag("use_regex", true)))
    parts.splits.emplace_back(SplitAtPattern{.pattern = TRY(Pattern::compile(kGpt2Words))});
  return {};
}

Result<ReplacedText> read_replace(const Members& part) {
  const Members pattern(part.inner("pattern"), part.path() + ".pattern");
  if (pattern.find("Regex") != nullptr) return pattern.refuse_value("Regex", "only a String is");
  auto from = TRY(utf16_of(TRY(pattern.text("String"))));
  auto to = TRY(utf16_of(TRY(part.text("content"))));
  if (from.empty())
    return fail(Errc::unavailable, "tokenizer.json: an empty text as {}.pattern is not taken", part.path());
  return ReplacedText{std::move(from), std::move(to)};
}

Result<void> read_strip(const Members& part, TokenDecoder& decoder) {
  for (const char* name : {"start", "stop"}) {
    if (const auto* count = part.find(name); count == nullptr || !count->is_number_unsigned())
      return fail(Errc::corrupt, "tokenizer.json: expected a number as decoder.{}", name);
  }
  if (TRY(part.text("content")) != " ") return part.refuse_value("content", "only a blank is");
  if (part.inner("stop") != 0) return part.refuse_value("stop", "only 0 is");
  decoder.stripped = part.inner("start").get<std::size_t>();
  return {};
}

/// A decoder of tokens of characters: parts that SentencePiece's models have, in their order.
class DecoderReader {
 public:
  explicit DecoderReader(TokenDecoder& decoder) : decoder_(decoder) {}

  Result<void> read(const Members& part, const std::string& kind) {
    static constexpr std::array<std::string_view, 5> kOrder{"Replace", "Metaspace", "ByteFallback", "Fuse",
                                                            "Strip"};
    std::size_t place = 0;
    while (place < kOrder.size() && kOrder[place] != kind) ++place;
    if (place == kOrder.size())
      return part.unknown_kind(kind, "Replace, Metaspace, ByteFallback, Fuse or Strip");
    if (place < next_ || (kind == "Strip" && !is_fused_))
      return fail(Errc::unavailable, "tokenizer.json: a decoder {} in this place is not taken", kind);
    next_ = place + 1;
    is_fused_ = is_fused_ || kind == "Fuse";
    decoder_.falls_back = decoder_.falls_back || kind == "ByteFallback";
    if (kind == "Strip") return read_strip(part, decoder_);
    if (kind == "Replace") return read_replaced_blank(part);
    if (kind == "Metaspace") return read_metaspace_blank(part);
    return {};
  }

 private:
  Result<void> read_replaced_blank(const Members& part) {
    const auto [from, to] = TRY(read_replace(part));
    if (to != u" ") return part.refuse_value("content", "only a blank is");
    decoder_.blank = utf8_of(from);
    return {};
  }

  Result<void> read_metaspace_blank(const Members& part) {
    const auto blanks = TRY(read_metaspace(part));
    if (!decoder_.blank.empty())
      return fail(Errc::unavailable, "tokenizer.json: a decoder Replace beside a Metaspace is not taken");
    decoder_.blank = utf8_of(blanks.blank);
    decoder_.drops_first_blanks = blanks.prepends != VisibleBlanks::Prepends::never;
    return {};
  }

  TokenDecoder& decoder_;
  std::size_t next_ = 0;
  bool is_fused_ = false;
};

}  // namespace

Result<void> read_normalizer(const nlohmann::json& json, TokenizerParts& parts) {
  const auto read = [&](const Members& part, const std::string& kind) -> Result<void> {
    TRY(check_count(parts.normalizer.size() + 1, "normalizer"));
    if (kind == "Prepend") {
      parts.normalizer.emplace_back(PrependedText{TRY(utf16_of(TRY(part.text("prepend"))))});
    } else if (kind == "Replace") {
      parts.normalizer.emplace_back(TRY(read_replace(part)));
    } else if (auto form = NormalForm::named(kind)) {
      parts.normalizer.emplace_back(*form);
    } else {
      return part.unknown_kind(kind, "NFC, NFD, NFKC, NFKD, Prepend or Replace");
    }
    return {};
  };
  return each_part(json, "normalizer", "normalizers", read);
}

Result<void> read_pre_tokenizer(const nlohmann::json& json, TokenizerParts& parts) {
  const auto read = [&](const Members& part, const std::string& kind) -> Result<void> {
    TRY(check_count(parts.splits.size() + 1, "pre_tokenizer"));
    if (parts.pairs.is_of_bytes)
      return fail(Errc::unavailable, "tokenizer.json: expected nothing after ByteLevel, found {}",
                  core::quoted_excerpt(kind));
    if (kind == "Split") {
      parts.splits.emplace_back(TRY(read_split(part)));
    } else if (kind == "Digits") {
      const bool single = TRY(part.flag("individual_digits", false));
      parts.splits.emplace_back(SplitAtPattern{TRY(Pattern::compile(single ? R"(\p{N})" : R"(\p{N}+)"))});
    } else if (kind == "Metaspace") {
      parts.splits.emplace_back(TRY(read_metaspace(part)));
    } else if (kind == "ByteLevel") {
      TRY(read_byte_level(part, parts));
    } else {
      return part.unknown_kind(kind, "Split, Digits, Metaspace or ByteLevel");
    }
    return {};
  };
  return each_part(json, "pre_tokenizer", "pretokenizers", read);
}

Result<void> read_decoder(const nlohmann::json& json, TokenizerParts& parts) {
  if (!parts.pairs.is_of_bytes) {
    DecoderReader reader(parts.decoder);
    return each_part(json, "decoder", "decoders",
                     [&](const Members& part, const std::string& kind) { return reader.read(part, kind); });
  }
  const Members decoder(json, "decoder");
  const auto kind = TRY(decoder.text("type"));
  return kind == "ByteLevel" ? Result<void>{}
                             : decoder.unknown_kind(kind, "ByteLevel, as it has tokens of bytes");
}

}  // namespace troupe::apps::gpt
