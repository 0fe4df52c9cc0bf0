#pragma once

#include <string>
#include <vector>

namespace troupe::apps {

/// One thing this build or this machine has, or has not.
struct Finding {
  enum class Status { ok, warn, absent, broken };

  std::string name;  ///< stable, for scripts: "shared_memory", "cuda", ...
  Status status = Status::ok;
  std::string value;
  std::string advice;  ///< what to do, empty if nothing
};
const char* name_of(Finding::Status status) noexcept;

/// Looks at everything, and starts nothing. `broken` means that Troupe cannot run here.
std::vector<Finding> examine();

}  // namespace troupe::apps
