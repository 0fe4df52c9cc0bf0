#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace troupe::apps {

struct Output {
  int exit_code = 0;
  std::string out;
  std::string err;
};

/// `troupe convert ARGUMENTS`.
Output run_convert(const std::vector<std::string>& arguments);

/// A fresh directory that goes with the object.
class ScratchDirectory {
 public:
  ScratchDirectory();
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

/// A path below tests/golden/models.
std::string golden_model(const std::string& name);
std::string read_text(const std::string& path);
void write_text(const std::string& path, const std::string& text);

}  // namespace troupe::apps
