#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "actors/planes/step/communication.hpp"
#include "actors/shell/rank_world.hpp"
#include "core/result.hpp"
#include "gpu/collective/group.hpp"

namespace troupe::actors {

/// Brings what ranks have read from a checkpoint from one host's memory to another's, in jobs whose own
/// collectives move GPU memory. Its group is made when it is first needed.
class HostExchange {
 public:
  using MakeGroup = std::function<core::Result<std::unique_ptr<gpu::Group>>()>;

  /// `make_group` makes a group of all ranks for the world's host device; `deadline` applies to one round.
  /// The world must outlive it.
  HostExchange(RankWorld& world, MakeGroup make_group, std::chrono::nanoseconds deadline)
      : world_(world), make_group_(std::move(make_group)), deadline_(deadline) {}
  ~HostExchange();
  HostExchange(const HostExchange&) = delete;
  HostExchange& operator=(const HostExchange&) = delete;

  /// Before exchange(), by all ranks alike.
  core::Result<void> open();
  /// Like Launches::exchange_loaded().
  void exchange(LoadedBytes bytes);
  /// From any thread: running and later rounds end in `reason`.
  void abort(const core::Error& reason);

 private:
  void say(core::Result<void> result);

  RankWorld& world_;
  MakeGroup make_group_;
  std::chrono::nanoseconds deadline_;
  gpu::Stream stream_;
  std::mutex mutex_;                    // guards all below
  std::unique_ptr<gpu::Group> group_;   ///< does not change once set
  std::optional<core::Error> aborted_;  ///< the first reason
};

}  // namespace troupe::actors
