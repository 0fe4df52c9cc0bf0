#include "tests/cuda_emulation/captures.hpp"

#include <utility>

namespace troupe::cuda_emulation {
namespace {

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

}  // namespace

Captures& Captures::instance() {
  static Captures captures;
  return captures;
}

cudaError_t Captures::begin(cudaStream_t stream, cudaStreamCaptureMode mode) {
  std::lock_guard lock(mutex_);
  if (captures_.contains(stream)) return cudaErrorStreamCaptureUnmatched;
  captures_[stream] = {std::this_thread::get_id(), mode};
  return cudaSuccess;
}

cudaError_t Captures::end(cudaStream_t stream) {
  std::lock_guard lock(mutex_);
  const auto found = captures_.find(stream);
  if (found == captures_.end()) return cudaErrorStreamCaptureUnmatched;
  const bool is_invalid = found->second.is_invalid;
  captures_.erase(found);
  return is_invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}

bool Captures::is_captured(cudaStream_t stream) {
  std::lock_guard lock(mutex_);
  return captures_.contains(stream);
}

cudaStreamCaptureMode Captures::exchange_mode(cudaStreamCaptureMode mode) {
  return std::exchange(thread_mode, mode);
}

cudaError_t Captures::judge_unsafe_call() {
  if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  std::lock_guard lock(mutex_);
  cudaError_t judged = cudaSuccess;
  for (auto& [stream, capture] : captures_) {
    const bool is_own = capture.thread == std::this_thread::get_id();
    const bool forbids =
        is_own ? capture.mode != cudaStreamCaptureModeRelaxed
               : capture.mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
    if (!forbids) continue;
    capture.is_invalid = true;
    judged = cudaErrorStreamCaptureUnsupported;
  }
  return judged;
}

}  // namespace troupe::cuda_emulation
