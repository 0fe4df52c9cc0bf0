#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "tests/checkpoint/crafted_dcp.hpp"

namespace troupe::apps {

// docs/checkpoints.md says these, and how much may always be taken beyond them.
inline constexpr std::uint64_t kTimesOfPyTorch = 16;
inline constexpr std::uint64_t kTimesOfText = 48;
inline constexpr std::uint64_t kTimesOfTextToWrite = 96;
inline constexpr std::uint64_t kAlwaysBytes = std::uint64_t{128} << 20;

/// Runs a command in a process of its own: it ends by itself, neither out of memory nor after more seconds of
/// the processor than a command needs whose time grows with its files, and takes no more than this many times
/// the bytes of its files.
void expect_modest(const std::vector<std::string>& arguments, std::uint64_t file_bytes, std::uint64_t times);

/// A directory of torch.distributed.checkpoint.
struct CraftedFiles {
  const char* name;
  /// The file .metadata and, where there is one, the file __0_0.distcp.
  std::function<std::pair<std::string, std::string>()> make;
};

inline void PrintTo(const CraftedFiles& crafted, std::ostream* out) {
  *out << crafted.name;
}

/// Shows and imports the directory.
void expect_modest_dcp(const CraftedFiles& crafted);

/// "k00000", "k00001", ...
std::string key_of(std::size_t i);

}  // namespace troupe::apps
