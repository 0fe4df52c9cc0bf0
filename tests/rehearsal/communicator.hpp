#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gpu/collective/nccl/calls.hpp"
#include "tests/rehearsal/mailboxes.hpp"

namespace troupe::rehearsal {

/// What one member has of a communicator. Kernels run one after another, in the order in which they were
/// launched, each when all of its streams have come to it, and occupy these streams until it has ended.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  struct Launch {
    gpu::NcclCall call;
    gpu::NativeStream stream = nullptr;
  };

  Communicator(std::unique_ptr<Mailboxes> mailboxes, int rank, int size);

  int size() const { return size_; }
  bool have_all_joined() { return mailboxes_->have_all_joined(); }
  /// Puts a kernel of all these calls on their streams; false when a stream refuses it.
  bool launch(std::vector<Launch> calls);
  bool is_idle();
  /// Ends what runs, and makes nothing of what has not begun.
  void abort();

 private:
  struct Kernel;
  struct Transfer;
  struct Sum;

  static void arrive(void* ticket);
  void run(Kernel& kernel);
  void add(const gpu::NcclCall& call, std::vector<Transfer>& transfers, std::vector<Sum>& sums) const;
  void move(std::vector<Transfer>& transfers);

  const int rank_;
  const int size_;
  const std::unique_ptr<Mailboxes> mailboxes_;
  std::mutex mutex_;  // guards launched_, over_, is_running_ and what kernels have of arrivals
  std::condition_variable changed_;
  std::size_t launched_ = 0;
  std::size_t over_ = 0;
  bool is_running_ = false;  ///< a kernel, outside the lock
  std::atomic<bool> is_aborted_{false};
};

}  // namespace troupe::rehearsal
