#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <tuple>

namespace troupe::gpu {

/// How many blocks of a kernel one multiprocessor holds at a time, queried once per kernel. Thread-safe.
class Occupancy {
 public:
  cudaError_t blocks(const void* kernel, int threads, std::size_t shared_bytes, int& found) {
    std::lock_guard lock(mutex_);
    const auto [place, is_new] = known_.try_emplace({kernel, threads, shared_bytes}, 0);
    if (is_new) {
      const cudaError_t status =
          cudaOccupancyMaxActiveBlocksPerMultiprocessor(&place->second, kernel, threads, shared_bytes);
      if (status != cudaSuccess) {
        known_.erase(place);
        return status;
      }
    }
    found = place->second;
    return cudaSuccess;
  }

 private:
  std::mutex mutex_;  // guards known_
  std::map<std::tuple<const void*, int, std::size_t>, int> known_;
};

}  // namespace troupe::gpu
