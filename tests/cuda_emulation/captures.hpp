#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <thread>

namespace troupe::cuda_emulation {

/// The captures of graphs that are under way in this process. Thread-safe.
class Captures {
 public:
  static Captures& instance();

  cudaError_t begin(cudaStream_t stream, cudaStreamCaptureMode mode);
  cudaError_t end(cudaStream_t stream);
  bool is_captured(cudaStream_t stream);

  /// Sets the calling thread's mode; returns the one before.
  cudaStreamCaptureMode exchange_mode(cudaStreamCaptureMode mode);
  /// Judges a call that is unsafe while something is captured, since it might be a part of what is captured
  /// or
  /// wait for it. Unless the calling thread's mode allows it, it fails, and takes the capture with it.
  cudaError_t judge_unsafe_call();

 private:
  struct Capture {
    std::thread::id thread;
    cudaStreamCaptureMode mode;
    bool is_invalid = false;
  };

  std::mutex mutex_;  // guards captures_
  std::map<cudaStream_t, Capture> captures_;
};

}  // namespace troupe::cuda_emulation
