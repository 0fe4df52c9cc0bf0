#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "apps/command_line/app.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// One measured kernel, or copy.
struct KernelTime {
  std::string name;
  std::size_t bytes = 0;  ///< read and written
  double seconds = 0;     ///< of one call: the median of several batches
  double ratio = 0;       ///< its bandwidth to that of its yardstick: a copy in the device's memory
};

struct KernelBench {
  std::string device = "host";  ///< as gpu::open_device() takes it
  std::size_t mib = 64;         ///< of the largest array of a call
  int repeats = 5;              ///< batches to take the median of
};

/// Measures every kernel on a stream of the device in turn, batch by batch: what else runs on the machine
/// falls on all. Copies out of the device are compared with one copy of everything into staging memory.
core::Result<std::vector<KernelTime>> measure_kernels(const KernelBench& bench);

void add_kernel_bench(CLI::App& bench, int& exit_code);

}  // namespace troupe::apps
