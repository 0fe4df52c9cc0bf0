#include "gpu/cuda/cuda_stream.hpp"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "core/errors.hpp"
#include "gpu/cuda/cuda_event.hpp"
#include "gpu/cuda/cuda_kernels.hpp"
#include "gpu/cuda/status.hpp"
#include "gpu/host/host_stream.hpp"
#include "gpu/host/marker.hpp"

namespace troupe::gpu {
namespace {

/// CUDA's numbers decrease with urgency. The usual priority is CUDA's own usual one, so that a trainer's
/// streams, which have that unless they ask for another, are as urgent as ours. There is none below it.
int native_priority(int priority, int least, int greatest) {
  return std::clamp(least - priority, greatest, least);
}

}  // namespace

core::Result<Stream> CudaStream::create(CudaContext& context, StreamOptions options) {
  const DeviceGuard guard(context.device());
  TRY(context.health());
  int least = 0;
  int greatest = 0;
  TRY(cuda_result(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange",
                  context.device()));
  cudaStream_t stream = nullptr;
  TRY(cuda_result(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                               native_priority(options.priority, least, greatest)),
                  "cudaStreamCreateWithPriority", context.device()));
  return Stream(new CudaStream(context, std::move(options.name), stream));
}

CudaStream::CudaStream(CudaContext& context, std::string name, cudaStream_t stream)
    : context_(context),
      name_(std::move(name)),
      number_(context.next_stream()),
      stream_(stream),
      kernels_(std::make_unique<CudaKernels>(*this)) {}

CudaStream::~CudaStream() {
  const auto drained = synchronize(context_.options.drain_deadline);
  if (!drained && drained.error().code == core::Errc::timeout) {
    // What waits for the work may be gone when that ends after all.
    context_.waiter.forget(number_);
    ++context_.given_up;
    return;
  }
  const DeviceGuard guard(context_.device());
  (void)cudaStreamDestroy(stream_);
}

void CudaStream::enqueue(std::string_view /*label*/, TaskCost /*cost*/, std::function<void()> /*body*/) {
  CHECK(false, "a CUDA stream runs kernels (gpu/kernels.hpp); host work follows from notify()");
}

void CudaStream::enqueue_async(std::string_view /*label*/, std::function<void(Completion)> /*start*/) {
  CHECK(false, "a CUDA stream runs kernels (gpu/kernels.hpp); host work follows from notify()");
}

void CudaStream::record(EventView event) {
  auto& own = cuda_event(event);
  if (context_.failure.is_set()) return own.set_recorded();
  const DeviceGuard guard(context_.device());
  context_.check(cudaEventRecord(own.native(), stream_), "cudaEventRecord");
  own.set_recorded();
}

void CudaStream::wait(EventView event) {
  auto& own = cuda_event(event);
  if (!own.is_recorded() || context_.failure.is_set()) return;
  const DeviceGuard guard(context_.device());
  context_.check(cudaStreamWaitEvent(stream_, own.native(), 0), "cudaStreamWaitEvent");
}

void CudaStream::notify(std::function<void()> callback) {
  expect(std::move(callback), nullptr);
}

void CudaStream::expect(std::function<void()> done, std::function<void(const core::Error&)> failed) {
  const DeviceGuard guard(context_.device());
  auto event = context_.events.take();
  if (context_.check(event)) {
    context_.check(cudaEventRecord(event->native(), stream_), "cudaEventRecord");
  }
  if (context_.failure.is_set()) {
    if (failed) failed(*context_.failure.get());
    return;
  }
  context_.waiter.add(number_, {std::move(*event),
                                [done = std::move(done)](PooledEvent reached) {
                                  // Available to the next user before anyone is notified.
                                  reached = {};
                                  done();
                                },
                                std::move(failed)});
}

core::Result<void> CudaStream::synchronize(std::chrono::nanoseconds deadline) {
  struct Outcome {
    Marker over;
    std::optional<core::Error> error;  ///< written before `over` is reached
  };
  // Owned by this call and, if the deadline passes, by the entry that still waits.
  auto outcome = std::make_shared<Outcome>();
  expect([outcome] { outcome->over.reach(); },
         [outcome](const core::Error& error) {
           outcome->error = error;
           outcome->over.reach();
         });
  if (!outcome->over.wait_for(deadline)) {
    return core::fail(
        core::Errc::timeout,
        "expected stream '{}' of device {} to be empty within {} ms, but its tasks still run; look at the "
        "stream's trace for the task that does not end",
        name_, context_.device(), std::chrono::duration_cast<std::chrono::milliseconds>(deadline).count());
  }
  if (!outcome->error) return {};
  // Those notified of the failure release the memory, so everything enqueued before it must have ended.
  await_end(deadline);
  return tl::unexpected<core::Error>(*outcome->error);
}

void CudaStream::await_end(std::chrono::nanoseconds deadline) {
  const DeviceGuard guard(context_.device());
  const DeviceTime begin = host_now();
  while (queried(cudaStreamQuery(stream_)) == cudaErrorNotReady && host_now() - begin < deadline) {
    std::this_thread::sleep_for(context_.options.poll_period);
  }
}

DeviceKernels* CudaStream::kernels() {
  return kernels_.get();
}

bool CudaStream::run_native(std::string_view label, const std::function<int(void* native)>& launch) {
  run(label, [&](cudaStream_t stream) { return static_cast<cudaError_t>(launch(stream)); });
  return true;
}

void CudaStream::run(std::string_view label, const std::function<cudaError_t(cudaStream_t)>& launch) {
  if (context_.failure.is_set()) return;
  const DeviceGuard guard(context_.device());
  const core::ProfiledScope range(context_.profiler.get(), name_, label);
  if (context_.observer.is_occupied()) return run_observed(label, launch);
  context_.check(launch(stream_), label);
}

void CudaStream::run_observed(std::string_view label,
                              const std::function<cudaError_t(cudaStream_t)>& launch) {
  const DeviceTime enqueued = host_now();
  auto begin = context_.timing_events.take();
  auto end = context_.timing_events.take();
  if (!context_.check(begin) || !context_.check(end)) return;
  if (!context_.check(cudaEventRecord(begin->native(), stream_), "cudaEventRecord")) return;
  if (!context_.check(launch(stream_), label)) return;
  if (!context_.check(cudaEventRecord(end->native(), stream_), "cudaEventRecord")) return;
  report(label, enqueued, std::move(*begin), std::move(*end));
}

void CudaStream::report(std::string_view label, DeviceTime enqueued, PooledEvent begin, PooledEvent end) {
  // std::function must be copyable, an event is not: the closure is its only owner.
  auto first = std::make_shared<PooledEvent>(std::move(begin));
  auto done = [&context = context_, name = name_, label, enqueued, first](PooledEvent last) {
    const auto began = context.clock.time_of(first->native());
    const auto ended = context.clock.time_of(last.native());
    if (!context.check(began) || !context.check(ended)) return;
    // Two clocks never agree to the last bit; but nothing begins before it is enqueued, nor ends after its
    // completion was observed.
    const DeviceTime latest = host_now();
    const DeviceTime start = std::clamp(*began, enqueued, latest);
    context.observer.report({name, label, start, std::clamp(*ended, start, latest)});
    context.clock.offer(std::move(*first), *began);
  };
  context_.waiter.add(number_, {std::move(end), std::move(done), nullptr});
}

CudaStream& cuda_stream(StreamView stream) {
  auto* own = dynamic_cast<CudaStream*>(stream->bare());
  CHECK(own != nullptr, "this takes a stream of a CUDA device");
  return *own;
}

}  // namespace troupe::gpu
