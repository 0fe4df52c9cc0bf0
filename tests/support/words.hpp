#pragma once

#include <cctype>
#include <string>
#include <string_view>

namespace troupe::tests {

/// A text as a test's name may have it: letters, digits, and one '_' for all between them.
inline std::string words_of(std::string_view text) {
  std::string words;
  for (const char letter : text) {
    if (std::isalnum(static_cast<unsigned char>(letter)) != 0) {
      words += letter;
    } else if (!words.empty() && words.back() != '_') {
      words += '_';
    }
  }
  while (!words.empty() && words.back() == '_') words.pop_back();
  return words;
}

}  // namespace troupe::tests
