#pragma once

#include <filesystem>
#include <optional>

namespace troupe::apps {

/// How many cores' time the control groups of this process allow it, as containers limit it: 1.5 for 150 ms
/// in every 100 ms. The least of its own group and those around it, of either version; empty without a limit.
/// `root` is where /proc and /sys are.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

}  // namespace troupe::apps
