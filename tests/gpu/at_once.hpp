#pragma once

#include <cstddef>
#include <thread>
#include <vector>

#include "gpu/order/host_line.hpp"

namespace troupe::gpu {

/// Calls body(0), body(1), ... at once, each in a thread of its own. Where the order of tasks is checked,
/// each thread knows what the caller does, and the caller afterwards what all of them do.
template <class Body>
void at_once(std::size_t count, const Body& body) {
  std::vector<HostLine> lines(count, HostLine::current().branch());
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < count; ++i) {
    threads.emplace_back([&line = lines[i], &body, i] {
      const HostScope scope(line, {});
      body(i);
    });
  }
  threads.clear();
  for (const auto& line : lines) HostLine::current().join(line.clock());
}

}  // namespace troupe::gpu
