// What our tokenizer makes of texts, for a test that knows better:  tokenizer_probe TOKENIZER_JSON
// reads a JSON string per line and writes an object with its tokens, special ones around it too, and their
// text, or with what was refused.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/gpt/text/tokenizer.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {
namespace {

core::Result<void> probe(const char* path) {
  std::ifstream file(path);
  const std::string json{std::istreambuf_iterator<char>(file), {}};
  auto tokenizer = TRY(Tokenizer::create(json));
  for (std::string line; std::getline(std::cin, line);) {
    const auto encoded = tokenizer.encode(nlohmann::json::parse(line).get<std::string>());
    if (!encoded) {
      fmt::print("{}\n", nlohmann::json{{"error", encoded.error().message}}.dump());
      continue;
    }
    std::vector<std::int32_t> tokens(tokenizer.before().begin(), tokenizer.before().end());
    tokens.insert(tokens.end(), encoded->begin(), encoded->end());
    tokens.insert(tokens.end(), tokenizer.after().begin(), tokenizer.after().end());
    const nlohmann::json answer = {{"tokens", tokens}, {"text", tokenizer.decode(tokens)}};
    fmt::print("{}\n", answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  return {};
}

}  // namespace
}  // namespace troupe::apps::gpt

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto done = troupe::apps::gpt::probe(argv[1]);
  if (done) return 0;
  fmt::print(stderr, "tokenizer_probe: {}\n", done.error().message);
  return 1;
}
