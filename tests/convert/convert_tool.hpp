#pragma once

#include <string>
#include <vector>

#include "tests/support/scratch_folder.hpp"
#include "tests/support/subcommand.hpp"

namespace troupe::apps {

using tests::Output;
using tests::ScratchFolder;
using Words = std::vector<std::string>;

inline Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// `troupe convert ARGUMENTS`.
Output run_convert(const std::vector<std::string>& arguments);

/// A path below tests/golden/models.
std::string golden_model(const std::string& name);
std::string read_text(const std::string& path);
void write_text(const std::string& path, const std::string& text);

}  // namespace troupe::apps
