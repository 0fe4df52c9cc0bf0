#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "core/program/step_time.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// "80GiB", "1.5TB", "4096": bytes, KiB to TiB by 1024, kB to TB by 1000.
core::Result<std::int64_t> parse_bytes(std::string_view text);

/// "inner=400GB/s,5us": the name of a link, its bandwidth, and its latency in ns, us, ms or s.
core::Result<std::pair<std::string, core::Link>> parse_link(std::string_view text);

}  // namespace troupe::apps
