#include "apps/gpt/text/documents.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "core/errors.hpp"
#include "core/models/config_reader.hpp"
#include "core/number.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

namespace {

// Rows that are not full yet; more of them waste less, but take longer to search.
constexpr std::size_t kOpenRows = 64;

void append(Document& document, std::span<const std::int32_t> tokens, bool is_learned) {
  for (const std::int32_t token : tokens) document.push_back(is_learned ? token : ~token);
}

/// What transformers has in place of a label.
constexpr std::int64_t kNoLabel = -100;

Result<std::vector<std::int64_t>> numbers_of(const nlohmann::json& json, const char* name) {
  const auto& list = json[name];
  if (!list.is_array()) return fail(Errc::corrupt, "expected a list of whole numbers as {}", name);
  std::vector<std::int64_t> numbers;
  for (const auto& number : list) {
    if (!number.is_number_integer() || number < kNoLabel || number > std::numeric_limits<std::int32_t>::max())
      return fail(Errc::corrupt, "expected a list of whole numbers as {}, found {} in it at {}", name,
                  core::quoted_excerpt(number.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace)),
                  numbers.size());
    numbers.push_back(number.get<std::int64_t>());
  }
  return numbers;
}

Result<Document> read_tokens(const nlohmann::json& json, std::size_t vocabulary) {
  for (const char* other : {"text", "prompt", "completion"}) {
    if (json.contains(other))
      return fail(Errc::corrupt,
                  "expected tokens or a text, found both: \"tokens\" and \"{}\"; leave one out", other);
  }
  const auto tokens = TRY(numbers_of(json, "tokens"));
  const bool has_labels = json.contains("labels");
  const auto labels = has_labels ? TRY(numbers_of(json, "labels")) : tokens;
  if (labels.size() != tokens.size())
    return fail(Errc::corrupt, "there are {} tokens and {} labels; expected a label for every token",
                tokens.size(), labels.size());
  Document document;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || static_cast<std::size_t>(tokens[i]) >= vocabulary)
      return fail(Errc::invalid_argument, "token {} is {}; the model has {} rows, for 0 to {}", i, tokens[i],
                  vocabulary, vocabulary - 1);
    if (labels[i] != kNoLabel && labels[i] != tokens[i])
      return fail(Errc::corrupt, "label {} is {}; expected its token, {}, or -100 for none", i, labels[i],
                  tokens[i]);
    const auto token = static_cast<std::int32_t>(tokens[i]);
    document.push_back(labels[i] == kNoLabel ? ~token : token);
  }
  return document;
}

Result<Document> read_document(std::string_view line, TextCodec& codec, std::size_t vocabulary) {
  const auto json = TRY(core::parse_json_object(line, "a document"));
  if (json.contains("tokens")) return read_tokens(json, vocabulary);
  const auto text_of = [&](const char* name) -> const std::string* {
    const auto found = json.find(name);
    return found != json.end() && found->is_string() ? found->get_ptr<const std::string*>() : nullptr;
  };
  const auto *text = text_of("text"), *prompt = text_of("prompt"), *completion = text_of("completion");
  Document document;
  const auto add = [&](const std::vector<std::int32_t>& tokens, bool is_learned) -> Result<void> {
    TRY(check_tokens(tokens, vocabulary, codec));
    append(document, tokens, is_learned);
    return {};
  };
  TRY(add(codec.beginning(), false));
  if (text != nullptr) {
    TRY(add(TRY(codec.encode(*text)), true));
  } else if (prompt != nullptr && completion != nullptr) {
    TRY(add(TRY(codec.encode(*prompt)), false));
    TRY(add(TRY(codec.encode(*completion, true)), true));
  } else {
    return fail(
        Errc::corrupt,
        R"(expected {{"text": "..."}}, {{"prompt": "...", "completion": "..."}} or {{"tokens": [...]}}; )"
        "chats have to be written as one of them first");
  }
  TRY(add(codec.ending(), true));
  return document;
}

class Packer {
 public:
  Packer(std::size_t row, std::int32_t padding) : row_(row), padding_(padding) {}

  void add(std::span<const std::int32_t> piece) {
    auto place = std::find_if(open_.begin(), open_.end(),
                              [&](const auto& row) { return row.size() + piece.size() <= row_; });
    if (place == open_.end()) {
      if (open_.size() == kOpenRows) close_first();
      place = open_.emplace(open_.end());
    }
    const std::size_t first = place->size();
    place->insert(place->end(), piece.begin(), piece.end());
    // It is unrelated to what precedes it in the row.
    if ((*place)[first] >= 0) (*place)[first] = ~(*place)[first];
  }

  std::vector<std::int32_t> finish() {
    while (!open_.empty()) close_first();
    return std::move(rows_);
  }

 private:
  void close_first() {
    auto& row = open_.front();
    if (std::any_of(row.begin(), row.end(), [](std::int32_t token) { return token >= 0; })) {
      row.resize(row_, ~padding_);
      rows_.insert(rows_.end(), row.begin(), row.end());
    }
    open_.pop_front();
  }

  std::size_t row_;
  std::int32_t padding_;
  std::deque<std::vector<std::int32_t>> open_;
  std::vector<std::int32_t> rows_;
};

}  // namespace

Result<void> check_tokens(std::span<const std::int32_t> tokens, std::size_t vocabulary,
                          const TextCodec& codec) {
  const auto found = std::find_if(tokens.begin(), tokens.end(), [&](std::int32_t token) {
    return token < 0 || static_cast<std::size_t>(token) >= vocabulary;
  });
  if (found == tokens.end()) return {};
  return fail(Errc::invalid_argument,
              "the tokenizer makes token {} of {}, and the model has {} rows, for 0 to {}; give the "
              "tokenizer.json of "
              "this model, or a model with more rows",
              *found, core::quoted_excerpt(codec.name_of(*found)), vocabulary, vocabulary - 1);
}

Result<std::vector<Document>> read_documents(std::string_view jsonl, TextCodec& codec,
                                             std::size_t vocabulary) {
  std::vector<Document> documents;
  for (std::size_t line = 1, begin = 0; begin < jsonl.size(); ++line) {
    const std::size_t end = std::min(jsonl.find('\n', begin), jsonl.size());
    const auto text = jsonl.substr(begin, end - begin);
    begin = end + 1;
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    auto document = read_document(text, codec, vocabulary);
    if (!document) return fail(document.error().code, "line {}: {}", line, document.error().message);
    documents.push_back(std::move(*document));
  }
  return documents;
}

std::vector<std::int32_t> pack_documents(const std::vector<Document>& documents, std::size_t row,
                                         std::int32_t padding) {
  CHECK(row > 1, "a row has a token and its target");
  Packer packer(row, padding);
  for (const Document& document : documents) {
    std::span<const std::int32_t> rest(document);
    while (rest.size() > row) {
      packer.add(rest.first(row));
      rest = rest.subspan(row - 1);
    }
    if (rest.size() > 1) packer.add(rest);
  }
  return packer.finish();
}

}  // namespace troupe::apps::gpt
