#pragma once

#include <cstddef>
#include <fstream>
#include <string>

#include "apps/gpt/text/data.hpp"
#include "tests/apps_gpt/text_file.hpp"

namespace troupe::apps::gpt {

/// Chats as JSON lines, of which only the answers are learned: some rows have one target, others hardly
/// anything else.
inline std::string uneven_chats(int count) {
  const std::string words = some_text(400);
  std::string lines;
  for (int i = 0; i < count; ++i) {
    const auto from = static_cast<std::size_t>(i * 37 % 200);
    const std::size_t asked = i % 3 == 0 ? 15 : static_cast<std::size_t>(i * i % 11);
    const std::size_t answered = i % 3 == 0 ? 1 : static_cast<std::size_t>(1 + i * 7 % 14);
    lines += "{\"prompt\": \"" + words.substr(from, asked) + "\", \"completion\": \"" +
             words.substr(from + asked, answered) + "\"}\n";
  }
  return lines;
}

/// A corpus of bytes, in rows of `context` tokens.
inline Corpus open_chats(const std::string& path, std::size_t context) {
  std::ofstream(path, std::ios::binary) << uneven_chats(300);
  TextCodec codec;
  return Corpus::open({.text = path, .context = context, .vocabulary = 256}, codec).value();
}

}  // namespace troupe::apps::gpt
