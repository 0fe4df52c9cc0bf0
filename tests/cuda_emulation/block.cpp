#include "tests/cuda_emulation/block.hpp"

#include <sched.h>

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/fixedsize_stack.hpp>
#include <memory>
#include <utility>
#include <vector>

#include "core/errors.hpp"

thread_local uint3 threadIdx;
thread_local uint3 blockIdx;
thread_local dim3 blockDim;
thread_local dim3 gridDim;

namespace troupe::cuda_emulation {
namespace {

constexpr std::size_t kStackBytes = std::size_t{256} << 10;
constexpr unsigned kWarp = 32;

enum class Group { warp, block };

/// A stack on which threads of a block run, one after another, until one of them has to rest.
struct Fiber {
  boost::context::fiber inside;   ///< where its threads go on; empty while they run
  boost::context::fiber outside;  ///< where the block goes on; empty unless they run
  unsigned thread = 0;            ///< that rests here
  Group resting_for = Group::block;
  bool is_busy = false;
};

/// The block that runs in this thread of the host.
class Block {
 public:
  ~Block() {
    is_over_ = true;
    for (const auto& fiber : fibers_) resume(*fiber);
  }

  void run(unsigned threads, std::size_t shared_bytes, const std::function<void()>& body) {
    body_ = &body;
    threads_ = threads;
    next_ = 0;
    done_.assign(threads, false);
    shared_.resize(shared_bytes / sizeof(std::max_align_t) + 1);
    while (next_ < threads_) resume(idle_fiber());
    while (release(Group::warp) || release(Group::block)) {
    }
    CHECK(std::find(done_.begin(), done_.end(), false) == done_.end(),
          "all threads of a warp or a block come to the same barrier");
  }

  void* shared() { return shared_.data(); }

  void wait(Group group) {
    Fiber& self = *current_;
    self.thread = threadIdx.x;
    self.resting_for = group;
    self.outside = std::move(self.outside).resume();
  }

  std::uint64_t exchange(std::uint64_t value, unsigned lane) {
    const unsigned first = threadIdx.x / kWarp * kWarp;
    if (words_.size() < threads_) words_.resize(threads_);
    words_[threadIdx.x] = value;
    wait(Group::warp);
    const std::uint64_t found = first + lane < threads_ ? words_[first + lane] : value;
    // Nobody writes the next word before all have read this one.
    wait(Group::warp);
    return found;
  }

 private:
  void work(Fiber& self) {
    while (!is_over_) {
      while (next_ < threads_) {
        const unsigned thread = next_++;
        threadIdx = {thread, 0, 0};
        (*body_)();
        done_[threadIdx.x] = true;
      }
      self.is_busy = false;
      self.outside = std::move(self.outside).resume();
    }
  }

  void resume(Fiber& fiber) {
    current_ = &fiber;
    fiber.is_busy = true;
    threadIdx = {fiber.thread, 0, 0};
    fiber.inside = std::move(fiber.inside).resume();
  }

  /// Lets all go on who rest for a warp, or the block, whose other threads rest there too or are done. Only
  /// then: whoever goes on may rest again, for the next barrier.
  bool release(Group group) {
    std::vector<Fiber*> free;
    for (unsigned first = 0; first < threads_; first += kWarp) {
      const unsigned from = group == Group::block ? 0 : first;
      const unsigned end = group == Group::block ? threads_ : std::min(threads_, first + kWarp);
      std::vector<Fiber*> resting;
      for (const auto& fiber : fibers_) {
        if (fiber->is_busy && fiber->resting_for == group && fiber->thread >= from && fiber->thread < end) {
          resting.push_back(fiber.get());
        }
      }
      const auto done = static_cast<std::size_t>(std::count(done_.begin() + from, done_.begin() + end, true));
      if (resting.size() + done == end - from) free.insert(free.end(), resting.begin(), resting.end());
      if (group == Group::block) break;
    }
    for (Fiber* fiber : free) resume(*fiber);
    return !free.empty();
  }

  Fiber& idle_fiber() {
    for (const auto& fiber : fibers_) {
      if (!fiber->is_busy) return *fiber;
    }
    auto fiber = std::make_unique<Fiber>();
    fiber->inside = {std::allocator_arg, boost::context::fixedsize_stack(kStackBytes),
                     [this, &self = *fiber](boost::context::fiber&& outside) {
                       self.outside = std::move(outside);
                       work(self);
                       return std::move(self.outside);
                     }};
    fibers_.push_back(std::move(fiber));
    return *fibers_.back();
  }

  const std::function<void()>* body_ = nullptr;
  unsigned threads_ = 0;
  unsigned next_ = 0;  ///< the first thread that has not begun
  std::vector<bool> done_;
  std::vector<std::max_align_t> shared_;
  std::vector<std::uint64_t> words_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  Fiber* current_ = nullptr;
  bool is_over_ = false;
};

thread_local Block running;

}  // namespace

void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& thread) {
  blockDim = block;
  gridDim = grid;
  for (unsigned y = 0; y < grid.y; ++y) {
    for (unsigned x = 0; x < grid.x; ++x) {
      blockIdx = {x, y, 0};
      running.run(block.x, shared_bytes, thread);
    }
  }
}

void* dynamic_shared_memory() {
  return running.shared();
}

void block_barrier() {
  running.wait(Group::block);
}

std::uint64_t exchange_in_warp(std::uint64_t value, unsigned lane) {
  return running.exchange(value, lane);
}

unsigned lane_in_warp() {
  return threadIdx.x % kWarp;
}

void rest() {
  sched_yield();
}

}  // namespace troupe::cuda_emulation
