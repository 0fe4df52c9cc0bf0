#include "apps/gpt/text/token_lines.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>
#include <vector>

#include "apps/gpt/text/documents.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

constexpr std::int32_t kNoLabel = -100;

Result<std::vector<Document>> lines_of(std::string_view text, TextCodec& codec, std::size_t vocabulary) {
  std::vector<Document> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    Document line = codec.beginning();
    for (const auto token : TRY(codec.encode(text.substr(0, end)))) line.push_back(token);
    for (const auto token : codec.after()) line.push_back(token);
    TRY(check_tokens(line, vocabulary, codec));
    lines.push_back(std::move(line));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

void print(const Document& document, std::FILE* out) {
  std::vector<std::int32_t> tokens, labels;
  for (const std::int32_t token : document) {
    tokens.push_back(token < 0 ? ~token : token);
    labels.push_back(token < 0 ? kNoLabel : token);
  }
  const auto shown =
      labels == tokens ? std::string() : fmt::format(", \"labels\": [{}]", fmt::join(labels, ", "));
  fmt::print(out, "{{\"tokens\": [{}]{}}}\n", fmt::join(tokens, ", "), shown);
}

}  // namespace

Result<void> print_tokens(const std::string& path, TextCodec& codec, std::size_t vocabulary, std::FILE* out) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return core::fail(core::Errc::not_found, "cannot open the text {}: {}", path, std::strerror(errno));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto documents =
      path.ends_with(".jsonl") ? read_documents(text, codec, vocabulary) : lines_of(text, codec, vocabulary);
  if (!documents) return core::fail(documents.error().code, "{}: {}", path, documents.error().message);
  for (const Document& document : *documents) print(document, out);
  return {};
}

}  // namespace troupe::apps::gpt
