#pragma once

#include <string>
#include <vector>

#include "actors/world/storage/posix.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// How it stands with one checkpoint.
struct Verdict {
  std::string path;
  std::int64_t step = -1;  ///< -1: the manifest cannot be read
  std::uint64_t bytes = 0;
  std::size_t tensors = 0;
  double seconds = 0;
  std::vector<std::string> damage;  ///< each file, tensor or part; empty: good

  bool is_good() const { return damage.empty(); }
};

/// One checkpoint of a directory, as below.
core::Result<Verdict> examine(actors::Storage& storage, const std::string& name, const std::string& path,
                              bool quick);

/// The checkpoint at `path`, or all in a directory of them, the newest first. With `quick` only manifests and
/// the sizes of files are looked at, else every byte is checked against its hash. Errc::not_found where there
/// is none.
core::Result<std::vector<Verdict>> verify(const std::string& path, bool quick,
                                          actors::Links links = actors::Links::refuse);

std::string verdicts_text(const std::vector<Verdict>& verdicts, bool quick);
std::string verdicts_json(const std::vector<Verdict>& verdicts, bool quick);

}  // namespace troupe::apps
