#include "apps/gpt/text/documents.hpp"

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "core/errors.hpp"
#include "core/models/config_reader.hpp"

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

Result<Document> read_document(std::string_view line, TextCodec& codec) {
  const auto json = TRY(core::parse_json_object(line, "a document"));
  const auto text_of = [&](const char* name) -> const std::string* {
    const auto found = json.find(name);
    return found != json.end() && found->is_string() ? found->get_ptr<const std::string*>() : nullptr;
  };
  const auto *text = text_of("text"), *prompt = text_of("prompt"), *completion = text_of("completion");
  Document document;
  append(document, codec.beginning(), false);
  if (text != nullptr) {
    append(document, TRY(codec.encode(*text)), true);
  } else if (prompt != nullptr && completion != nullptr) {
    append(document, TRY(codec.encode(*prompt)), false);
    append(document, TRY(codec.encode(*completion, true)), true);
  } else {
    return fail(
        Errc::corrupt,
        R"(expected {{"text": "..."}} or {{"prompt": "...", "completion": "..."}}; chats have to be written )"
        "as one of them first");
  }
  append(document, codec.ending(), true);
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

Result<std::vector<Document>> read_documents(std::string_view jsonl, TextCodec& codec) {
  std::vector<Document> documents;
  for (std::size_t line = 1, begin = 0; begin < jsonl.size(); ++line) {
    const std::size_t end = std::min(jsonl.find('\n', begin), jsonl.size());
    const auto text = jsonl.substr(begin, end - begin);
    begin = end + 1;
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    auto document = read_document(text, codec);
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
