#include "tests/cuda_emulation/block.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
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
};

/// The threads of a warp, or of the whole block, that come to a barrier.
struct Gathering {
  unsigned threads = 0;
  unsigned done = 0;  ///< of them: have ended
  std::vector<Fiber*> resting;

  void begin(unsigned of_threads) {
    threads = of_threads;
    done = 0;
    resting.clear();
  }
  bool is_complete() const { return !resting.empty() && resting.size() + done == threads; }
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
    block_.begin(threads);
    warps_.resize((threads + kWarp - 1) / kWarp);
    for (unsigned warp = 0; warp < warps_.size(); ++warp)
      warps_[warp].begin(std::min(kWarp, threads - warp * kWarp));
    for (auto& words : words_) words.resize(threads);
    exchanges_.assign(threads, 0);
    shared_.resize(shared_bytes / sizeof(std::max_align_t) + 1);
    while (next_ < threads_) resume(idle_fiber());
    while (release_warps() || release(block_)) {
    }
    CHECK(block_.done == threads_, "all threads of a warp or a block come to the same barrier");
  }

  void* shared() { return shared_.data(); }

  void wait(Group group) {
    Fiber& self = *current_;
    self.thread = threadIdx.x;
    (group == Group::block ? block_ : warps_[threadIdx.x / kWarp]).resting.push_back(&self);
    self.outside = std::move(self.outside).resume();
  }

  std::uint64_t exchange(std::uint64_t value, unsigned lane) {
    const unsigned first = threadIdx.x / kWarp * kWarp;
    // Two in turns: who writes the next but one has met, in the next, all those who have read this one.
    auto& words = words_[exchanges_[threadIdx.x]++ % 2];
    words[threadIdx.x] = value;
    wait(Group::warp);
    return first + lane < threads_ ? words[first + lane] : value;
  }

 private:
  void work(Fiber& self) {
    while (!is_over_) {
      while (next_ < threads_) {
        const unsigned thread = next_++;
        threadIdx = {thread, 0, 0};
        (*body_)();
        ++warps_[threadIdx.x / kWarp].done;
        ++block_.done;
      }
      idle_.push_back(&self);
      self.outside = std::move(self.outside).resume();
    }
  }

  void resume(Fiber& fiber) {
    current_ = &fiber;
    threadIdx = {fiber.thread, 0, 0};
    fiber.inside = std::move(fiber.inside).resume();
  }

  /// Lets all go on who rest here if the others rest here too or are done. Only then: whoever goes on may
  /// rest again, for the next barrier.
  bool release(Gathering& gathering) {
    if (!gathering.is_complete()) return false;
    released_.clear();
    std::swap(released_, gathering.resting);
    for (Fiber* fiber : released_) resume(*fiber);
    return true;
  }

  bool release_warps() {
    bool any = false;
    for (auto& warp : warps_) any = release(warp) || any;
    return any;
  }

  Fiber& idle_fiber() {
    if (!idle_.empty()) {
      Fiber* const fiber = idle_.back();
      idle_.pop_back();
      return *fiber;
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
  Gathering block_;
  std::vector<Gathering> warps_;
  std::vector<Fiber*> released_;
  std::vector<std::max_align_t> shared_;
  std::array<std::vector<std::uint64_t>, 2> words_;
  std::vector<unsigned> exchanges_;  ///< of each thread
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
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
