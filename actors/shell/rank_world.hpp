#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "actors/roles/machine.hpp"
#include "actors/shell/inline_role.hpp"
#include "actors/shell/role_host.hpp"
#include "actors/shell/tracer.hpp"
#include "actors/shell/trainer_patience.hpp"
#include "actors/world/log.hpp"
#include "actors/world/storage.hpp"
#include "core/element_range.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"
#include "gpu/collective/group.hpp"
#include "gpu/device.hpp"
#include "messages/envelope.hpp"

namespace troupe::core {
class KnownPrograms;
}

namespace troupe::actors {

/// Filters what a Network returns for a message: a lost peer, or a network that has said farewell, is
/// reported elsewhere; any other Error is returned, with the message's name.
core::Result<void> check_sent(const messages::Envelope& envelope, core::Result<void> sent);

/// What a session leaves in its process for the next epoch.
struct Keepsake {
  virtual ~Keepsake() = default;
};

/// The world in which one rank lives: real processes, or the simulator. It provides everything one session
/// needs from outside.
class RankWorld {
 public:
  virtual ~RankWorld() = default;

  virtual core::Rank rank() const = 0;
  virtual core::WorldSize world_size() const = 0;
  virtual core::Epoch epoch() const = 0;
  virtual const std::string& job() const = 0;
  /// A number that no other call returns, in this world or, most likely, in any other. In the simulator it
  /// depends on the seed, the rank and the number of calls.
  virtual std::uint64_t unique() = 0;

  virtual gpu::Device& device() = 0;
  /// Host memory and streams that work on it: device() itself if the host can access its memory. For data in
  /// files or in another host's memory, which must not use any of a GPU.
  virtual gpu::Device& host_device() { return device(); }
  virtual TrainerPatience& patience() = 0;
  /// The collectives' back-end; `rendezvous` lives as long as the session. Before open(), when nothing can be
  /// sent yet.
  virtual core::Result<gpu::CollectiveBackend*> collectives(gpu::Rendezvous& rendezvous) = 0;
  /// The back-end for host_device(): the one of collectives(), which is called first, if both devices are the
  /// same.
  virtual core::Result<gpu::CollectiveBackend*> host_collectives(gpu::Rendezvous& rendezvous) = 0;

  /// What a rank keeps of a bucket.
  struct PublishedBits {
    core::Rank first;  ///< the first of the ranks that keep the same part of the model
    core::ElementRange range;
    std::uint64_t hash = 0;
  };
  struct Hooks {
    std::function<void(const messages::Envelope&)> to_trainer;
    std::function<void(const messages::Address& from, const Work&)> perform;
    /// The bits of the bucket's present parameters, to check that all ranks that keep a part hold the same.
    std::function<PublishedBits(core::BucketIndex bucket)> published_bits;
    Tracer* tracer = nullptr;
  };
  /// True once a session was created or attempted in this epoch; a world serves one in each.
  virtual bool is_used() const = 0;
  /// Once, before spawn().
  virtual core::Result<void> open(Hooks hooks) = 0;
  virtual void spawn(messages::Address address, std::unique_ptr<Machine> machine) = 0;
  /// Reaches the other ranks and starts every role.
  virtual core::Result<void> start() = 0;
  /// From any thread.
  virtual void post(messages::Envelope envelope) = 0;
  /// From the trainer's thread, which may run the role, and whoever it speaks to, before it goes on.
  virtual void post_and_run(messages::Envelope envelope) { post(std::move(envelope)); }
  /// Work that this role asked for has thrown `what` in a thread that is not its own: the role's parent
  /// decides. From any thread.
  virtual void blame(const messages::Address& role, std::string what) = 0;
  /// No actor runs and no message arrives afterwards. Idempotent.
  virtual void close() = 0;

  /// Asked on rank 0 at the end of each step: whether processes stand by that would join the job.
  virtual bool has_others_standing_by() { return false; }

  /// Whether this process may go on to another epoch, and what it holds for that: from keep() on, which
  /// replaces what was held before. Held things use device().
  virtual bool may_go_on() const { return false; }
  virtual void keep(std::unique_ptr<Keepsake>) {}
  virtual Keepsake* kept() { return nullptr; }

  /// Where checkpoints are; null if there is no place for them.
  virtual Storage* storage() = 0;
  /// How many threads may read from the storage at once.
  virtual std::size_t read_threads() const { return 1; }
  /// Runs `job` on the I/O worker, one job after another. From any thread; nothing runs after close().
  virtual void run_io(std::function<void()> job) = 0;
  /// Where the local copies of this rank alone are; null if there is no place for them. It is lost together
  /// with the rank's node.
  virtual Storage* local_storage() { return nullptr; }
  /// Those of other ranks that this rank can read, by their numbers: of the same node, or of ranks that were
  /// on it when the job had other ranks. Only what is older than a newer save may be removed from them.
  virtual std::map<core::Rank, Storage*> local_storages_beside() { return {}; }
  /// Like run_io(), on a separate worker, so that the storage of checkpoints does not hold up the local one.
  virtual void run_local_io(std::function<void()> job) { run_io(std::move(job)); }
  /// Where it is recorded what the rank does in this epoch; null: nowhere.
  virtual std::shared_ptr<gpu::FlightRecorder> recorder() { return nullptr; }
  /// What is said to people.
  virtual Logger log(Subsystem of) const = 0;

  /// What the ranks of this process have planned; null: it has one.
  virtual std::shared_ptr<core::KnownPrograms> programs() { return nullptr; }

  /// Is told what the roles do that run on the trainer's thread; null: nobody asks.
  virtual RoleWitness* witness() { return nullptr; }
  /// Who waits for whom, for this rank's actors.
  virtual std::vector<WaitReport> wait_reports() = 0;
  virtual std::uint64_t message_count() const = 0;
};

}  // namespace troupe::actors
