#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "gpu/cuda/cuda_context.hpp"
#include "gpu/stream.hpp"

namespace troupe::gpu {

class CudaKernels;

/// A CUDA stream. Its calls cannot return errors: the first failure of a call is a failure of the device
/// (CudaOptions::on_failure), after which nothing more is enqueued and no notification arrives.
class CudaStream final : public StreamQueue {
 public:
  static core::Result<Stream> create(CudaContext& context, StreamOptions options);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  std::string_view name() const override { return name_; }
  void enqueue(std::string_view label, TaskCost cost, std::function<void()> body) override;
  void enqueue_async(std::string_view label, std::function<void(Completion)> start) override;
  void record(EventView event) override;
  void wait(EventView event) override;
  void notify(std::function<void()> callback) override;
  core::Result<void> synchronize(std::chrono::nanoseconds deadline) override;
  DeviceKernels* kernels() override;
  bool run_native(std::string_view label, const std::function<int(void* native)>& launch) override;

  /// Calls `launch`, which enqueues CUDA work on native(), with the stream's device current, and reports it
  /// as one task to the observer. `label` is as in enqueue(), and names the call in its error.
  void run(std::string_view label, const std::function<cudaError_t(cudaStream_t)>& launch);

  /// For libraries that enqueue on CUDA streams: within run(), so that failures are recorded.
  cudaStream_t native() const { return stream_; }
  CudaContext& context() { return context_; }

 private:
  CudaStream(CudaContext& context, std::string name, cudaStream_t stream);

  void run_observed(std::string_view label, const std::function<cudaError_t(cudaStream_t)>& launch);
  void report(std::string_view label, DeviceTime enqueued, PooledEvent begin, PooledEvent end);
  /// Calls done() when everything enqueued so far is complete; or failed(), if the device fails before.
  void expect(std::function<void()> done, std::function<void(const core::Error&)> failed);

  /// After a failure, when events mean nothing: waits until the stream is empty or broken, or the deadline.
  void await_end(std::chrono::nanoseconds deadline);

  CudaContext& context_;
  const std::string name_;
  const std::uint64_t number_;
  const cudaStream_t stream_;
  std::unique_ptr<CudaKernels> kernels_;
};

/// Another device's stream is a programming error.
CudaStream& cuda_stream(StreamView stream);

}  // namespace troupe::gpu
