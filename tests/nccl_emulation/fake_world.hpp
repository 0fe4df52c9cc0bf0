#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gpu/collective/nccl/calls.hpp"
#include "tests/nccl_emulation/fake_arithmetic.hpp"
#include "tests/nccl_emulation/fake_nccl.hpp"

struct ncclComm;

namespace troupe::gpu {

/// Calls of one group on one communicator, which run together.
struct FakeKernel {
  struct Call {
    NcclCall call;
    NativeStream stream = nullptr;
  };

  ncclComm* comm = nullptr;
  std::vector<Call> calls;
  std::set<NativeStream> streams;
  std::vector<Completion> completions;  ///< of the streams that have come to it
  std::size_t calls_running = 0;
  bool begun = false;
  bool over = false;
};
using FakeKernelPointer = std::shared_ptr<FakeKernel>;  // shared by the world and tasks on streams

/// One side of something that happens between members.
struct FakeArrival {
  FakeKernelPointer kernel;
  NcclCall call;
  /// Whether all that it reads and writes is registered, or nothing of it, or some.
  enum class Memory { registered, other, mixed } memory = Memory::other;
};

/// The communicators of one unique id.
struct FakeClique {
  int size = 0;
  std::map<int, ncclComm*> members;
  std::map<std::uint64_t, std::map<int, FakeArrival>> meetings;  // by number of the collective
  struct Channel {
    std::deque<FakeArrival> sends;
    std::deque<FakeArrival> receives;
  };
  std::map<std::pair<int, int>, Channel> channels;  // by source and destination
};

struct FakeNcclProcess {
  struct Group {
    int depth = 0;
    NcclStatus error = NcclStatus::success;
    std::map<ncclComm*, std::vector<FakeKernel::Call>> calls;
  };

  std::shared_ptr<FakeNcclWorld> world;
  RunOnStream run_on_stream;
  FakeNcclMemory memory;
  std::map<std::thread::id, Group> groups;
  std::optional<std::thread::id> issuer;  ///< the thread whose launch is in progress
  std::deque<FakeKernelPointer> kernels;  ///< in the order of launches
  NcclStatus next_call = NcclStatus::success;
  NcclStatus memory_status = NcclStatus::success;
  std::optional<NcclStatus> registration_status;  ///< what to say instead of registering
  bool connects = true;
  bool aborts_block = false;
  NcclStatus destroy_status = NcclStatus::success;
  bool dead = false;
  FakeNcclSeen seen;
  std::vector<std::string> connections;
};

struct FakeNcclWorld {
  mutable std::mutex mutex;  // guards everything here, of processes, communicators and kernels
  std::condition_variable changed;
  FakeNcclOptions options;
  std::uint64_t ids = 0;
  std::map<std::string, std::shared_ptr<FakeClique>> cliques;
  // Never freed before the world: the use of one that is gone is found out.
  std::list<std::unique_ptr<ncclComm>> communicators;
  std::size_t live = 0;
  struct Range {
    std::size_t bytes = 0;
    FakeNcclProcess* process = nullptr;
  };
  std::map<const std::byte*, Range> ranges;  ///< what ncclMemAlloc gave
  std::size_t registered_operations = 0;
  std::vector<std::string> violations;
  bool closed = false;                  ///< the test has ended
  std::vector<Completion> to_complete;  ///< by whoever unlocks
};

/// Holds the world; calls what is to be completed after letting go.
class FakeNcclLock {
 public:
  explicit FakeNcclLock(FakeNcclWorld& world) : world_(world), lock_(world.mutex) {}
  ~FakeNcclLock() {
    std::vector<Completion> completions;
    completions.swap(world_.to_complete);
    lock_.unlock();
    for (const Completion& completion : completions) completion();
  }
  FakeNcclLock(const FakeNcclLock&) = delete;
  FakeNcclLock& operator=(const FakeNcclLock&) = delete;

  std::unique_lock<std::mutex>& lock() { return lock_; }

 private:
  FakeNcclWorld& world_;
  std::unique_lock<std::mutex> lock_;
};

// What follows is called with the world locked.

/// A stream came to the kernel.
void arrive_on_stream(const FakeKernelPointer& kernel, Completion completion);
/// Takes the communicator's kernels away, as an abort does.
void drop_kernels(ncclComm& comm);
bool has_kernels(const ncclComm& comm);
/// The communicator is no more.
void remove_communicator(ncclComm& comm);

/// One member's side, with what it has registered.
FakeArrival arrival_of(const FakeKernelPointer& kernel, const NcclCall& call);
/// Members meet: all of them must have registered, or none.
void compare_memory(FakeNcclWorld& world, const std::vector<FakeArrival::Memory>& memory);
/// Fills the table's functions of memory.
void add_memory_functions(NcclApi& api, const std::shared_ptr<FakeNcclProcess>& process);

}  // namespace troupe::gpu

struct ncclComm {
  enum class State { joining, idle, launching, finalizing, finalized, gone };

  std::shared_ptr<troupe::gpu::FakeNcclProcess> process;
  std::shared_ptr<troupe::gpu::FakeClique> clique;
  int rank = 0;
  State state = State::joining;
  int polls_left = 0;
  troupe::gpu::FakeKernelPointer pending;
  troupe::gpu::NcclStatus async = troupe::gpu::NcclStatus::success;
  std::uint64_t collectives = 0;
  std::string name;
  std::set<std::string> connected;  ///< what needs no new connections
  struct Registration {
    const std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };
  std::list<Registration> registrations;  // their addresses are the handles
};
