#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <fstream>
#include <string>

namespace troupe::apps::gpt {

/// A file in the test's temporary directory which goes away with this object.
class TextFile {
 public:
  explicit TextFile(const std::string& text, const std::string& suffix = "")
      : path_(testing::TempDir() + "troupe_text_" + std::to_string(::getpid()) + "_" +
              testing::UnitTest::GetInstance()->current_test_info()->name() + suffix) {
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~TextFile() { std::remove(path_.c_str()); }
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Text with something to learn in it.
inline std::string some_text(std::size_t bytes) {
  const std::string words[] = {"the quick ", "brown fox ", "jumps over ", "a lazy dog. "};
  std::string text;
  for (std::size_t i = 0; text.size() < bytes; ++i) text += words[i * i % 7 % 4];
  text.resize(bytes);
  return text;
}

}  // namespace troupe::apps::gpt
