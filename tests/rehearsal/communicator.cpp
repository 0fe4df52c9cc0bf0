#include "tests/rehearsal/communicator.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>
#include <utility>

#include "tests/nccl_emulation/fake_arithmetic.hpp"

namespace troupe::rehearsal {
namespace {

using Function = gpu::NcclCall::Function;

/// Calls the program's runtime, which exports this for the library.
int launch_on_host(gpu::NativeStream stream, void (*function)(void*), void* argument) {
  using LaunchHostFunc = int (*)(gpu::NativeStream, void (*)(void*), void*);
  static const auto call = reinterpret_cast<LaunchHostFunc>(dlsym(RTLD_DEFAULT, "cudaLaunchHostFunc"));
  constexpr int kNoSuchFunction = 500;
  return call == nullptr ? kNoSuchFunction : call(stream, function, argument);
}

}  // namespace

struct Communicator::Kernel {
  std::shared_ptr<Communicator> owner;
  std::vector<Launch> launches;
  std::size_t number = 0;
  std::size_t streams = 0;
  std::size_t arrived = 0;
  bool is_over = false;
};

/// One side of a message.
struct Communicator::Transfer {
  int peer = 0;
  bool sends = false;
  std::byte* memory = nullptr;
  std::size_t bytes = 0;  ///< that are left
};

/// What is left to do when all messages have come.
struct Communicator::Sum {
  const gpu::NcclCall* call = nullptr;
  std::vector<std::vector<std::byte>> inputs;  // by rank
  std::size_t count = 0;
};

Communicator::Communicator(std::unique_ptr<Mailboxes> mailboxes, int rank, int size)
    : rank_(rank), size_(size), mailboxes_(std::move(mailboxes)) {
  mailboxes_->join();
}

bool Communicator::launch(std::vector<Launch> calls) {
  auto kernel = std::make_shared<Kernel>();
  kernel->owner = shared_from_this();
  std::set<gpu::NativeStream> streams;
  for (const auto& each : calls) streams.insert(each.stream);
  kernel->launches = std::move(calls);
  kernel->streams = streams.size();
  {
    std::lock_guard lock(mutex_);
    kernel->number = launched_++;
  }
  for (const auto stream : streams) {
    // Owned by the stream's task.
    auto* const ticket = new std::shared_ptr<Kernel>(kernel);
    if (launch_on_host(stream, arrive, ticket) == 0) continue;
    delete ticket;
    return false;
  }
  return true;
}

bool Communicator::is_idle() {
  std::lock_guard lock(mutex_);
  return launched_ == over_;
}

void Communicator::abort() {
  is_aborted_ = true;
  std::unique_lock lock(mutex_);
  changed_.notify_all();
  changed_.wait(lock, [this] { return !is_running_; });
}

/// A stream has come to its part of a kernel; the last one runs it.
void Communicator::arrive(void* ticket) {
  const std::unique_ptr<std::shared_ptr<Kernel>> held(static_cast<std::shared_ptr<Kernel>*>(ticket));
  Kernel& kernel = **held;
  Communicator& self = *kernel.owner;
  std::unique_lock lock(self.mutex_);
  if (++kernel.arrived < kernel.streams) {
    self.changed_.wait(lock, [&] { return kernel.is_over || self.is_aborted_; });
    return;
  }
  self.changed_.wait(lock, [&] { return self.over_ == kernel.number || self.is_aborted_; });
  if (!self.is_aborted_) {
    self.is_running_ = true;
    lock.unlock();
    self.run(kernel);
    lock.lock();
    self.is_running_ = false;
  }
  kernel.is_over = true;
  ++self.over_;
  self.changed_.notify_all();
}

void Communicator::run(Kernel& kernel) {
  std::vector<Transfer> transfers;
  std::vector<Sum> sums;
  sums.reserve(kernel.launches.size());
  for (const auto& each : kernel.launches) add(each.call, transfers, sums);
  move(transfers);
  if (is_aborted_) return;
  for (const auto& sum : sums) {
    std::vector<const std::byte*> inputs;
    for (const auto& input : sum.inputs) inputs.push_back(input.data());
    const auto result = gpu::reduce_in_ring(sum.call->type, sum.call->reduction, inputs, sum.count);
    std::memcpy(sum.call->output, result.data(), result.size());
  }
}

void Communicator::add(const gpu::NcclCall& call, std::vector<Transfer>& transfers,
                       std::vector<Sum>& sums) const {
  const std::size_t bytes = call.count * gpu::size_of(call.type);
  const auto* const input = static_cast<const std::byte*>(call.input);
  auto* const output = static_cast<std::byte*>(call.output);
  const auto part = [bytes](auto* memory, int rank) {
    return memory + static_cast<std::size_t>(rank) * bytes;
  };
  const auto send = [&](int peer, const std::byte* data) {
    transfers.push_back({peer, true, const_cast<std::byte*>(data), bytes});
  };
  const auto receive = [&](int peer, std::byte* data) { transfers.push_back({peer, false, data, bytes}); };
  const bool sums_here = call.function == Function::all_reduce || call.function == Function::reduce_scatter ||
                         (call.function == Function::reduce && call.peer == rank_);
  if (sums_here) {
    sums.push_back(
        {&call, std::vector(static_cast<std::size_t>(size_), std::vector<std::byte>(bytes)), call.count});
  }
  for (int peer = 0; peer < size_; ++peer) {
    const bool is_root = call.peer == rank_;
    switch (call.function) {
      case Function::all_reduce:
        send(peer, input);
        break;
      case Function::reduce_scatter:
        send(peer, part(input, peer));
        break;
      case Function::reduce:
        if (peer == call.peer) send(peer, input);
        break;
      case Function::all_gather:
        send(peer, input);
        receive(peer, part(output, peer));
        break;
      case Function::broadcast:
        if (is_root) send(peer, input);
        if (peer == call.peer) receive(peer, output);
        break;
      case Function::send:
        if (peer == call.peer) send(peer, input);
        break;
      case Function::receive:
        if (peer == call.peer) receive(peer, output);
        break;
    }
    if (sums_here) receive(peer, sums.back().inputs[static_cast<std::size_t>(peer)].data());
  }
}

/// All at once, as far as the boxes allow; messages between two members one after another.
void Communicator::move(std::vector<Transfer>& transfers) {
  constexpr auto kLongestRest = std::chrono::microseconds(500);
  std::size_t left = transfers.size();
  auto rest = std::chrono::microseconds(1);
  while (left > 0 && !is_aborted_) {
    bool has_moved = false;
    left = 0;
    std::set<std::pair<int, bool>> taken;
    for (auto& transfer : transfers) {
      if (transfer.bytes == 0) continue;
      ++left;
      auto& [peer, sends, memory, bytes] = transfer;
      if (!taken.insert({peer, sends}).second) continue;
      const std::size_t moved =
          sends ? mailboxes_->put(rank_, peer, memory, bytes) : mailboxes_->take(peer, rank_, memory, bytes);
      has_moved = has_moved || moved > 0;
      memory += moved;
      bytes -= moved;
    }
    if (has_moved) rest = std::chrono::microseconds(1);
    if (left == 0 || has_moved) continue;
    // A loop of yields lets Linux 6.18 leave all other threads of the machine waiting for seconds.
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, rest, [this] { return is_aborted_.load(); });
    rest = std::min(2 * rest, kLongestRest);
  }
}

}  // namespace troupe::rehearsal
